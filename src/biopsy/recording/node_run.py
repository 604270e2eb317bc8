"""One run of some nodes of a model by one engine, in a child process, since the model may kill what runs it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import errors, events
from biopsy.model.index import ModelIndex
from biopsy.model.slice import Boundary, Subset, candidate_bytes
from biopsy.tensors.recorded_values import ValuesInMemory
from biopsy.tensors.results import Feed

if TYPE_CHECKING:
    from biopsy.engines.base import ModelInput


@dataclass(frozen=True, kw_only=True)
class NodeRun:
    """Runs nodes on every sample. ``folder`` is for transient files; ``memory`` is what a ``Worker`` may take."""

    index: ModelIndex
    samples: Sequence[Feed]
    folder: Path
    listener: events.Listener
    memory: int | None = None

    def record(self, engine: str, nodes: tuple[int, ...], tensors: Sequence[int]) -> ValuesInMemory:
        """The values of some tensors that these nodes compute; of an engine that computes nothing, those that it has.

        Raises CannotCompare if there are no such tensors, and what ``Worker.run`` raises.
        """
        from biopsy.engines.registry import create
        from biopsy.engines.worker import Worker
        from biopsy.tensors.files import write_feeds

        started = time.monotonic()
        index = self.index
        if not tensors:
            raise errors.CannotCompare("there is nothing to record")
        feeds = self.folder / "samples.safetensors"
        inputs = {index.names[tensor] for tensor in index.fed_inputs()}
        write_feeds(feeds, [{name: sample[name] for name in sample if name in inputs} for sample in self.samples])
        with Worker(engine, self.folder, memory=self.memory) as worker:
            if not create(engine).capabilities.computes:
                given = worker.tensors_given(self._model(nodes, tensors))
                known = {} if given is None else given.sizes
                tensors = [tensor for tensor in tensors if index.names[tensor] in known]
            if not tensors:
                raise errors.CannotCompare(f"{engine} has no value of any tensor that is to be recorded")
            outputs = worker.run(self._model(nodes, tensors), feeds)
        size = sum(value.nbytes for sample in outputs for value in sample.values())
        seconds = time.monotonic() - started
        count, samples = len(outputs[0]), len(outputs)
        self.listener(events.Recorded(engine=engine, tensors=count, samples=samples, bytes=size, seconds=seconds))
        return ValuesInMemory(outputs)

    def _model(self, nodes: tuple[int, ...], tensors: Sequence[int]) -> ModelInput:
        """The model of some nodes with these tensors as its outputs."""
        from biopsy.engines.base import ModelInput

        boundary = Boundary(infos={}, frozen={}, outputs=tensors)
        return ModelInput(candidate_bytes(Subset(self.index, nodes), boundary), self.index.folder)
