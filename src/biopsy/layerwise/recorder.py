"""Recording a model with the reference engine, batch by batch of tensors."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from biopsy import errors, events
from biopsy.engines.base import ModelInput
from biopsy.engines.registry import create
from biopsy.engines.worker import Worker
from biopsy.layerwise.findings import GoldenCoverage
from biopsy.layerwise.recorded import RecordedModel, in_types_of_the_model, misfit_text
from biopsy.layerwise.tensor_errors import Judge
from biopsy.model.index import ModelIndex
from biopsy.model.known_names import listed
from biopsy.model.load import read_bytes
from biopsy.model.outputs import mark_outputs
from biopsy.tensors.appendable_store import AppendableStore, results_of
from biopsy.tensors.files import read_feeds, write_feeds
from biopsy.tensors.recorded_values import StoredValues, ValuesInMemory
from biopsy.tensors.recording import Batch, Disagreement, Request, record
from biopsy.tensors.results import Array, Feed
from biopsy.tensors.sizes import tensor_sizes

_MOST_REFUSED = 8


class ReferenceRecorder:
    """Records with one engine, with at most ``limit`` bytes of tensors in memory at a time.

    Files go into ``folder``.
    """

    def __init__(
        self,
        index: ModelIndex,
        model: ModelInput,
        reference: Worker,
        *,
        folder: Path,
        limit: int,
        judge: Judge,
        listener: events.Listener,
    ) -> None:
        self._index = index
        self._model = model
        self._reference = reference
        self._folder = folder
        self._limit = limit
        self._judge = judge
        self._listener = listener
        self._lost: list[str] = []
        self._given: Mapping[str, int] | None = None
        self._refused: Mapping[str, str] = {}

    def record(self, feeds: Sequence[Feed], names: Sequence[str]) -> RecordedModel:
        """Record those of ``names`` that the engine can give, for every feed.

        Raises CannotCompare if the engine cannot run the model, or gives none of its tensors.
        """
        started = time.monotonic()
        engine = self._reference.engine
        inputs = self._folder / "inputs.safetensors"
        write_feeds(inputs, feeds)
        self._given = self._tensors_given(names)
        outputs = ValuesInMemory(self._outputs(inputs))
        wanted, names = names, [name for name in names if self._given is None or name in self._given]
        computed = self._computed(feeds, names, inputs)
        if self._lost:
            self._listener(events.Remark(f"{engine} cannot give {listed(self._lost, most=4)}: not recorded"))
        fed = in_types_of_the_model(self._index, computed, self._folder / "fed.safetensors")
        size, seconds = computed.path.stat().st_size, time.monotonic() - started
        self._listener(
            events.Recorded(
                engine=engine,
                tensors=len(names),
                samples=len(feeds),
                bytes=size,
                seconds=seconds,
                of=None if self._given is None else len(wanted),
            )
        )
        return RecordedModel(
            computed=computed,
            fed=fed,
            inputs=inputs,
            outputs=outputs,
            golden=None
            if self._given is None
            else GoldenCoverage(tensors=len(names), of=len(wanted), misfits=self._refused),
        )

    def _tensors_given(self, names: Sequence[str]) -> Mapping[str, int] | None:
        """What the engine says that it can give, and the bytes of each; None if it computes."""
        if create(self._reference.engine).capabilities.computes:
            return None
        given = self._reference.tensors_given(self._model)
        if given is None:
            return None
        self._refused = given.refused
        if any(name in given.sizes for name in names):
            return given.sizes
        others = "" if not given.refused else " that fits"
        raise errors.CannotCompare(
            f"{self._reference.engine} has golden values of none of the model's tensors{others}",
            details=[misfit_text(name, why) for name, why in list(given.refused.items())[:_MOST_REFUSED]],
            next_steps=["biopsy inspect data FILE    shows what is in a file; names must be those in the model"],
        )

    def _computed(self, feeds: Sequence[Feed], names: Sequence[str], inputs: Path) -> StoredValues:
        """The values of the inputs and of ``names``, in one file."""
        path = self._folder / "recorded.safetensors"
        fed = [name for name in feeds[0] if name not in names] if feeds else []
        places = [(0, sample, name) for sample in range(len(feeds)) for name in (*fed, *names)]
        with AppendableStore(path, None, places) as store:
            for sample, feed in enumerate(feeds):
                for name in fed:
                    store.append((0, sample, name), feed[name])
            store.commit()
            remarks = _RecordingRemarks(self._reference.engine, self._judge, self._listener)
            request = self._request(feeds, names)
            record(store, request, lambda batch: self._run(batch, inputs), remarks.finished, remarks.differs)
            store.finish({0: results_of(store, [*fed, *names], 0, self._reference.engine, len(feeds))})
        return StoredValues(path)

    def _request(self, feeds: Sequence[Feed], names: Sequence[str]) -> Request:
        limit = max(self._limit // max(len(feeds), 1), 1)
        return Request(
            runner=0,
            names=names,
            sizes=self._sizes(feeds, names, limit),
            own=[self._index.names[tensor] for tensor in self._index.outputs],
            iterations=len(feeds),
            limit=limit,
        )

    def _outputs(self, inputs: Path) -> list[dict[str, Array]]:
        own = [self._index.names[tensor] for tensor in self._index.outputs]
        known = own if self._given is None else [name for name in own if name in self._given]
        if not known:
            return [{} for _ in read_feeds(inputs)]
        try:
            return self._reference.run(self._model, inputs, None if known == own else known)
        except errors.EngineFailure as failure:
            raise errors.CannotCompare(
                f"the reference engine {self._reference.engine} cannot {failure.stage} the model: {failure.kind}: "
                f"{failure.message}",
                next_steps=["--reference-engine NAME    another engine to compare with, such as reference"],
            ) from failure

    def _sizes(self, feeds: Sequence[Feed], names: Sequence[str], limit: int) -> Mapping[str, int | None]:
        if self._given is not None:
            return self._given
        assert self._model.path is not None
        marked = mark_outputs(read_bytes(self._model.path), names)
        sample = self._folder / "one.safetensors"

        def run(model: bytes, feed: Feed) -> Mapping[str, Array]:
            write_feeds(sample, [feed])
            return self._reference.run(ModelInput(model, self._model.folder), sample)[0]

        return tensor_sizes(marked, feeds, run, limit)

    def _run(self, names: Sequence[str], inputs: Path) -> list[dict[str, Array]]:
        """The values of some tensors per sample, without those that the engine cannot give: found by halves."""
        try:
            return self._reference.run(self._model, inputs, names)
        except (errors.EngineFailure, errors.TooMuchMemory):
            if len(names) == 1:
                self._lost += names
                return [{} for _ in read_feeds(inputs)]
        half = len(names) // 2
        halves = self._run(names[:half], inputs), self._run(names[half:], inputs)
        return [{**left, **right} for left, right in zip(*halves, strict=True)]


class _RecordingRemarks:
    """What is said about a recording: progress, and once per tensor that batches do not agree on it."""

    def __init__(self, engine: str, judge: Judge, listener: events.Listener) -> None:
        self._engine = engine
        self._judge = judge
        self._listener = listener
        self._differing: set[str] = set()

    def finished(self, batch: Batch) -> None:
        self._listener(events.Measured("record", batch.number, batch.count))

    def differs(self, difference: Disagreement) -> None:
        name = difference.name
        if name in self._differing or self._judge.error(name, [difference.again], [difference.first]).passed:
            return
        self._differing.add(name)
        self._listener(
            events.Remark(
                f"the reference engine {self._engine} gives other values for {name!r} when other tensors are "
                "marked as outputs: take one that does not optimize, such as onnxrt:optimization=none",
                warning=True,
            )
        )
