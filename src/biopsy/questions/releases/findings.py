"""The outcome of a check with each release of a package, and the releases at which it changes."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from packaging.version import Version

from biopsy.checks.outcome import Outcome
from biopsy.errors import Obstacle
from biopsy.processes.environments.releases import Release
from biopsy.records import plain_of
from biopsy.search.borders import ANOTHER, Side
from biopsy.text import count, first_of, html_table, printable, shortened

_MOST_NAMED = 4
"""How many releases that were not tried are named."""

Answer = Literal["changed", "every release tried fails", "no release tried fails"]

_WORDS: Mapping[Outcome, str] = {
    Outcome.REPRODUCES: "fails",
    Outcome.PASSES: "passes",
    Outcome.OTHER_FAILURE: "another failure",
    Outcome.INVALID: "cannot tell",
    Outcome.TIMED_OUT: "timed out",
    Outcome.UNSTABLE: "unstable",
    Outcome.INFRASTRUCTURE: "could not be run",
}


@dataclass(frozen=True, kw_only=True)
class TriedRelease:
    """The outcome of a check with a release, after how many ``runs``.

    ``obstacle`` is why the release could not be installed or imported; None if it could. ``packages`` are the versions
    of the other packages in its environment, ``added`` the requirements that it turned out to need.
    """

    release: Release
    outcome: Outcome
    reason: str
    runs: int = 1
    obstacle: Obstacle | None = None
    packages: Mapping[str, str] = field(default_factory=dict)
    added: tuple[str, ...] = ()
    hint: str = ""

    @property
    def side(self) -> Side:
        """Whether the release fails, or ANOTHER if in another way; None if it could not be tested."""
        sides: dict[Outcome, Side] = {
            Outcome.REPRODUCES: True,
            Outcome.PASSES: False,
            Outcome.OTHER_FAILURE: ANOTHER,
        }
        return sides.get(self.outcome)

    @property
    def words(self) -> str:
        """The outcome, as a table shows it."""
        return "not installed" if self.obstacle is not None else _WORDS[self.outcome]

    def as_json(self) -> dict[str, Any]:
        """Its facts as plain values."""
        facts = plain_of(self, "reason runs obstacle packages added")
        return {**_json_of(self.release), "outcome": self.words, **facts}


@dataclass(frozen=True, kw_only=True)
class ReleaseBorder:
    """Two releases of different sides, ``was`` and ``became``; of those between, the ``undecided`` ones could not be
    tested, and the user did not want those ``left_out`` tried.

    ``other`` is how the one fails that fails in another way, if one does. ``verified``: run again, both are on the same
    side as before.
    """

    before: Release
    after: Release
    was: Side
    became: Side
    other: str = ""
    undecided: tuple[TriedRelease, ...] = ()
    left_out: tuple[Release, ...] = ()
    verified: bool = False
    notes: str = ""

    @property
    def unknown(self) -> Sequence[Release]:
        """The releases between the two whose side is not known, the oldest first."""
        unknown = [*(tried.release for tried in self.undecided), *self.left_out]
        return sorted(unknown, key=lambda release: Version(release.version))

    @property
    def change(self) -> Literal["broke", "mended", "changed"]:
        """What happened between the two; "changed": the failure became another one, or another one this one."""
        return "broke" if self.was is False else "mended" if self.became is False else "changed"

    @property
    def right(self) -> Release | None:
        """The release that passes, if one does."""
        return self.before if self.was is False else self.after if self.became is False else None

    @property
    def text(self) -> str:
        """``1.21.0 broke it, 1.20.1 is right``; or between which two it changed, and which could not be tested."""
        before, after = self.before.version, self.after.version
        another = f"another failure ({shortened(' '.join(self.other.split()), 100)})"
        fails = f"has {another}" if self.was == ANOTHER else "fails"
        if not self.unknown:
            if self.change == "broke":
                return f"{after} broke it{f' with {another}' if self.became == ANOTHER else ''}, {before} is right"
            became = "mended it" if self.became is False else f"has {another}" if self.became == ANOTHER else "fails"
            return f"{after} {became}, {before} {fails}"
        names = ", ".join(f"{tried.release.version} ({tried.words})" for tried in self.undecided)
        untested = f"; could not test {names}" if names else ""
        if self.left_out:
            between = first_of([release.version for release in self.left_out], _MOST_NAMED)
            untested += f"; not tried: {between}"
        change = {"broke": "broken", "mended": "mended", "changed": "changed"}[self.change]
        which = (
            f"; {before if self.was == ANOTHER else after} has {another}" if ANOTHER in (self.was, self.became) else ""
        )
        return f"{change} between {before} and {after}{which}{untested}"

    def as_json(self) -> dict[str, Any]:
        """Its facts as plain values."""
        return {
            **plain_of(self, "change text"),
            "before": _json_of(self.before),
            "after": _json_of(self.after),
            "undecided": [tried.release.version for tried in self.undecided],
            "left_out": [release.version for release in self.left_out],
            **plain_of(self, "verified notes"),
        }


@dataclass(frozen=True, kw_only=True)
class ReleaseFindings:
    """Which release of a package broke a model, or mended it.

    ``failure`` is the failure in words, which the release ``failure_of`` shows in ``failed`` of ``runs`` runs.
    ``tried`` are the releases that were tried, the oldest first; ``known`` is how many there are. ``borders`` are all
    changes, the oldest first: every release between the two of a border was tried, or is named there. ``yardstick``
    says what does not vary in the check, "" if everything does. ``doubt`` is a reason not to trust the answer, "" if
    there is none.
    """

    package: str
    python: str
    known: int
    failure: str = ""
    failure_of: str = ""
    failed: int = 0
    runs: int = 0
    tried: tuple[TriedRelease, ...] = ()
    borders: tuple[ReleaseBorder, ...] = ()
    checks: int = 0
    yardstick: str = ""
    doubt: str = ""

    @property
    def answer(self) -> Answer | None:
        """The answer; None if no release could be tested."""
        sides = {tried.side for tried in self.tried} - {None}
        if len(sides) > 1:
            return "changed"
        if not sides or ANOTHER in sides:
            return None
        return "every release tried fails" if True in sides else "no release tried fails"

    @property
    def text(self) -> str:
        """The answer in one line."""
        if self.borders:
            changes = "; ".join(border.text for border in self.borders)
            return f"{self.package}: {changes}" + (" (more than one change)" if len(self.borders) > 1 else "")
        tested = [tried for tried in self.tried if tried.side is not None]
        if not tested:
            return f"{self.package}: no release could be judged"
        range_ = f"{tested[0].release.version} to {tested[-1].release.version}"
        outcome = "fails" if tested[0].side else "passes"
        return f"{self.package}: every release tried {outcome} ({len(tested)} of {self.known}, {range_})"

    @property
    def pins(self) -> tuple[str, ...]:
        """Specifiers of releases without the failure, the newest first: ``>=1.31.1``, ``<1.21.0``, ``==1.20.1``.

        Single releases are the last one before each break, and the first one after a mend that was broken again.
        """
        specifiers = []
        for place, border in reversed(list(enumerate(self.borders))):
            if border.was is False:
                first = border.unknown[0] if border.unknown else border.after
                specifiers += [f"<{first.version}"] if place == 0 else []
                specifiers.append(f"=={border.before.version}")
            elif border.became is False and place == len(self.borders) - 1:
                specifiers.append(f">={border.after.version}")
            elif border.became is False:
                specifiers.append(f"=={border.after.version}")
        return tuple(specifiers)

    def __repr__(self) -> str:
        return f"<ReleaseFindings: {printable(self.text)}; {count(self.checks, 'check')}>"

    def _repr_html_(self) -> str:
        rows = [
            (tried.release.version, _day(tried.release.date) or "", tried.words, tried.reason) for tried in self.tried
        ]
        return html_table(self.text, ["release", "date", "outcome", "reason"], rows, 60)

    def as_json(self) -> dict[str, Any]:
        """The part of the report with these findings."""
        return {
            **plain_of(self, "package python answer text"),
            "failure": {"text": self.failure, "release": self.failure_of, "failed": self.failed, "runs": self.runs},
            "borders": [border.as_json() for border in self.borders],
            **plain_of(self, "pins"),
            "monotone": len(self.borders) < 2,
            "tried": [tried.as_json() for tried in self.tried],
            **plain_of(self, "known checks yardstick doubt"),
        }


def _json_of(release: Release) -> dict[str, str | None]:
    return {"version": release.version, "date": _day(release.date)}


def _day(date: datetime.date | None) -> str | None:
    return None if date is None else date.isoformat()
