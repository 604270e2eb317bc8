"""What of a model may be changed by itself, and which changes are tried."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from biopsy.variation.fed_model import Edit

What: TypeAlias = Literal["input", "weight", "attribute", "size", "dtype"]
"""What a feature is: values of an input or of a weight, an attribute, a size, an element type."""

Answer: TypeAlias = Literal["fails", "passes", "neither", "invalid"]
"""What a check says of a change: it still fails in the same way, it passes, or neither can be said.

What gives no valid model, or no other one, is not checked.
"""


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """A change of one feature. ``text`` is what it has then; changes of one ``kind`` say the same about it.

    ``value`` is the number that it has then, None where it is no number.
    """

    kind: str
    text: str
    edit: Edit
    value: int | None = None


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """A feature that is a whole number: what it is, how it gets another one of ``least`` to ``most``.

    ``named`` are numbers that mean something else in the model too, such as another size.
    """

    present: int
    with_value: Callable[[int], Alternative]
    least: int
    most: int
    named: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Feature:
    """Something of a model that has a ``name`` and is as ``present`` says; "" where that cannot be said in short.

    ``alternatives`` stand in the order in which they tell most. ``numbers``: it is a whole number. ``is_given``: the
    model says so, and not the standard for all that say nothing.
    """

    what: What
    name: str
    present: str
    alternatives: Sequence[Alternative]
    numbers: Numbers | None = None
    is_given: bool = True


@dataclass(frozen=True)
class Seen:
    """What a check has said of a change."""

    alternative: Alternative
    answer: Answer


@dataclass
class ExaminedFeature:
    """A feature, and what the check has said of its changes so far."""

    feature: Feature
    seen: list[Seen] = field(default_factory=list)

    def note(self, alternative: Alternative, answer: Answer) -> None:
        """Remember what the check says of a change."""
        self.seen.append(Seen(alternative, answer))

    def that(self, answer: Answer) -> list[Alternative]:
        """The changes of which the check says so, in the order in which they were tried."""
        return [one.alternative for one in self.seen if one.answer == answer]

    def numbers_that(self, answer: Answer) -> set[int]:
        """The numbers of which it says so; the present one fails."""
        found = {one.value for one in self.that(answer) if one.value is not None}
        present = self.feature.numbers
        return found | {present.present} if answer == "fails" and present is not None else found
