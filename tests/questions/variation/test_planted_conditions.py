"""What is said of failures whose true condition is known: nothing that is said may be false of any input.

An engine that is wrong by a rule is compared with the evaluator of onnx, in this process. Each condition that is said
is held against fresh models and inputs: where it does not hold, nothing may fail.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from biopsy.checks.command import CommandCheck
from biopsy.checks.outcome import Evidence
from biopsy.engines.runner import Inputs
from biopsy.model.index import index_bytes, index_file
from biopsy.questions.variation.features import Alternative, Feature, FedModel
from biopsy.questions.variation.result import Finding, Variation
from biopsy.questions.variation.vary import TrialMaker, VariationJob, features_of, vary
from biopsy.session.checked_search import SearchOptions
from biopsy.session.trial import Budget
from biopsy.tensors.files import read_feeds
from support.planted_engine import PlantedSession
from support.planted_features import says

Rules = Sequence[Mapping[str, Any]]


def is_wrong(model: onnx.ModelProto, rules: Rules, feeds: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the engine with these rules computes something else than the one without."""
    index = index_bytes(model.SerializeToString(), Path())
    right, wrong = (PlantedSession(model, each, index) for each in ((), rules))
    with np.errstate(all="ignore"):
        runs = [(right.run(feed), wrong.run(feed)) for feed in feeds]
    return any(
        not np.allclose(one[name], other[name], rtol=1e-4, atol=1e-6, equal_nan=True)
        for one, other in runs
        for name in one
    )


class PlantedCheck(CommandCheck):
    """A check that looks like our own run, and runs in this process."""

    stoppable = False

    def __init__(self, rules: Rules, inputs: Path | None = None) -> None:
        super().__init__(["biopsy", "run", "{}", "--reference", "--engine", "planted"], "candidate.onnx")
        self._rules, self._inputs = rules, inputs

    def fed(self, inputs: Path) -> CommandCheck:
        return PlantedCheck(self._rules, inputs)

    def run(self, candidate: Path, stop: object = None) -> Evidence:
        assert self._inputs is not None
        try:
            return Evidence(status=int(is_wrong(onnx.load(candidate), self._rules, read_feeds(self._inputs))))
        except Exception as error:  # what an engine would refuse
            return Evidence(status=3, output=str(error).encode())


@dataclass(frozen=True)
class Planted:
    """A graph, what is fed, the rules, which features the failure truly depends on, and which it does not."""

    graph: str
    rules: Rules
    feed: Mapping[str, Any]
    truly: tuple[str, ...] = ()
    never: tuple[str, ...] = ("size", "attribute", "dtype")
    opset: int = 17
    found: Mapping[str, str] = field(default_factory=dict)

    @property
    def model(self) -> onnx.ModelProto:
        return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : {self.opset}]>\n{self.graph}')


def normal(*shape: int, seed: int = 0, by: float = 1.0) -> Any:
    return (np.random.default_rng(seed).normal(size=shape) * by).astype(np.float32)


def with_first(value: float, values: Any) -> Any:
    changed = values.copy()
    changed.flat[0] = value
    return changed


RELU = "g (float[4,8] x) => (float[4,8] y) { y = Relu(x) }"
PRODUCT = "g (float[4,8] x, float[8,5] w) => (float[4,5] y) { p = MatMul(x, w) y = Relu(p) }"
SUM = "g (float[4,8] a, float[4,8] b) => (float[4,8] y) { s = Add(a, b) y = Relu(s) }"
DIV = "g (float[4,8] a, float[4,8] b) => (float[4,8] y) { y = Div(a, b) }"
SOFTMAX = "g (float[4,8,3] x) => (float[4,8,3] y) { s = Softmax<axis = 1>(x) y = Neg(s) }"
MEAN = "g (float[4,8] x) => (float[4] y) { m = ReduceMean<axes = [1], keepdims = 0>(x) y = Neg(m) }"
LEAKY = "g (float[4,8] x) => (float[4,8] y) { l = LeakyRelu<alpha = 0.25>(x) y = Relu(l) }"
LOG = """g (float[4,8] a) => (float[4,8] y)
<float[4,8] zero = {0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0}>
{ m = Abs(a) s = Sqrt(a) n = IsNaN(s) w = Where(n, zero, m) y = Neg(w) }"""
WEIGHTED = """g (float[4,3] x) => (float[4,2] y) <float[3,2] w = {0.5, 2.0, -1.0, 0.25, 0.75, -0.5}>
{ p = MatMul(x, w) y = Relu(p) }"""
POWER = "g (float[4,8] x) => (float[4,8] y) <float two = {2.0}> { p = Pow(x, two) y = Neg(p) }"


