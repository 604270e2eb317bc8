"""Activations: functions of each element."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import permutations

from biopsy.questions.workarounds.spellings.site import Family, Site, unmatched

_CLOSE = 1e-5
"""How near a constant must be, relatively, to the number that it stands for."""

GELU_BY_ERF = f"x * 0.5 * (Erf(x * {1 / math.sqrt(2)}) + 1)"
GELU_BY_TANH = f"x * 0.5 * (Tanh((x + x * x * x * 0.044715) * {math.sqrt(2 / math.pi)}) + 1)"
_ROUNDED = "all values; rounded differently"
_ZERO = "all values; the sign of zero may differ"
_ABSOLUTE = "all values; results near zero keep their absolute precision only"

ACTIVATIONS = Family()


@ACTIVATIONS.by(
    "gelu-as-operators",
    "Gelu",
    writes="Mul, Erf, Add and Mul, or Tanh where it is the approximation",
    cost="about five passes over the tensor instead of one",
    holds="finite values; rounded differently",
    least_opset=20,
)
def _(at: Site) -> str:
    return at.write(GELU_BY_TANH if at.attribute("approximate", "none") == "tanh" else GELU_BY_ERF, x=at.node.input[0])


@ACTIVATIONS.by(
    "erf-as-gelu",
    "Mul",
    matches="x * 0.5 * (1 + Erf(x / sqrt 2))",
    writes="Gelu",
    cost="nothing: one pass instead of five",
    holds=f"finite values; its constants are exact to {_CLOSE:g}",
    least_opset=20,
)
def _(at: Site) -> str:
    factors = list(_factors(at, at.node.output[0]))
    others = [name for name in factors if not _is_number(at, name, 0.5)]
    at.require(len(factors) == 3 and len(others) == 2)
    for x, factor in permutations(others):
        if at.is_by(factor, "Add") and _is_one_plus_erf(at, factor, x):
            at.require(at.is_float(x))
            return at.new("Gelu", x)
    return unmatched()


def _factors(at: Site, name: str) -> Iterator[str]:
    """The leaves of a product; a Mul that others read too is one."""
    is_inner = name == at.node.output[0] or len(at.scope.readers.get(name, ())) == 1
    if not is_inner or not at.is_by(name, "Mul"):
        yield name
        return
    for factor in at.maker(name, "Mul").inputs(2):
        yield from _factors(at, factor)


def _is_number(at: Site, name: str, value: float) -> bool:
    constant = at.scope.value_of(name)
    return constant is not None and constant.size == 1 and abs(float(constant.reshape(-1)[0]) / value - 1) < _CLOSE


def _is_one_plus_erf(at: Site, name: str, x: str) -> bool:
    (erf,) = [summand for summand in at.maker(name, "Add").inputs(2) if not _is_number(at, summand, 1)]
    scaled = at.maker(at.maker(erf, "Erf").node.input[0], "Mul", "Div")
    factor, operands = math.sqrt(2), [scaled.inputs(2)]
    if scaled.node.op_type == "Mul":
        factor, operands = 1 / factor, [*map(list, permutations(scaled.inputs(2)))]
    return any(one == x and _is_number(at, other, factor) for one, other in operands)


ACTIVATIONS.text(
    "sigmoid-as-exp",
    "Sigmoid(x)",
    "Reciprocal(Exp(-x) + 1)",
    writes="Neg, Exp, Add and Reciprocal",
    cost="four passes over the tensor instead of one",
    holds=_ROUNDED,
)
ACTIVATIONS.text(
    "sigmoid-as-tanh",
    "Sigmoid(x)",
    "Tanh(x * 0.5) * 0.5 + 0.5",
    writes="Mul, Tanh, Mul and Add",
    cost="four passes over the tensor instead of one",
    holds=_ABSOLUTE,
)
ACTIVATIONS.text(
    "swish-as-sigmoid",
    "Swish(x, alpha=1.0)",
    "x * Sigmoid(alpha * x)",
    cost="up to three passes over the tensor instead of one",
    holds=_ROUNDED,
    least_opset=24,
)


@ACTIVATIONS.by("sigmoid-as-swish", "Mul", matches="x * Sigmoid(x)", writes="Swish", holds=_ROUNDED, least_opset=24)
def _(at: Site) -> str:
    x, factor = sorted(at.inputs(2), key=lambda name: at.is_by(name, "Sigmoid"))
    at.require(at.maker(factor, "Sigmoid").node.input[0] == x and at.is_float(x))
    return at.new("Swish", x)


ACTIVATIONS.text(
    "hard-sigmoid-as-operators",
    "HardSigmoid(x, alpha=0.2, beta=0.5)",
    "Max(Min(x * alpha + beta, 1), 0)",
    writes="Mul, Add, Min and Max",
    cost="four passes over the tensor instead of one",
    holds=_ZERO,
    least_opset=8,
)
ACTIVATIONS.text(
    "hard-swish-as-operators",
    "HardSwish(x)",
    f"x * Max(Min(x * {1 / 6} + 0.5, 1), 0)",
    writes="Mul, Add, Min, Max and Mul",
    cost="five passes over the tensor instead of one",
    holds=_ROUNDED,
    least_opset=14,
)
ACTIVATIONS.text(
    "leaky-relu-as-where",
    "LeakyRelu(x, alpha=0.01)",
    "Where(x < 0, alpha * x, x)",
    cost="three passes over the tensor instead of one",
    holds=_ZERO,
    least_opset=9,
)
ACTIVATIONS.text(
    "leaky-relu-as-max",
    "LeakyRelu(x, alpha=0.01)",
    "Max(x, alpha * x)",
    where=lambda at, x, alpha: 0 < alpha <= 1,
    matches="LeakyRelu with alpha above 0 and up to 1",
    cost="two passes over the tensor instead of one",
    holds=_ZERO,
    least_opset=8,
)
ACTIVATIONS.text(
    "prelu-as-where",
    "PRelu(x, slope)",
    "Where(x < 0, slope * x, x)",
    where=lambda at, x, slope: at.is_float(x),
    cost="three passes over the tensor instead of one",
    holds="finite slopes; the sign of zero may differ",
    least_opset=9,
)
ACTIVATIONS.text(
    "prelu-with-whole-slope",
    "PRelu(x, slope)",
    "PRelu(x, Expand(slope, Shape(x)))",
    where=lambda at, x, slope: at.kind(slope).shape is None or at.shape(slope) != at.shape(x),
    matches="PRelu with a slope that is spread over x",
    writes="Expand of the slope, and PRelu",
    cost="one more tensor as large as x",
    least_opset=8,
)
ACTIVATIONS.text(
    "softplus-as-log",
    "Softplus(x)",
    "Max(x, 0) + Log(1 + Exp(-Abs(x)))",
    cost="six passes over the tensor instead of one",
    holds=_ABSOLUTE,
    least_opset=8,
)
ACTIVATIONS.text(
    "mish-as-tanh",
    "Mish(x)",
    "x * Tanh(Softplus(x))",
    cost="three passes over the tensor instead of one",
    holds=_ROUNDED,
    least_opset=18,
)
