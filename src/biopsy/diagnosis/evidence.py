"""The folder of a diagnosis: what was found, step by step of the plan, so that the same command goes on where it was
stopped.
"""

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
from biopsy.diagnosis.context import CANDIDATE, DiagnosisStep
from biopsy.diagnosis.facts import KnownFacts, StepReport
from biopsy.diagnosis.question import DiagnosisQuestion, require_no_place
from biopsy.diagnosis.steps import causes, parts
from biopsy.diagnosis.steps.failing import failing
from biopsy.diagnosis.steps.rounding import rounding, steadiness
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
_FORM = "2"  # of its facts and steps; what has another one is begun anew
_MOST_NAMED = 3


@dataclass(frozen=True)
class KnownSteps:
    """What a diagnosis has found so far: the facts, and a report of each step that was answered."""

    facts: KnownFacts = field(default_factory=KnownFacts)
    steps: tuple[StepReport, ...] = ()


@contextmanager
def held_folder(folder: Path, *, beside: bool = False, warn: Callable[[str], object] = str) -> Iterator[Path]:
    """The folder as that of one diagnosis, before anything is written there, until that ends; it is made if need be.

    A folder is one of ours if it carries the seal of this user, its files are those that were left there, and nothing
    in it is a link. ``beside``: if it is not, another one is given, ``model_diagnosis-2``, and ``warn`` is told why.
    One that was made here goes again if the diagnosis is refused before it has answered anything.

    Raises UsageError if it cannot be made, has a name that checks cannot hold, is not ours, or is that of another
    diagnosis that runs.
    """
    require_no_place([folder], "--dir ANOTHER")
    others = (folder.with_name(f"{folder.name}-{number}") for number in itertools.count(2))
    places = itertools.chain([folder], others)
    place = next(each for each in places if not beside or not os.path.lexists(each) or _why_not_ours(each) is None)
    if place != folder:
        warn(f"{folder} {_why_not_ours(folder)}: it stays as it is, and the evidence goes to {place}")
    try:
        new_folders = make_folders_of(place / STATE)
    except OSError as error:
        raise errors.UsageError(f"cannot make the folder {place}: {error.strerror or error}") from error
    why_not = _why_not_ours(place)
    if why_not is not None:
        raise errors.UsageError(f"{place} {why_not}: nothing is written there", next_steps=_ways_out(place))
    was_marked = _sealed(place) is not None
    if not was_marked:  # nothing has stood in it
        _write(place / STATE, {"biopsy_diagnosis": _VERSION, "complete": True}, user_key())
    with locked([place / STATE]):
        try:
            yield place
        except errors.UsageError:
            if not was_marked and not (_sealed(place) or {}).get("steps"):
                with contextlib.suppress(OSError):
                    for entry in os.scandir(place):
                        if entry.is_file(follow_symlinks=False):
                            (place / entry.name).unlink()
                remove_empty(new_folders)
            raise


def _why_not_ours(folder: Path) -> str | None:
    """What tells that somebody else has made a folder or put something into it; None for ours, and an empty one."""
    if folder.is_symlink():
        return "is a symbolic link"
    try:
        if not folder.is_dir():
            return "is no folder"
        entries = {entry.name: (folder / entry.name).lstat() for entry in os.scandir(folder)}
    except OSError as error:
        raise errors.UsageError(f"cannot read the folder {folder}: {error.strerror or error}") from error
    for name, status in entries.items():  # writing to a file that has no other name changes nothing elsewhere
        if not stat.S_ISDIR(status.st_mode) and not (stat.S_ISREG(status.st_mode) and status.st_nlink == 1):
            return f"holds a link, {printable(name)}"
    tree = _sealed(folder)
    if tree is None:
        sealed = f"holds no {STATE} that is sealed with your key ({key_path() or 'you have none'})"
        return None if set(entries) <= {_LOCK} else sealed
    left = tree.get("files", {})
    changed = next((name for name, digest in _digests(folder, left).items() if digest not in (None, left[name])), None)
    # One that was interrupted is refused by name, and not begun anew elsewhere.
    is_changed = changed is not None and tree.get("complete") is True
    return f"holds another {changed} than a diagnosis has left there" if is_changed else None


