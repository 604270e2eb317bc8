"""Reasons why a module and its captured program, or two runs of the module, differ: other sizes, the fast path of
attention, and the operator at which two runs begin to differ. Models fed with PyTorch's own values, which tell whether
a step differs by itself.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from traceback import walk_stack
from typing import Any

from biopsy.model.load import parse, read_bytes
from biopsy.slow_imports import onnx
from biopsy.tensors.files import read_feeds
from biopsy.tensors.results import Array
from biopsy.torch.arrays import as_array, as_tensor, imported, leaves_of
from biopsy.torch.calls import Arguments, leaves_of_call
from biopsy.torch.evaluation import COMPUTED, OnnxModel
from biopsy.torch.facts import NO_LINE, ModuleLine, place_of_stack
from biopsy.torch.noise import Noise, Outputs, has_steps, values_in_float64
from biopsy.torch.recording import flat_inputs, named_values

_MUCH_LARGER = 16
_MOST_ELEMENTS = 1 << 22
"""Elements of an argument beyond which a size is not tried."""


def with_other_sizes(program: Any, given: Arguments) -> Iterator[tuple[str, Arguments]]:
    """Arguments with other sizes in all open dimensions, within the constraints of the program: "larger", "smaller" and
    "much larger" ones, of each kind those first that are most likely to show a fault.

    Yields nothing if no size is open or the open sizes are unknown. A longer dimension repeats its elements, a shorter
    one drops the last, so that values stay in their domain, such as identifiers.
    """
    pytree = imported("torch.utils._pytree")
    names = program.call_spec.in_spec.children()[1].context or []  # in the order in which they were captured
    is_complete = set(names) == set(given.kwargs)
    kwargs = {name: given.kwargs[name] for name in names} if is_complete else dict(given.kwargs)
    values, structure = pytree.tree_flatten((given.args, kwargs))
    shapes = _open_shapes(program)
    if len(shapes) != len(values):
        return
    # The values of the symbols that are the size of a dimension.
    sizes = {
        size: int(value.shape[place])
        for shape, value in zip(shapes, values, strict=True)
        for place, size in enumerate(shape)
        if not isinstance(size, int) and size.is_Symbol
    }
    numbered = list(enumerate(sizes.items()))
    for kind, other in (  # the first two make sizes differ that were equal by chance
        ("larger", {symbol: size + 1 + place for place, (symbol, size) in numbered}),
        ("larger", {symbol: size * (2 + place) for place, (symbol, size) in numbered}),
        ("smaller", {symbol: size - 1 for _, (symbol, size) in numbered}),
        ("smaller", {symbol: size // 2 for _, (symbol, size) in numbered}),
        ("much larger", {symbol: size * _MUCH_LARGER + place for place, (symbol, size) in numbered}),
        ("much larger", {symbol: size * _MUCH_LARGER for _, (symbol, size) in numbered}),
    ):
        bounds = {symbol: program.range_constraints.get(symbol) for symbol in other}
        if not other or any(
            size < 1 or ((bound := bounds[symbol]) is not None and not bound.lower <= size <= bound.upper)
            for symbol, size in other.items()
        ):
            continue
        changed = [_resized(value, shape, other) for value, shape in zip(values, shapes, strict=True)]
        if all(value is not None or old is None for value, old in zip(changed, values, strict=True)):
            args, kwargs = pytree.tree_unflatten(changed, structure)
            yield kind, Arguments(args=args, kwargs=kwargs)


def sizes_of(given: Arguments) -> str:
    """The shapes of all tensors, joined by commas."""
    values = [leaf.value for leaf in leaves_of((given.args, dict(given.kwargs)))]
    return ", ".join(str(list(value.shape)) for value in values if isinstance(value, imported().Tensor))


def _open_shapes(program: Any) -> list[Sequence[Any]]:
    """The shape of each input of the program: numbers, and SymPy expressions for open sizes."""
    specs = [spec for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    shapes: list[Sequence[Any]] = []
    for spec in specs:
        node = nodes.get(getattr(spec.arg, "name", ""))
        shape = getattr(node.meta.get("val"), "shape", ()) if node is not None else ()
        shapes.append([size if isinstance(size, int) else size.node.expr for size in shape])
    return shapes


def _resized(value: Any, shape: Sequence[Any], sizes: Mapping[Any, int]) -> Any:
    """A value in other sizes; None if a size cannot be computed, or would make it very large."""
    torch = imported()
    if not isinstance(value, torch.Tensor):
        return value
    for place, size in enumerate(shape):
        if isinstance(size, int):
            continue
        new_size = size.subs(sizes)
        before = value.shape[place]
        if not getattr(new_size, "is_Integer", False) or new_size < 1 or not before:
            return None
        if value.numel() // before * int(new_size) > _MOST_ELEMENTS:
            return None
        value = value.index_select(place, torch.arange(int(new_size)) % before)
    return value.detach()


# In evaluation mode, an eager ``nn.TransformerEncoder``, its layers and ``nn.MultiheadAttention`` take a fast path: one
# operator, which gives 0 where a padding mask hides a word. ``torch.export`` captures the slow path, which gives
# something else there.

FAST_PATH = (
    "after torch.backends.mha.set_fastpath_enabled(False) the module gives what the program gives. "
    "(The fast path gives 0 for words that a padding mask hides.)"
)
"""The explanation if the module without the fast path gives the same as its captured program."""


def fast_part(module: Any) -> ModuleLine | None:
    """The outermost part of a module that may take the fast path, or None; the module itself has no name."""
    nn = imported("torch.nn")
    kinds = (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.MultiheadAttention)
    for name, part in module.named_modules():
        if isinstance(part, kinds):
            return ModuleLine(
                module=name or None, kind=type(part).__name__, operators=(f"torch.nn.{type(part).__name__}",)
            )
    return None


@contextmanager
def without_fast_path() -> Iterator[None]:
    """Make attention take the slow path, which ``torch.export`` captures."""
    attention = imported("torch.backends.mha")
    before = attention.get_fastpath_enabled()
    attention.set_fastpath_enabled(False)
    try:
        yield
    finally:
        attention.set_fastpath_enabled(before)


_UNINITIALIZED = ("aten.empty", "aten.new_empty")
"""Operators that return uninitialized memory, which may differ from run to run."""


@dataclass(frozen=True, kw_only=True)
class _Result:
    """The digest of an operator's results, the place of the call, and whether the operator ``reads`` any tensor."""

    operator: str
    digest: str
    place: ModuleLine
    reads: bool


