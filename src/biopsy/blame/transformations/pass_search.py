"""Which passes of a tool break a model: the fewest that do it alone, and the fewest without which it is right."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from biopsy.blame.transformations.asking import Asking
from biopsy.blame.transformations.findings import PassFindings
from biopsy.blame.transformations.transformer import Transformer
from biopsy.checks.outcome import Outcome
from biopsy.search.drive import drive, first_that
from biopsy.search.minimal_subsets import minimal_subsets, shortest
from biopsy.text import some_of

_MOST_SETS = 4
"""Sets of passes that do it, or to leave out, that are sought; the fewest are those of the shortest."""


class PassSearch:
    """Asks about sets of passes on one model, the ``piece``; ``named`` are those that may run, None for all."""

    def __init__(self, asking: Asking, transformer: Transformer, piece: Path, named: Sequence[str] | None) -> None:
        self._asking = asking
        self._transformer = transformer
        self._piece = piece
        self._named = named
        self._known: dict[frozenset[str], Outcome] = {}
        self._every: list[str] = []

    def run(self, asking_of_whole: Asking, whole: Path) -> PassFindings:
        """Search, and look at the answer in fresh processes, on the piece and on the whole model."""
        every = self._every = self._passes_of(self._piece)
        if not every or not self._fails(every):
            return PassFindings(all=tuple(every))
        alone = shortest(drive(minimal_subsets(every, _MOST_SETS), first_that(self._fails))[0])[0]
        sets, complete = drive(minimal_subsets(_first(alone, every), _MOST_SETS), first_that(self._is_right_without))
        without = shortest(sets)
        if not without:
            return PassFindings(all=tuple(every), alone=tuple(alone), complete=complete)
        whole_outcome, reason = self._whole(asking_of_whole, whole, without[0])
        return PassFindings(
            all=tuple(every),
            alone=tuple(alone),
            without=tuple(map(tuple, without)),
            complete=complete,
            verified=self._verified(alone, without[0], every),
            whole_is_right=None if whole_outcome is None else whole_outcome is Outcome.PASSES,
            whole=reason,
            omission=self._transformer.omission(without[0]),
        )

    def _passes_of(self, model: Path) -> list[str]:
        every = self._transformer.passes(model)
        return every if self._named is None else [name for name in every if name in self._named]

    def _fails(self, passes: Sequence[str]) -> bool:
        return self._outcome(passes, f"only {some_of(passes, 3)}") is Outcome.REPRODUCES

    def _is_right_without(self, passes: Sequence[str]) -> bool:
        rest = [name for name in self._every if name not in passes]
        return self._outcome(rest, f"without {some_of(passes, 3)}") is Outcome.PASSES

    def _outcome(self, passes: Sequence[str], description: str) -> Outcome:
        key = frozenset(passes)
        if key not in self._known:
            self._known[key] = self._asking.judged(self._piece, passes, description).outcome
        return self._known[key]

    def _verified(self, alone: Sequence[str], without: Sequence[str], every: Sequence[str]) -> bool:
        rest = [name for name in every if name not in without]
        fails = self._asking.judged(self._piece, alone, f"fresh: only {some_of(alone, 3)}", cold=True)
        right = self._asking.judged(self._piece, rest, f"fresh: without {some_of(without, 3)}", cold=True)
        return fails.outcome is Outcome.REPRODUCES and right.outcome is Outcome.PASSES

    def _whole(self, asking: Asking, whole: Path, without: Sequence[str]) -> tuple[Outcome | None, str]:
        """What becomes of the whole model without these passes."""
        if whole == self._piece:
            return None, ""
        rest = [name for name in self._passes_of(whole) if name not in without]
        judged = asking.judged(whole, rest, f"the whole model without {some_of(without, 3)}", cold=True)
        return judged.outcome, judged.reason


def _first(names: Sequence[str], every: Sequence[str]) -> list[str]:
    """All passes, those that do it alone last: searches look there first."""
    return [*(name for name in every if name not in names), *names]
