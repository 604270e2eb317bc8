"""Recorded values: the tensors of one reference run of the original on each input sample, made when first needed.

The run happens in a child process, since the model may kill what runs it. If it cannot be had, a reduction goes on with
types alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from biopsy import errors, events
from biopsy.engines.yardsticks import PLAIN
from biopsy.model import value_info
from biopsy.model.calls import unbounded
from biopsy.model.domains import PUBLIC_DOMAINS
from biopsy.model.index import ModelIndex
from biopsy.model.node import FunctionKey
from biopsy.model.node_order import neighbourhood_order
from biopsy.model.slice import Boundary, Subset, candidate_bytes
from biopsy.model.tensor_type import BOOL, ELEM_OF_DTYPE, STRING, Shape, TensorType
from biopsy.recording.dependence import dependence, dependent_on_inputs
from biopsy.tensors.results import Array, Feed, same_values
from biopsy.text import first_line

_INTEGERS = frozenset({5, 6, 7, 12, 13, BOOL})


class Recording:
    """Values of the original's tensors for every input sample.

    ``samples`` gives feeds for the graph inputs, and is asked when they are needed. A feed that holds inner tensors
    too (a layerwise inputs file) is believed for them, so that what is fed or frozen is what the user's golden values
    were made from. ``every_tensor`` records all tensors in the one run, not only those that a boundary may freeze.
    ``made_up`` samples are random: what depends on their values says nothing about the user's.
    """

    def __init__(
        self,
        index: ModelIndex,
        samples: Callable[[], Sequence[Feed]],
        folder: Path,
        listener: events.Listener,
        *,
        every_tensor: bool = False,
        made_up: bool = False,
        engines: Sequence[str] = PLAIN,
    ) -> None:
        self._index = index
        self._given = samples
        self._folder = folder
        self._listener = listener
        self._every_tensor = every_tensor
        self._made_up = made_up
        self._engines = engines
        self._asked_for: set[int] = set()
        self._recorded_by: tuple[str, tuple[int, ...]] | None = None

    @cached_property
    def _samples(self) -> Sequence[Feed]:
        return self._given()

    @property
    def count(self) -> int:
        """How many samples there are."""
        return len(self._samples)

    @property
    def holds_inner(self) -> bool:
        """Whether the samples hold inner tensors too, as a layerwise inputs file does."""
        inner = {self._index.names[tensor] for tensor in self._index.producer}
        return any(not inner.isdisjoint(sample) for sample in self._samples)

    def include(self, tensors: Iterable[int]) -> None:
        """Have these recorded too, in one more run if the one that was made left them out; not if that run fails."""
        asked = {t for t in tensors if not self._made_up or t in self.value_free} - self._asked_for
        self._asked_for |= asked
        if "_runs" not in self.__dict__ or not self._runs or self._recorded_by is None:
            return
        engine, nodes = self._recorded_by
        written = {tensor for node in nodes for tensor in self._index.node_writes[node]}
        known = self._runs[0]
        missing = [t for t in sorted(asked & written) if self._index.names[t] not in known and self._is_wanted(t)]
        try:
            more = self._record(engine, nodes, missing)
        except errors.BiopsyError:
            return
        self._runs = [{**found, **outputs} for found, outputs in zip(self._runs, more, strict=True)]

    def values(self, tensor: int) -> list[Array] | None:
        """The tensor's value in every sample, in order; None if it is not known."""
        name = self._index.names[tensor]
        if self._samples and all(name in sample for sample in self._samples):
            return [sample[name] for sample in self._samples]
        found = [outputs[name] for outputs in self._runs if name in outputs]
        return found if found and len(found) == len(self._samples) else None

    def constant_value(self, tensor: int) -> Array | None:
        """The tensor's value if it is known and the same in every sample, those not made up too; else None."""
        if self._made_up and tensor not in self.value_free:
            return None
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
        return frozenset(self._index.producer).difference(dependent_on_inputs(self._index))

    @cached_property
    def value_free(self) -> frozenset[int]:
        """Tensors that depend on no input's values: on nothing, or on the shapes of tensors alone."""
        return frozenset(self._index.producer).difference(dependence(self._index).values)

    @cached_property
    def _runs(self) -> list[Mapping[str, Array]]:
        """The outputs of the recording run per sample; empty if nothing could be recorded."""
        nodes = self._without(self._unknown_operators())
        if not self._samples or not self._marked(nodes):
            return []
        failures = []
        for engine in self._engines:
            try:
                return self._record(engine, nodes)
            except errors.BiopsyError as error:
                failures.append(f"{engine}: {first_line(error.message)}")
        runs = self._record_upstream(self._engines[0], nodes)
        if not runs:
            self._listener(
                events.Remark(
                    "the original could not be run to record values; cuts are typed and fed, none is frozen",
                    lines=tuple(f"  {failure}" for failure in failures),
                )
            )
        return runs

    def _unknown_operators(self) -> set[int]:
        """Nodes that no engine here can know: of a domain that is neither the standard's nor the model's own."""
        own = {domain for domain, _, _ in self._index.functions}
        endless = self._endless_functions()
        return {
            node.number
            for node in self._index.nodes
            if node.domain not in own | PUBLIC_DOMAINS or not endless.isdisjoint(node.calls)
        }

    def _endless_functions(self) -> set[FunctionKey]:
        """Functions that stand for more nodes than any engine could run: none must be tried."""
        if not self._index.functions:
            return set()
        import onnx

        spans = b"".join(span for span, _ in self._index.functions.values())
        return set(unbounded(onnx.ModelProto.FromString(spans).functions))

    def _without(self, blocked: set[int]) -> tuple[int, ...]:
        """The nodes but for some and all that depends on them."""
        index = self._index
        lost = {tensor for node in blocked for tensor in index.node_writes[node]}
        gone = set(blocked)
        for node in neighbourhood_order(index, range(len(index.nodes))):
            if node not in gone and not lost.isdisjoint(index.node_reads[node]):
                gone.add(node)
                lost.update(index.node_writes[node])
        return tuple(node for node in range(len(index.nodes)) if node not in gone)

    def _record_upstream(self, engine: str, nodes: tuple[int, ...]) -> list[Mapping[str, Array]]:
        """Record what does not depend on the first node that fails to run, which is found by halves."""
        order = neighbourhood_order(self._index, nodes)
        low, high = 0, len(order)
        while high - low > 1:
            middle = (low + high) // 2
            try:
                self._record(engine, tuple(sorted(order[:middle])))
                low = middle
            except errors.BiopsyError:
                high = middle
        culprit = self._index.nodes[order[high - 1]]
        for kept in (self._without({culprit.number, *self._unknown_operators()}), tuple(sorted(order[:low]))):
            try:
                runs = self._record(engine, kept)
            except errors.BiopsyError:
                continue
            self._listener(
                events.Remark(f"{engine} fails at {culprit.label}: only values that do not depend on it are recorded")
            )
            return runs
        return []

    def _record(
        self, engine: str, nodes: tuple[int, ...], tensors: Sequence[int] | None = None
    ) -> list[Mapping[str, Array]]:
        """Run some nodes and return what they compute: ``tensors``, or else all that may be needed."""
        from biopsy.engines.base import ModelInput
        from biopsy.engines.worker import Worker
        from biopsy.tensors.files import write_feeds

        started = time.monotonic()
        index = self._index
        marked = self._marked(nodes) if tensors is None else tensors
        if not marked:
            raise errors.CannotCompare("there is nothing to record")
        feeds = self._folder / "samples.safetensors"
        inputs = {index.names[tensor] for tensor in index.fed_inputs()}
        write_feeds(feeds, [{name: sample[name] for name in sample if name in inputs} for sample in self._samples])
        data = candidate_bytes(Subset(index, nodes), Boundary(infos={}, frozen={}, outputs=marked))
        with Worker(engine, self._folder) as worker:
            runs: list[Mapping[str, Array]] = [*worker.run(ModelInput(data, index.folder), feeds)]
        size = sum(value.nbytes for outputs in runs for value in outputs.values())
        self._recorded_by = engine, nodes
        self._listener(events.Recorded(engine, len(runs[0]), len(runs), size, time.monotonic() - started))
        return runs

    def _marked(self, nodes: Sequence[int]) -> list[int]:
        """The outputs of the recording run: every tensor that those nodes compute and whose value may be needed."""
        written = (tensor for node in nodes for tensor in self._index.node_writes[node])
        return [tensor for tensor in written if self._is_wanted(tensor)]

    def _is_wanted(self, tensor: int) -> bool:
        info = self._index.infos.get(tensor)
        kind = value_info.tensor_type(info) if info is not None else None
        if kind is None:
            # Of unknown type: it may be an integer. A declared sequence or optional is no output that can be stored.
            return info is None or not value_info.has_type(info)
        if kind.elem == STRING:
            return False
        if kind.shape is None or kind.elem in _INTEGERS:
            return True
        return self._every_tensor or tensor in self.independent or tensor in self._asked_for
