"""Activations: functions of each element."""

from __future__ import annotations

import math
from collections.abc import Iterator

from biopsy.questions.workarounds.spellings.site import FLOATS, Site, Spelling

_CUBIC = 0.044715
_CLOSE = 1e-5
"""How near a constant must be, relatively, to the number that it stands for."""


def gelu_by_erf(at: Site, x: str) -> str:
    """Write x * 0.5 * (1 + erf(x / sqrt 2))."""
    inner = at.new("Erf", at.new("Mul", x, at.scalar(1 / math.sqrt(2), x)))
    return at.new("Mul", at.new("Mul", x, at.scalar(0.5, x)), at.new("Add", inner, at.scalar(1, x)))


def gelu_by_tanh(at: Site, x: str) -> str:
    """Write x * 0.5 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))."""
    cubic = at.new("Mul", at.new("Mul", at.new("Mul", x, x), x), at.scalar(_CUBIC, x))
    inner = at.new("Tanh", at.new("Mul", at.new("Add", x, cubic), at.scalar(math.sqrt(2 / math.pi), x)))
    return at.new("Mul", at.new("Mul", x, at.scalar(0.5, x)), at.new("Add", inner, at.scalar(1, x)))


def _gelu_as_operators(at: Site) -> str:
    (x,) = at.inputs(1)
    return gelu_by_tanh(at, x) if at.attribute("approximate", "none") == "tanh" else gelu_by_erf(at, x)


def _erf_as_gelu(at: Site) -> str:
    factors = list(_factors(at, at.node.output[0], at.place))
    x = [name for name in factors if not _is_number(at, name, 0.5)]
    at.require(len(x) == len(factors) - 1)
    at.require(len(x) == 2)
    for one, other in (x, reversed(x)):
        if at.scope.producers.get(other) is not None and _is_one_plus_erf(at, other, one):
            at.require(at.elem(one) in FLOATS)
            return at.new("Gelu", one)
    at.require(False)
    return ""


def _factors(at: Site, name: str, anchor: int) -> Iterator[str]:
    """The leaves of a product; a Mul that others read too is one."""
    place = at.scope.producers.get(name)
    is_inner = place is not None and (place == anchor or len(at.scope.readers.get(name, ())) == 1)
    if place is None or not is_inner or at.scope.graph.node[place].op_type != "Mul":
        yield name
        return
    for each in at.maker(name, "Mul").inputs(2):
        yield from _factors(at, each, anchor)


def _is_number(at: Site, name: str, value: float) -> bool:
    found = at.scope.value_of(name)
    return found is not None and found.size == 1 and abs(float(found.reshape(-1)[0]) / value - 1) < _CLOSE


def _is_one_plus_erf(at: Site, name: str, x: str) -> bool:
    if at.scope.graph.node[at.scope.producers[name]].op_type != "Add":
        return False
    summands = at.maker(name, "Add").inputs(2)
    rest = [each for each in summands if not _is_number(at, each, 1)]
    at.require(len(rest) == 1)
    scaled = at.maker(at.maker(rest[0], "Erf").inputs(1)[0], "Mul", "Div")
    one, other = scaled.inputs(2)
    if scaled.node.op_type == "Div":
        return one == x and _is_number(at, other, math.sqrt(2))
    return any(each == x and _is_number(at, factor, 1 / math.sqrt(2)) for each, factor in ((one, other), (other, one)))


def _sigmoid_as_exp(at: Site) -> str:
    (x,) = at.inputs(1)
    return at.new("Reciprocal", at.new("Add", at.new("Exp", at.new("Neg", x)), at.scalar(1, x)))


def _sigmoid_as_tanh(at: Site) -> str:
    (x,) = at.inputs(1)
    half = at.scalar(0.5, x)
    return at.new("Add", at.new("Mul", at.new("Tanh", at.new("Mul", x, half)), half), half)


