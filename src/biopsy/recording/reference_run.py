"""The reference run, which records tensors of the original for each input sample, and the recorded values."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from biopsy import errors, events
from biopsy.engines.base import ModelInput
from biopsy.engines.registry import PLAIN, create
from biopsy.engines.worker import Worker
from biopsy.model import parts
from biopsy.model.index import ModelIndex
from biopsy.model.known_names import require_known
from biopsy.model.nodes import neighbourhood_order
from biopsy.model.slice import Boundary, Subset, candidate_bytes
from biopsy.model.tensor_type import BOOL, ELEM_OF_DTYPE, STRING, Shape, TensorType
from biopsy.recording.dependence import dependence, independent_of_inputs, unknown_operators, without_dependents
from biopsy.slow_imports import np
from biopsy.tensors.results import Array, Feed, TensorForm, form_of, same_values
from biopsy.text import first_line

_INTEGERS = frozenset({5, 6, 7, 12, 13, BOOL})


class ValuesInMemory:
    """Recorded values as arrays: one mapping from tensor name to array for each of the ``samples``."""

    def __init__(self, samples: Sequence[Feed] = ()) -> None:
        self.samples = samples

    @property
    def count(self) -> int:
        """How many samples there are."""
        return len(self.samples)

    def samples_with(self, name: str) -> Sequence[Feed]:
        """The samples if every one has the tensor, else an empty sequence."""
        return self.samples if all(name in sample for sample in self.samples) else ()

    def __contains__(self, name: str, /) -> bool:
        return bool(self.samples_with(name))

    def values(self, name: str) -> list[Array] | None:
        """The tensor's value in every sample, in order; None if it is not recorded."""
        return [sample[name] for sample in self.samples_with(name)] or None

    def tensor_type(self, name: str) -> TensorType | None:
        """The type and shape that fit the tensor in all samples (``type_of_forms``); None if it is not recorded."""
        forms = [form_of(sample, name) for sample in self.samples_with(name)]
        return type_of_forms(forms) if forms else None

    def size(self, name: str) -> int:
        """Bytes of the tensor's values in all samples; 0 if it is not recorded."""
        return sum(form_of(sample, name).nbytes for sample in self.samples_with(name))

    def constant_value(self, name: str) -> Array | None:
        """The tensor's value if it is recorded and equal in all samples, else None."""
        values = self.values(name)
        if values is None or not all(same_values(values[0], value) for value in values[1:]):
            return None
        return values[0]


class StoredValues(ValuesInMemory):
    """Recorded values in the file ``path``: each array is a view of the file, so they need not fit into memory.

    An engine in another process reads the same file. Raises what ``read_feeds`` raises.
    """

    def __init__(self, path: Path) -> None:
        from biopsy.tensors.files import read_feeds

        super().__init__(read_feeds(path))
        self.path = path


