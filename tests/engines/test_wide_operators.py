"""What onnx's evaluator lacks, in float64: the same values as ONNX Runtime's in float32, but for rounding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from biopsy import errors
from biopsy.engines.base import ModelInput
from biopsy.engines.reference_float64 import CONTRIB, OPERATORS
from biopsy.engines.registry import create
from biopsy.tensors.results import Array


def rand(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def whole(*shape: int, dtype: str = "uint8", most: int = 255) -> Array:
    return np.random.default_rng(5).integers(0, most, shape).astype(dtype)


VECTOR = np.linspace(0.5, 1.5, 32, dtype=np.float32)

CASES: list[tuple[str, str, list[Array | None], int, dict[str, Any]]] = [
    ("", "SimplifiedLayerNormalization", [rand(3, 32), VECTOR], 1, {"axis": -1, "epsilon": 1e-5}),
    ("", "Scatter", [rand(3, 4), whole(2, 4, dtype="int64", most=3), rand(2, 4, seed=1)], 10, {"axis": 0}),
    (CONTRIB, "BiasGelu", [rand(3, 32) * 4, rand(32, seed=1)], 1, {}),
    (CONTRIB, "DequantizeLinear", [whole(3, 32, dtype="uint16"), np.float32(0.1), np.uint16(7)], 1, {}),
    (CONTRIB, "FastGelu", [rand(3, 32) * 4, rand(32, seed=1)], 1, {}),
    (CONTRIB, "FastGelu", [rand(3, 32) * 4], 1, {}),
    (CONTRIB, "FusedConv", [rand(1, 4, 8, 8), rand(6, 4, 3, 3, seed=1), rand(6)], 1,
     {"activation": "LeakyRelu", "activation_params": [0.25], "pads": [1, 1, 1, 1], "strides": [2, 2]}),
    (CONTRIB, "FusedConv", [rand(1, 4, 8, 8), rand(6, 4, 1, 1, seed=1), rand(6), rand(1, 6, 8, 8, seed=2)], 1,
     {"activation": "Relu", "kernel_shape": [1, 1]}),
    (CONTRIB, "FusedGemm", [rand(8, 4), rand(8, 16, seed=1), rand(16, seed=2)], 1,
     {"transA": 1, "alpha": 0.5, "beta": 2.0, "activation": "LeakyRelu", "activation_alpha": 0.25}),
    (CONTRIB, "FusedMatMul", [rand(2, 8, 4), rand(2, 16, 8, seed=1)], 1, {"transA": 1, "transB": 1, "alpha": 0.25}),
    (CONTRIB, "FusedMatMul", [rand(4, 2, 8), rand(2, 8, 5, seed=1)], 1, {"transBatchA": 1}),
    (CONTRIB, "Gelu", [rand(3, 32) * 4], 1, {}),
    (CONTRIB, "MatMulNBits", [rand(3, 64), whole(16, 2, 16), rand(32, seed=3)], 1,
     {"K": 64, "N": 16, "bits": 4, "block_size": 32}),
    (CONTRIB, "MatMulNBits", [rand(3, 64), whole(16, 2, 16), rand(32, seed=3), whole(16), None, rand(16)], 1,
     {"K": 64, "N": 16, "bits": 4, "block_size": 32}),
    (CONTRIB, "MatMulNBits", [rand(3, 64), whole(16, 2, 32), rand(32, seed=3)], 1,
     {"K": 64, "N": 16, "bits": 8, "block_size": 32}),
    (CONTRIB, "QuickGelu", [rand(3, 32) * 4], 1, {"alpha": 1.5}),
    (CONTRIB, "SkipLayerNormalization",
     [rand(1, 3, 32), rand(1, 3, 32, seed=1), VECTOR, rand(32), rand(32, seed=2)], 4, {"epsilon": 1e-5}),
    (CONTRIB, "SkipSimplifiedLayerNormalization", [rand(1, 3, 32), rand(1, 3, 32, seed=1), VECTOR], 4, {}),
    (CONTRIB, "TransposeMatMul", [rand(2, 8, 4), rand(2, 16, 8, seed=1)], 1, {"transA": 1, "transB": 1}),
    *(("", "DequantizeLinear", inputs, opset, {"axis": axis} if axis else {})
      for opset in (10, 13, 19, 21, 25)
      for inputs, axis in (
          ([whole(2, 3, 4), np.float32(0.25), np.uint8(7)], 0),
          ([whole(2, 3, 4, dtype="int8", most=100), np.float32(0.25)], 0),
          ([whole(2, 3, 4), np.float32([0.25, 0.5, 2]), whole(3)], 1),
          ([whole(2, 3, 4), np.float32([0.25, 0.5, 2, 3]), whole(4)], -1),
      ) if opset > 10 or not axis),
    ("", "DequantizeLinear", [whole(2, 6), rand(2, 3), whole(2, 3)], 21, {"axis": 1, "block_size": 2}),
    ("", "DequantizeLinear", [whole(2, 5), rand(2, 3)], 21, {"axis": -1, "block_size": 2}),
]  # fmt: skip
"""(domain, operator, inputs, outputs of a contrib operator or opset of a standard one, attributes)."""


def single(domain: str, name: str, inputs: list[Array | None], number: int, attributes: dict[str, Any]) -> ModelInput:
    opset, outputs = (number, 1) if name in {"DequantizeLinear", "Scatter"} and not domain else (17, number)
    names = ["" if value is None else f"x{place}" for place, value in enumerate(inputs)]
    written = ["y", *("" for _ in range(outputs - 2)), *(["z"] if outputs > 1 else [])]
    node = helper.make_node(name, names, written, domain=domain, **attributes)
    fed = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.asarray(value).dtype), np.shape(value))
        for name, value in zip(names[:1], inputs[:1], strict=True)
    ]
    held = [
        numpy_helper.from_array(np.asarray(value), name)
        for name, value in zip(names[1:], inputs[1:], strict=True)
        if value is not None
    ]
    given = [helper.make_tensor_value_info(name, 1, None) for name in written if name]
    graph = helper.make_graph([node], "g", fed, given, held)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(CONTRIB, 1)]
    return ModelInput(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString(), Path())


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[1]}-{case[3]}")
def test_it_gives_what_onnx_runtime_gives(case: tuple[str, str, list[Array | None], int, dict[str, Any]]) -> None:
    model, feed = single(*case), {"x0": np.asarray(case[2][0])}
    found = create("reference:float64").build(model).run(feed)
    try:
        expected = create("onnxrt:optimization=none").build(model).run(feed)
    except errors.EngineFailure as refused:
        if "is under development" not in str(refused):
            raise
        pytest.skip("this version of ONNX Runtime does not know the opset")
    assert found.keys() == expected.keys()
    for name, value in found.items():
        assert value.dtype == np.float64
        np.testing.assert_allclose(value, expected[name], atol=3e-5, rtol=1e-4)


def test_every_operator_has_a_case() -> None:
    assert OPERATORS.keys() == {(domain, name) for domain, name, *_ in CASES}
