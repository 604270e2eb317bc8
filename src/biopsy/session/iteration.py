"""Files of each iteration: what a check may read before it runs, and what is sorted after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from biopsy import errors
from biopsy.checks.artifacts import Artifacts, write_iteration
from biopsy.checks.outcome import Evidence
from biopsy.checks.verdict import VerdictFile
from biopsy.model.index import ModelIndex, index_bytes
from biopsy.recording.reference_run import Recording
from biopsy.tensors.results import Array


@dataclass(frozen=True)
class IterationFiles:
    """Files that each check may read or leave: see the options of the same names.

    ``write_inputs`` writes the recorded values of a model's inputs; it is given with ``inputs``.
    """

    artifacts: Artifacts = field(default_factory=Artifacts)
    info: Path | None = None
    inputs: Path | None = None
    keep_last: bool = False
    write_inputs: Callable[[bytes, Path], None] | None = None

    def before(self, iteration: int) -> None:
        """Write the number of an iteration that is about to begin."""
        if self.info is not None:
            write_iteration(self.info, iteration)

    def feed(self, parts: Sequence[bytes], *, first: bool) -> Evidence | None:
        """Write the inputs of a model; if there are none to write, the evidence that nothing can be said of it.

        Raises CannotCompare if it is the ``first`` one, for then there never will be.
        """
        if self.inputs is None or self.write_inputs is None:
            return None
        try:
            self.write_inputs(b"".join(parts), self.inputs)
        except errors.CannotCompare as error:
            if first:
                raise
            return Evidence(0, verdict=VerdictFile("invalid", message=error.message))
        return None


def write_inputs(index: ModelIndex, recording: Recording, model: bytes, path: Path) -> None:
    """Write the recorded values of what a part of a model must be fed.

    Names that nothing was recorded for are left out. Raises CannotCompare if nothing is recorded for any of them.
    """
    from biopsy.tensors.files import write_feeds

    found = index_bytes(model)
    feeds: list[dict[str, Array]] = [{} for _ in range(recording.count)]
    for name in (found.names[tensor] for tensor in found.fed_inputs()):
        values = recording.values(name) if name in index.ids else None
        for feed, value in zip(feeds, values or (), strict=False):
            feed[name] = value
    if not any(feeds) and found.fed_inputs():
        raise errors.CannotCompare(
            f"no values are recorded for the inputs of the model, so they cannot be written to {path}",
            next_steps=["give inputs that the model runs with by --load-inputs", "or leave --iter-inputs out"],
        )
    write_feeds(path, feeds)


def write_all(index: ModelIndex, recording: Recording, path: Path) -> bool:
    """Write the recorded values of every tensor; False, and nothing is written, if none of an inner one is known."""
    from biopsy.tensors.files import write_feeds

    feeds: list[dict[str, Array]] = [{} for _ in range(recording.count)]
    inner = False
    for tensor in (*index.fed_inputs(), *index.producer):
        values = recording.values(index.names[tensor])
        inner = inner or (values is not None and tensor in index.producer)
        for feed, value in zip(feeds, values or (), strict=False):
            feed[index.names[tensor]] = value
    if inner:
        write_feeds(path, feeds)
    return inner
