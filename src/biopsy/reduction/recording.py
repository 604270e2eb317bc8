"""Recorded values: the tensors of one reference run of the original on each input sample, made when first needed.

The run happens in a child process, since the model may kill what runs it. If it cannot be had, a reduction goes on with
types alone.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from biopsy import errors, events
from biopsy.model import value_info
from biopsy.model.index import ModelIndex
from biopsy.model.slice import Boundary, Subset, candidate_parts
from biopsy.model.tensor_type import BOOL, ELEM_OF_DTYPE, STRING, Shape, TensorType
from biopsy.model.write import write_whole
from biopsy.tensors.results import Array, Feed, same_values

ENGINES = ("onnxrt:optimization=none", "reference")
"""Who records, in order: an engine whose optimizer is off, since that may be what is broken; then onnx's evaluator."""

_INTEGERS = frozenset({5, 6, 7, 12, 13, BOOL})
_RANDOM = frozenset(
    {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli"}
)


class Recording:
    """Values of the original's tensors for every input sample.

    ``samples`` are feeds for the graph inputs. A feed that holds inner tensors too (a layerwise inputs file) is
    believed for them, so that what is fed or frozen is what the user's golden values were made from. ``every_tensor``
    records all tensors in the one run, not only those that a boundary may freeze.
    """

    def __init__(
        self,
        index: ModelIndex,
        samples: Sequence[Feed],
        folder: Path,
        listener: events.Listener,
        *,
        every_tensor: bool = False,
        engines: Sequence[str] = ENGINES,
    ) -> None:
        self._index = index
        self._samples = samples
        self._folder = folder
        self._listener = listener
        self._every_tensor = every_tensor
        self._engines = engines

    @property
    def count(self) -> int:
        """How many samples there are."""
        return len(self._samples)

    def values(self, tensor: int) -> list[Array] | None:
        """The tensor's value in every sample, in order; None if it is not known."""
        name = self._index.names[tensor]
        if self._samples and all(name in sample for sample in self._samples):
            return [sample[name] for sample in self._samples]
        found = [outputs[name] for outputs in self._runs if name in outputs]
        return found if found and len(found) == len(self._samples) else None

    def constant_value(self, tensor: int) -> Array | None:
        """The tensor's value if it is known and the same in every sample; else None."""
        values = self.values(tensor)
        if values is None or not all(same_values(values[0], value) for value in values[1:]):
            return None
        return values[0]

    def tensor_type(self, tensor: int) -> TensorType | None:
        """Type and shape of a tensor as recorded; a dimension that differs between samples is unknown."""
        values = self.values(tensor)
        if values is None:
            return None
        dtype = "string" if values[0].dtype.kind in "OUS" else values[0].dtype.name
        if dtype not in ELEM_OF_DTYPE:
            return None
        shapes = {value.shape for value in values}
        ranks = {len(shape) for shape in shapes}
        if len(ranks) != 1:
            return TensorType(ELEM_OF_DTYPE[dtype], None)
        shape: Shape = tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*shapes, strict=True))
        return TensorType(ELEM_OF_DTYPE[dtype], shape)

    @cached_property
    def independent(self) -> frozenset[int]:
        """Tensors that depend on no graph input and on no random operator: constants, however long the way to them."""
        dependent = set(self._index.fed_inputs())
        found: set[int] = set()
        for node in self._index.nodes:
            varies = node.op_type in _RANDOM or (node.domain and not node.reads)
            if varies or any(tensor in dependent for tensor in node.reads):
                dependent.update(node.writes)
            else:
                found.update(node.writes)
        return frozenset(found)

    @cached_property
    def _runs(self) -> list[Mapping[str, Array]]:
        if not self._samples:
            return []
        failures = []
        for engine in self._engines:
            try:
                return self._record(engine)
            except errors.BiopsyError as error:
                failures.append(f"{engine}: {error.message.splitlines()[0]}")
        self._listener(
            events.Remark(
                "the original could not be run to record values; cut tensors are typed and fed, none is frozen\n  "
                + "\n  ".join(failures)
            )
        )
        return []

    def _record(self, engine: str) -> list[Mapping[str, Array]]:
        from biopsy.engines.base import ModelInput
        from biopsy.engines.child import run_in_child
        from biopsy.tensors.files import read_results, write_feeds

        started = time.monotonic()
        index = self._index
        feeds = self._folder / "samples.safetensors"
        inputs = {index.names[tensor] for tensor in index.fed_inputs()}
        write_feeds(feeds, [{name: sample[name] for name in sample if name in inputs} for sample in self._samples])
        whole = Subset(index, tuple(range(len(index.nodes))))
        parts = candidate_parts(whole, Boundary({}, {}, outputs=self._marked()))
        model = self._folder / "recorded.onnx"
        write_whole(model, parts)
        try:
            results = read_results(
                run_in_child(
                    ModelInput(model.read_bytes(), index.folder), engine, feeds, self._folder / "values.safetensors"
                )
            )
        finally:
            model.unlink(missing_ok=True)
        runs = [iteration.outputs for iteration in results[0].iterations]
        size = sum(value.nbytes for outputs in runs for value in outputs.values())
        self._listener(events.Recorded(engine, len(runs[0]), len(runs), size, time.monotonic() - started))
        return runs

    def _marked(self) -> list[int]:
        """The outputs of the recording run: the model's own, and every tensor whose value may be needed."""
        index = self._index
        marked = list(index.outputs)
        written = (tensor for node in index.nodes for tensor in node.writes)
        marked += [tensor for tensor in written if tensor not in index.outputs and self._is_wanted(tensor)]
        return marked

    def _is_wanted(self, tensor: int) -> bool:
        info = self._index.infos.get(tensor)
        kind = value_info.tensor_type(info) if info is not None else None
        if kind is None:
            # Of unknown type: it may be an integer. A declared sequence or optional is no output that can be stored.
            return info is None or not value_info.has_type(info)
        if kind.elem == STRING:
            return False
        return self._every_tensor or kind.elem in _INTEGERS or tensor in self.independent
