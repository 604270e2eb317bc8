"""The catalogue of known bugs: what an entry tells, the form of its file, which a stranger may have written, and the
folders in which entries stand.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from biopsy import errors
from biopsy.processes.own_files import folder_of_user
from biopsy.processes.reading import read_plain
from biopsy.questions.known_failures.fingerprint import FORM, Pattern, fingerprint_of, pattern_in
from biopsy.text import did_you_mean, first_line

OWN_FOLDER = Path(__file__).parent / "catalogue"
ORIGIN = "biopsy"
"""What an entry says of where it is, if it comes with biopsy."""

SUFFIX = ".yaml"
_MOST_FILES = 2000


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """The bugs, and a line for each file that cannot be used."""

    failures: tuple[KnownFailure, ...]
    broken: tuple[str, ...] = ()


def users_folder() -> Path | None:
    """``$BIOPSY_KNOWN_DIR``, ``$XDG_CONFIG_HOME/biopsy/known``, else ``~/.config/biopsy/known``; None without a home.

    Never below the current folder, which may be anybody's.
    """
    own = Path(os.environ.get("BIOPSY_KNOWN_DIR", ""))
    if own.is_absolute():
        return own
    folder = folder_of_user("XDG_CONFIG_HOME", ".config")
    return None if folder is None else folder / "known"


def catalogue_of(folders: Sequence[Path] = ()) -> Catalogue:
    """The bugs that come with biopsy, those in the user's folder, and those in ``folders``.

    Raises UsageError for one of ``folders`` that is none.
    """
    failures: list[KnownFailure] = []
    broken: list[str] = []
    for folder in folders:
        if not folder.is_dir():
            raise errors.UsageError(f"there is no folder {folder} with known failures")
    private = users_folder()
    for folder in [OWN_FOLDER, *filter(None, [private]), *folders]:
        origin = ORIGIN if folder == OWN_FOLDER else None
        try:
            files = sorted(folder.glob(f"*{SUFFIX}"))
        except OSError as error:
            broken.append(f"{folder}: {error.strerror or error}")
            continue
        for file in files[:_MOST_FILES]:
            try:
                failures.append(read_entry(file, origin))
            except errors.DataError as error:
                broken.append(error.message)
        if len(files) > _MOST_FILES:
            broken.append(f"{folder}: only the first {_MOST_FILES:,} files are read")
    return Catalogue(failures=tuple(failures), broken=tuple(broken))


ReleaseKind = Literal["fails", "mended", "unknown"]
"""What is known of a release: the bug was seen in it; it was seen to be gone; neither."""


def release_of(text: str) -> Version | None:
    """The release in a version as an engine tells it, such as "2026.4.1-22982-e213a1"; None if there is none."""
    try:
        return Version(text.partition("-")[0])
    except InvalidVersion:
        return None


@dataclass(frozen=True, kw_only=True)
class KnownSignature:
    """How a bug shows: what of a signature is stable from release to release. "" is anything."""

    stage: str = ""
    kinds: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Words such as ``build · Fail or RuntimeException``."""
        return " · ".join(filter(None, (self.stage, " or ".join(self.kinds)))) or "anything"


@dataclass(frozen=True, kw_only=True)
class KnownWorkaround:
    """What avoids a bug: in words, and as an engine with settings, where that is what it is."""

    text: str
    engine: str = ""

    @property
    def full(self) -> str:
        """The sentence, with the engine as it is written."""
        return f"{self.text} ({self.engine})" if self.engine else self.text


@dataclass(frozen=True)
class KnownPattern:
    """A pattern that shows a bug: its digest, and its lines."""

    digest: str
    text: str

    @cached_property
    def pattern(self) -> Pattern:
        """Its vertices."""
        return pattern_in(self.text)


@dataclass(frozen=True, kw_only=True)
class KnownFailure:
    """A bug. ``name`` is that of its file, ``origin`` where that is: "biopsy", or a path.

    ``issue`` is the address of a public report, "" if there is none. ``fails`` and ``mended`` are the releases of
    ``package`` that were tried, as specifiers; "" for none. ``conditions`` are sentences.
    """

    name: str
    origin: str
    title: str
    engine: str
    package: str
    patterns: tuple[KnownPattern, ...]
    issue: str = ""
    fails: str = ""
    mended: str = ""
    signatures: tuple[KnownSignature, ...] = ()
    conditions: tuple[str, ...] = ()
    workarounds: tuple[KnownWorkaround, ...] = ()

    @property
    def reference(self) -> str:
        """What people call it: ``microsoft/onnxruntime#30513`` for an issue on GitHub, else its address or name."""
        words = self.issue.removeprefix("https://github.com/").split("/")
        is_github = self.issue.startswith("https://github.com/") and len(words) == 4
        if is_github and words[2] in ("issues", "pull"):
            return f"{words[0]}/{words[1]}#{words[3]}"
        return self.issue or self.name

    def release_kind(self, release: str) -> ReleaseKind:
        """What is known of a release of the package."""
        version = release_of(release)
        if version is None:
            return "unknown"
        if self.fails and SpecifierSet(self.fails).contains(version, prereleases=True):
            return "fails"
        if self.mended and SpecifierSet(self.mended).contains(version, prereleases=True):
            return "mended"
        return "unknown"

    def shows_as(self, stage: str, kind: str) -> bool | None:
        """Whether it shows at this stage as this kind of failure; "" is not known, and None says that nobody knows."""
        if not self.signatures or not (stage or kind):
            return None
        return any(
            (not one.stage or not stage or one.stage == stage) and (not one.kinds or not kind or kind in one.kinds)
            for one in self.signatures
        )

    def as_json(self) -> Mapping[str, object]:
        """What a report says of it."""
        return {
            "name": self.name,
            "origin": self.origin,
            "reference": self.reference,
            "title": self.title,
            "issue": self.issue or None,
            "engine": self.engine,
            "package": self.package,
            "fails": self.fails,
            "mended": self.mended or None,
            "conditions": list(self.conditions),
            "workarounds": [{"text": one.text, "engine": one.engine or None} for one in self.workarounds],
        }


