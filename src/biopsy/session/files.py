"""The files of a search: those of each iteration, its result, and the journal from which it can be resumed."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from biopsy import errors, events
from biopsy.checks.journal import Journal, load_replay, save_polygraphy_replay, save_replay
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
from biopsy.session.pool import PendingRun
from biopsy.session.trial import ORIGINAL, PROBE_NAMES, Stage
from biopsy.tensors.results import Array
from biopsy.text import count


class ResultFile:
    """The files of a result. ``write`` writes those at ``paths``, each completely; some may be left out."""

    def __init__(self, paths: Iterable[Path], write: Callable[[], None], listener: events.Listener) -> None:
        self._paths = list(paths)
        self._write = write
        self._listener = listener
        self._stamps: dict[Path, FileState] = {}

    def write(self) -> None:
        """Write the files. Raises UsageError if they cannot be written."""
        self._write()
        stamps = {path: _stamp(path) for path in self._paths}
        self._stamps = {path: stamp for path, stamp in stamps.items() if stamp is not None}

    def restore(self) -> None:
        """Write the files again, with a warning, if one has changed: a check may remove whatever it finds."""
        changed = [path for path, stamp in self._stamps.items() if _stamp(path) != stamp]
        if not changed:
            return
        self.write()
        names = ", ".join(map(str, changed))
        text = f"{names} was removed or changed meanwhile, by the check or another program: it was written again"
        self._listener(events.Remark(text, warning=True))


def files_of(output: Path, external: str | None) -> tuple[Path, Path]:
    """The paths of a result and its weights, which have a default name if ``external`` is None."""
    return output, output.with_name(external or f"{output.name}.data")


def write_result(parts: Iterable[bytes], path: Path, folder: Path, external: str | None, has_external: bool) -> None:
    """Write a model to ``path`` with the weights it needs: inside, or in the file named ``external`` beside it.

    ``parts`` are its bytes; if it ``has_external`` weights, they are found from ``folder``. Weights above 1 GB are
    written beside it in any case. Raises UsageError if it cannot be written, ModelError if weights are missing.
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
    """Remove what a check has left at a path that is to be written: a link, a pipe or an empty folder.

    Otherwise writing would follow the link or block. A folder that holds something stays.
    """
    with contextlib.suppress(OSError):
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            path.rmdir()
        elif not (path.is_file() or stat.S_ISCHR(mode) or stat.S_ISBLK(mode)):
            path.unlink()


def _stamp(path: Path) -> FileState | None:
    """The state of a plain file, to see whether it is still the one that was written; None for any other."""
    with contextlib.suppress(OSError):
        status = path.lstat()
        if stat.S_ISREG(status.st_mode):
            return FileState.of(status)
    return None


def size_of(path: Path) -> int:
    """The bytes of a result. Raises CheckError if the file is gone."""
    try:
        return path.stat().st_size
    except OSError as error:
        raise errors.CheckError(f"{path} was written, and cannot be found any more: {error.strerror}") from error


