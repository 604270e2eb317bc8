"""The folder of a diagnosis: its lock and its seal, the record that lets it be resumed, and the plan of its steps."""

from __future__ import annotations

import contextlib
import hmac
import itertools
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from biopsy import errors
from biopsy.checks.outcome import Check
from biopsy.checks.words import as_word
from biopsy.diagnosis.context import DiagnosisStep
from biopsy.diagnosis.facts import KnownFacts, StepReport
from biopsy.diagnosis.question import DiagnosisQuestion, Words, require_no_placeholder
from biopsy.diagnosis.steps import causes, layers, parts
from biopsy.diagnosis.steps.failing import failing
from biopsy.diagnosis.steps.rest import rest_of_model
from biopsy.diagnosis.steps.rounding import narrower_type, rounding, steadiness
from biopsy.diagnosis.steps.undefined import defined, definition
from biopsy.processes.own_files import key_path, user_key
from biopsy.processes.reading import digest_of, read_plain
from biopsy.processes.writing import make_folders_of, remove_empty, write_whole
from biopsy.records import plain, record_of
from biopsy.session.checked_search import JournalIdentity, SearchOptions
from biopsy.session.workspace import locked
from biopsy.text import first_of, is_refused, line_of, printable

STATE = "diagnosis.json"
_LOCK = f".{STATE}.lock"
_MOST_BYTES = 64 << 20
_VERSION = 1
_FRESH = "--fresh    begins anew"
_FORM = "8"  # of its facts and steps; another form cannot be resumed
_MOST_NAMED = 3


@dataclass(frozen=True)
class KnownSteps:
    """The facts known so far, and the reports of steps."""

    facts: KnownFacts = field(default_factory=KnownFacts)
    steps: tuple[StepReport, ...] = ()


@contextmanager
def held_folder(folder: Path, *, beside: bool = False, warn: Callable[[str], object] = str) -> Iterator[Path]:
    """Lock a folder for one diagnosis. It is made if it does not exist.

    A folder is accepted if it is empty, or if this user's seal is in it, its files are unchanged since and none is a
    link. With ``beside``, another folder takes the place of one that is not accepted, such as ``model_diagnosis-2``,
    and ``warn`` is called with the reason. A new folder is removed if a UsageError ends the diagnosis before any
    answer.

    Raises UsageError if the folder cannot be made, is not accepted, is in use, or has a name that checks cannot hold.
    """
    require_no_placeholder([folder], "--dir ANOTHER")
    others = (folder.with_name(f"{folder.name}-{number}") for number in itertools.count(2))
    places = itertools.chain([folder], others)
    place = next(each for each in places if not beside or not os.path.lexists(each) or _objection(each) is None)
    if place != folder:
        warn(f"{folder} {_objection(folder)}: it stays as it is, and the evidence goes to {place}")
    try:
        new_folders = make_folders_of(place / STATE)
    except OSError as error:
        raise errors.UsageError(f"cannot make the folder {place}: {error.strerror or error}") from error
    objection = _objection(place)
    if objection is not None:
        raise errors.UsageError(f"{place} {objection}: nothing is written there", next_steps=_ways_out(place))
    was_sealed = _sealed_record(place) is not None
    if not was_sealed:  # it is empty
        _write(place / STATE, {"biopsy_diagnosis": _VERSION, "complete": True}, user_key())
    with locked([place / STATE]):
        try:
            yield place
        except errors.UsageError:
            if not was_sealed and not (_sealed_record(place) or {}).get("steps"):
                with contextlib.suppress(OSError):
                    for entry in os.scandir(place):
                        if entry.is_file(follow_symlinks=False):
                            (place / entry.name).unlink()
                remove_empty(new_folders)
            raise


