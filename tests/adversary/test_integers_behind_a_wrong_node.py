"""Golden values, and integers that depend on values: what was recorded behind a wrong node blames no other one.

One node of a model is not the one that golden values were made with. What is recorded of the model behind that node is
wrong: indices, masks, counts. A piece without the node that has such a value as a constant differs from golden values.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper
from onnx.reference import ReferenceEvaluator

import biopsy
from biopsy.api.running import index_of
from biopsy.checks.command_line import NO_WORDS, parse
from biopsy.checks.outcome import FunctionCheck
from biopsy.cli.app import main
from biopsy.recording.reference_run import Recording, ValuesInMemory
from biopsy.reduction.problem import Border
from biopsy.reduction.reduce import RecordingOptions, ReductionJob, run_job
from biopsy.reduction.result import Target
from biopsy.session.checked_search import SearchOptions
from biopsy.session.trial import Budget
from biopsy.tensors.files import write_feeds, write_results
from support.models import INT64, info, model, save, weight
from support.predicates import names

Values = dict[str, np.ndarray]
Node = helper.make_node
FEW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
MANY = settings(FEW, max_examples=1500)

WITH_GOLDEN_VALUES = parse(["biopsy", "run", "{}", "--load-outputs", "golden.json"])
OTHER = {
    "Abs": "Neg", "Neg": "Abs", "Tanh": "Neg", "Add": "Sub", "Sub": "Add", "Max": "Min", "Min": "Max",
    "ArgMax": "ArgMin", "ArgMin": "ArgMax", "Greater": "Less", "Less": "Greater",
}  # fmt: skip
"""What an operator may be replaced by."""


def _steps(draw: st.DrawFn, known: Sequence[str], number: int) -> list[onnx.NodeProto]:
    """A few nodes that end in a float tensor ``t<number>`` [2, 4], most of them through integers or masks."""
    a, b = draw(st.sampled_from(known[-3:])), draw(st.sampled_from(known))
    end, inner = f"t{number}", [f"{letter}{number}" for letter in "ijk"]
    i, j, k = inner
    ways: dict[str, Callable[[], list[onnx.NodeProto]]] = {
        "one": lambda: [Node(draw(st.sampled_from(["Abs", "Neg", "Tanh"])), [a], [end])],
        "two": lambda: [Node(draw(st.sampled_from(["Add", "Sub", "Max", "Min"])), [a, b], [end])],
        "arg": lambda: [
            Node(draw(st.sampled_from(["ArgMax", "ArgMin"])), [a], [i], axis=1, keepdims=1),
            Node("GatherElements", [b, i], [j], axis=1),
            Node("Add", [a, j], [end]),
        ],
        "top": lambda: [
            Node("TopK", [a, "four"], [i, j], axis=1),
            Node("GatherElements", [b, j], [end], axis=1),
        ],
        "mask": lambda: [
            Node(draw(st.sampled_from(["Greater", "Less"])), [a, b], [i]),
            Node("Where", [i, a, b], [end]),
        ],
        "count": lambda: [
            Node("Greater", [a, "zero"], [i]),
            Node("NonZero", [i], [j]),
            Node("ReduceSum", [j, "one"], [k], keepdims=1),
            Node("Cast", [k], [f"c{number}"], to=1),
            Node("Add", [a, f"c{number}"], [end]),
        ],
    }
    made = ways[draw(st.sampled_from([*ways, "arg", "mask"]))]()
    for node in made:
        node.name = f"n_{node.output[0]}"
    return made


@dataclass(frozen=True)
class Case:
    """A model, the node that is wrong in it, inputs, and golden values; ``inner`` are given for inner tensors too."""

    wrong: onnx.ModelProto
    planted: str
    given: list[Values]
    golden: list[Values]


def computed(made: onnx.ModelProto, feed: Mapping[str, np.ndarray]) -> Values:
    """Every tensor of a model, by onnx's evaluator."""
    marked = onnx.ModelProto.FromString(made.SerializeToString())
    del marked.graph.output[:]
    marked.graph.output.extend(onnx.ValueInfoProto(name=name) for node in made.graph.node for name in node.output)
    outputs = [entry.name for entry in marked.graph.output]
    return {**feed, **dict(zip(outputs, ReferenceEvaluator(marked).run(None, dict(feed)), strict=True))}