class Recording(ValuesInMemory):
    """Recorded values of the original, from one run that is made when they are first needed.

    ``samples`` returns feeds for the graph inputs, and is called when they are needed. If a feed holds inner tensors
    too (a layerwise inputs file), these values take precedence, because the user's golden values were made from them.
    ``every_tensor`` records all tensors, not only those that a boundary may freeze. ``made_up``: the samples are
    random, so what depends on their values says nothing about the user's. The first of ``engines`` that can run the
    original records it. ``memory`` is its limit in bytes; None for the default of ``Worker``.
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
        memory: int | None = None,
    ) -> None:
        self._index = index
        self._samples_when_needed = samples
        self._folder = folder
        self._listener = listener
        self._every_tensor = every_tensor
        self._made_up = made_up
        self._engines = engines
        self._memory = memory
        self._included: set[int] = set()
        self._recorded_by: tuple[str, tuple[int, ...]] | None = None
        self._recorded: ValuesInMemory | None = None

    @cached_property
    def samples(self) -> Sequence[Feed]:  # type: ignore[override]
        """The values of the inputs, and of inner tensors if the user gave them."""
        return self._samples_when_needed()

    @cached_property
    def _given(self) -> ValuesInMemory:
        return ValuesInMemory(self.samples)

    def samples_with(self, name: str) -> Sequence[Feed]:
        """The user's samples, or those of the run, if every one has the tensor, else an empty sequence."""
        return self._given.samples_with(name) or self._run.samples_with(name)

    @property
    def holds_inner(self) -> bool:
        """Whether the samples hold inner tensors too, like a layerwise inputs file."""
        inner = {self._index.names[tensor] for tensor in self._index.producer}
        return any(not inner.isdisjoint(sample) for sample in self.samples)

    @cached_property
    def has_only_golden_values(self) -> bool:
        """Whether the recording engines compute nothing, so that a tensor without a value never gets one."""
        try:
            return not any(create(engine).capabilities.computes for engine in self._engines)
        except errors.BiopsyError:  # reported when it is asked to record
            return False

    def is_given(self, name: str) -> bool:
        """Whether the samples hold a tensor, so that its values do not come from the run."""
        return name in self._given

    def include(self, tensors: Iterable[int]) -> None:
        """Record these tensors too, in a further run if the first left them out. A failure of that run is ignored."""
        included = {t for t in tensors if not self._made_up or t in self.value_free} - self._included
        self._included |= included
        if self._recorded is None or not self._recorded.count or self._recorded_by is None:
            return
        engine, nodes = self._recorded_by
        written = {tensor for node in nodes for tensor in self._index.node_writes[node]}
        known = self._recorded.samples[0]
        missing = [t for t in sorted(included & written) if self._index.names[t] not in known and self._is_wanted(t)]
        try:
            more = self._record(engine, nodes, missing)
        except errors.BiopsyError:
            return
        pairs = zip(self._recorded.samples, more.samples, strict=True)
        self._recorded = ValuesInMemory([{**known, **added} for known, added in pairs])

    def constant_value(self, name: str) -> Array | None:
        """The tensor's value if it is known and equal in all samples, the user's included; else None."""
        if self._made_up and self._index.ids[name] not in self.value_free:
            return None
        return super().constant_value(name)

    def computed_value(self, name: str) -> Array | None:
        """The value that the run computed, whatever the samples hold; None if it is unknown or varies."""
        return None if self._made_up else self._run.constant_value(name)

    def confirms(self, name: str) -> bool:
        """Whether the run computed what the samples hold of a tensor, up to rounding; True if they do not hold it."""
        given, computed = self._given.values(name), self._run.values(name)
        return given is None or (
            computed is not None
            and all(
                same_values(left, right)
                or (
                    (left.shape == right.shape and left.dtype.kind in "biuf")
                    and np.allclose(left, right, rtol=1e-3, atol=1e-5, equal_nan=True)
                )
                for left, right in zip(given, computed, strict=True)
            )
        )

    @cached_property
    def independent(self) -> frozenset[int]:
        """Tensors that depend on no graph input and no random operator."""
        return independent_of_inputs(self._index)

    @cached_property
    def value_free(self) -> frozenset[int]:
        """Tensors that depend on no input's values: on nothing, or on shapes alone."""
        return frozenset(self._index.producer).difference(dependence(self._index).values)

    @property
    def _run(self) -> ValuesInMemory:
        """The values that the run recorded; empty if it failed."""
        if self._recorded is None:
            self._recorded = self._first_run()
        return self._recorded

    def _first_run(self) -> ValuesInMemory:
        nodes = without_dependents(self._index, unknown_operators(self._index))
        if not self.samples or not self._marked(nodes):
            return ValuesInMemory()
        failures = []
        for engine in self._engines:
            try:
                return self._record(engine, nodes, self._marked(nodes))
            except errors.BiopsyError as error:
                failures.append(f"{engine}: {first_line(error.message)}")
        upstream = self._record_upstream(self._engines[0], nodes)
        if upstream is None and not self.has_only_golden_values:  # golden values may be among the samples already
            self._listener(
                events.Remark(
                    "the original could not be run to record values; cuts are typed and fed, none is frozen",
                    lines=tuple(f"  {failure}" for failure in failures),
                )
            )
        return upstream or ValuesInMemory()

    def _record_upstream(self, engine: str, nodes: tuple[int, ...]) -> ValuesInMemory | None:
        """Record what does not depend on the first node that fails to run, which is found by bisection."""
        index = self._index
        order = neighbourhood_order(index, nodes)
        low, high = 0, len(order)
        while high - low > 1:
            middle = (low + high) // 2
            try:
                tried = tuple(sorted(order[:middle]))
                self._values_from(engine, tried, self._marked(tried), events.ignore)  # only a probe: not reported
                low = middle
            except errors.BiopsyError:
                high = middle
        culprit = index.nodes[order[high - 1]]
        unaffected = without_dependents(index, {culprit.number, *unknown_operators(index)})
        for kept in (unaffected, tuple(sorted(order[:low]))):
            try:
                recorded = self._record(engine, kept, self._marked(kept))
            except errors.BiopsyError:
                continue
            self._listener(
                events.Remark(f"{engine} fails at {culprit.label}: only values that do not depend on it are recorded")
            )
            return recorded
        return None

    def _record(self, engine: str, nodes: tuple[int, ...], tensors: Sequence[int]) -> ValuesInMemory:
        """Run some nodes and keep the values of these tensors."""
        recorded = self._values_from(engine, nodes, tensors, self._listener)
        self._recorded_by = engine, nodes
        return recorded

    def _values_from(
        self, engine: str, nodes: tuple[int, ...], tensors: Sequence[int], listener: events.Listener
    ) -> ValuesInMemory:
        """The values of some tensors that these nodes compute; only those it has, if the engine computes nothing.

        The engine runs in a child process, since the model may crash it. Raises CannotCompare if no such tensor is
        left, and what ``Worker.run`` raises.
        """
        from biopsy.tensors.files import write_feeds

        def model() -> ModelInput:
            boundary = Boundary(infos={}, frozen={}, outputs=tensors)
            return ModelInput(candidate_bytes(Subset(index, nodes), boundary), index.folder)

        started, index = time.monotonic(), self._index
        if not tensors:
            raise errors.CannotCompare("there is nothing to record")
        feeds = self._folder / "samples.safetensors"
        inputs = {index.names[tensor] for tensor in index.fed_inputs()}
        write_feeds(feeds, [{name: sample[name] for name in sample if name in inputs} for sample in self.samples])
        with Worker(engine, self._folder, memory=self._memory) as worker:
            if not create(engine).capabilities.computes:
                given = worker.tensors_given(model())
                known = {} if given is None else given.sizes
                tensors = [tensor for tensor in tensors if index.names[tensor] in known]
            if not tensors:
                raise errors.CannotCompare(f"{engine} has no value of any tensor that is to be recorded")
            outputs = worker.run(model(), feeds)
        size = sum(value.nbytes for sample in outputs for value in sample.values())
        seconds, count, samples = time.monotonic() - started, len(outputs[0]), len(outputs)
        listener(events.Recorded(engine=engine, tensors=count, samples=samples, bytes=size, seconds=seconds))
        return ValuesInMemory(outputs)

    def _marked(self, nodes: Sequence[int]) -> list[int]:
        """The outputs of the recording run: every tensor computed by those nodes whose value may be needed."""
        written = (tensor for node in nodes for tensor in self._index.node_writes[node])
        return [tensor for tensor in written if self._is_wanted(tensor)]

    def _is_wanted(self, tensor: int) -> bool:
        info = self._index.infos.get(tensor)
        kind = parts.tensor_type(info) if info is not None else None
        if kind is None:
            # An unknown type may be an integer. A declared sequence or optional cannot be stored as an output.
            return info is None or not parts.has_type(info)
        if kind.elem == STRING:
            return False
        if kind.shape is None or kind.elem in _INTEGERS:
            return True
        return self._every_tensor or tensor in self.independent or tensor in self._included


