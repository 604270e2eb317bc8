"""The form of a file of the catalogue (docs/reference/file-formats.md): read strictly, and written."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from biopsy import errors
from biopsy.known_failures.entry import KnownFailure, KnownPattern, KnownSignature, KnownWorkaround
from biopsy.known_failures.fingerprint import FORM, fingerprint_of, pattern_in
from biopsy.known_failures.yaml_file import read_yaml
from biopsy.similar_names import did_you_mean

VERSION = "1"
STAGES = ("load", "build", "run", "compare")

_KEYS = {
    "biopsy_known", "title", "issue", "engine", "package", "fails", "mended", "signatures", "conditions", "workarounds",
    "patterns",
}  # fmt: skip
_REQUIRED = ("biopsy_known", "title", "engine", "package", "patterns")
_LONGEST = 2000
_LONGEST_PATTERN = 200_000
_MOST_ITEMS = 50


def read_entry(path: Path, origin: str | None = None) -> KnownFailure:
    """The bug that a file describes. Raises DataError, in one line that names the file, for what is no such file."""
    tree = read_yaml(path)
    try:
        return _entry(tree, path.stem, origin if origin is not None else str(path))
    except ValueError as error:
        raise errors.DataError(f"{path}: {error}") from error


def _entry(tree: Any, name: str, origin: str) -> KnownFailure:
    found = _mapping(tree, "the file", _KEYS)
    missing = next((key for key in _REQUIRED if key not in found), None)
    if missing is not None:
        raise ValueError(f"there is no key {missing!r}")
    if found["biopsy_known"] != VERSION:
        raise ValueError(f"biopsy_known is {found['biopsy_known']!r:.40}, not {VERSION!r}: it is of another form")
    patterns = _items(found["patterns"], "patterns")
    if not patterns:
        raise ValueError("patterns: there is none")
    return KnownFailure(
        name=name,
        origin=origin,
        title=_text(found["title"], "title"),
        issue=_address(found.get("issue", "")),
        engine=_word(found["engine"], "engine"),
        package=_word(found["package"], "package"),
        fails=_releases(found.get("fails", ""), "fails"),
        mended=_releases(found.get("mended", ""), "mended"),
        signatures=tuple(_signature(one) for one in _items(found.get("signatures", []), "signatures")),
        conditions=tuple(_text(one, "conditions") for one in _items(found.get("conditions", []), "conditions")),
        workarounds=tuple(_workaround(one) for one in _items(found.get("workarounds", []), "workarounds")),
        patterns=tuple(_pattern(one) for one in patterns),
    )


def _signature(tree: Any) -> KnownSignature:
    found = _mapping(tree, "signatures", {"stage", "kinds"})
    stage = _text(found.get("stage", ""), "stage", empty=True)
    if stage and stage not in STAGES:
        raise ValueError(f"stage: {stage!r:.40} is none of {', '.join(STAGES)}")
    return KnownSignature(
        stage=stage, kinds=tuple(_text(one, "kinds") for one in _items(found.get("kinds", []), "kinds"))
    )


def _workaround(tree: Any) -> KnownWorkaround:
    found = _mapping(tree, "workarounds", {"text", "engine"})
    if "text" not in found:
        raise ValueError("workarounds: there is no key 'text'")
    return KnownWorkaround(
        text=_text(found["text"], "text"), engine=_text(found.get("engine", ""), "engine", empty=True)
    )


def _pattern(tree: Any) -> KnownPattern:
    """A pattern, if its lines describe one and its digest is theirs."""
    found = _mapping(tree, "patterns", {"fingerprint", "graph"})
    if "graph" not in found or "fingerprint" not in found:
        raise ValueError("patterns: each has the keys 'fingerprint' and 'graph'")
    text, digest = found["graph"], found["fingerprint"]
    if not isinstance(text, str) or not isinstance(digest, str) or len(text) > _LONGEST_PATTERN:
        raise ValueError("patterns: 'fingerprint' and 'graph' are texts")
    try:
        made = fingerprint_of(pattern_in(text))
    except ValueError as error:
        raise ValueError(f"graph: {error}") from error
    if not digest.startswith(FORM):
        raise ValueError(f"the fingerprint {digest!r:.40} is of another form than {FORM}: make it anew with --save")
    if made.digest != digest:
        raise ValueError(f"the fingerprint {digest!r:.40} is not that of its graph, which is {made.digest}")
    return KnownPattern(digest=digest, text=made.text)


# Values


def _mapping(tree: Any, what: str, keys: set[str]) -> Mapping[str, Any]:
    if not isinstance(tree, dict):
        raise ValueError(f"{what}: keys with values are wanted")
    strange = next((key for key in tree if not isinstance(key, str) or key not in keys), None)
    if strange is not None:
        near = did_you_mean(strange, keys, most=1) if isinstance(strange, str) else []
        raise ValueError(f"{what}: the key {strange!r:.60} is not known{f' ({near[0]})' if near else ''}")
    return tree


def _items(tree: Any, what: str) -> Sequence[Any]:
    if not isinstance(tree, list):
        raise ValueError(f"{what}: a list is wanted")
    if len(tree) > _MOST_ITEMS:
        raise ValueError(f"{what}: there are more than {_MOST_ITEMS}")
    return tree


def _text(value: Any, what: str, *, empty: bool = False) -> str:
    if not isinstance(value, str) or (not value.strip() and not empty):
        raise ValueError(f"{what}: a text is wanted")
    if len(value) > _LONGEST:
        raise ValueError(f"{what}: it has more than {_LONGEST:,} characters")
    return " ".join(value.split())


def _word(value: Any, what: str) -> str:
    text = _text(value, what)
    if not re.fullmatch(r"[A-Za-z0-9._-]+", text):
        raise ValueError(f"{what}: {text!r:.40} is no name")
    return text


def _address(value: Any) -> str:
    text = _text(value, "issue", empty=True)
    if text and not re.fullmatch(r"https?://[^\s<>\"'`]+", text):
        raise ValueError(f"issue: {text!r:.60} is no address (https://...)")
    return text


def _releases(value: Any, what: str) -> str:
    text = _text(value, what, empty=True)
    try:
        SpecifierSet(text)
    except InvalidSpecifier as error:
        raise ValueError(f"{what}: {text!r:.60} are no releases, such as '>=1.20.1,<=1.25.1'") from error
    return text
