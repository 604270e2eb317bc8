"""The inputs of one ``biopsy run``: the same for every engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.shell_words import ListOption, line_of

if TYPE_CHECKING:
    from biopsy.cli.console import Console
    from biopsy.comparison.tolerance import Stats, Tolerances
    from biopsy.engines.feeding import Inputs
    from biopsy.model.tensor_type import ValueType
    from biopsy.tensors.results import Feed, RunnerResult


class Feeder:
    """The inputs of a run: settled once, by the first engine that builds, then the same for all.

    ``vet`` raises if the golden values cannot be those of these inputs.
    """

    def __init__(
        self, inputs: Inputs, save_to: Path | None, console: Console, vet: Callable[[Sequence[Feed]], None]
    ) -> None:
        self.inputs = inputs
        self._save_to = save_to
        self._console = console
        self._vet = vet
        self._settled: Sequence[Feed] | None = None
        self.guessed: Mapping[str, tuple[int, ...]] = {}
        """Shapes of the inputs that nobody has said."""

    def feeds(self, wanted: Mapping[str, ValueType | None]) -> Sequence[Feed]:
        """The feeds, checked and saved when they are first asked for."""
        if self._settled is None:
            self._settled, self.guessed = settled(wanted, self.inputs, self._console)
            self._vet(self._settled)
            save(self._save_to, self._settled)
        return self._settled

    def roundings_off(self, count: int, seed: int = 0) -> Feeder:
        """A feeder of the settled values, all of them some roundings off. Raises CannotCompare if none would differ."""
        from biopsy.tensors.perturbed import differ, roundings_off

        other = copy(self)
        other._settled = roundings_off(self._settled or (), count, seed)
        if not differ(self._settled or (), other._settled):
            raise errors.CannotCompare("no input has a number that could be one rounding off")
        return other


def settled(
    wanted: Mapping[str, ValueType | None], inputs: Inputs, console: Console
) -> tuple[Sequence[Feed], Mapping[str, tuple[int, ...]]]:
    """The feeds of a model, checked and in its types, and the shapes that were guessed; what was made up is told."""
    from biopsy.engines.casting import casts, casts_told
    from biopsy.engines.feeding import feeds_for
    from biopsy.engines.runner import checked_feed

    found = feeds_for(wanted, inputs)
    if found.made_up:
        console.warn(f"the inputs loaded have no {', '.join(map(repr, found.made_up))}: random values are used for it")
    if found.guessed:
        choice = line_of([ListOption("--input-shapes", [f"{name}:[...]" for name in found.guessed])])
        console.warn(f"{_guesses_told(found.guessed)} ({choice} to choose)")
    feeds = [checked_feed(feed, wanted, number) for number, feed in enumerate(found.feeds)]
    changes = casts(found.feeds, feeds) if inputs.given is not None else ()
    if changes:
        console.warn(casts_told(changes))
    return feeds, found.guessed


def _guesses_told(guessed: Mapping[str, Sequence[int]]) -> str:
    """That the shapes of inputs were chosen by nobody."""
    if len(guessed) == 1:
        ((name, shape),) = guessed.items()
        return f"the model leaves the shape of input {name!r} open: {list(shape)} is used"
    shapes = ", ".join(f"{name!r} {list(shape)}" for name, shape in guessed.items())
    return f"the model leaves the shapes of {len(guessed)} inputs open: {shapes} are used"


def save(path: Path | None, feeds: Sequence[Feed]) -> None:
    """Write the feeds, if that is asked for."""
    if path is not None:
        from biopsy.tensors.files import write_feeds

        write_feeds(path, feeds)


def require_same(feeds: Sequence[Feed], golden: Sequence[RunnerResult], tolerances: Tolerances, stats: Stats) -> None:
    """Raise CannotCompare if golden values were made from other inputs than these."""
    if golden:
        from biopsy.comparison.runs import require_same_inputs

        for expected in golden:
            require_same_inputs(feeds, expected, tolerances, stats)