@st.composite
def cases(draw: st.DrawFn) -> Case:
    known, nodes = ["x"], list[onnx.NodeProto]()
    for number in range(draw(st.integers(1, 5))):
        nodes += _steps(draw, known, number)
        known.append(f"t{number}")
    read = {name for node in nodes for name in node.input}
    ends = [info(name, (2, 4)) for name in known if name[0] == "t" and name not in read]
    weights = [weight("four", 4, dtype="int64"), weight("one", 1, dtype="int64"), weight("zero", 0.0)]
    right = model(nodes, [info("x", (2, 4))], ends, weights)
    wrong = onnx.ModelProto.FromString(right.SerializeToString())
    changed = draw(st.sampled_from([node for node in wrong.graph.node if node.op_type in {*OTHER, "TopK"}] or [None]))
    if changed is None:
        changed = wrong.graph.node[0]
    if changed.op_type == "TopK":
        changed.attribute.append(helper.make_attribute("largest", 0))
    else:
        changed.op_type = OTHER.get(changed.op_type, changed.op_type)
    lots = np.random.default_rng(draw(st.integers(0, 99)))
    feeds = [{"x": lots.normal(0, 1, (2, 4)).astype(np.float32)} for _ in range(draw(st.integers(1, 2)))]
    rights = [computed(right, feed) for feed in feeds]
    inner = [name for node in nodes for name in node.output]
    compared = {end.name for end in ends} | draw(
        st.one_of(st.just(set()), st.sets(st.sampled_from(inner)), st.just({*inner}))
    )
    fed = draw(st.one_of(st.just(set()), st.just({*compared}), st.sets(st.sampled_from(inner))))
    given_values = [{name: values[name] for name in {"x", *fed}} for values in rights]
    golden = [{name: values[name] for name in compared} for values in rights]
    return Case(wrong, changed.name, given_values, golden)


def differs(case: Case, candidate: onnx.ModelProto) -> bool:
    """What ``biopsy run --load-inputs --load-outputs`` says; raises CannotCompare where that cannot say anything."""
    fed = [entry.name for entry in candidate.graph.input]
    outputs = [entry.name for entry in candidate.graph.output if entry.name in case.golden[0]]
    if not outputs or any(name not in case.given[0] for name in fed):
        raise biopsy.CannotCompare("it has no values, or nothing to compare")
    evaluator = ReferenceEvaluator(candidate)
    for values, golden in zip(case.given, case.golden, strict=True):
        found = evaluator.run(outputs, {name: values[name] for name in fed})
        for name, value in zip(outputs, found, strict=True):
            if value.shape != golden[name].shape or not np.allclose(value, golden[name], atol=1e-4):
                return True
    return False


@contextmanager
def recorded_here(case: Case) -> Iterator[None]:
    """The original is recorded in this process, without an engine that must be loaded each time."""
    recorded = ValuesInMemory([computed(case.wrong, {"x": values["x"]}) for values in case.given])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Recording, "_first_run", lambda recording: recorded)
        yield


@dataclass(frozen=True, kw_only=True)
class Asked:
    """How a case is reduced; ``told``: the check's words tell that it has golden values."""

    told: bool
    border: Border
    values: str
    checks: int | None


ASKED = st.builds(
    Asked,
    told=st.booleans(),
    border=st.sampled_from([Border(), Border(), Border(cut="constant"), Border(mark_intermediate=True)]),
    values=st.sampled_from(["auto", "keep"]),
    checks=st.sampled_from([None, None, None, 6, 9, 12, 16]),
)


def reduced(case: Case, folder: Path, asked: Asked) -> list[str]:
    """The names of the nodes of the result."""

    def fails(candidate: onnx.ModelProto) -> bool:
        return differs(case, candidate)

    job = ReductionJob(
        target=Target(folder / "r.onnx"),
        search=SearchOptions(candidate=folder / "candidate.onnx", budget=Budget(checks=asked.checks)),
        recording=RecordingOptions(samples=lambda: case.given),
        border=asked.border,
        values=asked.values,
        command=WITH_GOLDEN_VALUES if asked.told else NO_WORDS,
    )
    with closing(FunctionCheck(fails, takes="model")) as check, recorded_here(case):
        run_job(index_of(case.wrong), check, job)
    return names(onnx.load(folder / "r.onnx"))