def scaled(op: str, **when: Any) -> Rules:
    return [{"op": op, "does": "scale", **when}]


ONE_LARGE = with_first(2.5, np.clip(normal(4, 8), -1, 1))
LAST_LARGE = ONE_LARGE[::-1, ::-1].copy()
SAME = normal(4, 8)

PLANTS = {
    "a first dimension, and no number of dimensions": Planted(
        "g (float[6,8] x) => (float[6,8] y) { s = Softmax<axis = -1>(x) y = Neg(s) }",
        scaled("Softmax", rows=3),
        {"x": normal(6, 8)},
        ("number of rows of x",),
        ("number of dimensions of x", "values of x", "attribute", "dtype"),
    ),
    "the same of two inputs of three dimensions": Planted(
        "g (float[6,2,8] a, float[6,2,8] b) => (float[6,2,8] y) { s = Add(a, b) y = Relu(s) }",
        scaled("Add", rows=3),
        {"a": normal(6, 2, 8), "b": normal(6, 2, 8, seed=1)},
        (),
        ("number of dimensions of a = b", "attribute", "dtype"),
    ),
    "above a threshold": Planted(RELU, scaled("Relu", above=1.5), {"x": ONE_LARGE}, ("values of x",)),
    "above a threshold, at the end": Planted(RELU, scaled("Relu", above=1.5), {"x": LAST_LARGE}, ("values of x",)),
    "above a small threshold": Planted(RELU, scaled("Relu", above=0.01), {"x": normal(4, 8)}, ("values of x",)),
    "a negative element": Planted(
        RELU, [{"op": "Relu", "does": "add", "negative": True}], {"x": with_first(-1, abs(normal(4, 8)))},
        ("values of x",), found={"values of x": "not all at least 0"},
    ),
    "no negative element": Planted(
        RELU, scaled("Relu", negative=False), {"x": abs(normal(4, 8))}, ("values of x",)
    ),
    "at least two rows": Planted(
        RELU, scaled("Relu", rows=2), {"x": normal(4, 8)}, ("number of rows of x",), ("number of columns of x",),
        found={"number of rows of x": "at least 2"},
    ),
    "at least four rows, which are there": Planted(
        RELU, scaled("Relu", rows=4), {"x": normal(4, 8)}, ("number of rows of x",), ("number of columns of x",),
        found={"number of rows of x": "at least 4"},
    ),
    "rows and a threshold": Planted(
        RELU, scaled("Relu", rows=3, above=1.5), {"x": ONE_LARGE}, ("number of rows of x", "values of x"),
        ("number of columns of x",),
    ),
    "a product above a threshold": Planted(
        PRODUCT, scaled("Relu", above=4.0), {"x": normal(4, 8), "w": normal(8, 5, seed=1)}
    ),
    "a negative element of a product": Planted(
        PRODUCT, [{"op": "Relu", "does": "add", "negative": True}],
        {"x": abs(normal(4, 8)), "w": with_first(-9, abs(normal(8, 5, seed=1)))},
    ),
    "no negative element of a product": Planted(
        PRODUCT, scaled("Relu", negative=False), {"x": abs(normal(4, 8)), "w": abs(normal(8, 5, seed=1))}
    ),
    "a sum above a threshold": Planted(
        SUM, scaled("Relu", above=2.0), {"a": ONE_LARGE, "b": abs(normal(4, 8, by=0.1))}
    ),
    "a divisor near zero": Planted(
        DIV, [{"op": "Div", "does": "add", "near_zero": 0.01, "input": 1}],
        {"a": normal(4, 8), "b": with_first(0.001, np.sign(normal(4, 8)) * (abs(normal(4, 8, seed=3)) + 0.5))},
        ("values of b",),
    ),
    "equal inputs": Planted(SUM, [{"op": "Add", "does": "add", "equal": True}], {"a": SAME, "b": SAME}, ()),
    "an axis of Softmax": Planted(
        SOFTMAX, scaled("Softmax", attribute={"axis": 1}), {"x": normal(4, 8, 3)}, ("axis of Softmax",), ("dtype",)
    ),
    "an axis and a threshold": Planted(
        SOFTMAX, scaled("Softmax", attribute={"axis": 1}, above=2.0), {"x": normal(4, 8, 3)}, ("axis of Softmax",),
        ("dtype",),
    ),
    "keepdims": Planted(
        MEAN, scaled("ReduceMean", attribute={"keepdims": 0}), {"x": normal(4, 8)}, ("keepdims of ReduceMean",),
        ("dtype", "number of rows of x", "number of columns of x"), 13, {"keepdims of ReduceMean": "0"},
    ),
    "a slope by what follows": Planted(
        LEAKY, [{"op": "Relu", "does": "add", "below": -0.3}], {"x": normal(4, 8)}, (), ("size", "dtype")
    ),
    "one element not negative": Planted(
        LOG, [{"op": "Sqrt", "does": "nan"}], {"a": with_first(0.7, normal(4, 8))}, ("values of a",)
    ),
    "with weights, above": Planted(WEIGHTED, scaled("Relu", above=2.0), {"x": normal(4, 3, by=2)}),
    "always": Planted(RELU, scaled("Relu"), {"x": abs(normal(4, 8))}),
    "only float32": Planted(
        RELU, scaled("Relu", dtype="float32"), {"x": normal(4, 8)}, (), ("size",)
    ),
    "an exponent": Planted(
        POWER, [{"op": "Pow", "does": "add", "exactly": 2.0, "input": 1}], {"x": normal(4, 8)}, ("values of two",),
        found={"values of two": "2"},
    ),
    "odd columns": Planted(
        "g (float[4,7] x) => (float[4,7] y) { y = Relu(x) }", scaled("Relu", odd=1), {"x": normal(4, 7)},
        ("number of columns of x",), ("number of rows of x", "dtype"), found={"number of columns of x": "odd"},
    ),
}  # fmt: skip


