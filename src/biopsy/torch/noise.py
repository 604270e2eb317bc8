"""How far rounding alone takes the values of a program of PyTorch from the exact ones, which decides whether an engine
is further from them than that.

The exact values are those of the program in float64. The noise is that of PyTorch itself, and that of further runs in
float64 in which the operands of every operator are moved by up to one rounding of their own type: Monte Carlo
arithmetic (Parker 1997, "Monte Carlo Arithmetic: exploiting randomness in floating-point arithmetic"). It is enlarged
wherever the program enlarges rounding errors, also within: E[x²] - E[x]², a step, a choice among equal values.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from biopsy.comparison import differences, metrics
from biopsy.comparison.mismatch import Rounding
from biopsy.comparison.noise import NoiseComparison, judge_noise
from biopsy.tensors.results import Array
from biopsy.torch.arrays import imported
from biopsy.torch.calls import Arguments, exception_text
from biopsy.torch.recording import flat_inputs

Outputs: TypeAlias = "Mapping[str, Array]"

ExactRun: TypeAlias = "Callable[[int | None, Collection[str]], Outputs]"
"""Computes the values of these names in float64; with a seed, with operands moved by roundings."""

_FEWEST_RUNS = 4
_MOST_RUNS = 32
"""Moved runs before an error of a program with steps is a fault: a choice between two equal values stays the same in
none of 10^9 cases."""


class Noise:
    """What rounding alone makes of some values. ``run`` computes them; nothing is run before the first question.

    ``has_steps``: an error may show in few runs only.
    """

    def __init__(self, run: ExactRun, *, has_steps: bool) -> None:
        self._run = run
        self._most = _MOST_RUNS if has_steps else _FEWEST_RUNS
        self._exact: dict[str, Array] = {}
        self._moved: dict[str, metrics.Floats] = {}
        self._runs = 0

    def rounding(
        self, actual: Outputs, expected: Outputs, names: AbstractSet[str], require_time: Callable[[], None]
    ) -> Rounding:
        """Whether ``actual`` is as near to the exact values as PyTorch's own values, ``expected``, may be.

        ``names`` are the values that differ. ``times`` is the greatest error as a multiple of the noise.
        ``require_time`` raises an exception once the time is over.
        """
        if not names <= self._exact.keys():
            wanted = {*names, *self._exact}
            try:
                self._exact, self._moved, self._runs = dict(self._run(None, wanted)), {}, 0
            except Exception as error:  # whatever an operator raises in float64
                return Rounding("unknown", reason=f"PyTorch cannot compute it in float64: {exception_text(error)}")
        if missing := names - self._exact.keys():
            return Rounding("unknown", reason=f"{min(missing)!r} has no value in float64")
        while True:
            require_time()
            judged = [self._judged(name, actual[name], expected[name]) for name in names]
            is_fault = any(each.verdict == "bug" for each in judged)
            if not is_fault or self._runs >= self._most:
                break
            self._move()
        ratios = [each.ratio for each in judged]
        times = max(ratios) if np.isfinite(ratios).all() else None
        if is_fault:
            return Rounding("bug", times)
        unknown = next((each for each in judged if each.verdict == "unknown"), None)
        if unknown is not None:
            return Rounding("unknown", reason=f"{unknown.name!r}: {unknown.reason}")
        return Rounding("rounding", times)

    def faults(self, actual: Outputs, expected: Outputs, names: Collection[str]) -> list[str]:
        """Those of ``names`` whose error is not rounding, once ``rounding`` has been asked about them."""
        return [name for name in names if self._judged(name, actual[name], expected[name]).verdict == "bug"]

    def _move(self) -> None:
        """Add a run with moved operands; one that an operator refuses adds nothing."""
        self._runs += 1
        with suppress(Exception):
            for name, value in self._run(self._runs, self._exact).items():
                exact = self._exact[name]
                if value.shape == exact.shape:
                    error = metrics.errors_between(value, exact).absolute.reshape(exact.shape)
                    self._moved[name] = np.fmax(self._moved.get(name, error), error)

    def _judged(self, name: str, actual: Array, expected: Array) -> NoiseComparison:
        exact = self._exact[name]
        if not actual.shape == expected.shape == exact.shape:
            return judge_noise(name, 0, actual, expected, exact)
        noise = metrics.errors_between(expected, exact).absolute.reshape(exact.shape)
        noise = np.fmax(noise, self._moved.get(name, noise))
        if exact.dtype.kind in "biu":  # such an element may be anything if rounding changes it
            actual, exact = metrics.numeric(actual), metrics.numeric(exact)
            actual = np.where(noise > 0, exact, actual)
            return judge_noise(name, 0, actual, exact, exact)
        with np.errstate(over="ignore", invalid="ignore"):
            moved = (metrics.numeric(exact) + np.where(np.isfinite(noise), noise, 0)).astype(expected.dtype)
        judged = judge_noise(name, 0, actual, np.where(np.isfinite(noise), moved, expected), exact)
        times = _far_beyond(actual, exact, noise, differences.unit_roundoff(expected.dtype))
        if judged.passed and times is not None:
            return replace(judged, verdict="bug", ratio=times, reason="it errs where rounding changes little")
        return judged


_FAR = 100.0
_FEWEST_BEYOND, _SHARE_BEYOND = 8, 1 / 32
"""An error this many times the noise of its own element is a fault if so many elements, and such a share of all, have
one. By luck, or at a step that no run has moved, few do: 1/90 of all steps at most after 33 runs.
"""


def _far_beyond(actual: Array, exact: Array, noise: Array, roundoff: float) -> float | None:
    """By what factor elements are beyond their own noise, if many are far beyond it, whatever the noise of others is.

    So the great noise of one row does not hide a fault in the others.
    """
    size = np.abs(metrics.numeric(exact)).astype(np.float64)
    error = metrics.errors_between(actual, exact).absolute.reshape(exact.shape)
    is_judged = np.isfinite(size) & np.isfinite(noise) & np.isfinite(error)
    size = np.where(is_judged, size, 0)
    if not is_judged.any():
        return None
    least = np.maximum(np.where(is_judged, noise, 1), roundoff * (size + float(np.sqrt(np.mean(size**2)))))
    ratios = (np.where(is_judged, error, 0) / np.maximum(least, np.finfo(np.float64).tiny))[is_judged]
    beyond = ratios[ratios > _FAR]
    is_fault = beyond.size >= max(_FEWEST_BEYOND, _SHARE_BEYOND * ratios.size)
    return float(np.median(beyond)) if is_fault else None


_CHOOSING = frozenset({
    "topk", "sort", "argsort", "msort", "argmax", "argmin", "max", "min", "median", "nanmedian", "kthvalue", "mode",
    "max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d_with_indices", "cummax", "cummin",
})  # fmt: skip
"""Operators that choose among equal values, and do not promise which of them they choose."""

_COPYING = frozenset({
    "cat", "stack", "clone", "gather", "index", "index_select", "embedding", "take", "repeat", "flip", "roll", "pad",
    "constant_pad_nd", "scatter", "slice_scatter", "select_scatter", "index_put", "masked_scatter", "tril", "triu",
    "amax", "amin", "max_pool1d", "max_pool2d", "max_pool3d", "reshape", "contiguous", "view_copy", "permute_copy",
    "expand_copy", "lift_fresh_copy", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "dropout",
})  # fmt: skip
"""Operators that round nothing, besides the views."""

_BITS = frozenset({"view.dtype"})
"""Operators whose result depends on the type."""

_LARGE = 1 << 20
"""The elements of a weight that is not moved beside an operand that is computed: to move one factor of a product is to
move the product, and a move of many elements takes longer than their operator.
"""

_TIE = 2.0**-50
"""How far equal values are moved apart, relative to them: far below any rounding of float32."""


_PRODUCTS: Mapping[str, tuple[int, int, int | None]] = {
    "linear": (1, 0, 2), "mm": (1, 1, None), "matmul": (1, 1, None), "addmm": (2, 1, 0),
}  # fmt: skip
"""Products with a matrix: its place, its axis that becomes the last one of the result, and the place of a summand."""

_AT_ONCE = 1 << 22
"""The elements of a large weight that are widened at once."""


@dataclass(frozen=True, kw_only=True)
class _Float64:
    """Runs single nodes of a program in float64; with a ``generator``, with operands moved by roundings.

    ``weights`` are the nodes that are parameters, or computed from one alone, each with whether it is large. A large
    one is widened in parts where it is multiplied: all of it would take twice its memory.
    """

    generator: Any = None
    weights: Mapping[Any, bool] = field(default_factory=dict)

    def run(self, node: Any, value_of: Callable[[Any], Any]) -> Any:
        """The result of a node that calls a function; ``value_of`` are the values of other nodes."""
        target, name = node.target, _name(node)
        if node in self.weights and _is_view(node):
            args, kwargs = imported("torch.fx.node").map_arg((node.args, node.kwargs), value_of)
            return target(*args, **kwargs)
        if f"{name}.{getattr(target, '_overloadname', '')}" in _BITS:
            return self._as_it_is(node, value_of)
        matrix = self._large_matrix(node)

        def in_float64(each: Any) -> Any:
            return value_of(each) if each is matrix else wide(value_of(each))

        try:
            schema = getattr(target, "_schema", None)
            if self.generator is None or schema is None or schema.is_mutable:
                return self._result(node, in_float64)
            return self._of_moved(node, in_float64)
        except Exception:
            if schema is not None and schema.is_mutable:
                raise
            return self._as_it_is(node, value_of)

    def _of_moved(self, node: Any, value_of: Callable[[Any], Any]) -> Any:
        """The result of a node with a schema from operands that are moved, unless it rounds nothing."""
        name, schema, exact = _name(node), node.target._schema, None
        is_stable = node.kwargs.get("stable") is True
        if name in _CHOOSING and not is_stable:
            return _in_kind_of(node, self._result(node, lambda each: self._untied(value_of(each))))
        if is_stable or name in _COPYING or any(value.alias_info is not None for value in schema.returns):
            return self._result(node, value_of)
        if imported().Tag.pointwise in node.target.tags:
            exact = self._result(node, value_of)
        movable = set(filter(_is_real, node.all_input_nodes))
        if not movable <= self.weights.keys():
            movable = {each for each in movable if not self.weights.get(each, False)}
        moved = self._result(
            node, lambda each: self._moved(wide(value_of(each)), each) if each in movable else value_of(each)
        )
        if exact is None or not _is_wide(exact):
            return moved if exact is None else exact
        kind = node.meta.get("val")
        if not hasattr(kind, "dtype") or kind.dtype == exact.dtype or exact.shape != moved.shape:
            return moved
        return imported().where(exact.to(kind.dtype).to(exact.dtype) == exact, exact, moved)  # only where it is rounded

    def _result(self, node: Any, value_of: Callable[[Any], Any]) -> Any:
        """The result of a node from values in float64, but for a large matrix, which is multiplied in parts."""
        args, kwargs = imported("torch.fx.node").map_arg((node.args, node.kwargs), value_of)
        args, kwargs = imported("torch.utils._pytree").tree_map(_wide_type, (args, dict(kwargs)))
        if self._large_matrix(node) is None:
            return wide(node.target(*args, **kwargs))
        return wide(_product(node.target, _name(node), args, kwargs))

    def _large_matrix(self, node: Any) -> Any:
        """The large weight by which a product multiplies, if it is one of two dimensions; None if there is none."""
        name = _name(node)
        weight: Any = node.args[_PRODUCTS[name][0]] if name in _PRODUCTS else None
        return weight if self.weights.get(weight, False) and weight.meta["val"].dim() == 2 else None

    @staticmethod
    def _as_it_is(node: Any, value_of: Callable[[Any], Any]) -> Any:
        """The result in the types of the program itself."""
        args, kwargs = imported("torch.fx.node").map_arg(
            (node.args, node.kwargs), lambda each: _like(value_of(each), each.meta.get("val"))
        )
        return wide(node.target(*args, **kwargs))

    def _moved(self, value: Any, node: Any) -> Any:
        """A value moved by up to one rounding of its type in the program."""
        if not _is_wide(value):
            return value
        roundoff = imported().finfo(node.meta["val"].dtype).eps / 2
        return self._random(value).mul_(roundoff).add_(1) * value

    def _untied(self, value: Any) -> Any:
        """A value whose equal elements differ a little."""
        torch = imported()
        if not isinstance(value, torch.Tensor) or value.is_complex():
            return value
        number = value.to(torch.float64)
        if not value.is_floating_point():
            return number + 0.25 * self._random(number)
        tiny = torch.finfo(torch.float64).tiny
        return number * (1 + _TIE * self._random(number)) + tiny * self._random(number)

    def _random(self, value: Any) -> Any:
        """Random numbers of -1 to 1, as many as a tensor has elements."""
        torch = imported()
        numbers = torch.rand(value.shape, generator=self.generator, dtype=torch.float64)
        return numbers.to(value.device).mul_(2).sub_(1)


def _product(target: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The product with a large matrix, some of its rows or columns after the other."""
    place, axis, of_summand = _PRODUCTS[name]
    matrix, number = args[place], args[place].shape[axis]
    step, parts = max(1, _AT_ONCE * number // matrix.numel()), []
    for start in range(0, number, step):
        size, part = min(step, number - start), list(args)
        part[place] = wide(matrix.narrow(axis, start, size))
        if of_summand is not None and len(args) > of_summand and args[of_summand] is not None:
            summand = args[of_summand]
            part[of_summand] = summand.narrow(-1, start, size) if summand.shape[-1:] == (number,) else summand
        parts.append(target(*part, **kwargs))
    return imported().cat(parts, -1)


def wide(value: Any) -> Any:
    """A value with all its floating-point tensors in float64, or complex128."""
    torch = imported()

    def widened(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.is_quantized:
            return leaf
        return leaf.to(_wide_type(leaf.dtype))

    return imported("torch.utils._pytree").tree_map(widened, value)


def _wide_type(value: Any) -> Any:
    torch = imported()
    if not isinstance(value, torch.dtype):
        return value
    return torch.float64 if value.is_floating_point else torch.complex128 if value.is_complex else value


def _is_wide(value: Any) -> bool:
    torch = imported()
    return isinstance(value, torch.Tensor) and value.dtype in (torch.float64, torch.complex128)


def _like(value: Any, kind: Any) -> Any:
    """A value in the types of another one."""
    torch = imported()
    if isinstance(value, torch.Tensor) and isinstance(kind, torch.Tensor):
        return value.to(kind.dtype)
    if isinstance(value, tuple | list) and isinstance(kind, tuple | list):
        return type(value)([_like(*pair) for pair in zip(value, kind, strict=True)])
    return value


def _in_kind_of(node: Any, value: Any) -> Any:
    """A result of moved integers as integers again."""
    torch, kind = imported(), node.meta.get("val")
    pairs = [(value, kind)] if not isinstance(value, tuple | list) else list(zip(value, kind, strict=True))
    back = [
        (one.round() if _is_wide(one) and not (other.is_floating_point() or other.is_complex()) else one).to(
            one.dtype if other.is_floating_point() or other.is_complex() else other.dtype
        )
        for one, other in pairs
        if isinstance(one, torch.Tensor)
    ]
    return back[0] if not isinstance(value, tuple | list) else tuple(back)


def values_in_float64(
    program: Any, inputs: Sequence[Any], seed: int | None, fed: Callable[[str], Any] | None = None
) -> Iterator[tuple[Any, Any]]:
    """Run a program in float64 and yield each node with its value; the last one is the output node.

    ``fed`` gives, by the name of a node, the value that the nodes after it take instead of its own; None for its own.
    """
    torch, fx = imported(), imported("torch.fx")
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    float64 = _Float64(generator=generator, weights=_weights(program))
    interpreter = fx.Interpreter(program.graph_module)
    waiting = iter(inputs)
    for node in program.graph.nodes:
        with torch.no_grad():
            if node.op == "placeholder":
                value = next(waiting)  # parameters are widened where they are used, since they may fill the memory
                value = value if node in float64.weights else wide(_own(value))
            elif node.op == "call_function" and node.target is not operator.getitem:
                value = float64.run(node, interpreter.env.__getitem__)
            else:
                value = interpreter.run_node(node)
                value = wide(_own(value) if node.op == "get_attr" else value)
        yield node, value
        instead = None if fed is None else fed(node.name)
        interpreter.env[node] = value if instead is None else wide(instead)
        for unused in interpreter.user_to_last_uses.get(node, ()):
            interpreter.env.pop(unused, None)


def _weights(program: Any) -> dict[Any, bool]:
    """The nodes that are a parameter or are computed from one alone; for each, whether it is large."""
    parameters = {spec.arg.name for spec in program.graph_signature.input_specs if spec.kind.name == "PARAMETER"}
    weights: dict[Any, bool] = {}
    for node in program.graph.nodes:
        sources = node.all_input_nodes
        if node.name in parameters:
            weights[node] = node.meta["val"].numel() >= _LARGE
        elif len(sources) == 1 and sources[0] in weights:
            weights[node] = weights[sources[0]]
    return weights


def _name(node: Any) -> str:
    """The name of a node's operator, without its overload."""
    return str(getattr(node.target, "_opname", ""))


def _is_view(node: Any) -> bool:
    """Whether the result of a node is a view of what it reads."""
    schema = getattr(node.target, "_schema", None)
    returns = () if schema is None or schema.is_mutable else schema.returns
    return bool(returns) and all(each.alias_info is not None and not each.alias_info.is_write for each in returns)


def _own(value: Any) -> Any:
    """A tensor with memory of its own, since an operator may write into it."""
    return value.detach().clone() if isinstance(value, imported().Tensor) else value


_STEPS = frozenset({"floor", "ceil", "round", "trunc", "frac", "sign", "sgn", "heaviside", "fmod", "remainder"})


def _is_real(node: Any) -> bool:
    """Whether the value of a node is of a floating-point type, or complex."""
    kind = getattr(node.meta.get("val"), "dtype", None)
    return kind is not None and (kind.is_floating_point or kind.is_complex)


def has_steps(program: Any) -> bool:
    """Whether a rounding may change a value of a program by a step, such as an index or a branch."""
    torch = imported()

    return any(
        getattr(node.target, "_opname", "") in _CHOOSING | _STEPS
        or isinstance(node.target, torch._ops.HigherOrderOperator)
        or (hasattr(node.meta.get("val"), "dtype") and not _is_real(node) and any(map(_is_real, node.all_input_nodes)))
        for node in program.graph.nodes
        if node.op == "call_function"
    )


def noise_of_outputs(program: Any, given: Arguments, named: Callable[[Sequence[Any]], Outputs]) -> Noise:
    """The noise of what the module of a captured program returns; ``named`` gives names to its values."""
    specs = program.graph_signature.output_specs

    def run(seed: int | None, wanted: Collection[str]) -> Outputs:
        fresh = given.copied()
        value: Any = ()
        for _, value in values_in_float64(program, flat_inputs(program, fresh.args, fresh.kwargs), seed):  # noqa: B007
            pass
        leaves = [each for each, spec in zip(value, specs, strict=True) if spec.kind.name == "USER_OUTPUT"]
        return {name: array for name, array in named(leaves).items() if name in wanted}

    return Noise(run, has_steps=has_steps(program))