def _swish_as_sigmoid(at: Site) -> str:
    (x,) = at.inputs(1)
    alpha = at.attribute("alpha", 1.0)
    return at.new("Mul", x, at.new("Sigmoid", x if alpha == 1 else at.new("Mul", x, at.scalar(alpha, x))))


def _sigmoid_as_swish(at: Site) -> str:
    for one, other in (at.inputs(2), reversed(at.inputs(2))):
        place = at.scope.producers.get(other)
        if place is not None and at.scope.graph.node[place].op_type == "Sigmoid":
            at.require(at.maker(other, "Sigmoid").inputs(1)[0] == one and at.elem(one) in FLOATS)
            return at.new("Swish", one)
    at.require(False)
    return ""


def _bounded(at: Site, x: str, alpha: float, beta: float) -> str:
    """Max(0, Min(1, alpha * x + beta))."""
    line = at.new("Add", at.new("Mul", x, at.scalar(alpha, x)), at.scalar(beta, x))
    return at.new("Max", at.new("Min", line, at.scalar(1, x)), at.scalar(0, x))


def _hard_sigmoid_as_operators(at: Site) -> str:
    (x,) = at.inputs(1)
    return _bounded(at, x, at.attribute("alpha", 0.2), at.attribute("beta", 0.5))


def _hard_swish_as_operators(at: Site) -> str:
    (x,) = at.inputs(1)
    return at.new("Mul", x, _bounded(at, x, 1 / 6, 0.5))


def _leaky_relu_as_where(at: Site) -> str:
    (x,) = at.inputs(1)
    below = at.new("Mul", x, at.scalar(at.attribute("alpha", 0.01), x))
    return at.new("Where", at.new("Less", x, at.scalar(0, x)), below, x)


def _leaky_relu_as_max(at: Site) -> str:
    (x,) = at.inputs(1)
    alpha = at.attribute("alpha", 0.01)
    at.require(0 < alpha <= 1)
    return at.new("Max", x, at.new("Mul", x, at.scalar(alpha, x)))


def _prelu_as_where(at: Site) -> str:
    x, slope = at.inputs(2)
    at.require(at.elem(x) in FLOATS)
    return at.new("Where", at.new("Less", x, at.scalar(0, x)), at.new("Mul", x, slope), x)


def _prelu_with_whole_slope(at: Site) -> str:
    x, slope = at.inputs(2)
    at.require(at.kind(slope).shape is None or at.shape(slope) != at.shape(x))
    return at.new("PRelu", x, at.new("Expand", slope, at.new("Shape", x)))


def _softplus_as_log(at: Site) -> str:
    (x,) = at.inputs(1)
    rest = at.new("Log", at.new("Add", at.new("Exp", at.new("Neg", at.new("Abs", x))), at.scalar(1, x)))
    return at.new("Add", at.new("Max", x, at.scalar(0, x)), rest)


def _mish_as_tanh(at: Site) -> str:
    (x,) = at.inputs(1)
    return at.new("Mul", x, at.new("Tanh", at.new("Softplus", x)))


_ROUNDED = "all values; rounded differently"
_ZERO = "all values; the sign of zero may differ"
_ABSOLUTE = "all values; results near zero keep their absolute precision only"

