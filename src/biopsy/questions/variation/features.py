"""Features of a model and their changes: how a model is edited, which changes are tried, and conditions on numbers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, combinations, islice
from typing import Literal, TypeAlias, TypeVar

from biopsy.model.external import is_external
from biopsy.reduction.passes.common import copied
from biopsy.search.drive import RunningSearch, Search
from biopsy.slow_imports import onnx
from biopsy.tensors.results import Array

What: TypeAlias = Literal["input", "weight", "attribute", "size", "dtype"]
"""Kinds of features: values of an input or of a weight, an attribute, a size, an element type."""

Answer: TypeAlias = Literal["fails", "passes", "neither", "invalid"]
"""The answer about a change: fails in the same way, passes, or neither; "invalid" changes are not checked."""


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """A change of a feature, of some ``kind``. ``text`` is the new value in words, ``value`` the new number, if any.

    ``change`` computes new values from present ones, if it is a change of values. ``variants`` are edits to the same
    new value that keep other elements of the tensors.
    """

    kind: str
    text: str
    edit: Edit
    value: int | None = None
    change: Callable[[Array], Array] | None = None
    variants: Sequence[Edit] = ()


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """The ``present`` number of a feature, and its change to another one from ``least`` to ``most``.

    ``named`` are numbers with another meaning in the model too, such as another size.
    """

    present: int
    with_value: Callable[[int], Alternative]
    least: int
    most: int
    named: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Feature:
    """A part of a model that can be changed. ``present`` is its value in words; "" if that is not short.

    ``alternatives`` are ordered, the most informative first. ``numbers`` is set if it is a whole number.
    ``is_explicit``: the model states it, so that it is not a default of the standard. ``values`` are the present ones,
    if it is the values of a tensor; conditions may be about them if ``is_measured``. ``is_closed``: there are no other
    values than the present one and the alternatives.
    """

    what: What
    name: str
    present: str
    alternatives: Sequence[Alternative]
    numbers: Numbers | None = None
    is_explicit: bool = True
    values: Array | None = None
    is_measured: bool = True
    is_closed: bool = False


def number_feature(
    what: What,
    name: str,
    present: int,
    wanted: Mapping[int, str],
    edit_to: Callable[[int], Edit],
    limits: tuple[int, int],
    another: str = "another number",
    named: Mapping[int, str] | None = None,
    variants_of: Callable[[int], Sequence[Edit]] = lambda value: (),
) -> Feature:
    """A feature that is a whole number within ``limits``. ``wanted`` maps other numbers to the kind of change.

    Further numbers are changes of the kind ``another``.
    """

    def with_value(value: int, kind: str = another) -> Alternative:
        return Alternative(kind=kind, text=str(value), edit=edit_to(value), value=value, variants=variants_of(value))

    return Feature(
        what=what,
        name=name,
        present=str(present),
        alternatives=[with_value(value, kind) for value, kind in wanted.items() if value != present],
        numbers=Numbers(present=present, with_value=with_value, least=limits[0], most=limits[1], named=named or {}),
    )


@dataclass
class ExaminedFeature:
    """A feature, and the answers about its changes so far."""

    feature: Feature
    answers: list[tuple[Alternative, Answer]] = field(default_factory=list)
    is_entangled: bool = False
    """Whether a change of values passes or fails depending on the values of other tensors."""

    def with_answer(self, answer: Answer) -> list[Alternative]:
        """The changes with this answer, in the order in which they were tried."""
        return [alternative for alternative, other in self.answers if other == answer]

    def numbers_with(self, answer: Answer) -> set[int]:
        """The numbers with this answer. The present number fails."""
        values = {alternative.value for alternative in self.with_answer(answer) if alternative.value is not None}
        present = self.feature.numbers
        return values | {present.present} if answer == "fails" and present is not None else values


@dataclass(frozen=True)
class FedModel:
    """A model and its inputs for every iteration; ``feeds`` is None if the check feeds its own."""

    model: onnx.ModelProto
    feeds: Sequence[Mapping[str, Array]] | None = None

    def with_input(self, name: str, changed: Callable[[Array], Array]) -> FedModel:
        """A copy with changed values of one input in every iteration."""
        if self.feeds is None:
            return self
        feeds = [{**feed, name: changed(feed[name])} if name in feed else dict(feed) for feed in self.feeds]
        return replace(self, feeds=feeds)

    def copied(self) -> FedModel:
        """A copy whose model may be changed in place."""
        return replace(self, model=copied(self.model))


Edit: TypeAlias = Callable[[FedModel], "FedModel | None"]
"""Returns a changed copy of a model or of its inputs; None if the change is impossible."""


def chained(edits: Sequence[Edit]) -> Edit:
    """Edits one after the other; None if one of them is impossible."""

    def edit(fed: FedModel) -> FedModel | None:
        changed: FedModel | None = fed
        for each in edits:
            changed = None if changed is None else each(changed)
        return changed

    return edit


def values_of(tensor: onnx.TensorProto) -> Array | None:
    """The values of a tensor; None if they are in another file or of a type that numpy lacks."""
    if is_external(tensor):
        return None
    try:
        return onnx.numpy_helper.to_array(tensor)
    except Exception:  # a type that numpy does not know, or values that do not fit the shape
        return None


def set_values(tensor: onnx.TensorProto, values: Array) -> bool:
    """Give a tensor other values with their type and shape; returns False if ONNX has no such type."""
    try:
        changed = onnx.numpy_helper.from_array(values.copy(order="C"), tensor.name)
    except Exception:  # a type that onnx has no number for
        return False
    tensor.CopyFrom(changed)
    return True


Place = TypeVar("Place", bound=Hashable)

_MOST_TOGETHER = 3
_MOST_GROUPS = 60
"""Small groups to try for each anchor, before all places without those that can be left out."""

_MOST_CALLS = 250
"""Calls of ``is_valid`` for all anchors, of some milliseconds each; anchors not decided by then are in no group."""

_MOST_LEFT_OUT = 24


def tied_groups(
    anchors: Sequence[Place], places: Sequence[Place], is_valid: Callable[[Sequence[Place]], bool]
) -> list[tuple[Place, ...]]:
    """Small groups of places that must be changed together, such as the two axes that a product sums over.

    Each anchor, which is one of the ``places``, is in a group if there is a valid one. Groups of up to three places are
    the smallest possible; no single place of a larger one can be left out. Groups are in the order of the anchors,
    places within a group in that of ``places``.
    """
    groups: dict[tuple[Place, ...], None] = {}
    calls = 0

    def counted(group: Sequence[Place]) -> bool:
        nonlocal calls
        calls += 1
        return calls <= _MOST_CALLS and is_valid(group)

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


_MOST_ANSWERS = 6
"""Checked changes of one feature; a number may have a few more."""

_MOST_EXTRA_NUMBERS = 5
_MOST_UNDECIDED = 3
_KINDS_TO_BE_FREE = 3
_KINDS_TO_BE_FIXED = 3
_CHANGES_TO_BE_FREE = 4

_VALUES_TO_BE_SURE = 10
"""Changes of values with the same answer; where answers differ, all changes are tried."""


@dataclass(frozen=True)
class ProposedChange:
    """A change to be checked, and the examination that it belongs to."""

    examination: ExaminedFeature
    alternative: Alternative


def proposed_changes(examinations: Sequence[ExaminedFeature]) -> Search[ProposedChange, Sequence[Answer], None]:
    """Propose changes of all features, one of each per round.

    The receiver must add the answers to the examinations, so that none is lost if a budget ends the search.
    """
    running = [(each, RunningSearch(_propose_for(each))) for each in examinations]
    while True:
        waiting = [(each, search) for each, search in running if search.round is not None]
        if not waiting:
            return
        yield [ProposedChange(each, alternative) for each, search in waiting for alternative in search.round or ()]
        for _, search in waiting:
            search.reply(None)


def _propose_for(examination: ExaminedFeature) -> Search[Alternative, None, None]:
    """Propose changes of one feature; of a number, until one condition and its threshold are known."""
    for alternative in examination.feature.alternatives:
        if _is_decided(examination):
            return
        yield [alternative]
    numbers = examination.feature.numbers
    is_size = examination.feature.what == "size"
    for _ in range(0 if numbers is None else _MOST_EXTRA_NUMBERS if is_size else numbers.most - numbers.least):
        number = _next_number(examination)
        if numbers is None or number is None or len(examination.with_answer("neither")) >= _MOST_UNDECIDED:
            return
        yield [numbers.with_value(number)]


def _is_decided(examination: ExaminedFeature) -> bool:
    failing, passing = examination.with_answer("fails"), examination.with_answer("passes")
    if not passing and len(failing) < len(examination.with_answer("neither")) >= _MOST_UNDECIDED:
        return True
    if examination.feature.values is not None:
        return len(failing if failing else passing) >= _VALUES_TO_BE_SURE and not (failing and passing)
    if len(failing) + len(passing) >= _MOST_ANSWERS:
        return examination.feature.numbers is None
    if examination.feature.numbers is not None or (failing and passing):
        return False
    if failing:
        return len(failing) >= _CHANGES_TO_BE_FREE and count_kinds(failing) >= _KINDS_TO_BE_FREE
    return count_kinds(passing) >= _KINDS_TO_BE_FIXED


def count_kinds(alternatives: Sequence[Alternative]) -> int:
    """The number of different kinds of change."""
    return len({alternative.kind for alternative in alternatives})


def _next_number(examination: ExaminedFeature) -> int | None:
    numbers = examination.feature.numbers
    failing, passing = examination.numbers_with("fails"), examination.numbers_with("passes")
    if numbers is None or not passing:
        return None
    forms, unknown = _open_questions(examination, numbers)
    number = most_informative(forms, unknown, numbers.present)
    if not forms and examination.feature.what in {"attribute", "weight"}:
        return min(unknown, key=lambda number: (abs(number - numbers.present), number), default=None)
    if number is not None or not forms:
        return number
    if not forms[0].is_supported(failing, passing):
        return min(unknown, key=lambda number: (abs(number - numbers.present), number), default=None)
    halfway = halfway_between(failing, passing)
    return halfway if halfway in unknown else None


def _open_questions(examination: ExaminedFeature, numbers: Numbers) -> tuple[list[NumberForm], set[int]]:
    """The conditions that agree with all answers, and the numbers that were not tried."""
    tried = {numbers.present, *(alternative.value for alternative, _ in examination.answers)}
    failing, passing = examination.numbers_with("fails"), examination.numbers_with("passes")
    return consistent_forms(failing, passing, numbers.named), set(range(numbers.least, numbers.most + 1)) - tried


def is_ambiguous(examination: ExaminedFeature) -> bool:
    """Whether several conditions on a number agree with all answers."""
    numbers = examination.feature.numbers
    if numbers is None or not examination.numbers_with("passes"):
        return False
    return most_informative(*_open_questions(examination, numbers), numbers.present) is not None


@dataclass(frozen=True)
class NumberForm:
    """A simple condition on a whole number, such as "odd". ``holds`` tests a number.

    It is claimed only if no answer contradicts it, and enough failing and passing numbers agree with it.
    """

    text: str
    holds: Callable[[int], bool]
    least_failing: int = 1
    least_passing: int = 1

    def is_supported(self, failing: Collection[int], passing: Collection[int]) -> bool:
        """Whether there are enough numbers to claim it."""
        return len(failing) >= self.least_failing and len(passing) >= self.least_passing


def consistent_forms(failing: Collection[int], passing: Collection[int], named: Mapping[int, str]) -> list[NumberForm]:
    """The conditions that hold for all failing numbers and for no passing one, the simplest first.

    There must be at least one failing and one passing number.
    """
    low, high, least, most = max(passing), min(passing), min(failing), max(failing)
    forms: list[NumberForm] = []
    if len(failing) == 1:
        forms.append(NumberForm(str(least), lambda number: number == least))
    if low < least:
        text = f"at least {least}" if low + 1 == least else f"more than {low} ({least} is enough)"
        forms.append(NumberForm(text, lambda number: number > low))
    if most < high:
        text = f"at most {most}" if most + 1 == high else f"less than {high} ({most} is small enough)"
        forms.append(NumberForm(text, lambda number: number < high))
    forms += [NumberForm(text, holds, least_failing=3, least_passing=2) for text, holds in _RARE_FORMS.items()]
    if len(passing) == 1:
        meaning = f" ({named[low]})" if low in named else ""
        forms.append(NumberForm(f"not {low}{meaning}", lambda number: number != low, least_failing=3))
    return [form for form in forms if all(map(form.holds, failing)) and not any(map(form.holds, passing))]


def is_power_of_two(number: int) -> bool:
    """Whether a number is 1, 2, 4, 8, ..."""
    return number > 0 and number & (number - 1) == 0


_RARE_FORMS: Mapping[str, Callable[[int], bool]] = {
    "odd": lambda number: number % 2 == 1,
    "even": lambda number: number % 2 == 0,
    "a power of two": is_power_of_two,
    "no power of two": lambda number: not is_power_of_two(number),
}
"""Conditions that few numbers may satisfy by chance: three failing and two passing ones are required."""


def most_informative(forms: Sequence[NumberForm], unknown: Collection[int], near: int) -> int | None:
    """The number whose answer excludes most of the forms, the nearest of several; None if none excludes any."""

    def left(number: int) -> int:
        holding = sum(form.holds(number) for form in forms)
        return max(holding, len(forms) - holding)

    best = min(unknown, key=lambda number: (left(number), abs(number - near), number), default=None)
    return None if best is None or left(best) == len(forms) else best


def halfway_between(failing: Collection[int], passing: Collection[int]) -> int | None:
    """The number halfway between failing and passing ones, if these are separate ranges with a gap."""
    low, high = max(passing), min(passing)
    gaps = [(low, min(failing))] if low < min(failing) else [(max(failing), high)] if max(failing) < high else []
    return next(((below + above) // 2 for below, above in gaps if above - below > 1), None)
