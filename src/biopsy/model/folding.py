"""Constants that a model computes are computed once: whatever does not depend on its inputs, within limits."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping, MutableSequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biopsy import errors
from biopsy.model import external, tensor_type, walk
from biopsy.model.sanitize import clean_up, every_info
from biopsy.text import size_text

if TYPE_CHECKING:
    import onnx

_MOST_PASSES = 10  # folding stops by itself; a model that never settles must not hang it

_REWRITTEN = frozenset({"Dropout", "SequenceConstruct", "SequenceAt", "ConcatFromSequence", "SplitToSequence"})
"""Operators that onnxscript's folding does not fold but replaces by others; sequences below opset 13 wrongly so."""

_OF_SHAPES = frozenset({"Shape", "Size"})
"""Operators whose results depend on shapes alone."""


@dataclass(frozen=True, kw_only=True)
class Folding:
    """How constants are folded.

    ``passes``: at most so many; ``shapes``: operations on shapes too; ``infers``: shapes are inferred in each pass;
    ``threshold``: bytes of a tensor that is still computed, None for the limits of ``fold_constants``;
    ``ignores_weights``: those in files may be missing, and nothing is computed from them then.
    """

    passes: int = _MOST_PASSES
    shapes: bool = True
    infers: bool = True
    threshold: int | None = None
    ignores_weights: bool = False

    @property
    def most(self) -> int:
        """Bytes of all constants together."""
        return max(MOST_FOLDED, 2 * (self.threshold or 0))

    def may_be_computed(self, node: Any) -> bool | None:
        """False for a node of onnx_ir's that stays, True for one that is computed, None for the optimizer's own rules.

        What stays would fill the memory, or may; is made of weights in files that are not there; or holds strings.
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
"""What the optimizer leaves as it is by its own rules."""


def _bytes_of(value: Any) -> int | None:
    """Bytes of a tensor of known type and shape; None if they are not known."""
    if value.shape is None or value.dtype is None or not all(isinstance(dim, int) for dim in value.shape):
        return None
    return tensor_type.raw_size(int(value.dtype), list(value.shape))


MOST_FOLDED = 500_000_000
"""Bytes that folding computes of all constants together, if no larger threshold is given for a single one."""

MOST_SECONDS = 20.0
"""Seconds that folding computes for; what is left then stays as it is."""

_MOST_USES = 1 << 22
"""Uses of its inputs, counted for each input, of a node that is computed: the optimizer makes a list of them for each.

Over a thousand inputs that are all one constant, which as many nodes use, are a billion.
"""

_MOST_INFERRED = 1 << 18
"""Inputs of all nodes together up to which shapes are inferred in each pass: each input of each node takes 40 us."""


class _Budget:
    """What folding may still compute. Results and time are counted over all passes."""

    def __init__(self, how: Folding) -> None:
        self._how = how
        self._bytes = how.most
        self._until = time.monotonic() + MOST_SECONDS
        self._left = ""

    def allows(self, node: Any) -> bool | None:
        """As ``Folding.may_be_computed``, as long as something is left."""
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
        """Whether there is to be no other pass: one over a large model takes its time even if it computes nothing."""
        if time.monotonic() <= self._until:
            return False
        self._left = self._left or "constants may be left"
        return True

    def left_out(self) -> str:
        """A sentence on what was not computed, "" if everything was."""
        limits = f"folding may take {MOST_SECONDS:.0f} s, and compute {size_text(self._how.most)} in all"
        return f"{self._left}: {limits}" if self._left else ""


def fold_constants(model: onnx.ModelProto, folder: Path, how: Folding = Folding()) -> str:
    """Compute whatever does not depend on the inputs, shape operations on known shapes included; drop what is left.

    By onnxscript's optimizer, folding only: no function is inlined, no pattern rewritten. Results of over 262,144
    elements and weights of over 8,192 stay as they are, as do ConstantOfShape and (De)QuantizeLinear. What would have
    more than 16,777,216 elements, or an unknown number of them, is not even computed. With a threshold, it alone and
    the last rule decide. All results together may have ``MOST_FOLDED`` bytes, or twice the threshold if that is more,
    and take ``MOST_SECONDS``, after which no other pass begins; returns a sentence on what was left out so, or "".
    External data in ``folder`` is read only where a small weight is folded. A node that cannot be computed stays, and
    the others are folded all the same.

    Raises BiopsyError if onnxscript is not installed, ModelError if it cannot read the model or its external data.
    """
    try:
        import onnx_ir as ir
        from onnxscript import optimizer
    except ImportError as error:
        raise errors.BiopsyError(
            "folding constants needs the package onnxscript, which is not installed",
            next_steps=['pip install "biopsy[surgeon]"'],
        ) from error
    if not how.ignores_weights:
        for tensor in external.external_tensors(model):
            external.span_of(tensor, folder)
    for function in model.functions:  # the optimizer would look for their data in the current folder
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
        first: BaseException = error  # the others say only in which part of the model
        while first.__cause__ is not None:
            first = first.__cause__
        raise errors.ModelError(f"constants cannot be folded: {type(first).__name__}: {first}") from error
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
"""Elements of a constant that is computed at all. Over 262,144 it is not kept, but that is seen afterwards only."""

_GROWING = frozenset({
    "AffineGrid", "BlackmanWindow", "CenterCropPad", "Col2Im", "ConstantOfShape", "ConvTranspose", "DFT", "Einsum",
    "Expand", "EyeLike", "HammingWindow", "HannWindow", "MaxUnpool", "MelWeightMatrix", "OneHot", "Pad", "Range",
    "Resize", "STFT", "Tile", "Upsample",
})  # fmt: skip
"""Operators whose results may be of any size, whatever is given to them."""


def _lost_by_folding(model: onnx.ModelProto) -> onnx.ModelProto:
    """The parts that folding loses, orders anew or gives half a type, as a model that holds nothing else.

    Raises ModelError for what it would do wrong.
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
    """Let named loggers say nothing below errors: what cannot be folded simply stays."""
    levels = {logging.getLogger(name): logging.getLogger(name).level for name in names}
    for logger in levels:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)


def _restore(model: onnx.ModelProto, names: Mapping[tuple[str, ...], str], listed: Mapping[str, bytes]) -> None:
    """Undo what the optimizer does besides: nameless nodes have names, it leaves remarks, and lists what it inferred.

    ``names`` are those of nodes by what they compute; ``listed`` is what the model said of its tensors.
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
    # Weights that were computed have their type themselves.
    computed = {weight.name for weight in walk.weights(model)}.intersection(chain.from_iterable(names))
    for infos in _listings(model):
        walk.keep(infos, lambda info: info.name in listed and info.name not in computed)
        for info in infos:
            info.ParseFromString(listed[info.name])


def _listings(model: onnx.ModelProto) -> Iterator[MutableSequence[onnx.ValueInfoProto]]:
    """Every value_info list: of graphs, and of functions."""
    for graph in walk.graphs(model):
        yield graph.value_info
    for function in model.functions:
        yield function.value_info
