"""onnx's shape inference and checker: what they say of sound models, and that no model harms this process by them."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from onnx import defs, parser

from biopsy.model import onnx_native
from biopsy.processes import own_process
from biopsy.processes.own_process import taken_by
from support.filling_models import FILLING


def model(text: str) -> onnx.ModelProto:
    return parser.parse_model('<ir_version: 9, opset_import: ["": 18, "odd": 1]> ' + text)


def shapes(told: onnx.ModelProto) -> dict[str, list[int | str]]:
    return {
        info.name: [
            dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in info.type.tensor_type.shape.dim
        ]
        for info in (*told.graph.value_info, *told.graph.output)
    }


SOUND = {
    "a shape that is computed": """g (float[2,3,4] x) => (float[N,M] y) { s = Shape (x)
        i = Constant <value = int64[1] {0}> ()  f = Gather (s, i)  m = Constant <value = int64[1] {-1}> ()
        t = Concat <axis = 0> (f, m)  y = Reshape (x, t) }""",
    "values only": "g (float[N] x) => (float[M] y) { y = Relu (x) }",
    "lengths that nobody knows": """g (int64 n) => (int64[K] y) { z = Constant <value = int64 {0}> ()
        o = Constant <value = int64 {1}> ()  r = Range (z, n, o)  y = Add (r, o) }""",
    "a body": """g (bool c, float[2,3] x) => (float[A,B] y) { y = If (c) <then_branch = t () => (float[C,D] a)
        { s = Shape (x)  a = Expand (x, s) }, else_branch = e () => (float[E,F] b) { b = Relu (x) }> }""",
}


@pytest.mark.parametrize("text", SOUND.values(), ids=SOUND)
def test_the_types_of_sound_models_are_those_of_onnx(text: str) -> None:
    given = model(text)
    expected = onnx.shape_inference.infer_shapes(given, data_prop=True)
    for _ in range(2):  # in a fork, and then in this process
        found = onnx_native.inferred(given)
        assert (shapes(found.model), found.left_out) == (shapes(expected), "")


def test_only_contradictory_models_are_objected_to() -> None:
    wrong = model("g (float[2,3] x, float[4,5] w) => (float[2,5] y) { y = MatMul (x, w) }")
    for _ in range(2):
        assert "Incompatible dimensions" in str(onnx_native.inferred(wrong, strict=True).objection)
        assert onnx_native.inferred(wrong).objection is None
    assert onnx_native.inferred(model(SOUND["values only"]), strict=True).objection is None


def test_long_tensors_keep_their_types_and_short_ones_their_values() -> None:
    given = model("""g (int64[8589934592] x, float[2,3] z) => (float[A] y, int64[B] v) {
        a = Cast <to = 7> (x)  v = Add (a, a)  s = Shape (z)  m = Constant <value = int64[1] {-1}> ()
        p = Constant <value = int64[1] {0}> ()  q = Gather (s, p)  t = Mul (q, m)  y = Reshape (z, t) }""")
    before = taken_by(os.getpid())
    found = onnx_native.inferred(given)
    assert taken_by(os.getpid()) - before < 50_000_000
    assert shapes(found.model)["v"] == [8589934592]
    assert "values of 2 nodes: a tensor has 8,589,934,592 elements" in found.left_out
    assert shapes(found.model)["t"] == [1]
    assert {node.domain for node in found.model.graph.node} == {""}
    assert [opset.domain for opset in found.model.opset_import] == ["", "odd"]
    assert own_process.taken_warnings().count(found.left_out) == 1


def test_what_only_data_propagation_finds_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_native, "MOST_SECONDS", 600.0)  # of memory: a loaded machine reaches that of time before
    monkeypatch.setattr(onnx_native, "_slow_judges", set())
    found = onnx_native.inferred(onnx.ModelProto.FromString(FILLING["a ConstantOfShape that propagation finds"]()))
    assert shapes(found.model)["u"] == [1]
    if tuple(map(int, onnx.__version__.split(".")[:2])) >= (1, 23):  # 1.19 does not follow it
        assert "was ended when it had taken 500.0 MB" in found.left_out


@pytest.fixture
def crashing(tmp_path: Path) -> Iterator[Path]:
    """An operator of which onnx's own inference dies, or writes who infers it: a file of process numbers."""
    pids = tmp_path / "pids"

    def infer(context: defs.OpSchema) -> None:  # type: ignore[name-defined]
        with pids.open("a") as file:
            file.write(f"{os.getpid()}\n")
        if (tmp_path / "crash").exists():
            os.kill(os.getpid(), signal.SIGSEGV)

    schema = defs.OpSchema(
        "Crash", "odd", 1, inputs=[defs.OpSchema.FormalParameter("x", "T")],
        outputs=[defs.OpSchema.FormalParameter("y", "T")], type_constraints=[("T", ["tensor(float)"], "")],
    )  # fmt: skip
    schema.set_type_and_shape_inference_function(infer)
    defs.register_schema(schema)
    yield pids
    defs.deregister_schema("Crash", 1, "odd")
    onnx_native.survived["inference"].discard(("odd", "Crash"))


ODD = "g (float[2] x) => (float[2] y) { y = odd.Crash (x) }"


def test_a_crash_of_onnx_is_survived_and_reported(crashing: Path) -> None:
    (crashing.parent / "crash").touch()
    for _ in range(2):  # it is asked in a fork again
        found = onnx_native.inferred(model(ODD), strict=True)
        assert found.objection == "onnx's shape inference ends its process with SIGSEGV"
        assert found.left_out == f"{found.objection}: only declared types are known"
        assert found.model.graph.output[0].name == "y"
    assert str(os.getpid()) not in crashing.read_text().split()


def test_operators_that_did_not_crash_need_no_further_fork(crashing: Path) -> None:
    for _ in range(2):
        assert onnx_native.inferred(model(ODD)).left_out == ""
    first, *_, last = crashing.read_text().split()
    assert first != str(os.getpid()) == last


def test_a_tensor_whose_bytes_do_not_fit_its_shape_is_inferred_in_a_fork_each_time(crashing: Path) -> None:
    given = model(ODD)
    given.graph.initializer.append(onnx.TensorProto(name="w", data_type=7, dims=[3], raw_data=b"1"))
    for _ in range(2):
        assert onnx_native.inferred(given).left_out == ""
    assert str(os.getpid()) not in crashing.read_text().split()


def test_a_model_without_opsets_whose_values_are_too_many_is_inferred_as_far_as_it_goes() -> None:
    given = model("g (int64[9000] x) => (int64[9000] y) { y = Add (x, x) }")
    del given.opset_import[:]
    for _ in range(2):  # in a fork, and then here
        assert "gives no answer" not in onnx_native.inferred(given).left_out


def test_an_error_of_biopsy_in_a_fork_is_no_fault_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_native, "survived", {"inference": set(), "checker": set()})
    monkeypatch.setattr(onnx_native, "_check", None)
    assert onnx_native.checker_objection(model(SOUND["values only"])) is None
