"""No engine is blamed for what it makes of values for which the ONNX standard defines no result."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from biopsy import errors, events
from biopsy.diagnosis.context import StepContext
from biopsy.diagnosis.facts import KnownFacts, RestFacts, UndefinedFacts
from biopsy.diagnosis.question import Words
from biopsy.diagnosis.steps.undefined import excused, has_rules, undefined_in, undefined_results, undefined_values
from biopsy.diagnosis.verdict import verdict_of
from biopsy.diagnosis.ways_out import ways_out
from biopsy.engines.base import ModelInput
from biopsy.engines.registry import EXACT, create
from biopsy.model.index import index_file
from biopsy.tensors.files import write_feeds
from support.diagnoses import SUSPECT, TRUSTED, facts, failure, piece, question
from support.models import info, model
from support.planting import planted as planted

UNDEFINED = [
    ("y = Cast<to = 7>(a)", {"a": np.float32([1, np.nan])}, "casts NaN or a value out of range to an integer type"),
    ("y = Cast<to = 3>(a)", {"a": np.float32([1, 128])}, "casts NaN or a value out of range to an integer type"),
    ("y = Cast<to = 2>(a)", {"a": np.float32([-1, 3])}, "casts NaN or a value out of range to an integer type"),
    ("y = Cast<to = 3>(a)", {"a": np.float32([127.9, -128.9])}, ""),
    ("y = Cast<to = 10>(a)", {"a": np.float32([1e9])}, ""),
    ("y = Cast<to = 3>(a)", {"a": np.int32([1000])}, ""),
    ("y = Div(a, b)", {"a": np.int32([1]), "b": np.int32([0])}, "divides an integer by zero"),
    ("y = Mod(a, zero)", {"a": np.int32([1])}, "divides an integer by zero"),
    ("y = Div(a, b)", {"a": np.float32([1]), "b": np.float32([0])}, ""),
    ("y = Gather(a, b)", {"a": np.float32([1, 2]), "b": np.int64([2])}, "has an index out of bounds"),
    ("y = Gather(a, b)", {"a": np.float32([1, 2]), "b": np.int64([-2])}, ""),
    ("y = Gather<axis = 1>(a, b)", {"a": np.zeros((1, 3)), "b": np.int64([2])}, ""),
    ("y = CastLike(a, b)", {"a": np.float32([np.nan]), "b": np.int64([0])}, "casts NaN or a value out of range"),
    ("y = CastLike(a, b)", {"a": np.float32([np.nan]), "b": np.float16([0])}, ""),
    ("y = GatherND(a, b)", {"a": np.zeros((2, 3)), "b": np.int64([[1, 3]])}, "has an index out of bounds"),
    ("y = GatherND(a, b)", {"a": np.zeros((2, 3)), "b": np.int64([[1, -3], [-2, 2]])}, ""),
    ("y = ScatterElements(a, b, other)", {"a": np.zeros(2), "b": np.int64([2])}, "has an index out of bounds"),
    ("y = ScatterND(a, b, other)", {"a": np.zeros(2), "b": np.int64([[2]])}, "has an index out of bounds"),
    ("y = Abs(a)", {"a": np.int8([-128])}, "overflows: the type has no such positive number"),
    ("y = Abs(a)", {"a": np.int8([-127])}, ""),
    ('y = BitShift<direction = "LEFT">(a, b)', {"a": np.uint8([1]), "b": np.uint8([8])}, "shifts by as many bits"),
    ("y = Div(other, b)", {"b": np.int32([0])}, "divides an integer by zero"),
    ("y = Gather(other, b)", {"b": np.int64([2])}, ""),
    ("y = Add(a, b)", {"a": np.int8([[100], [1]]), "b": np.int8([27, 28])}, "overflows its integer type"),
    ("y = Add(a, b)", {"a": np.int8([[100], [1]]), "b": np.int8([27, -128])}, ""),
    ("y = Add(a, b)", {"a": np.int64([2**63 - 1]), "b": np.int64([1])}, "overflows its integer type"),
    ("y = Add(a, b)", {"a": np.int64([2**63 - 2]), "b": np.int64([1])}, ""),
    ("y = Sub(a, b)", {"a": np.uint8([3, 4]), "b": np.uint8([4])}, "overflows its integer type"),
    ("y = Sub(a, b)", {"a": np.int8([3]), "b": np.int8([4])}, ""),
    ("y = Mul(a, b)", {"a": np.int32([65536]), "b": np.int32([32768])}, "overflows its integer type"),
    ("y = Mul(a, b)", {"a": np.int32([-65536]), "b": np.int32([32768])}, ""),
    ("y = Mul(a, b)", {"a": np.float32([1e30]), "b": np.float32([1e30])}, ""),
    ("y = Pow(a, b)", {"a": np.int32([2]), "b": np.int64([31])}, "overflows its integer type"),
    ("y = Pow(a, b)", {"a": np.int32([2]), "b": np.float32([30])}, ""),
]


@pytest.mark.parametrize(("node", "values", "reason"), UNDEFINED)
def test_what_the_standard_does_not_define_is_seen(node: str, values: Mapping[str, np.ndarray], reason: str) -> None:
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (a, b, other) => (y) <int32[1] zero = {{0}}> {{ {node} }}'
    found = [each.text for each in undefined_values(onnx.parser.parse_model(text), ["Node 'n'"], [values])]
    assert all(each.startswith(f"Node 'n' {reason}") for each in found) and len(found) == bool(reason)


@pytest.mark.parametrize(("opset", "is_undefined"), [(11, True), (27, True), (28, False)])
def test_what_a_later_opset_defines_acquits_no_engine(opset: int, is_undefined: bool) -> None:
    text = f'<opset_import: ["" : {opset}]> g (a, b) => (y) {{ y = BitShift<direction = "LEFT">(a, b) }}'
    feed = {"a": np.uint8([1]), "b": np.uint8([8])}
    assert bool([*undefined_values(onnx.parser.parse_model(text), ["n"], [feed])]) == is_undefined


def test_only_the_elements_that_are_undefined_are_replaced_in_whatever_sample() -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> g (a, b) => (y) { y = Div(a, b) }'
    samples = [{"a": np.int32([1, 1]), "b": np.int32(divisors)} for divisors in ([2, 3], [4, 0])]
    (found,) = undefined_values(onnx.parser.parse_model(text), ["Div"], samples)
    assert found.tensor == "b" and found.replaced(samples[1]["b"]).tolist() == [4, 1]


ALONE = ("biopsy", "run", "{}", "--engine", SUSPECT)


def divided(folder: Path, divisor: int, check: Words = ALONE) -> KnownFacts:
    """The facts about a piece that divides by this integer, after it was asked whether that is undefined."""
    path, inputs = folder / "piece.onnx", folder / "piece.onnx.inputs.safetensors"
    a, b, y = (info(name, (2, 3), TensorProto.INT64) for name in "aby")
    onnx.save(model([helper.make_node("Div", ["a", "b"], ["y"])], [a, b], [y]), path)
    write_feeds(inputs, [{"a": np.full((2, 3), 7), "b": np.full((2, 3), divisor)}])
    small = replace(piece("Div"), path=str(path), inputs=str(inputs))
    known = facts(failure=replace(failure("Fail", stage="run"), check=check), piece=small, layers=None, rounding=None)
    with StepContext(question(folder), events.ignore) as context:
        undefined = undefined_in(small, known, context)
    failing = known.known_failure if undefined is None else excused(known.known_failure, undefined)
    return replace(known, failure=failing, piece=replace(small, undefined=undefined))


def test_an_integer_divided_by_0_is_no_failure_of_an_engine(tmp_path: Path) -> None:
    known = replace(divided(tmp_path, 0), rest=RestFacts(answer="passes"))
    verdict = verdict_of(known, (), question(tmp_path))
    assert verdict.kind == "undefined" and "divides an integer by zero" in verdict.text
    assert "with other values there, and all others as they are, it does not fail" in verdict.text
    assert "the inputs, which biopsy drew" in verdict.text
    assert not verdict.reasons and not list(ways_out(known, question(tmp_path)))


@pytest.mark.parametrize(
    ("rest", "words"),
    [
        (None, "Whether the rest fails too is not known:"),
        (RestFacts(answer="fails"), "The rest of the model fails too:"),
        (RestFacts(answer="unknown", reason="no time"), "Whether the rest fails too is not known (no time):"),
    ],
)
def test_a_part_without_a_defined_result_excuses_no_other_part(
    tmp_path: Path, rest: RestFacts | None, words: str
) -> None:
    verdict = verdict_of(replace(divided(tmp_path, 0), rest=rest), (), question(tmp_path))
    assert verdict.kind == "unknown" and words in verdict.text and not verdict.not_tried


@pytest.mark.parametrize(
    ("divisor", "check"),
    [(2, ALONE), (0, ("biopsy", "run", "{}", "--engine", "fake:refuse.Div=run"))],
    ids=["another divisor", "fails without the 0 too"],
)
def test_an_engine_is_not_acquitted_for_a_division_that_does_not_matter(
    tmp_path: Path, divisor: int, check: Words
) -> None:
    assert divided(tmp_path, divisor, check).fault is None


@pytest.mark.parametrize("stage", ["load", "build"])
def test_values_excuse_no_failure_before_there_are_values(tmp_path: Path, stage: str) -> None:
    known = divided(tmp_path, 0)
    report = replace(known.known_failure.report, stage=stage)
    with StepContext(question(tmp_path), events.ignore) as context:
        early = replace(known, failure=replace(known.known_failure, report=report, fault=None))
        assert undefined_in(early.piece, early, context) is None


@pytest.mark.parametrize(("where", "is_acquitted"), [({}, False), ({"below": -(2**31) + 1}, True)])
def test_an_engine_is_acquitted_only_if_it_is_right_on_all_other_elements(
    tmp_path: Path, planted: Callable[..., str], where: dict[str, int], is_acquitted: bool
) -> None:
    path, inputs = tmp_path / "piece.onnx", tmp_path / "piece.onnx.inputs.safetensors"
    x, y = info("x", (3,), TensorProto.INT32), info("y", (3,), TensorProto.INT32)
    onnx.save(model([helper.make_node("Abs", ["x"], ["y"])], [x], [y]), path)
    write_feeds(inputs, [{"x": np.int32([1, np.iinfo(np.int32).min, -7])}])
    small = replace(piece("Abs"), path=str(path), inputs=str(inputs))
    engine = planted({"op": "Abs", "does": "add", "by": 1, **where})
    check = ("biopsy", "run", "{}", "--engine", TRUSTED, "--engine", engine)
    known = facts(failure=replace(failure(), check=check), piece=small, layers=None, rounding=None)
    with StepContext(question(tmp_path), events.ignore) as context:
        undefined = undefined_in(small, known, context)
    assert undefined is not None and undefined.explains == is_acquitted


BRANCH = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[4] x, bool k) => (int64[4] y) {
    b = Sqrt (x)
    y = If (k) <then_branch = yes () => (int64[4] t) { t = Cast <to = 7> (b) },
                else_branch = no () => (int64[4] e) { r = Ceil (b) e = Cast <to = 7> (r) }>
}
"""


