"""The inputs of one ``biopsy run``: the same for every engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.shell_words import option_line

if TYPE_CHECKING:
    from biopsy.cli.console import Console
    from biopsy.comparison.tolerance import Stats, Tolerances
    from biopsy.engines.feeding import GivenFeeds, Inputs
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

    def feeds(self, wanted: Mapping[str, ValueType | None]) -> Sequence[Feed]:
        """The feeds, checked and saved when they are first asked for."""
        from biopsy.engines.feeding import feeds_for
        from biopsy.engines.runner import checked_feed

        if self._settled is None:
            found = feeds_for(wanted, self.inputs)
            self._tell(found)
            self._settled = [checked_feed(feed, wanted, number) for number, feed in enumerate(found.feeds)]
            self._vet(self._settled)
            if self._save_to is not None:
                from biopsy.tensors.files import write_feeds

                write_feeds(self._save_to, self._settled)
        return self._settled

    def roundings_off(self, count: int, seed: int = 0) -> Feeder:
        """A feeder of the settled values, all of them some roundings off. Raises CannotCompare if none would differ."""
        from biopsy.tensors.perturbed import differ, roundings_off

        other = copy(self)
        other._settled = roundings_off(self._settled or (), count, seed)
        if not differ(self._settled or (), other._settled):
            raise errors.CannotCompare("no input has a number that could be one rounding off")
        return other

    def _tell(self, found: GivenFeeds) -> None:
        if found.made_up:
            names = ", ".join(map(repr, found.made_up))
            self._console.warn(f"the inputs loaded have no {names}: random values are used for it")
        for name, shape in found.guessed.items():
            choice = option_line("--input-shapes", f"{name}:[...]")
            self._console.warn(
                f"the model leaves the shape of input {name!r} open: {list(shape)} is used ({choice} to choose)"
            )


def require_same(feeds: Sequence[Feed], golden: Sequence[RunnerResult], tolerances: Tolerances, stats: Stats) -> None:
    """Raise CannotCompare if golden values were made from other inputs than these."""
    if golden:
        from biopsy.comparison.compare import require_same_inputs

        for expected in golden:
            require_same_inputs(feeds, expected, tolerances, stats)
