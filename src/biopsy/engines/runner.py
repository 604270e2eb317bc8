"""Running a model in an engine: inputs are given, completed or made up, checked and cast, and each run is timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from biopsy import errors
from biopsy.comparison.metrics import differing
from biopsy.engines.base import Session
from biopsy.model.index import ModelIndex
from biopsy.model.known_names import listed, may_lack_names, require_known
from biopsy.model.tensor_type import BOOL, DTYPE_OF_ELEM, FLOATS, STRING, TensorType, ValueType
from biopsy.tensors.generate import Range, closed_shapes, defaulted_shapes, generate_feeds
from biopsy.tensors.results import Array, ChosenTensors, Feed, Iteration, RunnerResult, TensorForm, form_of
from biopsy.tensors.types import (
    completed,
    drawn,
    dtype_named,
    has_value,
    is_extended,
    is_float,
    is_text,
    item_of,
    marks,
    number_info,
    parts,
    text,
    widened,
)
from biopsy.text import count


def run_session(session: Session, feeds: Iterable[Feed], *, runner: str, warm_up: int = 0) -> RunnerResult:
    """Run a model that is built with every feed, one iteration each.

    ``runner`` names the result; ``warm_up`` runs with the first feed come before and are not recorded. Raises
    EngineFailure, or CannotCompare if a feed does not fit.
    """
    iterations = []
    for number, feed in enumerate(feeds):
        fed = checked_feed(feed, session.inputs, number)
        for _ in range(warm_up if number == 0 else 0):
            session.run(fed)
        start = time.perf_counter()
        outputs = session.run(fed)
        iterations.append(Iteration(outputs, time.perf_counter() - start))
    return RunnerResult(runner, tuple(iterations))


def runner_name(engine_name: str, number: int, now: float | None = None) -> str:
    """A name as saved results carry it: ``onnxrt-runner-N0-11/21/26-05:31:06``; ``now`` in seconds since the epoch."""
    stamp = time.strftime("%m/%d/%y-%H:%M:%S", time.localtime(now))
    return f"{engine_name}-runner-N{number}-{stamp}"


def missing_inputs(feed: Feed, inputs: Mapping[str, ValueType | None]) -> list[str]:
    """Names of the inputs that a feed has no value for."""
    return [name for name, kind in inputs.items() if not has_value(feed, name, kind)]


def checked_feed(feed: Feed, inputs: Mapping[str, ValueType | None], iteration: int = 0) -> dict[str, Array]:
    """The part of a feed that a model takes, in its types; other entries are ignored.

    A value of another element type is cast as ``casting`` allows (float64 is rounded to float32). Raises CannotCompare
    if an input is missing, is of an unknown type, has another shape, or would become another value.
    Of sequences, optionals and maps these are the tensors that they hold (tensors/types.py).
    """
    for name, type_ in inputs.items():
        if type_ is None:
            raise errors.CannotCompare(f"input {name!r} is no tensor, or of an unknown type: it cannot be fed here")
    missing = missing_inputs(feed, inputs)
    if missing:
        raise errors.CannotCompare(
            f"iteration {iteration} has no value for input {', '.join(map(repr, missing))}",
            next_steps=[
                "biopsy data to-input INPUTS OUTPUTS -o LAYERWISE    gives every tensor's value, for a part of a model"
            ],
        )
    fed: dict[str, Array] = {}
    for name, type_ in inputs.items():
        if isinstance(type_, TensorType):
            fed[name] = _fitting(name, feed[name], type_)
        elif type_ is not None:
            wanted = parts(feed, name, type_)
            twice = next((part for part in wanted if part != name and part in inputs), None)
            if twice is not None:
                raise errors.CannotCompare(f"two inputs are called {twice!r}: one is a tensor, one a part of {name!r}")
            fed |= marks(feed, name, type_)
            fed |= {part: _fitting(part, feed[part], kind) for part, kind in wanted.items()}
    return fed


def _fitting(name: str, value: Array, wanted: TensorType) -> Array:
    array = np.asarray(value)
    if not wanted.fits(array.shape):
        raise errors.CannotCompare(
            f"input {name!r} is {wanted} in the model, but the value given has shape {list(array.shape)}"
        )
    if wanted.elem == STRING:
        if is_text(array):
            return array if array.dtype.kind == "U" else text(array)
        raise errors.CannotCompare(f"input {name!r} is of strings, but the value given is {array.dtype}")
    try:
        target = dtype_named(wanted.dtype)
    except errors.DataError as error:
        raise errors.CannotCompare(f"input {name!r} has type {wanted.dtype}, which NumPy cannot hold here") from error
    if array.dtype == target and array.dtype.isnative:
        return array
    return cast(name, array, target)


# Where the inputs of a run come from: given ones, completed or made up as the model asks for them.


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


# Values of another element type than the model's: cast where that only rounds, refused where it gives other values.
#
# A float may be rounded to fewer bits, as ``np.random.rand`` for a float32 input needs. Everything else must keep its
# value: no fraction is cut off, no integer becomes another one, and no number leaves the range of its type.


class Cast(NamedTuple):
    """That the values of a tensor were given in one element type and are fed in another."""

    name: str
    given: str
    fed: str

    def __str__(self) -> str:
        return f"{self.name!r} from {self.given} to {self.fed}"


def cast(name: str, array: Array, target: np.dtype[Any]) -> Array:
    """The values as ``target``: floats rounded to the nearest, all others unchanged.

    Raises CannotCompare, naming the input and a value, if one would be lost: a fraction in an integer or boolean, a
    number that ``target`` does not hold, an integer that it only holds rounded.
    """
    if array.dtype.kind in "OUSTM":
        raise errors.CannotCompare(f"input {name!r} is {target} in the model, but the value given is {array.dtype}")
    with np.errstate(all="ignore"):
        # Widened, which loses nothing: ml_dtypes cannot cast int4 to uint4.
        values = widened(array) if is_extended(array.dtype) else array
        there = (
            values.real.astype(target) if (array.dtype.kind == "c" and target.kind != "c") else values.astype(target)
        )
        lost = _beyond(array, there) if _may_round(array.dtype, target) else differing(there, array)
    if lost.any():
        place = tuple(int(at) for at in np.argwhere(lost)[0])
        where = f" at {list(place)}" if place else ""
        value = f"{array[place]}{where} ({count(int(np.count_nonzero(lost)), 'such value')})"
        raise errors.CannotCompare(
            f"input {name!r} is {target} in the model, and the {array.dtype} values given {_why(array.dtype, target)}:"
            f" {value}",
            next_steps=[f"values.astype({str(target)!r}), where {name!r} is made, if that is what you mean"],
        )
    return there


def _may_round(given: np.dtype[Any], target: np.dtype[Any]) -> bool:
    """Whether both are floats. A complex number does not become a real one by rounding."""
    is_given_float, is_target_float = (dtype.kind == "c" or is_float(dtype) for dtype in (given, target))
    return is_given_float and is_target_float and not (given.kind == "c" and target.kind != "c")


def _beyond(array: Array, there: Array) -> Any:
    """Where a float is not what it was but for rounding: NaN, an infinity or a finite number that is none any more."""
    wide = np.complex128 if array.dtype.kind == "c" or there.dtype.kind == "c" else np.float64
    before, after = array.astype(wide), there.astype(wide)
    lost = np.isnan(before) != np.isnan(after)
    lost |= np.isinf(before) != np.isinf(after)
    lost |= np.isinf(before) & np.isinf(after) & (before != after)
    # A type without infinities may give its largest value for all that is above.
    largest = float(number_info(there.dtype).max)
    return lost | (np.isfinite(before) & (np.abs(before) > _ROUNDED_DOWN * largest))


_ROUNDED_DOWN = 1.25
"""How far above the largest value of a type a number may be that is rounded to it: half a step of float4_e2m1fn."""


def _why(given: np.dtype[Any], target: np.dtype[Any]) -> str:
    if target.kind == "b":
        return "are not all 0 or 1"
    if target.kind == "c" or is_float(target):
        return f"are not all {'in its range' if _may_round(given, target) else 'numbers that it holds exactly'}"
    return "are not all whole numbers in its range"


def casts(feeds: Iterable[Feed], fed: Iterable[Feed]) -> tuple[Cast, ...]:
    """What was cast on the way from ``feeds`` to ``fed``, each input once."""
    found: dict[Cast, None] = {}
    for before, after in zip(feeds, fed, strict=True):
        for name, value in after.items():
            if name in before and (change := _difference(name, form_of(before, name), value.dtype)) is not None:
                found[change] = None
    return tuple(found)


def _difference(name: str, given: TensorForm, wanted: np.dtype[Any]) -> Cast | None:
    same = given.dtype.name == wanted.name or given.dtype.kind in "OUST"
    return None if same else Cast(name, given.dtype.name, wanted.name)


def casts_told(changes: Sequence[Cast]) -> str:
    """One line for a person."""
    return f"cast to the {'type' if len(changes) == 1 else 'types'} of the model: input {', '.join(map(str, changes))}"


def in_declared_types(
    feeds: Sequence[Feed], declared: Callable[[str], ValueType | None]
) -> tuple[Sequence[Feed], tuple[Cast, ...]]:
    """Feeds with every tensor in its ``declared`` type, if there is one, and what was cast for that.

    Nothing is read that needs no cast. Raises CannotCompare as ``cast`` does.
    """
    changes: dict[Cast, None] = {}
    typed: list[Feed] = []
    for feed in feeds:
        other: dict[str, Array] = {}
        for name in feed:
            kind = declared(name)
            if isinstance(kind, TensorType) and kind.elem in DTYPE_OF_ELEM and kind.elem != STRING:
                wanted = dtype_named(kind.dtype)
                if (change := _difference(name, form_of(feed, name), wanted)) is not None:
                    other[name] = cast(name, feed[name], wanted)
                    changes[change] = None
        typed.append(ChosenTensors.merged((feed, other)) if other else feed)
    return typed, tuple(changes)


# Made-up inputs that reach what the usual range does not: much of what is wrong shows below 0 and above 1 only.

_OTHER_SEED = 7920
"""Added to the seed: the usual iterations count up from that one."""

_WIDE = (-4.0, 4.0)
"""Where fresh numbers lie that are to reach what the usual range of made-up inputs does not: below 0, above 1."""

_ARITHMETIC = frozenset({"Add", "Sub", "Mul", "Relu", "Clip", "Max", "Min", "Abs", "Neg", "Sign", "Sum"})
"""Operators that take any whole number; for others it may be an index, a size or an axis."""


def wider_sample(index: ModelIndex, wanted: Mapping[str, ValueType | None], drawn: Inputs) -> Feed | None:
    """One sample of numbers in a wider range than the usual one; None where inputs or their range were given.

    A model need not be defined there: whoever uses it looks what the trusted engine makes of it.
    """
    if drawn.given is not None or drawn.val_range or not wanted:
        return None
    ranges = {}
    for name, kind in wanted.items():
        readers = {index.nodes[node].op_type for node in index.consumers.get(index.ids[name], ())}
        if isinstance(kind, TensorType) and (kind.elem in FLOATS or (kind.elem != BOOL and readers <= _ARITHMETIC)):
            ranges[name] = _WIDE
    if not ranges:
        return None
    other = replace(drawn, val_range=ranges, seed=drawn.seed + _OTHER_SEED, iterations=1)
    try:
        return feeds_for(wanted, other).feeds[0]
    except errors.BiopsyError:
        return None
