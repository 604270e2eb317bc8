"""What of a model may be changed by itself, what can only be changed together, how a model with its inputs is edited;
and which changes are tried, in which order, until enough is known.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, combinations, islice
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

from biopsy.model.external import is_external
from biopsy.reduction.passes.common import copied
from biopsy.search.drive import RunningSearch, Search
from biopsy.tensors.results import Array

if TYPE_CHECKING:
    import onnx

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


def whole_number(
    what: What,
    name: str,
    present: int,
    wanted: Mapping[int, str],
    edit_to: Callable[[int], Edit],
    limits: tuple[int, int],
    another: str = "another number",
    named: Mapping[int, str] | None = None,
) -> Feature:
    """A feature that is a whole number within ``limits``; ``wanted``: other number -> kind of the change."""

    def with_value(value: int, kind: str = another) -> Alternative:
        return Alternative(kind=kind, text=str(value), edit=edit_to(value), value=value)

    return Feature(
        what=what,
        name=name,
        present=str(present),
        alternatives=[with_value(value, kind) for value, kind in wanted.items() if value != present],
        numbers=Numbers(present=present, with_value=with_value, least=limits[0], most=limits[1], named=named or {}),
    )


@dataclass
class ExaminedFeature:
    """A feature, and what the check has said of its changes so far."""

    feature: Feature
    seen: list[tuple[Alternative, Answer]] = field(default_factory=list)

    def that(self, answer: Answer) -> list[Alternative]:
        """The changes of which the check says so, in the order in which they were tried."""
        return [alternative for alternative, said in self.seen if said == answer]

    def numbers_that(self, answer: Answer) -> set[int]:
        """The numbers of which it says so; the present one fails."""
        values = {one.value for one in self.that(answer) if one.value is not None}
        present = self.feature.numbers
        return values | {present.present} if answer == "fails" and present is not None else values


# A model with the inputs that it is fed, and how one is edited.


@dataclass(frozen=True)
class FedModel:
    """A model, and what it is fed: one tensor for each input, in every iteration. None where the check feeds it."""

    model: onnx.ModelProto
    feeds: Sequence[Mapping[str, Array]] | None = None

    def with_fed(self, name: str, changed: Callable[[Array], Array]) -> FedModel:
        """The same with other values of one input, in every iteration that has it."""
        if self.feeds is None:
            return self
        feeds = [{**feed, name: changed(feed[name])} if name in feed else dict(feed) for feed in self.feeds]
        return replace(self, feeds=feeds)

    def copied(self) -> FedModel:
        """The same with a model that may be changed."""
        return replace(self, model=copied(self.model))


Edit: TypeAlias = Callable[[FedModel], "FedModel | None"]
"""Makes another model, or the same with other inputs, of a copy of its own; None where that cannot be done."""


def in_turn(edits: Sequence[Edit]) -> Edit:
    """One edit after the other; None if one of them cannot be done."""

    def edit(fed: FedModel) -> FedModel | None:
        made: FedModel | None = fed
        for one in edits:
            made = None if made is None else one(made)
        return made

    return edit


# Values of tensors that stand in a model: read, and replaced by others.


def values_of(tensor: onnx.TensorProto) -> Array | None:
    """The values of a tensor; None where they stand in another file, or where numpy has no such type."""
    from onnx import numpy_helper

    if is_external(tensor):
        return None
    try:
        return numpy_helper.to_array(tensor)
    except Exception:  # a type that numpy does not know, or values that do not fit the shape
        return None


def with_values(tensor: onnx.TensorProto, values: Array) -> bool:
    """Give a tensor other values, and their type and shape; False if they cannot be held by one."""
    from onnx import numpy_helper

    try:
        made = numpy_helper.from_array(values.copy(order="C"), tensor.name)
    except Exception:  # a type that onnx has no number for
        return False
    tensor.CopyFrom(made)
    return True


# Which parts of a model can only be changed together, such as the two axes that a product sums over.

Place = TypeVar("Place", bound=Hashable)

_MOST_TOGETHER = 3
_MOST_GROUPS = 60
"""Groups of a few places that are tried for each anchor; then all together, without those that can be left out."""

_MOST_ASKED = 250
"""Questions about all anchors together, which cost some milliseconds each: what is not known by then is in no group."""

_MOST_LEFT_OUT = 24


def tied_groups(
    anchors: Sequence[Place], places: Sequence[Place], is_valid: Callable[[Sequence[Place]], bool]
) -> list[tuple[Place, ...]]:
    """Small groups of ``places`` that can be changed, such that each anchor is in one, unless it is in none.

    ``places`` hold the anchors. Groups of up to three places are the smallest that there are; of larger ones no single
    place can be left out. Groups stand in the order of the anchors, their places in that of ``places``.
    """
    groups: dict[tuple[Place, ...], None] = {}
    asked = 0

    def counted(group: Sequence[Place]) -> bool:
        nonlocal asked
        asked += 1
        return asked <= _MOST_ASKED and is_valid(group)

    for anchor in anchors:
        if any(anchor in group for group in groups):
            continue
        others = [place for place in places if place != anchor]
        few = chain.from_iterable(combinations(others, count) for count in range(_MOST_TOGETHER))
        kept: list[Place] | None = next(
            ([anchor, *group] for group in islice(few, _MOST_GROUPS) if counted([anchor, *group])), None
        )
        if kept is None and counted(places):
            kept = list(places)
            for place in others[::-1][:_MOST_LEFT_OUT]:
                without = [other for other in kept if other != place]
                kept = without if counted(without) else kept
        if kept is not None:
            groups[tuple(place for place in places if place in kept)] = None
    return list(groups)


# Which changes are tried, in which order, and when enough is known.

_MOST_ANSWERS = 6
"""Changes of one feature that were checked; a few more where it is a number."""

_MOST_MORE = 5
_MOST_OF_NEITHER = 3
_KINDS_OF_FREE = 3
_KINDS_OF_FIXED = 3
_FREE_ENOUGH = 4


@dataclass(frozen=True)
class Trying:
    """A change that is to be checked, and the examination that wants to know."""

    examination: ExaminedFeature
    alternative: Alternative


def varied(examinations: Sequence[ExaminedFeature]) -> Search[Trying, Sequence[Answer], None]:
    """Ask about every feature, one change of each in a round.

    Who answers adds what was ``seen`` to the examinations themselves, so that nothing is lost where a budget ends it.
    """
    running = [(one, RunningSearch(_examined(one))) for one in examinations]
    while True:
        waiting = [(one, search) for one, search in running if search.round is not None]
        if not waiting:
            return
        yield [Trying(one, alternative) for one, search in waiting for alternative in search.round or ()]
        for _, search in waiting:
            search.reply(None)


def _examined(examination: ExaminedFeature) -> Search[Alternative, None, None]:
    """Ask about its changes; of a number until one condition and its threshold are known, or enough was asked."""
    for alternative in examination.feature.alternatives:
        if _is_decided(examination):
            return
        yield [alternative]
    numbers = examination.feature.numbers
    for _ in range(_MOST_MORE if numbers is not None else 0):
        number = _next_number(examination)
        if numbers is None or number is None or len(examination.that("neither")) >= _MOST_OF_NEITHER:
            return
        yield [numbers.with_value(number)]


def _is_decided(examination: ExaminedFeature) -> bool:
    failing, passing = examination.that("fails"), examination.that("passes")
    if not passing and len(failing) < len(examination.that("neither")) >= _MOST_OF_NEITHER:
        return True
    if len(failing) + len(passing) >= _MOST_ANSWERS:
        return examination.feature.numbers is None
    if examination.feature.numbers is not None or (failing and passing):
        return False
    if failing:
        return len(failing) >= _FREE_ENOUGH and kinds(failing) >= _KINDS_OF_FREE
    return kinds(passing) >= _KINDS_OF_FIXED


def kinds(alternatives: Sequence[Alternative]) -> int:
    """How many different kinds of change there are among some."""
    return len({alternative.kind for alternative in alternatives})


def _next_number(examination: ExaminedFeature) -> int | None:
    numbers = examination.feature.numbers
    failing, passing = examination.numbers_that("fails"), examination.numbers_that("passes")
    if numbers is None or not passing:
        return None
    forms, unknown = _open_questions(examination, numbers)
    number = telling(forms, unknown, numbers.present)
    if number is not None or not forms:
        return number
    if not forms[0].is_supported(failing, passing):
        return min(unknown, key=lambda number: (abs(number - numbers.present), number), default=None)
    halfway = between(failing, passing)
    return halfway if halfway in unknown else None


def _open_questions(examination: ExaminedFeature, numbers: Numbers) -> tuple[list[NumberForm], set[int]]:
    """The conditions on a number that agree with all that is known, and the numbers that were not tried."""
    tried = {numbers.present, *(alternative.value for alternative, _ in examination.seen)}
    failing, passing = examination.numbers_that("fails"), examination.numbers_that("passes")
    return consistent_forms(failing, passing, numbers.named), set(range(numbers.least, numbers.most + 1)) - tried


def is_ambiguous(examination: ExaminedFeature) -> bool:
    """Whether several conditions that differ agree with all that is known of a number."""
    numbers = examination.feature.numbers
    if numbers is None or not examination.numbers_that("passes"):
        return False
    return telling(*_open_questions(examination, numbers), numbers.present) is not None


# Simple conditions on a whole number, held against what is known: odd, a power of two, at least so many.
#
# No other form is ever claimed, and none that contradicts an answer.


@dataclass(frozen=True)
class NumberForm:
    """A condition on a whole number: which numbers ``hold``, what it is in words, and how much must agree with it."""

    text: str
    holds: Callable[[int], bool]
    least_failing: int = 1
    least_passing: int = 1

    def is_supported(self, failing: Collection[int], passing: Collection[int]) -> bool:
        """Whether enough numbers agree with it that it may be claimed."""
        return len(failing) >= self.least_failing and len(passing) >= self.least_passing


def consistent_forms(failing: Collection[int], passing: Collection[int], named: Mapping[int, str]) -> list[NumberForm]:
    """The forms that hold of all failing numbers and of no passing one, the simplest first.

    There is at least one failing number, and one that passes.
    """
    low, high, least, most = max(passing), min(passing), min(failing), max(failing)
    forms: list[NumberForm] = []
    if len(failing) == 1:
        forms.append(NumberForm(str(least), lambda number: number == least))
    if low < least:
        gap = "" if low + 1 == least else f" ({low} is too small)"
        forms.append(NumberForm(f"at least {least}{gap}", lambda number: number > low))
    if most < high:
        gap = "" if most + 1 == high else f" ({high} is too large)"
        forms.append(NumberForm(f"at most {most}{gap}", lambda number: number < high))
    forms += [NumberForm(text, holds, least_failing=3, least_passing=2) for text, holds in _RARE.items()]
    if len(passing) == 1:
        meaning = f" ({named[low]})" if low in named else ""
        forms.append(NumberForm(f"any but {low}{meaning}", lambda number: number != low, least_failing=3))
    return [form for form in forms if all(map(form.holds, failing)) and not any(map(form.holds, passing))]


def is_power_of_two(number: int) -> bool:
    """Whether a number is 1, 2, 4, 8, ..."""
    return number > 0 and number & (number - 1) == 0


_RARE: Mapping[str, Callable[[int], bool]] = {
    "odd": lambda number: number % 2 == 1,
    "even": lambda number: number % 2 == 0,
    "a power of two": is_power_of_two,
    "no power of two": lambda number: not is_power_of_two(number),
}
"""What few numbers agree with by chance, so that three that fail and two that pass are asked for."""


def telling(forms: Sequence[NumberForm], unknown: Collection[int], near: int) -> int | None:
    """The number whose answer leaves fewest of the forms; of several, the one nearest. None if all say the same."""

    def left(number: int) -> int:
        holding = sum(form.holds(number) for form in forms)
        return max(holding, len(forms) - holding)

    best = min(unknown, key=lambda number: (left(number), abs(number - near), number), default=None)
    return None if best is None or left(best) == len(forms) else best


def between(failing: Collection[int], passing: Collection[int]) -> int | None:
    """The number halfway between those that fail and those that pass, if they lie apart and are no neighbours."""
    low, high = max(passing), min(passing)
    gaps = [(low, min(failing))] if low < min(failing) else [(max(failing), high)] if max(failing) < high else []
    return next(((below + above) // 2 for below, above in gaps if above - below > 1), None)
