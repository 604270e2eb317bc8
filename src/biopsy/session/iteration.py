"""Files of each iteration: what a check may read before it runs, and what is sorted after it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from biopsy import errors, events
from biopsy.checks.outcome import Artifacts, Evidence, Outcome, write_iteration
from biopsy.checks.verdict import VerdictFile
from biopsy.model.index import ModelIndex, index_bytes
from biopsy.processes import cleanup
from biopsy.recording.reference_run import Recording
from biopsy.session.pool import Slot
from biopsy.session.trial import ORIGINAL, Stage
from biopsy.tensors.results import Array


@dataclass(frozen=True, kw_only=True)
class IterationFiles:
    """Files that each check may read or leave: see the options of the same names.

    ``write_inputs`` writes the recorded values of a model's inputs; it is given with ``inputs``.
    """

    artifacts: Artifacts = field(default_factory=Artifacts)
    info: Path | None = None
    inputs: Path | None = None
    keep_last: bool = False
    write_inputs: Callable[[bytes, Path], None] | None = None

    @property
    def read(self) -> tuple[Path, ...]:
        """Those that are written before a check, for it to read."""
        return tuple(file for file in (self.info, self.inputs) if file is not None)

    def write(self, iteration: int, parts: Sequence[bytes], places: Mapping[Path, Path]) -> None:
        """Write them for a model, each where ``places`` says. Raises CannotCompare if it has no inputs to write."""
        if self.info is not None:
            write_iteration(places[self.info], iteration)
        if self.inputs is not None and self.write_inputs is not None:
            self.write_inputs(b"".join(parts), places[self.inputs])


class Iterations:
    """Numbers the iterations of a search, and has the files of each written before it and sorted after it.

    An iteration has its number from its begin on, so that no two that are judged have the same: one that is abandoned
    takes its number along. A probe reads that of the iteration before it. ``number`` is the next one.
    """

    def __init__(self, files: IterationFiles, listener: events.Listener) -> None:
        self.files = files
        self.number = 0
        self._listener = listener
        self._written: Slot | None = None  # whose files stand where the user knows them
        self._judged: Slot | None = None

    def number_for(self, stage: Stage) -> int:
        """The number of a run that is about to begin."""
        if not stage.is_iteration:
            return max(0, self.number - 1)
        self.number += 1
        return self.number - 1

    def before(self, slot: Slot) -> Evidence | None:
        """Write what a run will read; if it has no inputs to write, the evidence that nothing can be said of it.

        Raises CannotCompare if it looks at the original, for then there never will be any.
        """
        moved = [path for file, path in slot.files.items() if path != file]
        if len(moved) < len(slot.files):
            self._written = None  # what stood there is gone, even if only some of the files can be written
        try:
            self.files.write(slot.iteration, slot.trial.parts, slot.files)
        except errors.CannotCompare as error:
            if slot.trial.stage is ORIGINAL:
                raise
            return Evidence(status=0, verdict=VerdictFile(outcome="invalid", message=error.message))
        for path in moved:
            cleanup.take_what_stands_at(path)
        if not moved:
            self._written = slot
        return None

    def after(self, slot: Slot, outcome: Outcome) -> None:
        """A run has been judged: sort its artifacts, unless it was a probe."""
        self._judged = slot
        stage = slot.trial.stage
        if not stage.is_iteration:
            return
        for missing in self.files.artifacts.sort(outcome, slot.iteration, stage.name):
            self._listener(events.Remark(f"the artifact {missing} was not there after iteration {slot.iteration}"))

    def close(self) -> None:
        """Leave the files of the run that was judged last where the user knows them, as if no other had begun."""
        slot, self._judged = self._judged, None
        if slot is None or slot is self._written:
            return
        with contextlib.suppress(errors.BiopsyError, OSError):  # what went wrong before is told, not this
            self.files.write(slot.iteration, slot.trial.parts, {file: file for file in self.files.read})


def write_inputs(
    index: ModelIndex,
    recording: Recording,
    model: bytes,
    path: Path,
    vouched: Callable[[int], bool] | None = None,
) -> None:
    """Write the recorded values of what a part of a model must be fed.

    Names that nothing was recorded for are left out. Raises CannotCompare if nothing is recorded for any of them, or if
    a tensor that a node computes is not ``vouched`` for.
    """
    from biopsy.tensors.files import write_feeds

    candidate = index_bytes(model)
    inner = (index.ids.get(candidate.names[tensor], -1) for tensor in candidate.fed_inputs())
    doubtful = [index.names[tensor] for tensor in inner if vouched and tensor in index.producer and not vouched(tensor)]
    if doubtful:
        raise errors.CannotCompare(
            f"what was recorded of {doubtful[0]!r} may contradict golden values, so it is not fed",
            next_steps=["give inputs that hold the inner tensors too (a layerwise file) by --load-inputs"],
        )
    names = [candidate.names[tensor] for tensor in candidate.fed_inputs()]
    feeds = _recorded_feeds(recording, [name for name in names if name in index.ids])
    if not any(feeds) and names:
        raise errors.CannotCompare(
            f"no values are recorded for the inputs of the model, so they cannot be written to {path}",
            next_steps=["give inputs that the model runs with by --load-inputs", "or leave --iter-inputs out"],
        )
    write_feeds(path, feeds)


def write_all(index: ModelIndex, recording: Recording, path: Path) -> bool:
    """Write the recorded values of every tensor; False, and nothing is written, if none of an inner one is known."""
    from biopsy.tensors.files import write_feeds

    has_inner = any(recording.values(index.names[tensor]) is not None for tensor in index.producer)
    if has_inner:
        names = [index.names[tensor] for tensor in (*index.fed_inputs(), *index.producer)]
        write_feeds(path, _recorded_feeds(recording, names))
    return has_inner


def _recorded_feeds(recording: Recording, names: Sequence[str]) -> list[dict[str, Array]]:
    """The values that are recorded of some tensors, as so many feeds as there are recordings."""
    feeds: list[dict[str, Array]] = [{} for _ in range(recording.count)]
    for name in names:
        for feed, value in zip(feeds, recording.values(name) or (), strict=False):
            feed[name] = value
    return feeds