def _objection(folder: Path) -> str | None:
    """Why a folder may hold what this user's diagnosis did not write, as a predicate; None if it is accepted."""
    if folder.is_symlink():
        return "is a symbolic link"
    try:
        if not folder.is_dir():
            return "is not a folder"
        entries = {entry.name: (folder / entry.name).lstat() for entry in os.scandir(folder)}
    except OSError as error:
        raise errors.UsageError(f"cannot read the folder {folder}: {error.strerror or error}") from error
    for name, status in entries.items():  # writing to a file with a single name changes no other file
        if not stat.S_ISDIR(status.st_mode) and not (stat.S_ISREG(status.st_mode) and status.st_nlink == 1):
            return f"holds a link, {printable(name)}"
    tree = _sealed_record(folder)
    if tree is None:
        unsealed = f"holds no {STATE} that is sealed with your key ({key_path() or 'you have none'})"
        return None if set(entries) <= {_LOCK} else unsealed
    before = tree.get("files", {})
    now = _digests(folder, before)
    changed = next((name for name, digest in now.items() if digest not in (None, before[name])), None)
    # An interrupted diagnosis is refused when it is resumed, with the file's name, and never begun anew elsewhere.
    is_changed = changed is not None and tree.get("complete") is True
    return f"holds another {changed} than a diagnosis has left there" if is_changed else None


def _ways_out(folder: Path) -> list[str]:
    """Next steps for a folder that is refused: use another, or move it to a free name."""
    if folder.name in ("", ".."):
        return ["--dir ANOTHER"]
    places = (folder.with_name(f"{folder.name}.old{number}") for number in itertools.chain([""], itertools.count(2)))
    free = next(place for place in places if not os.path.lexists(place))
    line = line_of(["mv", as_word(folder), as_word(free)])
    return ["--dir ANOTHER", line if is_refused(line) else f"{line}    moves it aside"]


def identity_of(question: DiagnosisQuestion, check: Check) -> dict[str, str]:
    """Everything that the answers depend on, by names for messages: see ``JournalIdentity``."""
    samples = question.samples
    options = {
        "engines": question.engines,
        "by": question.tool or "",
        "limits": question.judging.limits,
        "inputs": [str(path) for path in samples.files],
        "seed": samples.inputs.seed,
        "iterations": samples.inputs.iterations,
        "val-range": sorted(samples.inputs.val_range.items()),
        "input-shapes": sorted(samples.inputs.shapes.items()),
        "input-symbols": sorted(samples.inputs.symbols.items()),
    }
    search = SearchOptions(rules=question.judging.rules, candidate=question.candidate)
    written = [question.folder / name for name in (STATE, parts.PIECE)]
    identity = JournalIdentity(index=question.index, check=check, search=search, options=options, written=written)
    return {**dict(identity.entries()), "form of diagnosis.json": _FORM}


class EvidenceFile:
    """``diagnosis.json`` of a folder. ``known`` is what an earlier diagnosis of the same question knew.

    ``line`` are the words of the command line that asks the question; see ``line_of_evidence``.
    """

    def __init__(
        self, folder: Path, identity: Mapping[str, str], line: Words = (), *, fresh: bool, answered: bool = False
    ) -> None:
        """Raises UsageError if an interrupted diagnosis of another question is there, unless ``fresh``.

        With ``answered``, also if a complete one is of another question, or nothing is answered.
        """
        self.path = folder / STATE
        self._line = line
        self.known = KnownSteps()
        self.resumed = False
        self._identity = dict(identity)
        self._key = user_key()
        if not fresh:
            self._resume(may_begin=not answered)
        if answered and not self.resumed:
            raise errors.UsageError(f"{folder} answers nothing about this model and check")

    def save(self, known: KnownSteps, *, complete: bool) -> None:
        """Write what is known so far. ``complete``: no question was cut short."""
        content = {
            "biopsy_diagnosis": _VERSION,
            "complete": complete,
            "line": self._line,
            "current_folder": str(Path.cwd()),
            "identity": self._identity,
            "facts": plain(known.facts),
            "steps": plain(known.steps),
            "files": _digests(self.path.parent, _files_of(known.steps)),
        }
        _write(self.path, content, self._key)

    def _resume(self, *, may_begin: bool) -> None:
        tree = _read(self.path)
        if tree is None or "identity" not in tree:
            return
        is_complete = tree.get("complete") is True
        if not _is_sealed(tree, self._key):
            raise errors.UsageError(
                f"{self.path} was not written by this user: what it says is not believed", next_steps=[_FRESH]
            )
        before = tree["identity"]
        names = sorted(name for name in {*before, *self._identity} if before.get(name) != self._identity.get(name))
        if names and is_complete and may_begin:
            return
        if names:
            differing = first_of(names, _MOST_NAMED)
            raise errors.UsageError(
                f"{self.path.parent} holds an earlier diagnosis of something else: another {differing}",
                kept="what it has found, as it is",
                next_steps=[_FRESH, "--dir ANOTHER    keeps it"],
            )
        try:
            steps = [record_of(StepReport, step) for step in tree["steps"]]
            self.known = KnownSteps(
                record_of(KnownFacts, tree["facts"]),
                tuple(step for step in steps if step.outcome in ("done", "failed")),
            )
        except ValueError as error:
            raise errors.UsageError(f"{self.path} is of another version: {error}", next_steps=[_FRESH]) from error
        before, now = tree.get("files", {}), _digests(self.path.parent, _files_of(self.known.steps))
        for name in (name for name in now if before.get(name) != now[name]):
            raise errors.UsageError(
                f"{self.path.parent / name} is no longer what the earlier diagnosis has left there",
                kept="what it has found, as it is",
                next_steps=[_FRESH],
            )
        self.resumed = bool(self.known.steps)


