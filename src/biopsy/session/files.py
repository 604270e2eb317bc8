"""The files of a search: those of each iteration, its result, written whole, and the journal from which it can be
resumed.
"""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from biopsy import errors, events
from biopsy.checks.journal import Journal, save_polygraphy_replay, save_replay
from biopsy.checks.outcome import Artifacts, Evidence, Outcome, write_iteration
from biopsy.checks.verdict import VerdictFile
from biopsy.model import weights_file
from biopsy.model.external import byte_size, external_tensors
from biopsy.model.index import ModelIndex, index_bytes
from biopsy.model.load import parse
from biopsy.model.weights_file import inlined_parts
from biopsy.processes import cleanup
from biopsy.processes.reading import FileState
from biopsy.processes.writing import write_whole
from biopsy.recording.reference_run import Recording
from biopsy.session.pool import Slot
from biopsy.session.trial import ORIGINAL, PROBE_NAMES, Stage
from biopsy.tensors.results import Array
from biopsy.text import count


class ResultFile:
    """``write`` writes the files at ``paths``, each whole; not all of them need come to be."""

    def __init__(self, paths: Iterable[Path], write: Callable[[], None], listener: events.Listener) -> None:
        self._paths = list(paths)
        self._write = write
        self._listener = listener
        self._stamps: dict[Path, FileState] = {}

    def write(self) -> None:
        """Write them. Raises UsageError if that cannot be done."""
        self._write()
        stamps = {path: _stamp(path) for path in self._paths}
        self._stamps = {path: stamp for path, stamp in stamps.items() if stamp is not None}

    def restore(self) -> None:
        """Write them again, and say so, if one is not as it was left: a check may remove whatever it finds."""
        changed = [path for path, stamp in self._stamps.items() if _stamp(path) != stamp]
        if not changed:
            return
        self.write()
        names = ", ".join(map(str, changed))
        text = f"{names} was removed or changed meanwhile, by the check or another program: it was written again"
        self._listener(events.Remark(text, warning=True))


def files_of(output: Path, external: str | None) -> tuple[Path, Path]:
    """A result and its weights; those of a large result have a name of their own if ``external`` gives none."""
    return output, output.with_name(external or f"{output.name}.data")


def write_result(parts: Iterable[bytes], path: Path, folder: Path, external: str | None, has_external: bool) -> None:
    """Write a model to ``path`` with the weights it needs: inside, or in the file named ``external`` beside it.

    ``parts`` are its bytes, which refer to external weights from ``folder`` if it ``has_external`` ones. Above 1 GB
    they are put beside it in any case. Raises UsageError if it cannot be written, ModelError if weights are missing.
    """
    if external is None and not has_external:
        write_whole(path, parts)
        return

    data = b"".join(parts)
    model = parse(data, path)
    if external is None and sum(map(byte_size, external_tensors(model))) <= weights_file.MOST_INLINE:
        write_whole(path, inlined_parts(data, model, folder))
    else:
        weights_file.save_with_weights(model, path, folder, external or weights_file.default_name(path))


def make_room(path: Path) -> None:
    """Remove what a check has put in the place of a file that is to be written, if nothing can be lost with it.

    It would be written into, or wait for a reader that never comes. A folder that holds something stays.
    """
    with contextlib.suppress(OSError):
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            path.rmdir()
        elif not (path.is_file() or stat.S_ISCHR(mode) or stat.S_ISBLK(mode)):
            path.unlink()


def _stamp(path: Path) -> FileState | None:
    """What tells whether a plain file is still the one that was written; None for what is no plain file."""
    with contextlib.suppress(OSError):
        status = path.lstat()
        if stat.S_ISREG(status.st_mode):
            return FileState.of(status)
    return None


def size_of(path: Path) -> int:
    """Bytes of a result. Raises CheckError if it has gone since."""
    try:
        return path.stat().st_size
    except OSError as error:
        raise errors.CheckError(f"{path} was written, and cannot be found any more: {error.strerror}") from error


# What a search leaves on disk so that it can be resumed, what it begins with, and when that goes.


@dataclass(frozen=True, kw_only=True)
class Resume:
    """``journal`` is the file to resume from, None for none; ``fresh`` sets an old one aside.

    ``load`` and ``save`` are replays to begin with and to leave; ``polygraphy_form`` saves as Polygraphy does.
    ``files`` are those that answers depend on too, besides those that the check names; ``about`` is whatever else they
    depend on, by name. ``search`` is what a person calls what is resumed.
    """

    journal: Path | None = None
    fresh: bool = False
    load: Path | None = None
    save: Path | None = None
    polygraphy_form: bool = False
    files: tuple[Path, ...] = ()
    search: str = "reduction"
    about: Mapping[str, str] = field(default_factory=dict)

    def open(self, identity: Mapping[str, str]) -> Journal | None:
        """The journal, with what a replay adds to it; None if none is wanted.

        ``identity`` is what outcomes depend on. Raises UsageError if the journal or the replay is of another model,
        check, option or version, or in use.
        """
        if self.journal is None:
            return None

        journal = Journal.open(self.journal, identity, fresh=self.fresh, search=self.search)
        try:
            if self.load is not None:
                from biopsy.checks.journal import load_replay

                journal.found += load_replay(self.load, journal)
        except BaseException:
            (journal.close if journal.found else journal.remove)()
            raise
        return journal


def run_with_journal(
    search: Callable[[], str | None],
    journal: Journal,
    resume: Resume,
    listener: events.Listener,
    is_worth_resuming: Callable[[], bool],
) -> str | None:
    """Run a search whose oracle keeps a journal. Returns what the search returns: the limit that ended it.

    The journal stays only if the search can be resumed from it. A search that came to its end leaves none: the same
    command typed again is a new question, since the engine may have been mended meanwhile.
    """
    if journal.found:
        listener(events.Resumed(str(journal.path), journal.found))
    is_finished = is_interrupted = False
    try:
        stopped = search()
        is_finished, is_interrupted = stopped is None, stopped is not None
        return stopped
    except errors.Interrupted as stop:
        is_interrupted = True
        answers = f"{count(journal.count, 'answer')} in {journal.path}" if journal.count else None
        kept = ", and ".join(filter(None, [stop.kept, answers]))
        raise errors.Interrupted(stop.message, kept=kept or None) from stop
    finally:
        try:
            if resume.save is not None and resume.polygraphy_form:
                save_polygraphy_replay(resume.save, journal, PROBE_NAMES)
            elif resume.save is not None:
                save_replay(resume.save, journal)
        finally:
            is_worth = journal.found or is_worth_resuming() or (is_interrupted and journal.count)
            if is_finished or not is_worth:
                journal.remove()


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
            cleanup.mark_existing_transient(path)
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
