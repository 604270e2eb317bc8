"""Releases that are asked once more before it is told what they answer: a failure that comes and goes misleads once.

Who fails once, fails: a pass is chance if the failure shows in some runs only. So what was taken for a pass while the
failure was taken for a steady one, or before it was met, is asked as often as the measured rate wants, and both sides
of each border are asked anew.
"""

from __future__ import annotations

from dataclasses import replace

from biopsy.blame.releases.findings import TriedRelease
from biopsy.blame.releases.probe import ReleaseProbe
from biopsy.checks.outcome import Outcome
from biopsy.search.borders import AnswerRow, RowBorder

_PASSES_AT_A_BORDER = 3
"""Passes that the side without the failure must show once more: as many as it takes to call a failure steady."""


class Confirmation:
    """Asks releases of a row once more; what they say now goes into ``row`` and ``tried``."""

    def __init__(self, probe: ReleaseProbe, row: AnswerRow, tried: dict[int, TriedRelease]) -> None:
        self._probe, self._row, self._tried = probe, row, tried
        self._confirmed: dict[int, int] = {}

    def changes_something(self) -> bool:
        """Ask what is not sure; whether an answer is another one now, and the search has to go on."""
        return self._passes_change() or self._borders_change()

    def holds(self, border: RowBorder) -> bool:
        """Whether both sides of a border have said the same again."""
        return all(self._is_confirmed(place) for place in (border.before, border.after))

    def _is_confirmed(self, place: int) -> bool:
        return self._confirmed.get(place, 0) >= self._probe.rate.needed

    def _passes_change(self) -> bool:
        """Ask releases that passed less often than it takes, by what is known of the failure now."""
        before = dict(self._row.known)
        for place, one in self._tried.items():
            if one.side is False and one.runs < self._probe.rate.needed:
                self._know(place, self._probe.pass_again(one, self._probe.rate.needed - one.runs))
        return self._row.known != before

    def _borders_change(self) -> bool:
        before, needed = dict(self._row.known), self._probe.rate.needed
        for border in self._row.borders():
            for place in (border.before, border.after):
                if not self._is_confirmed(place):
                    self._ask_side(place)
        return self._row.known != before or self._probe.rate.needed != needed

    def _ask_side(self, place: int) -> None:
        one = self._tried[place]
        if one.side:
            found = self._probe.fail_again(one)
        else:
            found = self._probe.pass_again(one, max(_PASSES_AT_A_BORDER, self._probe.rate.needed))
        if found.side is one.side:
            self._confirmed[place] = self._probe.rate.needed
        self._know(place, found)

    def _know(self, place: int, found: TriedRelease) -> None:
        """Keep an answer. Of a release that now says neither of both, nobody can tell."""
        before = self._tried[place]
        if found.side is None and found.outcome is not Outcome.UNSTABLE:
            reason = f"first it {before.words}, then: {found.words}, {found.reason}"
            found = replace(found, outcome=Outcome.UNSTABLE, reason=reason)
        self._tried[place] = found
        self._row.known[place] = found.side
        if found.side is not before.side:
            self._probe.tell(found)
