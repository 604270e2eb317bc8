"""The folder of a diagnosis: what was found, step by step, so that the same command goes on where it was stopped.

``diagnosis.json`` holds what is known, what that depends on, and the digests of the files that steps have left, under a
seal of this user: anybody else may write such files too, and they would be believed.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from biopsy import errors
from biopsy.checks.outcome import Check
from biopsy.diagnosis.context import CANDIDATE
from biopsy.diagnosis.facts import KnownFacts, StepReport
from biopsy.diagnosis.plan import PLAN
from biopsy.diagnosis.question import DiagnosisQuestion, require_no_place
from biopsy.diagnosis.record_json import as_json, from_json
from biopsy.diagnosis.steps.piece import PIECE
from biopsy.filesystem.plain_file import read_plain
from biopsy.filesystem.user_key import user_key
from biopsy.filesystem.write import write_whole
from biopsy.model.digest import digest_of
from biopsy.session.claim import locked
from biopsy.session.journal_identity import JournalIdentity
from biopsy.session.options import SearchOptions
from biopsy.text import first_of

STATE = "diagnosis.json"
_MOST_BYTES = 64 << 20
_VERSION = 1


@dataclass(frozen=True)
class KnownSteps:
    """What a diagnosis has found so far: the facts, and a report of each step that was answered."""

    facts: KnownFacts = field(default_factory=KnownFacts)
    steps: tuple[StepReport, ...] = ()


@contextmanager
def held_folder(folder: Path) -> Iterator[None]:
    """The folder as that of one diagnosis, before anything is written there, until that ends; it is made if need be.

    Raises UsageError if it cannot be made, has a name that checks cannot hold, holds what no
    diagnosis has left, or is that of another one that runs.
    """
    require_no_place([folder], "--dir ANOTHER")
    _prepare(folder)
    with locked([folder / STATE]):
        yield


def _prepare(folder: Path) -> None:
    """Make the folder, if it is not there, and mark it as that of a diagnosis."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / STATE).is_file():
            return
        is_strange = any(folder.iterdir())
    except OSError as error:
        raise errors.UsageError(f"cannot make the folder {folder}: {error.strerror or error}") from error
    if is_strange:
        raise errors.UsageError(f"{folder} is not empty, and no diagnosis has made it", next_steps=["--dir ANOTHER"])
    write_whole(folder / STATE, [json.dumps({"biopsy_diagnosis": _VERSION, "complete": True}).encode("ascii"), b"\n"])


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
    written = [question.folder / name for name in (STATE, PIECE)]
    return dict(
        JournalIdentity(index=question.index, check=check, search=search, options=options, written=written).entries()
    )


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
            "facts": as_json(known.facts),
            "steps": [as_json(step) for step in known.steps],
            "files": _digests(self.path.parent, known.steps),
        }
        tree = {**content, "seal": _seal(self._key, content)}
        write_whole(self.path, [json.dumps(tree, indent=2).encode("ascii"), b"\n"])

    def _resume(self) -> None:
        tree = _read(self.path)
        if tree is None or tree.get("complete") is not False:
            return
        content = {key: value for key, value in tree.items() if key != "seal"}
        seal = tree.get("seal")
        if self._key is None or not isinstance(seal, str) or not hmac.compare_digest(seal, _seal(self._key, content)):
            raise errors.UsageError(
                f"{self.path} was not written by this user: what it says is not believed", next_steps=[_FRESH]
            )
        self._require_same(tree["identity"])
        try:
            self.known = KnownSteps(
                from_json(KnownFacts, tree["facts"]),
                tuple(step for step in map(_step_of, tree["steps"]) if step.outcome in ("done", "failed")),
            )
        except ValueError as error:
            raise errors.UsageError(f"{self.path} is of another version: {error}", next_steps=[_FRESH]) from error
        self._require_unchanged(tree.get("files", {}))
        self.resumed = bool(self.known.steps)

    def _require_same(self, before: Mapping[str, str]) -> None:
        names = sorted(name for name in {*before, *self._identity} if before.get(name) != self._identity.get(name))
        if names:
            differing = first_of(names, _MOST_NAMED)
            raise errors.UsageError(
                f"{self.path.parent} holds an interrupted diagnosis of something else: another {differing}",
                kept="what it has found, as it is",
                next_steps=[_FRESH, "--dir ANOTHER    keeps it"],
            )

    def _require_unchanged(self, before: Mapping[str, str | None]) -> None:
        now = _digests(self.path.parent, self.known.steps)
        changed = [name for name in now if before.get(name) != now[name]]
        if changed:
            raise errors.UsageError(
                f"{self.path.parent / changed[0]} is no longer what the interrupted diagnosis has left there",
                kept="what it has found, as it is",
                next_steps=[_FRESH],
            )


def _digests(folder: Path, steps: Sequence[StepReport]) -> dict[str, str | None]:
    """The SHA-256 of each file that an answered step has left, by its name; None where there is none."""
    done = {step.name for step in steps if step.outcome == "done"}
    names = dict.fromkeys(name for step in PLAN if step.name in done for name in step.files)
    return {name: digest_of(folder / name) if (folder / name).is_file() else None for name in names}


def _step_of(tree: object) -> StepReport:
    return from_json(StepReport, tree)


_FRESH = "--fresh    begins anew"
_MOST_NAMED = 3


def _read(path: Path) -> dict[str, Any] | None:
    try:
        tree = json.loads(read_plain(path, _MOST_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise errors.UsageError(f"{path} cannot be read: {error}", next_steps=[_FRESH]) from error
    return tree if isinstance(tree, dict) else None


def _seal(key: bytes | None, content: Mapping[str, Any]) -> str:
    """What only this user can write; "" for a user without a key, whose diagnoses are not resumed."""
    if key is None:
        return ""
    whole = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hmac.new(key, whole.encode("ascii"), "sha256").hexdigest()
