"""The verdict of a command in words, and the notes about it that a terminal, a page and an issue show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from biopsy import errors


@dataclass(frozen=True, kw_only=True)
class Workaround:
    """What avoids a failure: it was tried, and passed.

    ``line`` is a command line that shows it, ``engine`` the spec that passes if other settings of the failing engine
    are all it takes, ``code`` are lines for the application: Python with the engine's own package, where ``path`` is
    the model.
    """

    text: str
    line: str | None = None
    engine: str | None = None
    code: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What was found, in words.

    ``text`` says what is wrong and where, ``reasons`` what that depends on and what else is known, one sentence each.
    ``certainty`` says how sure that is and why, ``not_tried`` what was left open.
    """

    kind: str
    text: str
    reasons: Sequence[str] = ()
    certainty: str | None = None
    workarounds: Sequence[Workaround] = ()
    not_tried: Sequence[str] = ()

    @property
    def in_full(self) -> str:
        """The text and the reasons as one paragraph."""
        return " ".join((self.text, *self.reasons))


def verdict_of_error(error: errors.BiopsyError) -> Verdict:
    """The verdict of a command that ended with an error."""
    kept = f" Kept: {error.kept}." if error.kept else ""
    if isinstance(error, errors.OriginalPasses):
        return Verdict(kind="passes", text=error.message)
    if isinstance(error, errors.EngineFailure):
        return Verdict(kind="fails", text=error.message)
    return Verdict(kind="unknown", text=f"{error.message}{kept}")


@dataclass(frozen=True, kw_only=True)
class Note:
    """A sentence about a verdict under a label such as ``workaround``; ``line`` and ``code`` as of a workaround."""

    label: str
    text: str = ""
    line: str | None = None
    code: Sequence[str] = ()


def notes_of(verdict: Verdict, following: Iterable[tuple[str | None, str | None]] = ()) -> Iterator[Note]:
    """The notes ``sure``, ``workaround``, ``open``, and ``next`` for each line that follows, given with its reason."""
    if verdict.certainty:
        yield Note(label="sure", text=verdict.certainty)
    for way in verdict.workarounds:
        yield Note(label="workaround", text=way.text, line=way.line, code=way.code)
    yield from (Note(label="open", text=text) for text in verdict.not_tried)
    yield from (Note(label="next", text=reason or "", line=line) for line, reason in following)
