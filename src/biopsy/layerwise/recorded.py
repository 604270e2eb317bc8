"""The reference engine's values of every tensor, for every input sample, in one mapped file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from biopsy import errors, events
from biopsy.engines.base import ModelInput
from biopsy.engines.worker import Worker
from biopsy.layerwise.tensor_errors import Judge, Odd, odd
from biopsy.model.index import ModelIndex
from biopsy.model.known_names import listed
from biopsy.model.load import read_bytes
from biopsy.model.outputs import mark_outputs
from biopsy.model.tensor_type import STRING, TensorType
from biopsy.recording.cut_types import CutTypes
from biopsy.tensors.appendable_store import GrowingFile, results_of
from biopsy.tensors.dtypes import dtype_named
from biopsy.tensors.files import read_feeds, write_feeds
from biopsy.tensors.recording import Batch, Disagreement, Request, record
from biopsy.tensors.results import Array, Feed, release
from biopsy.tensors.sizes import tensor_sizes


@dataclass
class Recorded:
    """Recorded values by the name of the tensor, one per sample; every array is a view of a mapped file.

    ``fed`` are the same values in the types of the model, from the file ``path``: what pieces are fed with. They differ
    where the reference computes in more than the model's types. ``inputs`` is a file with the model's inputs alone.
    ``outputs`` are the model's own outputs per sample, nothing else being marked.
    """

    path: Path
    inputs: Path
    samples: Sequence[Mapping[str, Array]]
    fed: Sequence[Mapping[str, Array]]
    outputs: Sequence[Mapping[str, Array]]
    _odd: dict[str, Odd | None] = field(default_factory=dict)

    @property
    def is_rounded(self) -> bool:
        """Whether pieces are fed with other values than the reference has computed with."""
        return self.fed is not self.samples

    def __contains__(self, name: str) -> bool:
        return all(name in sample for sample in self.samples)

    def values(self, name: str) -> list[Array]:
        """The values of a tensor that is recorded."""
        return [sample[name] for sample in self.samples]

    def size(self, name: str) -> int:
        """Bytes of the values of a tensor in all samples; 0 if it is not recorded."""
        return sum(sample[name].nbytes for sample in self.samples if name in sample)

    def odd(self, name: str) -> Odd | None:
        """The NaN and infinities in a recorded tensor, found when first asked for."""
        if name not in self._odd:
            values = self.values(name)
            self._odd[name] = odd(values)
            release(*values)
        return self._odd[name]


def wanted(index: ModelIndex, types: CutTypes) -> list[str]:
    """The tensors to record: what a node computes and anything needs; of a node that nothing needs, its first.

    Not the outputs of Constant nodes, which are never cut, nor what is known to be no plain tensor.
    """
    found: dict[int, None] = {}
    own = set(index.outputs)
    for node in index.nodes:
        if is_constant(index, node.number):
            continue
        needed = [tensor for tensor in node.writes if tensor in index.consumers or tensor in own]
        found.update(dict.fromkeys(needed or node.writes[:1]))
    return [index.names[tensor] for tensor in found if types.info(tensor) is None or types.tensor_type(tensor)]


def is_constant(index: ModelIndex, node: int) -> bool:
    """Whether a node is a Constant: no layer, but a way to write a weight."""
    found = index.nodes[node]
    return found.op_type == "Constant" and not found.domain


def _in_types_of_the_model(index: ModelIndex, samples: Sequence[Mapping[str, Array]], path: Path) -> Path | None:
    """Write the values to ``path`` in the types that the model has them in; None if they are in those already."""
    types = CutTypes(index, lambda tensor: None)
    wrong = {
        name: dtype
        for name, value in samples[0].items()
        if (dtype := _dtype(types.tensor_type(index.ids[name]))) is not None and dtype != value.dtype
    }
    if not wrong:
        return None
    names = list(samples[0])
    places = [(0, number, name) for number in range(len(samples)) for name in names]
    with GrowingFile(path, None, places) as file:
        for number, sample in enumerate(samples):
            for name, value in sample.items():
                with np.errstate(all="ignore"):
                    file.append((0, number, name), value.astype(wrong[name]) if name in wrong else value)
                release(value)
        file.commit()
        file.finish({0: results_of(file, names, 0, "fed", len(samples))})
    return path


def _dtype(kind: TensorType | None) -> np.dtype[Any] | None:
    """The type of elements as NumPy has it; None for strings, and where it is not known."""
    return None if kind is None or kind.elem == STRING else dtype_named(kind.dtype)


class Recorder:
    """Records with one engine, batch by batch, below ``limit`` bytes of tensors at a time."""

    def __init__(
        self, index: ModelIndex, model: ModelInput, worker: Worker, limit: int, listener: events.Listener
    ) -> None:
        self._index = index
        self._model = model
        self._worker = worker
        self._limit = limit
        self._listener = listener
        self._lost: list[str] = []

    def record(self, feeds: Sequence[Feed], names: Sequence[str], folder: Path, judge: Judge) -> Recorded:
        """Record ``names`` for every feed, into ``folder``. Raises CannotCompare if the engine cannot run the model."""
        import time

        started = time.monotonic()
        inputs = folder / "inputs.safetensors"
        write_feeds(inputs, feeds)
        outputs = self._outputs(inputs)
        path = folder / "recorded.safetensors"
        given = [name for name in feeds[0] if name not in names] if feeds else []
        places = [(0, sample, name) for sample in range(len(feeds)) for name in (*given, *names)]
        with GrowingFile(path, None, places) as file:
            for sample, feed in enumerate(feeds):
                for name in given:
                    file.append((0, sample, name), feed[name])
            file.commit()
            own = [self._index.names[tensor] for tensor in self._index.outputs]
            room = max(self._limit // max(len(feeds), 1), 1)
            request = Request(0, names, self._sizes(feeds, names, folder, room), own, len(feeds), room)
            told = _Told(self._worker.engine, judge, self._listener)
            record(file, request, lambda batch: self._run(batch, inputs), told.finished, told.differs)
            file.finish({0: results_of(file, [*given, *names], 0, self._worker.engine, len(feeds))})
        if self._lost:
            self._listener(
                events.Remark(f"{self._worker.engine} cannot give {listed(self._lost, most=4)}: not recorded")
            )
        samples = read_feeds(path)
        fed = _in_types_of_the_model(self._index, samples, folder / "fed.safetensors")
        found = Recorded(fed or path, inputs, samples, read_feeds(fed) if fed else samples, outputs)
        self._listener(
            events.Recorded(
                engine=self._worker.engine,
                tensors=len(names),
                samples=len(feeds),
                bytes=path.stat().st_size,
                seconds=time.monotonic() - started,
            )
        )
        return found

    def _outputs(self, inputs: Path) -> list[dict[str, Array]]:
        try:
            return self._worker.run(self._model, inputs)
        except errors.EngineFailure as failure:
            raise errors.CannotCompare(
                f"the reference engine {self._worker.engine} cannot {failure.stage} the model: {failure.kind}: "
                f"{failure.message}",
                next_steps=["--reference-engine NAME    another engine to compare with, such as reference"],
            ) from failure

    def _sizes(self, feeds: Sequence[Feed], names: Sequence[str], folder: Path, room: int) -> Mapping[str, int | None]:
        assert self._model.path is not None
        marked = mark_outputs(read_bytes(self._model.path), names)
        one = folder / "one.safetensors"

        def run(model: bytes, feed: Feed) -> Mapping[str, Array]:
            write_feeds(one, [feed])
            return self._worker.run(ModelInput(model, self._model.folder), one)[0]

        return tensor_sizes(marked, feeds, run, room)

    def _run(self, names: Sequence[str], inputs: Path) -> list[dict[str, Array]]:
        """The values of some tensors per sample, without those that the engine cannot give: found by halves."""
        try:
            return self._worker.run(self._model, inputs, names)
        except errors.EngineFailure:
            if len(names) == 1:
                self._lost += names
                return [{} for _ in read_feeds(inputs)]
        half = len(names) // 2
        parts = self._run(names[:half], inputs), self._run(names[half:], inputs)
        return [{**left, **right} for left, right in zip(*parts, strict=True)]


class _Told:
    """What is said about a recording: progress, and that batches do not agree."""

    def __init__(self, engine: str, judge: Judge, listener: events.Listener) -> None:
        self._engine = engine
        self._judge = judge
        self._listener = listener
        self._told: set[str] = set()

    def finished(self, batch: Batch) -> None:
        self._listener(events.Measured("record", batch.number, batch.count))

    def differs(self, found: Disagreement) -> None:
        if found.name in self._told or self._judge.error(found.name, [found.again], [found.first]).passed:
            return
        self._told.add(found.name)
        self._listener(
            events.Remark(
                f"the reference engine {self._engine} gives other values for {found.name!r} when other tensors are "
                "marked as outputs: take one that does not optimize, such as onnxrt:optimization=none",
                warning=True,
            )
        )