# The form of a file of the catalogue (docs/reference/file-formats.md): read strictly, and written.

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
    try:
        return _entry(value_in(read_plain(path, MOST_BYTES).decode("utf-8")), path.stem, origin or str(path))
    except OSError as error:
        raise errors.DataError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise errors.DataError(f"{path}: it is no UTF-8 text") from error
    except ValueError as error:
        raise errors.DataError(f"{path}: {error}") from error


def _entry(tree: Any, name: str, origin: str) -> KnownFailure:
    entry = _mapping(tree, "the file", _KEYS)
    missing = next((key for key in _REQUIRED if key not in entry), None)
    if missing is not None:
        raise ValueError(f"there is no key {missing!r}")
    if entry["biopsy_known"] != VERSION:
        raise ValueError(f"biopsy_known is {entry['biopsy_known']!r:.40}, not {VERSION!r}: it is of another form")
    patterns = _items(entry, "patterns")
    if not patterns:
        raise ValueError("patterns: there is none")
    return KnownFailure(
        name=name,
        origin=origin,
        title=_text(entry["title"], "title"),
        issue=_address(entry.get("issue", "")),
        engine=_word(entry["engine"], "engine"),
        package=_word(entry["package"], "package"),
        fails=_releases(entry.get("fails", ""), "fails"),
        mended=_releases(entry.get("mended", ""), "mended"),
        signatures=tuple(map(_signature, _items(entry, "signatures"))),
        conditions=tuple(_text(one, "conditions") for one in _items(entry, "conditions")),
        workarounds=tuple(map(_workaround, _items(entry, "workarounds"))),
        patterns=tuple(map(_pattern, patterns)),
    )


def _signature(tree: Any) -> KnownSignature:
    signature = _mapping(tree, "signatures", {"stage", "kinds"})
    stage = _text(signature.get("stage", ""), "stage", empty=True)
    if stage and stage not in STAGES:
        raise ValueError(f"stage: {stage!r:.40} is none of {', '.join(STAGES)}")
    return KnownSignature(stage=stage, kinds=tuple(_text(one, "kinds") for one in _items(signature, "kinds")))


def _workaround(tree: Any) -> KnownWorkaround:
    workaround = _mapping(tree, "workarounds", {"text", "engine"})
    if "text" not in workaround:
        raise ValueError("workarounds: there is no key 'text'")
    return KnownWorkaround(
        text=_text(workaround["text"], "text"), engine=_text(workaround.get("engine", ""), "engine", empty=True)
    )


def _pattern(tree: Any) -> KnownPattern:
    """A pattern, if its lines describe one and its digest is theirs."""
    pattern = _mapping(tree, "patterns", {"fingerprint", "graph"})
    if "graph" not in pattern or "fingerprint" not in pattern:
        raise ValueError("patterns: each has the keys 'fingerprint' and 'graph'")
    text, digest = pattern["graph"], pattern["fingerprint"]
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


def _items(tree: Mapping[str, Any], key: str) -> Sequence[Any]:
    items = tree.get(key, [])
    if not isinstance(items, list):
        raise ValueError(f"{key}: a list is wanted")
    if len(items) > _MOST_ITEMS:
        raise ValueError(f"{key}: there are more than {_MOST_ITEMS}")
    return items


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


# Reading YAML that a stranger may have written: texts, lists and mappings of them, and nothing else.
#
# Every plain value stays the text that it is: a release 1.20 is no number and "no" is no truth value. Anchors,
# aliases and tags are refused, so that nothing small becomes large and nothing is made of it but plain values.

MOST_BYTES = 1 << 20
_DEEPEST = 8
_MOST_EVENTS = 20_000


def value_in(text: str) -> Any:
    """What a text holds. Raises ValueError, in one line, for what is no YAML or is not allowed in ours."""
    import yaml

    loader: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    try:
        events = yaml.parse(text, Loader=loader)
        depth = 0
        for number, event in enumerate(events):
            line = event.start_mark.line + 1
            if number > _MOST_EVENTS:
                raise ValueError(f"line {line}: it has more than {_MOST_EVENTS:,} parts")
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
                raise ValueError(f"line {line}: anchors and aliases (& and *) are not allowed")
            if getattr(event, "tag", None) is not None:
                raise ValueError(f"line {line}: tags (!) are not allowed")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEEPEST:
                raise ValueError(f"line {line}: it is nested more than {_DEEPEST} deep")
        return yaml.load(text, Loader=_without_repeated_keys(loader))  # noqa: S506 -- BaseLoader makes texts alone
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark is not None else ""
        raise ValueError(f"{where}{getattr(error, 'problem', None) or first_line(str(error))}") from error
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def _without_repeated_keys(loader: Any) -> Any:
    """A loader that refuses a mapping with the same key twice, of which others keep the last."""

    class Strict(loader):  # type: ignore[misc]  # which one is known at run time
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [key.value for key, _ in node.value]
            repeated = next((key for number, key in enumerate(keys) if key in keys[:number]), None)
            if repeated is not None:
                raise ValueError(f"line {node.start_mark.line + 1}: the key {repeated!r:.60} stands there twice")
            return super().construct_mapping(node, deep=deep)

    return Strict