def varied(planted: Planted, folder: Path, checks: int = 600) -> Variation:
    onnx.save(planted.model, folder / "m.onnx")
    search = SearchOptions(candidate=folder / "candidate.onnx", budget=Budget(checks=checks))
    job = VariationJob(search=search, inputs=Inputs(given=[dict(planted.feed)]), values_free=True)
    return vary(index_file(folder / "m.onnx"), PlantedCheck(planted.rules), job)


def fresh(values: Any, random: np.random.Generator) -> Any:
    """Values of any size and sign in the shape and type of others."""
    if values.dtype.kind != "f":
        return random.integers(-3, 4, values.shape).astype(values.dtype)
    drawn = random.normal(random.choice([-2, 0, 0, 2]), 1, values.shape) * 10.0 ** random.uniform(-4, 1)
    kind = random.integers(5)
    drawn = abs(drawn) if kind == 0 else -abs(drawn) if kind == 1 else values * drawn.flat[0] if kind == 2 else drawn
    if kind == 3:
        drawn = np.where(random.random(values.shape) < 0.8, values, drawn)
    return drawn.astype(values.dtype)


def holds(short: str, values: Any) -> bool:
    """Whether a condition on values in words holds; read without the code that said it."""
    far, nothing = abs(values.astype(np.float64)), r"(-?[\d.e+-]+)"
    forms = {
        rf"not all at most {nothing}": lambda limit: bool((values > limit).any()),
        rf"all below {nothing}": lambda limit: bool((values < limit).all()),
        rf"all above {nothing}": lambda limit: bool((values > limit).all()),
        rf"not all at least {nothing}": lambda limit: bool((values < limit).any()),
        rf"not all within {nothing} of zero": lambda limit: bool((far > limit).any()),
        rf"all nearer to zero than {nothing}": lambda limit: bool((far < limit).all()),
        rf"all farther from zero than {nothing}": lambda limit: bool((far > limit).all()),
        rf"not all at least {nothing} from zero": lambda limit: bool((far < limit).any()),
        rf"above {nothing}": lambda limit: bool((values > limit).all()),
        rf"below {nothing}": lambda limit: bool((values < limit).all()),
        nothing: lambda limit: bool((values == limit).all()),
    }
    plain = {
        "not all zeros": bool(values.any()),
        "not 0": bool(values.any()),
        "all other than zero": bool(values.all()),
        "not all the same": bool(values.size and (values != values.flat[0]).any()),
        "all the same": bool((values == values.flat[0]).all()),
    }
    if short in plain:
        return plain[short]
    for form, test in forms.items():
        if match := re.fullmatch(form, short):
            return test(float(match[1]))
    raise ValueError(short)


