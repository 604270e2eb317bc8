"""Where the inputs of a run come from: given ones, completed or made up as the model asks for them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from biopsy import errors
from biopsy.engines.runner import missing_inputs
from biopsy.model.known_names import listed, may_lack_names, require_known
from biopsy.model.tensor_type import TensorType, ValueType
from biopsy.tensors.generate import Range, closed_shapes, defaulted_shapes, generate_feeds
from biopsy.tensors.lazy_tensors import ChosenTensors
from biopsy.tensors.results import Array, Feed
from biopsy.tensors.structured_values import completed, drawn, item_of


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What a person said about inputs. Without ``given`` there are ``iterations`` random ones, from ``seed``.

    ``val_range`` holds a range per input, "" for all others; ``shapes`` the shapes that the model leaves open, in which
    None is a size that nobody says here. ``symbols`` are sizes of open dimensions by their names. ``complete``: whether
    inputs that ``given`` lacks are made up too.
    """

    given: Sequence[Feed] | None = None
    iterations: int = 1
    seed: int = 1
    val_range: Mapping[str, Range] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int | None, ...]] = field(default_factory=dict)
    symbols: Mapping[str, int] = field(default_factory=dict)
    complete: bool = True


@dataclass(frozen=True)
class GivenFeeds:
    """Inputs for a model. ``made_up``: names that were not among the given ones; ``guessed``: shapes nobody said."""

    feeds: Sequence[Feed]
    made_up: tuple[str, ...] = ()
    guessed: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def feeds_for(wanted: Mapping[str, ValueType | None], inputs: Inputs) -> GivenFeeds:
    """A feed for each iteration. Inputs that cannot be fed are left out: ``checked_feed`` tells of them.

    Raises DoesNotFit if the shape of an input that must be made up is unknown, or if a range or shape is said of an
    input that there is not; CannotCompare if the given ones are of another model.
    """
    values = {name: type_ for name, type_ in wanted.items() if type_ is not None}
    tensors = _drawn(values)
    for option, names in (("--val-range", inputs.val_range), ("--input-shapes", inputs.shapes)):
        require_known(option, "input", names, {**wanted, **tensors})
    open_ones = {dim for type_ in tensors.values() for dim in type_.shape or () if isinstance(dim, str)}
    require_known("--input-symbols", "open dimension", inputs.symbols, open_ones)
    if inputs.given is None:
        return GivenFeeds(_generated(values, inputs, inputs.iterations), (), _guessed(tensors, inputs))
    if not may_lack_names():
        for feed in inputs.given:
            require_inputs_of(wanted, feed)
    missing = {name: values[name] for feed in inputs.given for name in missing_inputs(feed, values)}
    if not missing or not inputs.complete:
        return GivenFeeds(inputs.given)
    extra = _generated(missing, inputs, len(inputs.given))
    # Given feeds may be large files, of which only the inputs are to be read.
    feeds = [ChosenTensors.merged(both) for both in zip(extra, inputs.given, strict=True)]
    return GivenFeeds(feeds, tuple(missing), _guessed(_drawn(missing), inputs))


def _guessed(tensors: Mapping[str, TensorType], inputs: Inputs) -> Mapping[str, tuple[int, ...]]:
    closed, halves = closed_shapes(tensors, inputs.shapes, inputs.symbols)
    half_said = {name: closed[name] for name in closed if name in halves and name in tensors}
    return {**half_said, **defaulted_shapes(tensors, closed, inputs.symbols)}


def _drawn(values: Mapping[str, ValueType]) -> dict[str, TensorType]:
    """The tensors to make up for these inputs."""
    return {part: type_ for name, kind in values.items() for part, type_ in drawn(name, kind).items()}


def require_inputs_of(wanted: Collection[str], feed: Feed, known: Collection[str] = ()) -> None:
    """Raise CannotCompare if a feed is of another model: an input is missing, and names are there that are no inputs.

    ``known`` are names that say nothing although they are no inputs.
    """
    held = {item_of(name, wanted) for name in feed}
    missing = [name for name in wanted if name not in held]
    strange = [name for name in feed if name not in known and item_of(name, wanted) is None]
    if missing and (strange or not feed):
        raise errors.CannotCompare(
            f"the inputs do not fit this model: given {listed(list(feed))}; required {listed(wanted)}; "
            f"missing {listed(missing)}",
            details=["none of the names given is in the model: they are of another one"]
            * (len(strange) == len(feed) > 0),
            next_steps=["biopsy inspect data FILE    and    biopsy inspect model MODEL    show both"],
        )


def _generated(values: Mapping[str, ValueType], inputs: Inputs, iterations: int) -> list[dict[str, Array]]:
    tensors = _drawn(values)
    made = generate_feeds(
        tensors,
        iterations=iterations,
        seed=inputs.seed,
        val_range=inputs.val_range,
        shapes=closed_shapes(tensors, inputs.shapes, inputs.symbols)[0],
        symbols=inputs.symbols,
    )
    for name, kind in values.items():
        for feed in made:
            feed.update(completed(feed, name, kind))
    return made
