"""Constant folding: computes what does not depend on the inputs of a model, within limits of memory and time."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping, MutableSequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from biopsy import errors
from biopsy.model import external, tensor_type, walk
from biopsy.model.sanitize import clean_up, every_info
from biopsy.processes.own_process import install_line
from biopsy.slow_imports import onnx
from biopsy.text import size_text

_MOST_PASSES = 10  # folding usually stops by itself, but a model could change for ever

_REWRITTEN = frozenset({"Dropout", "SequenceConstruct", "SequenceAt", "ConcatFromSequence", "SplitToSequence"})
"""Operators that onnxscript replaces by others instead of folding them, and wrongly for sequences below opset 13."""

_OF_SHAPES = frozenset({"Shape", "Size"})
"""Operators whose results depend only on shapes."""


@dataclass(frozen=True, kw_only=True)
class Folding:
    """How constants are folded.

    ``passes`` is the greatest number of passes. ``shapes`` folds operations on shapes too, ``infers`` infers shapes in
    each pass. ``threshold`` is the size in bytes of the largest tensor that is computed; None stands for the limits of
    ``fold_constants``. With ``ignores_weights``, weights in files may be missing; nothing is computed from these.
    """

    passes: int = _MOST_PASSES
    shapes: bool = True
    infers: bool = True
    threshold: int | None = None
    ignores_weights: bool = False

    @property
    def most(self) -> int:
        """The greatest number of bytes of all constants together."""
        return max(MOST_FOLDED, 2 * (self.threshold or 0))

    def may_be_computed(self, node: Any) -> bool | None:
        """True if a node of onnx_ir is computed, False if it stays, None if the optimizer's own rules decide.

        A node stays if its result may fill the memory, depends on missing files of weights, or holds strings.
        """
        for value in filter(None, {*node.inputs, *node.outputs}):
            path = getattr(value.const_value, "path", None)
            is_missing = path is not None and not Path(path).is_file()
            if is_missing or (value.dtype is not None and value.dtype.name == "STRING"):
                return False
        for output in node.outputs:
            known = output.shape is not None and all(isinstance(dim, int) for dim in output.shape)
            if tensor_type.elements(output.shape) > _MOST_COMPUTED if known else node.op_type in _GROWING:
                return False
        if self.threshold is None:
            return None
        if any(size is None or size > self.threshold for size in map(_bytes_of, node.outputs)):
            return False
        return None if node.op_type in _KEPT else True


_KEPT = frozenset({"ConstantOfShape", "QuantizeLinear", "DequantizeLinear"})
"""Operators that the optimizer's own rules do not fold."""


def _bytes_of(value: Any) -> int | None:
    """The size of a tensor in bytes; None if its type or shape is unknown."""
    if value.shape is None or value.dtype is None or not all(isinstance(dim, int) for dim in value.shape):
        return None
    return tensor_type.raw_size(int(value.dtype), list(value.shape))


MOST_FOLDED = 500_000_000
"""Bytes of all constants together that folding computes, if no larger threshold is given for a single one."""

MOST_SECONDS = 20.0
"""Seconds after which folding stops."""

_MOST_USES = 1 << 22
"""Uses of the inputs of a node that is computed, added up over its inputs: the optimizer lists them for each input.

A node with a thousand times the same input, which a million nodes use, would make a billion.
"""

_MOST_INFERRED = 1 << 18
"""Inputs of all nodes together up to which shapes are inferred in each pass: each input takes 40 us."""


class _Budget:
    """The bytes and seconds that folding has left, over all passes."""

    def __init__(self, how: Folding) -> None:
        self._how = how
        self._bytes = how.most
        self._until = time.monotonic() + MOST_SECONDS
        self._left = ""

    def allows(self, node: Any) -> bool | None:
        """As ``Folding.may_be_computed``, but False once the budget is spent."""
        allowed = self._how.may_be_computed(node)
        if allowed is False or any(value is not None and value.const_value is None for value in node.inputs):
            return allowed
        times = Counter(value for value in node.inputs if value is not None)
        given = sum(number * value.const_value.nbytes for value, number in times.items())
        needed = sum(given if size is None else size for size in map(_bytes_of, node.outputs))
        uses = sum(number * len(value.uses()) for value, number in times.items())
        if needed > self._bytes or time.monotonic() > self._until or uses > _MOST_USES:
            self._left = "not every constant is folded"
            return False
        self._bytes -= needed
        return allowed

    def stops(self) -> bool:
        """Whether the time is up for another pass: a pass over a large model takes time even if it computes nothing."""
        if time.monotonic() <= self._until:
            return False
        self._left = self._left or "constants may be left"
        return True

    def left_out(self) -> str:
        """A sentence on what was not computed; "" if everything was."""
        limits = f"folding may take {MOST_SECONDS:.0f} s, and compute {size_text(self._how.most)} in all"
        return f"{self._left}: {limits}" if self._left else ""