def _ways_out(folder: Path) -> list[str]:
    """What to do about a folder that is refused: name another, or move it to a name beside it that is free."""
    if folder.name in ("", ".."):
        return ["--dir ANOTHER"]
    places = (folder.with_name(f"{folder.name}.old{number}") for number in itertools.chain([""], itertools.count(2)))
    free = next(place for place in places if not os.path.lexists(place))
    line = line_of(["mv", as_word(folder), as_word(free)])
    return ["--dir ANOTHER", line if is_refused(line) else f"{line}    moves it aside"]


def identity_of(question: DiagnosisQuestion, check: Check) -> dict[str, str]:
    """Everything that answers depend on, by names that a person understands: see ``JournalIdentity``."""
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
    search = SearchOptions(rules=question.judging.rules, candidate=question.folder / CANDIDATE)
    written = [question.folder / name for name in (STATE, parts.PIECE)]
    identity = JournalIdentity(index=question.index, check=check, search=search, options=options, written=written)
    return {**dict(identity.entries()), "form of diagnosis.json": _FORM}


class EvidenceFile:
    """``diagnosis.json`` of a folder. ``known`` is what an interrupted diagnosis of the same question had found."""

    def __init__(self, folder: Path, identity: Mapping[str, str], *, fresh: bool) -> None:
        """Raises UsageError if an interrupted diagnosis of another question stands there, unless ``fresh``."""
        self.path = folder / STATE
        self.known = KnownSteps()
        self.resumed = False
        self._identity = dict(identity)
        self._key = user_key()
        if not fresh:
            self._resume()

    def save(self, known: KnownSteps, *, complete: bool) -> None:
        """Write what is known so far; ``complete``: the same command begins anew the next time."""
        content = {
            "biopsy_diagnosis": _VERSION,
            "complete": complete,
            "identity": self._identity,
            "facts": plain(known.facts),
            "steps": plain(known.steps),
            "files": _digests(self.path.parent, _files_of(known.steps)),
        }
        _write(self.path, content, self._key)

    def _resume(self) -> None:
        tree = _read(self.path)
        if tree is None or tree.get("complete") is not False:
            return
        if not _is_sealed(tree, self._key):
            raise errors.UsageError(
                f"{self.path} was not written by this user: what it says is not believed", next_steps=[_FRESH]
            )
        before = tree["identity"]
        names = sorted(name for name in {*before, *self._identity} if before.get(name) != self._identity.get(name))
        if names:
            differing = first_of(names, _MOST_NAMED)
            raise errors.UsageError(
                f"{self.path.parent} holds an interrupted diagnosis of something else: another {differing}",
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
                f"{self.path.parent / name} is no longer what the interrupted diagnosis has left there",
                kept="what it has found, as it is",
                next_steps=[_FRESH],
            )
        self.resumed = bool(self.known.steps)


def _files_of(steps: Sequence[StepReport]) -> list[str]:
    """The names of the files that answered steps have left, each with that of its weights."""
    done = {step.name for step in steps if step.outcome == "done"}
    names = dict.fromkeys(name for step in PLAN if step.name in done for name in step.files)
    return [each for name in names for each in (name, f"{name}.data")]


def _digests(folder: Path, names: Iterable[str]) -> dict[str, str | None]:
    """The SHA-256 of each file by its name; None where there is none, a link being none."""
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


def _sealed(folder: Path) -> dict[str, Any] | None:
    """What the record of a folder says, if this user has written it."""
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
    """What only this user can write; "" for a user without a key, whose diagnoses are not resumed."""
    whole = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return "" if key is None else hmac.new(key, whole.encode("ascii"), "sha256").hexdigest()


# The questions of a diagnosis in their order. Each one decides by what is known whether it is asked.

PLAN: tuple[DiagnosisStep, ...] = (
    failing,
    parts.masked_error,
    rounding,
    steadiness,
    parts.smallest_piece,
    parts.known_bug,
    parts.wrong_layers,
    causes.settings,
    parts.high_precision,
    causes.transformation,
    parts.may_vary,
    causes.changes,
    causes.releases,
)
"""A further question is a step in ``steps``, and its place here."""
