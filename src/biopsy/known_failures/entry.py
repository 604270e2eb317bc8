"""One known bug, as a file of a catalogue tells it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from biopsy.known_failures.fingerprint import pattern_in
from biopsy.known_failures.pattern import Pattern

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
