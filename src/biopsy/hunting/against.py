"""What a hunt finds that an earlier one did not, and what has gone since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, TypeAlias

from biopsy import errors
from biopsy.checks.words import as_word
from biopsy.comparison.mismatch import COSTS
from biopsy.diagnosis.steps.failing import read_tree
from biopsy.hunting.records import BUGS, JUDGED, RESULT, VERSION
from biopsy.text import line_of

_Tree: TypeAlias = Mapping[str, Any]

_OF_BUG = {"name": str, "engines": list, "kind": str, "models": list, "fingerprint": str}
_OF_MODEL = {"model": str, "cells": list}
_OF_CELL = {"engine": str, "kind": str}


@dataclass(frozen=True, kw_only=True)
class HuntChanges:
    """The bugs of a hunt beside those of an earlier one, by name; each is in one list.

    ``changed`` fail in another way than before, as pairs of the kinds then and now under the name. ``gone`` are earlier
    bugs whose models are right now; ``open`` those of which some model was not tried, or could not be judged.
    """

    new: tuple[str, ...] = ()
    changed: Mapping[str, tuple[str, str]]
    still: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    open: tuple[str, ...] = ()

    @property
    def status(self) -> int:
        """The exit status: 1 if something is new or has changed, 4 if something is open, else 0."""
        return 1 if self.new or self.changed else 4 if self.open else 0


def read_hunt(folder: Path) -> _Tree:
    """The object in the ``hunt.json`` of a folder. Raises UsageError if there is none, or one of another version."""
    tree = read_tree(folder / RESULT)
    if tree.get("biopsy_hunt") != VERSION or not (
        _all_have(tree.get("bugs"), _OF_BUG)
        and _all_have(tree.get("models"), _OF_MODEL)
        and all(_all_have(model["cells"], _OF_CELL) for model in tree["models"])
    ):
        raise errors.UsageError(
            f"{folder} holds no {RESULT} of a hunt with this version of biopsy",
            next_steps=[line_of(["biopsy", "hunt", "MODELS", "--dir", as_word(folder)])],
        )
    return tree


def _all_have(trees: object, kinds: Mapping[str, type]) -> bool:
    """Whether it is a list of objects that have these keys, with values of these types."""
    return isinstance(trees, list) and all(
        isinstance(tree, dict) and all(isinstance(tree.get(name), kind) for name, kind in kinds.items())
        for tree in trees
    )


def changes(now: _Tree, before: _Tree) -> HuntChanges:
    """Compare two hunts. A bug is the same if its engines and its smallest part are, else if its models overlap."""
    left, rest = list(before["bugs"]), []
    new, still, gone, unknown = (list[str]() for _ in range(4))
    changed: dict[str, tuple[str, str]] = {}
    for bug in now["bugs"]:  # first by the smallest part, so that no other bug of the same models takes its place
        same = [old for old in left if bug["fingerprint"] and bug["fingerprint"] == old["fingerprint"]]
        rest += [] if _take(bug, same, left, still, changed) else [bug]
    for bug in rest:
        same = [old for old in left if set(bug["models"]) & set(old["models"])]
        if not _take(bug, same, left, still, changed):
            new.append(bug["name"])
    answers = {(model["model"], cell["engine"]): cell["kind"] for model in now["models"] for cell in model["cells"]}
    for old in left:
        right: set[object] = {*JUDGED, *BUGS, "refuted"}
        if old["kind"] in COSTS:  # which it may still be, unless it was measured now with this limit or a lower one
            is_measured = 0 < (now.get(old["kind"]) or 0) <= (before.get(old["kind"]) or inf)
            right = {*JUDGED, "refuted"} if is_measured else set()
        kinds = [answers.get((model, engine)) for model in old["models"] for engine in old["engines"]]
        (gone if all(kind in right for kind in kinds) else unknown).append(old["name"])
    return HuntChanges(new=tuple(new), changed=changed, still=tuple(still), gone=tuple(gone), open=tuple(unknown))


def _take(
    bug: _Tree, same: Sequence[_Tree], left: list[_Tree], still: list[str], changed: dict[str, tuple[str, str]]
) -> bool:
    """Take the first earlier bug of the same engines from those ``left``; returns whether there is one."""
    old = next((old for old in same if old["engines"] == bug["engines"]), None)
    if old is None:
        return False
    left.remove(old)
    if old["kind"] == bug["kind"]:
        still.append(bug["name"])
    else:
        changed[bug["name"]] = (old["kind"], bug["kind"])
    return True
