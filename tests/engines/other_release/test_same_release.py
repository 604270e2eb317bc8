"""The release that is installed, run from another interpreter: whatever is asked of it, it answers as it does here."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from biopsy import errors
from biopsy.engines.base import LayerRecord, ModelInput
from biopsy.engines.registry import create
from support.models import chain, info, model, weight

ELSEWHERE = f"python={sys.executable}"
UNARY = {1: ("Relu", "Neg", "Sigmoid", "Softmax"), 10: ("Relu", "Neg"), 7: ("Neg", "Abs"), 9: ("Not",)}
"""Element type -> operators that take and give it."""

graphs = st.sampled_from(sorted(UNARY)).flatmap(
    lambda elem: st.tuples(
        st.just(elem),
        st.lists(st.sampled_from(UNARY[elem]), min_size=1, max_size=4),
        st.lists(st.integers(1, 3), min_size=1, max_size=3),
        st.integers(0, 9),
        st.sampled_from(["none", "basic", "all"]),
    )
)


def told(spec: str, made: onnx.ModelProto, feed: dict[str, Any]) -> Any:
    """All that an engine says of a model, and gives for a feed; or how it fails."""
    try:
        session = create(spec).build(ModelInput(made.SerializeToString(), Path()))
        found = session.run(feed)
        values = {name: (value.dtype, value.shape, value.tobytes()) for name, value in found.items()}
        return dict(session.inputs), list(session.outputs), list(session.remarks), values
    except errors.EngineFailure as failure:
        return failure.engine, failure.stage, failure.kind, failure.message


@given(drawn=graphs)
@settings(max_examples=15, deadline=None)
def test_a_small_graph_of_any_type_gives_the_same_bits(drawn: tuple[int, list[str], list[int], int, str]) -> None:
    elem, ops, shape, seed, level = drawn
    made = chain(len(ops), ops)
    for port in (*made.graph.input, *made.graph.output):
        port.CopyFrom(info(port.name, shape, elem))
    dtype = helper.tensor_dtype_to_np_dtype(elem)
    feed = {"t0": (np.random.default_rng(seed).standard_normal(shape) * 3).astype(dtype)}
    assert told(f"onnxrt:{ELSEWHERE},optimization={level}", made, feed) == told(
        f"onnxrt:optimization={level}", made, feed
    )


FAILING = {
    "an unknown operator": model([helper.make_node("NoSuch", ["x"], ["y"])], [info("x")], [info("y")]),
    "a damaged graph": model([helper.make_node("Relu", ["no such"], ["y"])], [info("x")], [info("y")]),
    "a wrong shape": model([helper.make_node("Reshape", ["x", "s"], ["y"])], [info("x", None)], [info("y", None)],
                           [weight("s", 7, dtype="int64", shape=(1,))]),
    "an attribute that is none": model([helper.make_node("Concat", ["x"], ["y"], axis=9)], [info("x")], [info("y")]),
}  # fmt: skip


@pytest.mark.parametrize("engine", ["onnxrt", "reference"])
@pytest.mark.parametrize("name", FAILING)
def test_a_failure_has_the_same_stage_kind_and_message(engine: str, name: str) -> None:
    feed = {"x": np.ones((2, 2), np.float32)}
    assert told(f"{engine}:{ELSEWHERE}", FAILING[name], feed) == told(engine, FAILING[name], feed)


def test_a_damaged_file_is_a_damaged_file() -> None:
    with pytest.raises(errors.ModelError):
        create(f"onnxrt:{ELSEWHERE}").build(ModelInput(b"\x08\x0a\x12\xff", Path()))


def test_layers_are_the_same() -> None:
    made = model(
        [helper.make_node("Gemm", ["x", "w"], ["h"], name="g"), helper.make_node("Relu", ["h"], ["y"], name="r")],
        [info("x")],
        [info("y")],
        [weight("w", 1, 2, 3, 4, shape=(2, 2))],
    )

    def layers(spec: str) -> list[LayerRecord]:
        session = create(spec).build(ModelInput(made.SerializeToString(), Path()))
        session.run({"x": np.ones((2, 2), np.float32)})
        return [dataclasses.replace(layer, time_us=None) for layer in session.layers()]

    assert layers(f"onnxrt:{ELSEWHERE},profile") == layers("onnxrt:profile")


def test_maps_are_fed_and_given() -> None:
    made = model([helper.make_node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[4, 5])],
                 [info("x", (1, 2))], [onnx.ValueInfoProto(name="y")])  # fmt: skip
    held = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    made.graph.output[0].type.CopyFrom(helper.make_sequence_type_proto(held))
    made.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    feed = {"x": np.array([[0.25, 0.75]], np.float32)}
    assert told(f"onnxrt:{ELSEWHERE}", made, feed) == told("onnxrt", made, feed)


def test_an_option_that_is_wrong_there_is_wrong_usage() -> None:
    with pytest.raises(errors.UsageError, match="onnxruntime knows no execution provider 'cpuu'"):
        create(f"onnxrt:{ELSEWHERE},providers=cpuu").build(ModelInput(chain(1).SerializeToString(), Path()))


def test_the_environment_tells_what_it_holds() -> None:
    engine = create(f"onnxrt:{ELSEWHERE}")
    facts = engine.imports.facts()
    assert facts["python"] == ".".join(map(str, sys.version_info[:3]))
    assert facts["numpy"] == np.__version__
    assert facts["onnxruntime"] == engine.version() == create("onnxrt").version()
