"""What of a model may be changed by itself, what can only be changed together, and how a model with its inputs is
edited.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, combinations, islice
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

from biopsy.model.external import is_external
from biopsy.reduction.passes.common import copied
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