def line_of_evidence(folder: Path) -> list[str]:
    """The words of the command line that has asked the question of a folder.

    Raises UsageError if this user's diagnosis left no such line there, if its files have changed since, or if the line
    was typed in another folder than the current one.
    """
    objection, tree = _objection(folder), _sealed_record(folder)
    if objection is not None or tree is None or not tree.get("line"):
        reason = objection or "holds no diagnosis that a command line has asked for"
        raise errors.UsageError(f"{folder} {reason}", next_steps=["biopsy diagnose MODEL.onnx ..."])
    place = Path(tree["current_folder"])
    if place != Path.cwd():
        moved = line_of(["cd", as_word(place), "&&", "biopsy", "report", as_word(folder.resolve())])
        raise errors.UsageError(
            f"{folder} was asked for in {place}, and its line names files from there",
            next_steps=[moved.replace("'&&'", "&&")],
        )
    return [str(word) for word in tree["line"]]


def _files_of(steps: Sequence[StepReport]) -> list[str]:
    """The names of the files that answered steps leave, each followed by that of its weights."""
    done = {step.name for step in steps if step.outcome == "done"}
    names = dict.fromkeys(name for step in PLAN if step.name in done for name in step.files)
    return [each for name in names for each in (name, f"{name}.data")]


def _digests(folder: Path, names: Iterable[str]) -> dict[str, str | None]:
    """The SHA-256 of each file by its name; None for a missing file or a link."""
    paths = {name: folder / name for name in names}
    return {name: digest_of(path) if path.is_file() and not path.is_symlink() else None for name, path in paths.items()}


def _read(path: Path) -> dict[str, Any] | None:
    try:
        tree = json.loads(read_plain(path, _MOST_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise errors.UsageError(f"{path} cannot be read: {error}", next_steps=[_FRESH]) from error
    return tree if isinstance(tree, dict) else None


def _sealed_record(folder: Path) -> dict[str, Any] | None:
    """The content of a folder's ``diagnosis.json``, if this user wrote it."""
    try:
        tree = _read(folder / STATE)
    except errors.UsageError:
        return None
    return tree if tree is not None and _is_sealed(tree, user_key()) else None


def _is_sealed(tree: Mapping[str, Any], key: bytes | None) -> bool:
    content = {name: value for name, value in tree.items() if name != "seal"}
    return key is not None and hmac.compare_digest(str(tree.get("seal")).encode(), _seal(key, content).encode())


def _write(path: Path, content: Mapping[str, Any], key: bytes | None) -> None:
    tree = {**content, "seal": _seal(key, content)}
    write_whole(path, [json.dumps(tree, indent=2).encode("ascii"), b"\n"])


def _seal(key: bytes | None, content: Mapping[str, Any]) -> str:
    """An HMAC that only this user can make; "" without a key, so that the diagnosis cannot be resumed."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return "" if key is None else hmac.new(key, text.encode("ascii"), "sha256").hexdigest()


PLAN: tuple[DiagnosisStep, ...] = (
    failing,
    layers.masked_error,
    defined,
    rounding,
    steadiness,
    parts.smallest_piece,
    parts.known_bug,
    layers.wrong_layers,
    rest_of_model,
    narrower_type,
    causes.settings,
    parts.high_precision,
    causes.transformation,
    parts.may_vary,
    definition,
    causes.changes,
    causes.releases,
    causes.holding,
)
"""The steps in their order; each decides by the facts known whether it is asked."""