@pytest.mark.parametrize(("taken", "tensor"), [(True, "t"), (False, "e")])
def test_a_run_in_float64_meets_what_is_not_defined_in_the_branch_that_is_taken(taken: bool, tensor: str) -> None:
    model, feed = onnx.parser.parse_model(BRANCH), {"x": np.float32([4, -1, 9, 16]), "k": np.bool_(taken)}
    given = ModelInput(model.SerializeToString(), Path())
    results = [
        create(f"{EXACT},undefined={choice}").build(given).run(feed)["y"].tolist() for choice in ("zero", "greatest")
    ]
    assert results == [[2, 0, 3, 4], [2, 2**63 - 1, 3, 4]]
    with pytest.raises(errors.EngineFailure, match=f"Cast of '{tensor}' casts NaN or a value out of range") as refused:
        create(f"{EXACT},undefined=refused").build(given).run(feed)
    assert refused.value.kind == "UndefinedResultError"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rules", "explains", "taken", "tensor"),
    [((), True, True, "t"), (({"op": "If", "does": "add", "by": 1},), False, False, "e")],
    ids=["OpenVINO differs only there", "wrong in every element"],
)
def test_what_is_not_defined_is_seen_in_a_body_and_excuses_only_what_depends_on_it(
    tmp_path: Path,
    planted: Callable[..., str],
    rules: tuple[dict[str, object], ...],
    explains: bool,
    taken: bool,
    tensor: str,
) -> None:
    onnx.save(onnx.parser.parse_model(BRANCH), tmp_path / "model.onnx")
    index = index_file(tmp_path / "model.onnx")
    feeds = [{"x": np.float32([4, -1, 9, 16]), "k": np.bool_(taken)}]
    failing = replace(failure(), suspect=planted(*rules) if rules else "openvino", trusted="reference")
    with StepContext(question(tmp_path), events.ignore) as context:
        found = undefined_results(index, feeds, failing, context)
        assert found is not None and found.explains is explains
        assert found.text == f"Cast of {tensor!r} casts NaN or a value out of range to an integer type"
        assert undefined_results(index, [{**feeds[0], "x": np.float32([4, 1, 9, 16])}], failing, context) is None