@dataclass(frozen=True, kw_only=True)
class Resume:
    """How a search can be resumed: ``journal`` is the file to resume from, if any; ``fresh`` moves it aside.

    ``load`` and ``save`` are replays to begin with and to leave; ``polygraphy_form`` saves as Polygraphy does.
    ``files`` and ``about`` are further files and facts, by name, that answers depend on. ``search`` is what the user
    calls the search.
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
        """Open the journal and add the runs of a replay; None if no journal is wanted.

        ``identity`` is what outcomes depend on. Raises UsageError if the journal or the replay is of another model,
        check, option or version, or in use.
        """
        if self.journal is None:
            return None

        journal = Journal.open(self.journal, identity, fresh=self.fresh, search=self.search)
        try:
            if self.load is not None:
                journal.resumed += load_replay(self.load, journal)
        except BaseException:
            (journal.close if journal.resumed else journal.remove)()
            raise
        return journal


def run_with_journal(
    search: Callable[[], str | None],
    journal: Journal,
    resume: Resume,
    listener: events.Listener,
    is_worth_resuming: Callable[[], bool],
) -> str | None:
    """Run a search whose oracle has a journal. Returns what the search returns: the limit that ended it.

    The journal stays only if the search can be resumed from it. A finished search leaves none: if the user types the
    command again, the engine may have been repaired meanwhile.
    """
    if journal.resumed:
        listener(events.Resumed(str(journal.path), journal.resumed))
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
            is_useful = journal.resumed or is_worth_resuming() or (is_interrupted and journal.count)
            if is_finished or not is_useful:
                journal.remove()


@dataclass(frozen=True, kw_only=True)
class IterationFiles:
    """Files that each check may read or leave; see the options of the same names.

    ``write_inputs`` writes the recorded values of a model's inputs; it is given together with ``inputs``.
    """

    artifacts: Artifacts = field(default_factory=Artifacts)
    info: Path | None = None
    inputs: Path | None = None
    keep_last: bool = False
    write_inputs: Callable[[bytes, Path], None] | None = None

    @property
    def read(self) -> tuple[Path, ...]:
        """The files that are written before a check, for it to read."""
        return tuple(file for file in (self.info, self.inputs) if file is not None)

    def write(self, iteration: int, parts: Sequence[bytes], places: Mapping[Path, Path]) -> None:
        """Write them for a model, at the paths in ``places``. Raises CannotCompare if it has no inputs to write."""
        if self.info is not None:
            write_iteration(places[self.info], iteration)
        if self.inputs is not None and self.write_inputs is not None:
            self.write_inputs(b"".join(parts), places[self.inputs])


class Iterations:
    """Numbers the iterations of a search, writes the files for each, and sorts its artifacts.

    An iteration gets its number when it begins, so no two have the same, and an abandoned one leaves a gap. A probe
    gets the number of the iteration before it. ``number`` is the next one.
    """

    def __init__(self, files: IterationFiles, listener: events.Listener) -> None:
        self.files = files
        self.number = 0
        self._listener = listener
        self._written: PendingRun | None = None  # whose files are at the paths that the user knows
        self._judged: PendingRun | None = None

    def number_for(self, stage: Stage) -> int:
        """The number for a run that is about to begin."""
        if not stage.is_iteration:
            return max(0, self.number - 1)
        self.number += 1
        return self.number - 1

    def before(self, run: PendingRun) -> Evidence | None:
        """Write what a run will read; if it has no inputs to write, return the evidence that it is invalid.

        Raises CannotCompare instead for the original, since later models would have none either.
        """
        moved = [path for file, path in run.files.items() if path != file]
        if len(moved) < len(run.files):
            self._written = None  # the old files are replaced, even if only some can be written
        try:
            self.files.write(run.iteration, run.trial.parts, run.files)
        except errors.CannotCompare as error:
            if run.trial.stage is ORIGINAL:
                raise
            return Evidence(status=0, verdict=VerdictFile(outcome="invalid", message=error.message))
        for path in moved:
            cleanup.mark_existing_transient(path)
        if not moved:
            self._written = run
        return None

    def after(self, run: PendingRun, outcome: Outcome) -> None:
        """Sort the artifacts of a run that has been judged, unless it was a probe."""
        self._judged = run
        stage = run.trial.stage
        if not stage.is_iteration:
            return
        for missing in self.files.artifacts.sort(outcome, run.iteration, stage.name):
            self._listener(events.Remark(f"the artifact {missing} was not there after iteration {run.iteration}"))

    def close(self) -> None:
        """Leave the files of the run judged last where the user expects them, as if no other run had begun."""
        run, self._judged = self._judged, None
        if run is None or run is self._written:
            return
        with contextlib.suppress(errors.BiopsyError, OSError):  # an earlier error is reported, not this one
            self.files.write(run.iteration, run.trial.parts, {file: file for file in self.files.read})


def write_inputs(
    index: ModelIndex,
    recording: Recording,
    model: bytes,
    path: Path,
    vouched: Callable[[int], bool] | None = None,
) -> None:
    """Write the recorded values of the tensors that a part of a model must be fed.

    Tensors without recorded values are left out. Raises CannotCompare if none has any, or if a computed one is not
    ``vouched`` for.
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
    """Write the recorded values of every tensor; returns False, and writes nothing, if no inner one is recorded."""
    from biopsy.tensors.files import write_feeds

    has_inner = any(recording.values(index.names[tensor]) is not None for tensor in index.producer)
    if has_inner:
        names = [index.names[tensor] for tensor in (*index.fed_inputs(), *index.producer)]
        write_feeds(path, _recorded_feeds(recording, names))
    return has_inner


def _recorded_feeds(recording: Recording, names: Sequence[str]) -> list[dict[str, Array]]:
    """The recorded values of some tensors, as one feed per sample."""
    feeds: list[dict[str, Array]] = [{} for _ in range(recording.count)]
    for name in names:
        for feed, value in zip(feeds, recording.values(name) or (), strict=False):
            feed[name] = value
    return feeds
