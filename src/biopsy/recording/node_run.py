"""One run of some nodes of a model by one engine, in a child process, since the model may kill what runs it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from biopsy import errors, events
from biopsy.model.index import ModelIndex
from biopsy.model.slice import Boundary, Subset, candidate_bytes
from biopsy.tensors.recorded_values import ValuesInMemory
from biopsy.tensors.results import Feed


@dataclass(frozen=True)
class NodeRun:
    """Runs nodes on every sample. ``folder`` is for transient files."""

    index: ModelIndex
    samples: Sequence[Feed]
    folder: Path
    listener: events.Listener

    def record(self, engine: str, nodes: tuple[int, ...], tensors: Sequence[int]) -> ValuesInMemory:
        """The values of some tensors that these nodes compute.

        Raises CannotCompare if there are no such tensors, and what ``Worker.run`` raises.
        """
        from biopsy.engines.base import ModelInput
        from biopsy.engines.worker import Worker
        from biopsy.tensors.files import write_feeds

        started = time.monotonic()
        index = self.index
        if not tensors:
            raise errors.CannotCompare("there is nothing to record")
        feeds = self.folder / "samples.safetensors"
        inputs = {index.names[tensor] for tensor in index.fed_inputs()}
        write_feeds(feeds, [{name: sample[name] for name in sample if name in inputs} for sample in self.samples])
        data = candidate_bytes(Subset(index, nodes), Boundary({}, {}, outputs=tensors))
        with Worker(engine, self.folder) as worker:
            outputs = worker.run(ModelInput(data, index.folder), feeds)
        size = sum(value.nbytes for sample in outputs for value in sample.values())
        self.listener(events.Recorded(engine, len(outputs[0]), len(outputs), size, time.monotonic() - started))
        return ValuesInMemory(outputs)