def hold(case: Case, folder: Path, asked: Asked) -> None:
    if not differs(case, case.wrong):
        return
    found = reduced(case, folder, asked)
    assert case.planted in found
    every = {name for node in case.wrong.graph.node for name in node.output}
    if every <= case.given[0].keys() & case.golden[0].keys() and asked.checks is None:
        assert found == [case.planted]


@given(case=cases(), asked=ASKED)
@FEW
def test_every_piece_holds_the_node_that_is_wrong(case: Case, asked: Asked, tmp_path: Path) -> None:
    hold(case, tmp_path, asked)


@pytest.mark.slow
@given(case=cases(), asked=ASKED)
@MANY
def test_every_piece_of_many_holds_the_node_that_is_wrong(case: Case, asked: Asked, tmp_path: Path) -> None:
    hold(case, tmp_path, asked)


def picking(operator: str) -> onnx.ModelProto:
    """What stands where the greatest of each row is, or the smallest, with the sign changed."""
    nodes = [
        Node("Abs", ["x"], ["a"], name="abs"),
        Node(operator, ["a"], ["i"], name="arg", axis=1, keepdims=1),
        Node("GatherElements", ["a", "i"], ["g"], name="gather", axis=1),
        Node("Neg", ["g"], ["y"], name="neg"),
    ]
    return model(nodes, [info("x", (2, 4))], [info("y", (2, 1))], value_info=[info("i", (2, 1), INT64)])


X = {"x": np.linspace(-1, 2, 8, dtype=np.float32).reshape(2, 4)}


@pytest.mark.parametrize(
    ("inner", "fed", "more"),
    [
        pytest.param((), "in.json", (), marks=pytest.mark.slow),
        (("a",), "in.json", ()),
        pytest.param(("a",), "in.json", ("--cut", "constant"), marks=pytest.mark.slow),
        pytest.param((), "cut.json", ("--load-inputs", "in.json", "--iter-inputs", "cut.json"), marks=pytest.mark.slow),
    ],
)
def test_golden_values_given_to_our_own_run_blame_no_node_for_an_index_that_another_one_computes(
    inner: Sequence[str], fed: str, more: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save(picking("ArgMin"), tmp_path / "m.onnx")
    results = biopsy.run(picking("ArgMax"), inputs=X, outputs="all")
    right = results[0].iterations[0].outputs
    write_feeds(tmp_path / "in.json", [{**X, **{name: right[name] for name in inner}}])
    write_results(tmp_path / "golden.json", biopsy.run(picking("ArgMax"), inputs=X, outputs=["y", *inner]))
    check = ["--check", "biopsy", "run", "{}", "--onnxrt", "--load-inputs", fed, "--load-outputs", "golden.json"]
    assert main(["debug", "reduce", "m.onnx", "-o", "r.onnx", *more, *check]) == 0
    assert "arg" in names(onnx.load(tmp_path / "r.onnx"))


def test_an_index_may_be_a_constant_where_the_failure_is_no_comparison(tmp_path: Path) -> None:
    """What crashes with golden values crashes without them."""

    def fails(candidate: onnx.ModelProto) -> bool:
        if "gather" in names(candidate):
            raise biopsy.EngineFailure("no kernel", engine="e", stage="run", kind="NotImplemented")
        return False

    def reduced_with(function: Callable[[onnx.ModelProto], bool]) -> list[str]:
        case = Case(picking("ArgMin"), "", [X], [{}])
        job = ReductionJob(
            target=Target(tmp_path / "r.onnx"),
            search=SearchOptions(candidate=tmp_path / "candidate.onnx"),
            recording=RecordingOptions(samples=lambda: [X]),
            command=WITH_GOLDEN_VALUES,
        )
        with closing(FunctionCheck(function, takes="model")) as check, recorded_here(case):
            run_job(index_of(case.wrong), check, job)
        return [entry.name for entry in onnx.load(tmp_path / "r.onnx").graph.initializer]

    assert reduced_with(fails) == ["i"]
    assert reduced_with(lambda candidate: "gather" in names(candidate)) == []