def fold_constants(model: onnx.ModelProto, folder: Path, how: Folding = Folding()) -> str:
    """Compute whatever does not depend on the inputs, also shapes where they are known; remove unused nodes.

    onnxscript's optimizer does it, without inlining functions or rewriting patterns. Results of over 262,144 elements
    and weights of over 8,192 stay as they are, as do ConstantOfShape and (De)QuantizeLinear. A result of more than
    16,777,216 elements, or of an unknown number, is never computed. With a threshold, only it and the last rule decide.
    All results together may have ``MOST_FOLDED`` bytes, or twice the threshold if that is more, and take
    ``MOST_SECONDS``. Returns a sentence on what these two limits left out, or "". External data in ``folder`` is read
    only where a small weight is folded. A node that cannot be computed stays; the others are folded anyway.

    Raises BiopsyError if onnxscript is not installed, ModelError if it cannot read the model or its external data.
    """
    try:
        import onnx_ir as ir
        from onnxscript import optimizer
    except ImportError as error:
        raise errors.BiopsyError(
            "folding constants needs the package onnxscript, which is not installed",
            next_steps=[install_line("biopsy[surgeon]")],
        ) from error
    if not how.ignores_weights:
        for tensor in external.external_tensors(model):
            external.span_of(tensor, folder)
    for function in model.functions:  # the optimizer would search their data in the current folder
        external.load_into(function, folder)
    few_inferred = ""
    if how.infers and sum(len(node.input) for node in walk.nodes(model)) > _MOST_INFERRED:
        how = replace(how, infers=False)
        few_inferred = f"folding infers no shapes on its way: the nodes have more than {_MOST_INFERRED:,} inputs"
    lost = _lost_by_folding(model)
    names = {tuple(node.output): node.name for node in walk.nodes(model)}
    listed = {info.name: info.SerializeToString() for infos in _listings(model) for info in infos}
    budget = _Budget(how)
    hidden = _REWRITTEN if how.shapes else _REWRITTEN | _OF_SHAPES  # the optimizer is not to touch these
    limits = {} if how.threshold is None else {"output_size_limit": _MOST_COMPUTED}
    try:
        walk.hide(
            model,
            [node for node in walk.nodes(model) if node.op_type in hidden and node.domain in {"", "ai.onnx"}],
        )
        represented = ir.from_proto(model)
        ir.external_data.set_base_dir(represented.graph, folder)
        with _quiet("onnxscript", "onnx_ir"):
            for _ in range(how.passes):
                result = optimizer.fold_constants(
                    represented, onnx_shape_inference=how.infers, should_fold=budget.allows, **limits
                )
                if not result.modified or budget.stops():
                    break
            folded = ir.to_proto(represented)
    except Exception as error:  # whatever a folded operator or the conversion raises
        cause: BaseException = error  # those raised from it only name the part of the model
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise errors.ModelError(f"constants cannot be folded: {type(cause).__name__}: {cause}") from error
    finally:
        walk.show_again(model)
    folded.ClearField("opset_import")
    folded.graph.ClearField("input")
    folded.graph.ClearField("output")
    model.CopyFrom(folded)
    model.MergeFrom(lost)
    walk.show_again(model)
    _restore(model, names, listed)
    clean_up(model, functions=False)
    return "; ".join(filter(None, [budget.left_out(), few_inferred]))


_MOST_COMPUTED = 1 << 24
"""Elements of the largest constant that is computed. Over 262,144 it is dropped again, but only after that."""

_GROWING = frozenset({
    "AffineGrid", "BlackmanWindow", "CenterCropPad", "Col2Im", "ConstantOfShape", "ConvTranspose", "DFT", "Einsum",
    "Expand", "EyeLike", "HammingWindow", "HannWindow", "MaxUnpool", "MelWeightMatrix", "OneHot", "Pad", "Range",
    "Resize", "STFT", "Tile", "Upsample",
})  # fmt: skip
"""Operators whose results may be far larger than their inputs."""


def _lost_by_folding(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model with only the parts that folding loses, reorders or leaves without a complete type.

    Raises ModelError for a model that would be folded wrongly.
    """
    times = Counter(name for node in model.graph.node for name in node.output if name)
    for name, number in times.items():
        if number > 1:
            raise errors.ModelError(f"constants cannot be folded: tensor {name!r} is defined twice")
    if any(graph.sparse_initializer for place, graph in enumerate(walk.graphs(model)) if place):
        raise errors.ModelError("constants cannot be folded: a subgraph holds a sparse initializer")
    lost = type(model)()
    lost.opset_import.extend(model.opset_import)
    lost.training_info.extend(model.training_info)
    lost.graph.input.extend(model.graph.input)
    lost.graph.output.extend(model.graph.output)
    lost.graph.sparse_initializer.extend(model.graph.sparse_initializer)
    return lost


@contextmanager
def _quiet(*names: str) -> Iterator[None]:
    """Have these loggers report only errors: that something cannot be folded is no news."""
    levels = {logging.getLogger(name): logging.getLogger(name).level for name in names}
    for logger in levels:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)


def _restore(model: onnx.ModelProto, names: Mapping[tuple[str, ...], str], listed: Mapping[str, bytes]) -> None:
    """Undo side effects of the optimizer: names for nameless nodes, remarks in metadata, inferred types.

    ``names`` are the names of nodes by their outputs; ``listed`` has the model's own ValueInfoProtos by tensor name.
    """
    for node in walk.nodes(model):
        name = names.get(tuple(node.output), node.name)
        if name:
            node.name = name
        else:
            node.ClearField("name")
    holders: list[Any] = [*walk.nodes(model), *walk.weights(model), *every_info(model)]
    for holder in holders:
        walk.keep(holder.metadata_props, lambda entry: not entry.key.startswith("pkg.onnxscript."))
    # A folded tensor is a weight now, which has its own type.
    computed = {weight.name for weight in walk.weights(model)}.intersection(chain.from_iterable(names))
    for infos in _listings(model):
        walk.keep(infos, lambda info: info.name in listed and info.name not in computed)
        for info in infos:
            info.ParseFromString(listed[info.name])


def _listings(model: onnx.ModelProto) -> Iterator[MutableSequence[onnx.ValueInfoProto]]:
    """Every value_info list of the model: of its graphs and functions."""
    for graph in walk.graphs(model):
        yield graph.value_info
    for function in model.functions:
        yield function.value_info