_SIZES = (2, 3)


@dataclass(frozen=True, kw_only=True)
class Draws:
    """How random samples are drawn, at least two; ``val_range`` is as in ``generate_feeds``."""

    seed: int = 1
    count: int = len(_SIZES)
    val_range: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def random_samples(index: ModelIndex, draws: Draws | None = None) -> list[Feed]:
    """Random samples that differ in every value and, if the model allows, in every dynamic dimension.

    So what is equal in all of them depends on the model alone and may be frozen. Empty if an input is not a plain
    tensor or its rank is unknown. Raises DoesNotFit for a range of an input that does not exist.
    """
    from biopsy.tensors.generate import generate_feeds

    draws = draws or Draws()
    kinds = {index.names[tensor]: index.tensor_type(tensor) for tensor in index.fed_inputs()}
    known = {name: kind for name, kind in kinds.items() if kind is not None and kind.shape is not None}
    if len(known) < len(kinds):
        return []
    require_known("--val-range", "input", draws.val_range, known)
    samples: list[Feed] = []
    for number in range(max(draws.count, len(_SIZES))):
        size = _SIZES[number % len(_SIZES)]
        shapes = {
            name: tuple(dim if isinstance(dim, int) else size for dim in kind.shape or ())
            for name, kind in known.items()
            if not kind.is_static
        }
        seed = draws.seed + number
        samples += generate_feeds(known, iterations=1, seed=seed, val_range=draws.val_range, shapes=shapes)
    return samples


def type_of_forms(forms: Sequence[TensorForm]) -> TensorType | None:
    """The type and shape that fit all of some values; None if ONNX does not have their element type.

    A dimension that differs between values is left open, and so is the shape if their ranks differ.
    """
    dtype = "string" if forms[0].dtype.kind in "OUS" else forms[0].dtype.name
    if dtype not in ELEM_OF_DTYPE:
        return None
    shapes = {form.shape for form in forms}
    if len({len(shape) for shape in shapes}) != 1:
        return TensorType(ELEM_OF_DTYPE[dtype], None)
    shape: Shape = tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*shapes, strict=True))
    return TensorType(ELEM_OF_DTYPE[dtype], shape)