def test_a_piece_that_is_undefined_explains_no_other_element(tmp_path: Path) -> None:
    known = replace(divided(tmp_path, 0), rest=RestFacts(answer="passes"))
    assert verdict_of(known, (), question(tmp_path)).kind == "undefined"
    known = replace(known, undefined=UndefinedFacts(text="Div 'd' divides an integer by zero", explains=False))
    verdict = verdict_of(known, (), question(tmp_path))
    assert verdict.kind == "unknown" and "Other elements differ too" in verdict.text


@pytest.mark.parametrize(("is_sorted", "is_defined"), [(1, True), (0, False)])
def test_what_may_come_in_any_order_blames_nobody(tmp_path: Path, is_sorted: int, is_defined: bool) -> None:
    text = f"""<ir_version: 9, opset_import: ["" : 17]> g (int32[5] x) => (int32[3] y, int64[3] places)
    <int64[1] k = {{3}}> {{ y, places = TopK <sorted: int = {is_sorted}> (x, k) }}"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    index, feeds = index_file(tmp_path / "model.onnx"), [{"x": np.int32([1, 5, 2, 4, 3])}]
    assert has_rules(index) != is_defined
    with StepContext(question(tmp_path), events.ignore) as context:
        found = undefined_results(index, feeds, replace(failure(), suspect="onnxrt"), context)
    assert (found is None) == is_defined
    assert is_defined or (found is not None and found.explains is None)


def test_without_a_piece_no_engine_is_accused_of_what_may_be_undefined(tmp_path: Path) -> None:
    undefined = UndefinedFacts(text="Cast 'n' casts NaN")
    known = facts(piece=None, layers=None, undefined=undefined)
    verdict = verdict_of(known, (), question(tmp_path))
    assert verdict.kind == "unknown" and not verdict.reasons and not list(ways_out(known, question(tmp_path)))
    assert verdict.text.startswith("Whether an engine is at fault is not known: the ONNX standard defines no result")
    elsewhere = facts(piece=None, layers=None, undefined=replace(undefined, explains=False))
    assert verdict_of(elsewhere, (), question(tmp_path)).kind == "fails"
    assert verdict_of(facts(undefined=undefined), (), question(tmp_path)).kind == "reduced"  # the piece has none


@pytest.mark.parametrize(("op", "instead"), [("Add", "a"), ("Sub", "b"), ("Mul", "a"), ("Pow", "b")])
def test_an_overflow_is_mended_by_other_values_of_one_input(op: str, instead: str) -> None:
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (a, b) => (y) {{ y = {op}(a, b) }}'
    feed = {"a": np.uint8([[2], [255], [9]]), "b": np.uint8([1, 3])}
    (found,) = undefined_values(onnx.parser.parse_model(text), ["Node 'n'"], [feed])
    assert found.tensor == instead
    mended = {**feed, instead: found.replaced(feed[instead])}
    assert mended[instead].shape == feed[instead].shape and not np.array_equal(mended[instead], feed[instead])
    assert not list(undefined_values(onnx.parser.parse_model(text), ["Node 'n'"], [mended]))


@pytest.mark.parametrize(("dtype", "is_asked"), [("float", False), ("int32", True)])
def test_only_integers_are_looked_at_for_an_overflow(dtype: str, is_asked: bool, tmp_path: Path) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g ({dtype}[4] x) => ({dtype}[4] y) {{ a = Add(x, x) b = Mul(a, x) y = Sub(b, a) }}"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    assert has_rules(index_file(tmp_path / "model.onnx")) == is_asked


def test_all_that_depends_on_an_overflow_is_excused_and_nothing_else(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (int32[3] x) => (int32[3] y) <int32[1] k = {65536}> { m = Mul(x, k) y = Neg(m) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    index, feeds = index_file(tmp_path / "model.onnx"), [{"x": np.int32([1, 40000, 2])}]
    with StepContext(question(tmp_path), events.ignore) as context:
        found = undefined_results(index, feeds, replace(failure(), suspect="onnxrt"), context)
    assert found is not None and found.explains and found.text == "Mul of 'm' overflows its integer type"


NAN = [[1, np.nan, 3], [4, 6, 5]]
AMBIGUOUS = [
    ("y = ScatterND(x, i, u)", {"x": [0, 0, 0], "i": [[1], [-2], [0]], "u": [1, 2, 3]}, [[0, 1, 0]]),
    ("y = ScatterND(x, i, u)", {"x": [0, 0, 0], "i": [[1], [1], [0]], "u": [2, 2, 3]}, None),
    ("y = ScatterND(x, i, u)", {"x": [[0, 0]] * 3, "i": [[2], [2]], "u": [[1, 2], [1, 3]]}, [[[0, 0], [0, 0], [0, 1]]]),
    ('y = ScatterND<reduction = "add">(x, i, u)', {"x": [0, 0, 0], "i": [[1], [1]], "u": [1, 2]}, None),
    (
        "y = ScatterElements(x, i, u)",
        {"x": [[0, 0]] * 2, "i": [[1, 0], [1, 1]], "u": [[1, 2], [3, 4]]},
        [[[0, 0], [1, 0]]],
    ),
    ("y = ScatterElements<axis = -1>(x, i, u)", {"x": [[0, 0]], "i": [[1, -1]], "u": [[1, 2]]}, [[[0, 1]]]),
    ("y = ArgMax<axis = 1, keepdims = 0>(x)", {"x": NAN}, [[1, 0]]),
    ("y = ArgMin(x)", {"x": NAN}, [[[0, 1, 0]]]),
    ("y = ArgMax<axis = 1>(x)", {"x": [[np.nan], [1]]}, None),
    ("y, z = TopK(x, k)", {"x": NAN, "k": [2]}, [[[1, 1], [0, 0]]] * 2),
    ("y = ReduceMean<axes = [1], keepdims = 0>(x)", {"x": np.ones((2, 0))}, [[1, 1]]),
    ("y = ReduceMean<axes = [0]>(x)", {"x": np.ones((2, 0))}, None),
    ("y = ReduceLogSumExp<axes = [0]>(x)", {"x": np.ones((0, 2))}, None),
    ("y, z = MaxPool<kernel_shape = [2], strides = [2]>(x)", {"x": [[[1, 1, 2, 1]]]}, [[[[0, 0]]], [[[1, 0]]]]),
    ("y, z = MaxPool<kernel_shape = [2], strides = [1]>(x)", {"x": [[[3, 1, 3]]]}, None),
]


@pytest.mark.parametrize(("node", "values", "differing"), AMBIGUOUS)
def test_float64_gives_several_results_where_the_standard_leaves_the_result_open(
    node: str, values: Mapping[str, Sequence[object]], differing: Sequence[object] | None
) -> None:
    outputs = "y, z" if "z" in node else "y"
    made = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (x, i, u, k) => ({outputs}) {{ {node} }}'
    )
    feed = {name: np.asarray(value, np.int64 if name in "ik" else np.float32) for name, value in values.items()}
    given = ModelInput(made.SerializeToString(), Path())
    names = [each.name for each in made.graph.input if each.name not in feed]
    feed.update({name: np.float32([0]) for name in names})
    least, greatest = (create(f"{EXACT},undefined={each}").build(given).run(feed) for each in ("least", "greatest"))
    assert [np.asarray(least[name] != greatest[name]).astype(int).tolist() for name in least] == (
        differing or [np.zeros(each.shape, int).tolist() for each in least.values()]
    )
    refusal = pytest.raises(errors.EngineFailure) if differing else contextlib.nullcontext()
    with refusal:
        create(f"{EXACT},undefined=refused").build(given).run(feed)


@pytest.mark.parametrize(
    ("node", "is_asked"),
    [
        ("y = ReduceMean<axes = [1]>(x)", False),
        ("y = ReduceMean<axes = [1]>(o)", True),
        ("y = ArgMax(x)", True),
        ("y = ArgMax(n)", False),
        ("y = MaxPool<kernel_shape = [2]>(x)", False),
        ("y, z = MaxPool<kernel_shape = [2]>(x)", True),
    ],
)
def test_float64_is_run_only_where_a_result_may_be_left_open(node: str, is_asked: bool, tmp_path: Path) -> None:
    text = (
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[1,2,3] x, float[1,N,3] o, int32[2] n) => (y) {{ {node} }}'
    )
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    assert has_rules(index_file(tmp_path / "model.onnx")) == is_asked


@pytest.mark.parametrize(("does", "is_acquitted"), [({"below": 0.5}, True), ({}, False)])
def test_equal_indices_excuse_only_the_elements_that_are_written_twice(
    tmp_path: Path, planted: Callable[..., str], does: dict[str, float], is_acquitted: bool
) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[3] x, float[2] u) => (float[3] y)
    <int64[2,1] i = {1, 1}> { y = ScatterND (x, i, u) }"""
    path, inputs = tmp_path / "piece.onnx", tmp_path / "piece.onnx.inputs.safetensors"
    onnx.save(onnx.parser.parse_model(text), path)
    write_feeds(inputs, [{"x": np.float32([1, 1, 1]), "u": np.float32([2, 0])}])
    engine = planted({"op": "ScatterND", "does": "add", "by": 1, **does})
    check = ("biopsy", "run", "{}", "--engine", TRUSTED, "--engine", engine)
    failing = replace(failure(), check=check, suspect=engine, trusted="reference")
    small = replace(piece("ScatterND"), path=str(path), inputs=str(inputs))
    known = facts(failure=failing, piece=small, layers=None, rounding=None)
    with StepContext(question(tmp_path), events.ignore) as context:
        undefined = undefined_in(small, known, context)
    assert undefined is not None and undefined.explains == is_acquitted
    assert "writes several values to one element" in undefined.text
