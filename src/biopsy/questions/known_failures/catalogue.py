"""The catalogue of known bugs: its entries, the folders with their files, and the files, which strangers may write.

A file is YAML (docs/reference/file-formats.md), read strictly: texts, lists and mappings of them, and nothing else.
Every plain value stays text: a release 1.20 is not a number and "no" is not a truth value. Anchors, aliases and tags
are refused, so that no small file becomes large, and nothing but plain values is made of it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import yaml
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from biopsy import errors
from biopsy.comparison.mismatch import COSTS
from biopsy.processes.own_files import folder_of_user
from biopsy.processes.reading import read_plain
from biopsy.questions.known_failures.fingerprint import FORM
from biopsy.questions.known_failures.pattern import FailurePattern
from biopsy.records import plain_of
from biopsy.text import did_you_mean, first_line

OWN_FOLDER = Path(__file__).parent / "catalogue"
ORIGIN = "biopsy"
"""The origin of the entries that come with biopsy."""

SUFFIX = ".yaml"
_MOST_FILES = 2000


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """The known bugs, and a line for each file that cannot be used."""

    failures: tuple[KnownFailure, ...]
    broken: tuple[str, ...] = ()


def users_folder() -> Path | None:
    """``$BIOPSY_KNOWN_DIR``, ``$XDG_CONFIG_HOME/biopsy/known``, else ``~/.config/biopsy/known``; None without a home.

    Never below the current folder, which a stranger may have filled.
    """
    own = Path(os.environ.get("BIOPSY_KNOWN_DIR", ""))
    if own.is_absolute():
        return own
    folder = folder_of_user("XDG_CONFIG_HOME", ".config")
    return None if folder is None else folder / "known"


def catalogue_of(folders: Sequence[Path] = ()) -> Catalogue:
    """The bugs that come with biopsy, those in the user's folder, and those in ``folders``.

    Raises UsageError if one of ``folders`` does not exist.
    """
    failures: list[KnownFailure] = []
    broken: list[str] = []
    for folder in folders:
        if not folder.is_dir():
            raise errors.UsageError(f"there is no folder {folder} with known failures")
    private = users_folder()
    for folder in [OWN_FOLDER, *filter(None, [private]), *folders]:
        try:
            files = sorted(folder.glob(f"*{SUFFIX}"))
        except OSError as error:
            broken.append(f"{folder}: {error.strerror or error}")
            continue
        for file in files[:_MOST_FILES]:
            try:
                failures.append(_own_entry(file) if folder == OWN_FOLDER else read_entry(file))
            except errors.DataError as error:
                broken.append(error.message)
        if len(files) > _MOST_FILES:
            broken.append(f"{folder}: only the first {_MOST_FILES:,} files are read")
    return Catalogue(failures=tuple(failures), broken=tuple(broken))


ReleaseKind = Literal["fails", "mended", "unknown"]
"""Whether a release was tried and fails, was tried and does not fail, or was not tried."""


def release_of(text: str) -> Version | None:
    """The release in an engine's version, such as "2026.4.1-22982-e213a1"; None if there is none."""
    try:
        return Version(text.partition("-")[0])
    except InvalidVersion:
        return None