def is_failing(planted: Planted, model: onnx.ModelProto, feed: Mapping[str, Any]) -> bool:
    try:
        return is_wrong(model, planted.rules, [feed])
    except Exception:  # no model that anything computes
        return False


def counterexamples(planted: Planted, finding: Finding, features: Sequence[Feature], fed: FedModel) -> Iterator[str]:
    """What fails although a condition denies it."""
    random = np.random.default_rng(7)
    if finding.what == "input":
        for number in range(150 if " = " not in finding.name else 0):
            feed = {
                name: fresh(values, random) if number % 2 or name == finding.name else values
                for name, values in planted.feed.items()
            }
            if not holds(finding.short, feed[finding.name]) and is_failing(planted, fed.model, feed):
                yield f"{finding.requirement}: fails with {feed[finding.name].tolist()}"
    elif finding.what == "weight":
        for _ in range(100):
            model = onnx.ModelProto.FromString(fed.model.SerializeToString())
            weight = next(each for each in model.graph.initializer if each.name == finding.name)
            values = fresh(numpy_helper.to_array(weight), random)
            weight.CopyFrom(numpy_helper.from_array(values, weight.name))
            if not holds(finding.short, values) and is_failing(planted, model, planted.feed):
                yield f"{finding.requirement}: fails with {values.tolist()}"
    else:
        for one in denied_by(finding, features):
            made = one.edit(fed)
            for _ in range(25 if made is not None else 0):
                feed = {name: fresh(values, random) for name, values in made.feeds[0].items()}
                if is_failing(planted, made.model, feed):
                    yield f"{finding.requirement}: fails with {one.text}"


def denied_by(finding: Finding, features: Sequence[Feature]) -> Sequence[Alternative]:
    """The changes of a size, an attribute or a type that a condition says do not fail."""
    feature = next(each for each in features if (each.what, each.name) == (finding.what, finding.name))
    numbers = feature.numbers
    if numbers is None:
        return [each for each in feature.alternatives if each.text in finding.gone]
    every = range(numbers.least, numbers.most + 1)
    return [numbers.with_value(value) for value in every if not says(finding.short, value)]


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTS)
def test_every_condition_that_is_said_is_true_of_what_was_planted(name: str, tmp_path: Path):
    planted = PLANTS[name]
    found = varied(planted, tmp_path)
    fed = FedModel(planted.model, [dict(planted.feed)])
    maker = TrialMaker(fed, PlantedCheck(planted.rules), tmp_path)
    try:
        features = list(features_of(maker, 16))
    finally:
        maker.close()
    false = [
        each for finding in found.fixed if finding.short for each in counterexamples(planted, finding, features, fed)
    ]
    assert not false, found.sentence
    fixed = {finding.title: finding for finding in found.fixed}
    assert set(planted.truly) <= fixed.keys(), found.sentence
    assert not [each.title for each in found.fixed if each.what in planted.never or each.title in planted.never]
    assert {title: fixed[title].short for title in planted.found} == dict(planted.found)
    assert found.complete