SPELLINGS = (
    Spelling(
        name="gelu-as-operators",
        operators=("Gelu",),
        matches="Gelu",
        writes="Mul, Erf, Add and Mul, or Tanh where it is the approximation",
        draft=_gelu_as_operators,
        cost="about five passes over the tensor instead of one",
        exact=False,
        holds="finite values; rounded differently",
        least_opset=20,
    ),
    Spelling(
        name="erf-as-gelu",
        operators=("Mul",),
        matches="x * 0.5 * (1 + Erf(x / sqrt 2))",
        writes="Gelu",
        draft=_erf_as_gelu,
        cost="nothing: one pass instead of five",
        exact=False,
        holds=f"finite values; its constants are exact to {_CLOSE:g}",
        least_opset=20,
    ),
    Spelling(
        name="sigmoid-as-exp",
        operators=("Sigmoid",),
        matches="Sigmoid",
        writes="Neg, Exp, Add and Reciprocal",
        draft=_sigmoid_as_exp,
        cost="four passes over the tensor instead of one",
        exact=False,
        holds=_ROUNDED,
    ),
    Spelling(
        name="sigmoid-as-tanh",
        operators=("Sigmoid",),
        matches="Sigmoid",
        writes="Mul, Tanh, Mul and Add",
        draft=_sigmoid_as_tanh,
        cost="four passes over the tensor instead of one",
        exact=False,
        holds=_ABSOLUTE,
    ),
    Spelling(
        name="swish-as-sigmoid",
        operators=("Swish",),
        matches="Swish",
        writes="x * Sigmoid(alpha * x)",
        draft=_swish_as_sigmoid,
        cost="up to three passes over the tensor instead of one",
        exact=False,
        holds=_ROUNDED,
        least_opset=24,
    ),
    Spelling(
        name="sigmoid-as-swish",
        operators=("Mul",),
        matches="x * Sigmoid(x)",
        writes="Swish",
        draft=_sigmoid_as_swish,
        cost="nothing",
        exact=False,
        holds=_ROUNDED,
        least_opset=24,
    ),
    Spelling(
        name="hard-sigmoid-as-operators",
        operators=("HardSigmoid",),
        matches="HardSigmoid",
        writes="Mul, Add, Min and Max",
        draft=_hard_sigmoid_as_operators,
        cost="four passes over the tensor instead of one",
        exact=False,
        holds=_ZERO,
        least_opset=8,
    ),
    Spelling(
        name="hard-swish-as-operators",
        operators=("HardSwish",),
        matches="HardSwish",
        writes="Mul, Add, Min, Max and Mul",
        draft=_hard_swish_as_operators,
        cost="five passes over the tensor instead of one",
        exact=False,
        holds=_ROUNDED,
        least_opset=14,
    ),
    Spelling(
        name="leaky-relu-as-where",
        operators=("LeakyRelu",),
        matches="LeakyRelu",
        writes="Where(x < 0, alpha * x, x)",
        draft=_leaky_relu_as_where,
        cost="three passes over the tensor instead of one",
        exact=False,
        holds=_ZERO,
        least_opset=9,
    ),
    Spelling(
        name="leaky-relu-as-max",
        operators=("LeakyRelu",),
        matches="LeakyRelu with alpha above 0 and up to 1",
        writes="Max(x, alpha * x)",
        draft=_leaky_relu_as_max,
        cost="two passes over the tensor instead of one",
        exact=False,
        holds=_ZERO,
        least_opset=8,
    ),
    Spelling(
        name="prelu-as-where",
        operators=("PRelu",),
        matches="PRelu",
        writes="Where(x < 0, slope * x, x)",
        draft=_prelu_as_where,
        cost="three passes over the tensor instead of one",
        exact=False,
        holds="finite slopes; the sign of zero may differ",
        least_opset=9,
    ),
    Spelling(
        name="prelu-with-whole-slope",
        operators=("PRelu",),
        matches="PRelu with a slope that is spread over x",
        writes="Expand of the slope, and PRelu",
        draft=_prelu_with_whole_slope,
        cost="one more tensor as large as x",
        exact=True,
        least_opset=8,
    ),
    Spelling(
        name="softplus-as-log",
        operators=("Softplus",),
        matches="Softplus",
        writes="Max(x, 0) + Log(1 + Exp(-Abs(x)))",
        draft=_softplus_as_log,
        cost="six passes over the tensor instead of one",
        exact=False,
        holds=_ABSOLUTE,
        least_opset=8,
    ),
    Spelling(
        name="mish-as-tanh",
        operators=("Mish",),
        matches="Mish",
        writes="x * Tanh(Softplus(x))",
        draft=_mish_as_tanh,
        cost="three passes over the tensor instead of one",
        exact=False,
        holds=_ROUNDED,
        least_opset=18,
    ),
)