@dataclass(frozen=True, kw_only=True)
class KnownSignature:
    """How a bug fails: the parts of a signature that are the same in all releases. Empty parts match anything."""

    stage: str = ""
    kinds: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Words such as ``build · Fail or RuntimeException``."""
        return " · ".join(filter(None, (self.stage, " or ".join(self.kinds)))) or "anything"


@dataclass(frozen=True, kw_only=True)
class KnownWorkaround:
    """What avoids a bug: a sentence, and, if settings do, an engine with these settings."""

    text: str
    engine: str = ""

    @property
    def full(self) -> str:
        """The sentence with the engine."""
        return f"{self.text.rstrip('.')} ({self.engine})." if self.engine else self.text


KnownPattern: TypeAlias = "FailurePattern | str"
"""Nodes with conditions; or the fingerprint of a piece, where nodes and conditions cannot say what it is."""


@dataclass(frozen=True, kw_only=True)
class KnownFailure:
    """A known bug. ``name`` is that of its file, ``origin`` the path of the file, or "biopsy".

    ``issue`` is the address of a public report, "" if there is none. ``fails`` and ``mended`` are specifiers of the
    releases of ``package`` that were tried, "" if there are none. ``conditions`` are sentences.
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
        """``microsoft/onnxruntime#30513`` for an issue on GitHub, else its address or the name."""
        words = self.issue.removeprefix("https://github.com/").split("/")
        is_github = self.issue.startswith("https://github.com/") and len(words) == 4
        if is_github and words[2] in ("issues", "pull"):
            return f"{words[0]}/{words[1]}#{words[3]}"
        return self.issue or self.name

    def release_kind(self, release: str) -> ReleaseKind:
        """Whether a release of the package fails."""
        version = release_of(release)
        if version is None:
            return "unknown"
        known: list[tuple[ReleaseKind, str]] = [("fails", self.fails), ("mended", self.mended)]
        for kind, specifier in known:
            if specifier and SpecifierSet(specifier).contains(version, prereleases=True):
                return kind
        return "unknown"

    def shows_as(self, stage: str, kind: str) -> bool | None:
        """Whether it fails at this stage with this kind of failure, "" if not known; None if it cannot be compared.

        Without kinds, a failure is not about time or memory.
        """
        if not self.signatures or not (stage or kind):
            return None
        return any(
            (not known.stage or not stage or known.stage == stage)
            and (not kind or (kind in known.kinds if known.kinds else kind not in COSTS))
            for known in self.signatures
        )

    def as_json(self) -> Mapping[str, object]:
        """The part of a report about it."""
        return {
            **plain_of(self, "name origin reference title"),
            "issue": self.issue or None,
            **plain_of(self, "engine package fails"),
            "mended": self.mended or None,
            **plain_of(self, "conditions"),
            "workarounds": [
                {"text": workaround.text, "engine": workaround.engine or None} for workaround in self.workarounds
            ],
        }


VERSION = "2"
STAGES = ("load", "build", "run", "compare")

_LONGEST = 2000
_MOST_ITEMS = 50


def read_entry(path: Path, origin: str | None = None) -> KnownFailure:
    """The bug that a file describes. Raises DataError, with one line that names the file, if it is not valid."""
    try:
        tree = value_in(read_plain(path, MOST_BYTES).decode("utf-8"))
        entry = _fields(tree, "the file", _ENTRY, ("biopsy_known", "title", "engine", "package", "patterns"))
        del entry["biopsy_known"]
        if not entry["patterns"]:
            raise ValueError("patterns: there is none")
        return KnownFailure(name=path.stem, origin=origin or str(path), **entry)
    except OSError as error:
        raise errors.DataError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise errors.DataError(f"{path}: it is not UTF-8 text") from error
    except ValueError as error:
        raise errors.DataError(f"{path}: {error}") from error


@cache  # a hunt looks up many pieces, and reading takes longer than comparing
def _own_entry(path: Path) -> KnownFailure:
    return read_entry(path, ORIGIN)


_Reader: TypeAlias = Callable[[Any, str], Any]
"""Returns a value as it is kept, given the value in the file and its key. Raises ValueError if it is not valid."""


def _fields(tree: Any, what: str, readers: Mapping[str, _Reader], required: Sequence[str] = ()) -> dict[str, Any]:
    """The values of a mapping, each read by the one of ``readers`` for its key; there may be no other keys."""
    if not isinstance(tree, dict):
        raise ValueError(f"{what}: keys with values are wanted")
    unknown = next((key for key in tree if not isinstance(key, str) or key not in readers), None)
    if unknown is not None:
        near = did_you_mean(unknown, readers, most=1) if isinstance(unknown, str) else []
        raise ValueError(f"{what}: the key {unknown!r:.60} is not known{f' ({near[0]})' if near else ''}")
    missing = next((key for key in required if key not in tree), None)
    if missing is not None:
        raise ValueError(f"{what}: there is no key {missing!r}".removeprefix("the file: "))
    return {key: read(tree[key], key) for key, read in readers.items() if key in tree}