def origin_of_variation(module: Any, given: Arguments, restore: Callable[[], None]) -> ModuleLine | None:
    """The first operator of PyTorch's dispatcher whose results differ in a second run; None if it cannot be found.

    ``restore`` restores the module's state.
    """
    runs = _runs(module, (module, module), given, restore)
    pairs = zip(*runs, strict=False)
    return next(
        (one.place for one, other in pairs if (one.operator, one.digest) != (other.operator, other.digest)), None
    )


def origin_of_change(module: Any, program: Any, given: Arguments, restore: Callable[[], None]) -> ModuleLine | None:
    """The first operator of a module whose result nothing in its captured program gives; None if it cannot be found.

    ``restore`` restores the module's state.
    """
    in_module, in_program = _runs(module, (module, program.module()), given, restore)
    digests = {result.digest for result in in_program}
    return next((each.place for each in in_module if each.reads and each.digest not in digests and digests), None)


def _runs(
    module: Any, functions: Sequence[Callable[..., Any]], given: Arguments, restore: Callable[[], None]
) -> list[list[_Result]]:
    """The results of the operators that each function calls; none at all if it cannot be run below a dispatch mode."""
    runs: list[list[_Result]] = []
    for function in functions:
        try:
            with _modules_entered(module) as entered:
                runs.append(_results(partial(leaves_of_call, function, given), entered, module))
        except Exception:
            runs.append([])
        finally:
            restore()
    return runs


def _results(call: Callable[[], object], entered: list[str], module: Any) -> list[_Result]:
    mode = imported("torch.utils._python_dispatch").TorchDispatchMode
    results: list[_Result] = []

    class Listening(mode):  # type: ignore[misc, valid-type]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            name = str(func)
            if not name.startswith(_UNINITIALIZED):
                part = entered[-1] if entered else ""
                kind = type(module.get_submodule(part)).__name__
                place = place_of_stack(walk_stack(sys._getframe(1))) or ModuleLine(unknown=NO_LINE)
                place = replace(place, module=part or None, kind=kind, operators=(name,))
                reads = any(isinstance(leaf.value, imported().Tensor) for leaf in leaves_of((args, kwargs or {})))
                results.append(_Result(operator=name, digest=_digest(result), place=place, reads=reads))
            return result

    with Listening():
        call()
    return results


