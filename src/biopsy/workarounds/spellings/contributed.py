"""Operators of com.microsoft, which ONNX Runtime writes into optimized models, as operators of ONNX."""

from __future__ import annotations

from collections.abc import Sequence

from biopsy.workarounds.spellings.activations import gelu_by_erf, gelu_by_tanh
from biopsy.workarounds.spellings.normalization import normalized
from biopsy.workarounds.spellings.site import FLOAT, Site
from biopsy.workarounds.spellings.spelling import MICROSOFT, Spelling


def _activated(at: Site, x: str, name: str, parameters: Sequence[float]) -> str:
    """The activation that a fused operator names, with its parameters."""
    if not name:
        return x
    at.require(name in {"Relu", "Tanh", "Sigmoid", "LeakyRelu", "Clip", "HardSigmoid"})
    if name == "LeakyRelu":
        return at.new("LeakyRelu", x, alpha=parameters[0] if parameters else None)
    if name == "HardSigmoid":
        at.require(len(parameters) == 2)
        return at.new("HardSigmoid", x, alpha=parameters[0], beta=parameters[1])
    if name == "Clip":
        at.require(len(parameters) == 2)
        if at.opset < 11:
            return at.new("Clip", x, min=parameters[0], max=parameters[1])
        return at.new("Clip", x, *(at.constant(bound, FLOAT) for bound in parameters))
    return at.new(name, x)


def _fused_conv(at: Site) -> str:
    x, weight, bias, other = at.inputs(4)
    kept = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    given = {name: at.attribute(name, None) for name in kept}
    found = at.new("Conv", x, weight, bias, **given)
    if other:
        found = at.new("Add", found, other)
    return _activated(at, found, at.attribute("activation", ""), at.attribute("activation_params", []))


def _fused_gemm(at: Site) -> str:
    given = {name: at.attribute(name, None) for name in ("alpha", "beta", "transA", "transB")}
    found = at.new("Gemm", *at.node.input, **given)
    names = ("activation_alpha", "activation_beta", "activation_gamma")
    parameters = [value for value in (at.attribute(name, None) for name in names) if value is not None]
    return _activated(at, found, at.attribute("activation", ""), parameters)


def _fused_matmul(at: Site) -> str:
    a, b = at.inputs(2)
    at.require(not at.attribute("transBatchA", 0) and not at.attribute("transBatchB", 0))
    a, b = (_turned(at, name) if at.attribute(trans, 0) else name for name, trans in ((a, "transA"), (b, "transB")))
    found, alpha = at.new("MatMul", a, b), at.attribute("alpha", 1.0)
    return found if alpha == 1 else at.new("Mul", found, at.scalar(alpha, at.node.input[0]))


def _turned(at: Site, x: str) -> str:
    rank = at.rank(x)
    at.require(rank >= 2)
    return at.new("Transpose", x, perm=[*range(rank - 2), rank - 1, rank - 2])


def _gelu(at: Site) -> str:
    x, bias = at.inputs(2)
    if at.node.op_type != "Gelu" and bias:
        x = at.new("Add", x, bias, like=x)
    return gelu_by_tanh(at, x) if at.node.op_type == "FastGelu" else gelu_by_erf(at, x)


def _quick_gelu(at: Site) -> str:
    (x,) = at.inputs(1)
    return at.new("Mul", x, at.new("Sigmoid", at.new("Mul", x, at.scalar(at.attribute("alpha", 1.702), x))))


def _skip_layer_normalization(at: Site) -> list[str]:
    x, skip, scale, shift, bias = at.inputs(5)
    at.require(all(not name for name in at.node.output[1:3]) and at.shape(x) == at.shape(skip))
    total = at.new("Add", x, skip, like=x)
    if bias:
        total = at.new("Add", total, bias, like=x)
    found = at.new("Mul", normalized(at, total, [at.rank(x) - 1], at.attribute("epsilon", 1e-12)), scale)
    return [at.new("Add", found, shift) if shift else found, "", "", total]


_ROUNDED = "all values; rounded differently"
_FREE = "the fusion"

SPELLINGS = (
    Spelling(
        name="fused-conv-as-conv",
        operators=("FusedConv",),
        matches="com.microsoft FusedConv",
        writes="Conv, Add and the activation",
        draft=_fused_conv,
        cost=_FREE,
        exact=False,
        holds=_ROUNDED,
        domain=MICROSOFT,
    ),
    Spelling(
        name="fused-gemm-as-gemm",
        operators=("FusedGemm",),
        matches="com.microsoft FusedGemm",
        writes="Gemm and the activation",
        draft=_fused_gemm,
        cost=_FREE,
        exact=False,
        holds=_ROUNDED,
        domain=MICROSOFT,
    ),
    Spelling(
        name="fused-matmul-as-matmul",
        operators=("FusedMatMul",),
        matches="com.microsoft FusedMatMul",
        writes="Transpose, MatMul and Mul",
        draft=_fused_matmul,
        cost=_FREE,
        exact=False,
        holds=_ROUNDED,
        domain=MICROSOFT,
    ),
    Spelling(
        name="contributed-gelu-as-operators",
        operators=("Gelu", "BiasGelu", "FastGelu"),
        matches="com.microsoft Gelu, BiasGelu or FastGelu",
        writes="Add, Mul, Erf or Tanh, Add and Mul",
        draft=_gelu,
        cost=_FREE,
        exact=False,
        holds="finite values; rounded differently",
        least_opset=9,
        domain=MICROSOFT,
    ),
    Spelling(
        name="quick-gelu-as-sigmoid",
        operators=("QuickGelu",),
        matches="com.microsoft QuickGelu",
        writes="x * Sigmoid(alpha * x)",
        draft=_quick_gelu,
        cost=_FREE,
        exact=False,
        holds=_ROUNDED,
        domain=MICROSOFT,
    ),
    Spelling(
        name="skip-layer-normalization-as-operators",
        operators=("SkipLayerNormalization",),
        matches="com.microsoft SkipLayerNormalization",
        writes="Add, and the operators of a LayerNormalization",
        draft=_skip_layer_normalization,
        cost=_FREE,
        exact=False,
        holds="all values that stay finite when squared",
        domain=MICROSOFT,
    ),
)