def _form(value: Any, what: str) -> None:
    if value != VERSION:
        raise ValueError(f"{what} is {value!r:.40}, not {VERSION!r}: it is of another form; make it anew with --save")


def _list_of(read: _Reader) -> _Reader:
    def items(value: Any, what: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise ValueError(f"{what}: a list is wanted")
        if len(value) > _MOST_ITEMS:
            raise ValueError(f"{what}: there are more than {_MOST_ITEMS}")
        return tuple(read(each, what) for each in value)

    return items


def _text(value: Any, what: str, *, empty: bool = False) -> str:
    if not isinstance(value, str) or (not value.strip() and not empty):
        raise ValueError(f"{what}: a text is wanted")
    if len(value) > _LONGEST:
        raise ValueError(f"{what}: it has more than {_LONGEST:,} characters")
    return " ".join(value.split())


def _matching(pattern: str, objection: str) -> _Reader:
    """A reader of texts that match the pattern."""
    empty = re.fullmatch(pattern, "") is not None

    def read(value: Any, what: str) -> str:
        text = _text(value, what, empty=empty)
        if not re.fullmatch(pattern, text):
            raise ValueError(f"{what}: {text!r:.60} {objection}")
        return text

    return read


def _releases(value: Any, what: str) -> str:
    text = _text(value, what, empty=True)
    try:
        SpecifierSet(text)
    except InvalidSpecifier as error:
        raise ValueError(f"{what}: {text!r:.60} are not releases, such as '>=1.20.1,<=1.25.1'") from error
    return text


def _pattern(value: Any, what: str) -> KnownPattern:
    """Nodes with conditions, or the fingerprint of a piece."""
    given = _fields(value, what, _PATTERN)
    if ("nodes" in given) == ("fingerprint" in given):
        raise ValueError("patterns: each has the key 'nodes', or the key 'fingerprint'")
    if "fingerprint" not in given:
        return FailurePattern(given["nodes"], given.get("where", ()), given.get("domain", ""))
    if len(given) > 1:
        raise ValueError("patterns: a fingerprint stands alone")
    if not given["fingerprint"].startswith(f"{FORM}-"):
        raise ValueError(f"the fingerprint {given['fingerprint']!r:.40} is of another form than {FORM}")
    return str(given["fingerprint"])


_NAME = _matching("[A-Za-z0-9._-]+", "is not a name")
_STAGE = _matching("|".join(["", *STAGES]), f"is none of {', '.join(STAGES)}")
_SIGNATURE: Mapping[str, _Reader] = {"stage": _STAGE, "kinds": _list_of(_text)}
_WORKAROUND: Mapping[str, _Reader] = {"text": _text, "engine": partial(_text, empty=True)}
_PATTERN: Mapping[str, _Reader] = {"nodes": _text, "where": _list_of(_text), "domain": _NAME, "fingerprint": _text}
_ENTRY: Mapping[str, _Reader] = {
    "biopsy_known": _form,
    "title": _text,
    "issue": _matching(r"|https?://[^\s<>\"'`]+", "is not an address (https://...)"),
    "engine": _NAME,
    "package": _NAME,
    "fails": _releases,
    "mended": _releases,
    "signatures": _list_of(lambda value, what: KnownSignature(**_fields(value, what, _SIGNATURE))),
    "conditions": _list_of(_text),
    "workarounds": _list_of(lambda value, what: KnownWorkaround(**_fields(value, what, _WORKAROUND, ["text"]))),
    "patterns": _list_of(_pattern),
}


MOST_BYTES = 1 << 20
_DEEPEST = 8
_MOST_EVENTS = 20_000


def value_in(text: str) -> Any:
    """The value of a YAML text. Raises ValueError, with one line, if it is not YAML or has what is not allowed here."""
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
    """A loader that refuses a mapping with the same key twice."""

    class Strict(loader):  # type: ignore[misc]  # the base class is known at run time only
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [key.value for key, _ in node.value]
            repeated = next((key for number, key in enumerate(keys) if key in keys[:number]), None)
            if repeated is not None:
                raise ValueError(f"line {node.start_mark.line + 1}: the key {repeated!r:.60} is given twice")
            return super().construct_mapping(node, deep=deep)

    return Strict