@contextmanager
def _modules_entered(module: Any) -> Iterator[list[str]]:
    """The names of the parts of a module that are being called, the innermost last. The hooks are global ones."""
    hooks = imported("torch.nn.modules.module")
    names = {id(part): name for name, part in module.named_modules()}
    entered: list[str] = []

    def enter(part: Any, args: Any) -> None:
        entered.append(names.get(id(part), entered[-1] if entered else ""))

    def leave(part: Any, args: Any, output: Any) -> None:
        entered.pop()

    with ExitStack() as registered:
        registered.callback(hooks.register_module_forward_pre_hook(enter).remove)
        registered.callback(hooks.register_module_forward_hook(leave, always_call=True).remove)
        yield entered


def _digest(result: Any) -> str:
    torch = imported()
    digest = hashlib.blake2b(digest_size=16)
    for value in (leaf.value for leaf in leaves_of(result)):
        if isinstance(value, torch.Tensor):
            digest.update(str(tuple(value.shape)).encode())
            digest.update(value.detach().resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8).numpy())
        else:
            digest.update(repr(value).encode())
    return digest.hexdigest()


_MOST_BYTES = 1 << 30
"""The size of golden values beyond which steps are not compared all at once."""


def apart(model: OnnxModel, golden: Path) -> OnnxModel | None:
    """A model whose steps do not depend on each other: each is fed with golden values, and its result is an output.

    A step is all that lies between tensors that have a golden value in the file. None if it has none, or is very large.
    """
    if golden.stat().st_size > _MOST_BYTES:
        return None
    values = read_feeds(golden)[0]
    proto = parse(model.data or read_bytes(model.path), model.path)
    computed = {name for node in proto.graph.node for name in node.output if name in values}
    if not computed:
        return None
    _feed(proto, {name: values[name] for name in computed})
    del proto.graph.output[:]
    proto.graph.output.extend(_declared(f"{name}{COMPUTED}", values[name]) for name in sorted(computed))
    return replace(
        model,
        data=proto.SerializeToString(),
        feeds=golden,
        expected={name: values[name] for name in computed},
        noise=_noise_of_steps(model.program, model.sample.given, values),
    )


def _noise_of_steps(onnx_program: Any, given: Arguments, golden: Outputs) -> Noise:
    """The noise of what each step of an exported program gives for the values that PyTorch has before it.

    ``golden`` are PyTorch's values by their names in the model.
    """
    program, names = onnx_program.exported_program, named_values(onnx_program).names

    def fed(node: str) -> Any:
        name = next((name for name in names.get(node, ()) if name in golden), None)
        return None if name is None else as_tensor(golden[name])

    def run(seed: int | None, wanted: Collection[str]) -> Outputs:
        fresh = given.copied()
        values: dict[str, Array] = {}
        for node, value in values_in_float64(program, flat_inputs(program, fresh.args, fresh.kwargs), seed, fed):
            for name in names.get(node.name, ()):
                if name in wanted:
                    values[name] = as_array(value)
        return values

    return Noise(run, has_steps=has_steps(program))


def mended(model: OnnxModel, golden: Path, names: Collection[str]) -> OnnxModel | None:
    """A model whose tensors ``names`` have their golden values; None if no output depends on anything else."""
    values = read_feeds(golden)[0]
    proto = parse(model.data or read_bytes(model.path), model.path)
    kept = [output for output in proto.graph.output if output.name not in names]
    if not kept or not all(name in values for name in names):
        return None
    _feed(proto, {name: values[name] for name in names})
    del proto.graph.output[:]
    proto.graph.output.extend(kept)
    expected = {output.name: model.expected[output.name] for output in kept if output.name in model.expected}
    return replace(model, data=proto.SerializeToString(), feeds=golden, expected=expected) if expected else None


def _feed(proto: onnx.ModelProto, values: Mapping[str, Array]) -> None:
    """Make some tensors inputs; what the nodes compute of them gets another name."""
    for node in proto.graph.node:
        for place, name in enumerate(node.output):
            if name in values:
                node.output[place] = f"{name}{COMPUTED}"
    proto.graph.input.extend(_declared(name, values[name]) for name in sorted(values))
    del proto.graph.value_info[:]


def _declared(name: str, value: Array) -> onnx.ValueInfoProto:
    kind = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
    return onnx.helper.make_tensor_value_info(name, kind, value.shape)
