"""Runs models in engines: takes or generates inputs, checks and casts them, and times each run."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from biopsy import errors
from biopsy.comparison.metrics import differing
from biopsy.engines.base import Engine, Imports, ModelInput, Session, indexed
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


def run_session(
    session: Session, feeds: Iterable[Feed], *, runner: str, warm_up: int = 0, imports: Imports = Engine.imports
) -> RunnerResult:
    """Run a built model once with each feed.

    ``imports`` are those of its engine, where it is timed. ``runner`` names the result; ``warm_up`` is a number of runs
    before, with the first feed, that are not recorded. Raises EngineFailure, and CannotCompare if a feed does not fit.
    """
    iterations = []
    for number, feed in enumerate(feeds):
        fed = checked_feed(feed, session.inputs, number)
        for _ in range(warm_up if number == 0 else 0):
            session.run(fed)
        outputs, seconds = imports.timed(partial(session.run, fed))
        iterations.append(Iteration(outputs, seconds))
    return RunnerResult(runner, tuple(iterations))


def with_declared_types(
    results: Iterable[RunnerResult], engines: Sequence[Engine], model: ModelInput
) -> list[RunnerResult]:
    """The outputs of engines with the types that the model declares for them, unless an engine computes in others."""
    index = indexed(model)
    kinds = {index.names[tensor]: index.value_type(tensor) for tensor in index.outputs}
    declared = {name: kind if isinstance(kind, TensorType) else None for name, kind in kinds.items()}
    return [
        replace(result, declared=declared if engine.keeps_types else {})
        for result, engine in zip(results, engines, strict=True)
    ]


def runner_name(engine_name: str, number: int, now: float | None = None) -> str:
    """A name for saved results: ``onnxrt-runner-N0-11/21/26-05:31:06``; ``now`` is in seconds since the epoch."""
    stamp = time.strftime("%m/%d/%y-%H:%M:%S", time.localtime(now))
    return f"{engine_name}-runner-N{number}-{stamp}"


def missing_inputs(feed: Feed, inputs: Mapping[str, ValueType | None]) -> list[str]:
    """Names of the inputs for which a feed has no value."""
    return [name for name, kind in inputs.items() if not has_value(feed, name, kind)]


def checked_feed(feed: Feed, inputs: Mapping[str, ValueType | None], iteration: int = 0) -> dict[str, Array]:
    """The values of a feed for the inputs of a model, in the model's types. Sequences, optionals and maps are the
    tensors that they hold (tensors/types.py).

    Another element type is cast by ``cast``. Raises CannotCompare if an input is missing, has an unknown type or
    another shape, or if a cast would lose a value.
    """
    for name, type_ in inputs.items():
        if type_ is None:
            raise errors.CannotCompare(f"input {name!r} is not a tensor, or of an unknown type: it cannot be fed here")
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
            kinds = parts(feed, name, type_)
            clash = next((part for part in kinds if part != name and part in inputs), None)
            if clash is not None:
                raise errors.CannotCompare(f"two inputs are called {clash!r}: one is a tensor, one a part of {name!r}")
            fed |= marks(feed, name, type_)
            fed |= {part: _fitting(part, feed[part], kind) for part, kind in kinds.items()}
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


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The user's settings for inputs. Without ``given``, there are ``iterations`` random feeds, drawn from ``seed``.

    ``val_range`` has a range per input, "" for all others; ``shapes`` has shapes of inputs that the model leaves open,
    with None for a size that is not set; ``symbols`` has sizes of open dimensions by their names. ``complete``:
    whether to generate inputs that ``given`` lacks.
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
    """Feeds for a model. ``made_up``: generated inputs that the given feeds lack; ``guessed``: shapes not set."""

    feeds: Sequence[Feed]
    made_up: tuple[str, ...] = ()
    guessed: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def feeds_for(wanted: Mapping[str, ValueType | None], inputs: Inputs) -> GivenFeeds:
    """A feed for each iteration, without inputs that cannot be fed: ``checked_feed`` raises for those.

    Raises DoesNotFit if the shape of an input to generate is unknown, or if a range, shape or size is set for a name
    that the model lacks, or a shape contradicts a given feed; CannotCompare if these belong to another model.
    """
    values = {name: type_ for name, type_ in wanted.items() if type_ is not None}
    tensors = _drawn(values)
    for option, names in (("--val-range", inputs.val_range), ("--input-shapes", inputs.shapes)):
        require_known(option, "input", names, {**wanted, **tensors})
    open_dimensions = {dim for type_ in tensors.values() for dim in type_.shape or () if isinstance(dim, str)}
    require_known("--input-symbols", "open dimension", inputs.symbols, open_dimensions)
    if inputs.given is None:
        return GivenFeeds(_generated(values, inputs, inputs.iterations), (), _guessed(tensors, inputs))
    if not may_lack_names():
        for feed in inputs.given:
            require_inputs_of(wanted, feed)
            for name in inputs.shapes.keys() & {*feed}:
                asked, shape = TensorType(0, inputs.shapes[name]), np.asarray(feed[name]).shape
                if not asked.fits(shape):
                    raise errors.DoesNotFit(
                        f"--input-shapes gives {name!r} the shape {[*inputs.shapes[name]]}, but the value that is "
                        f"loaded for it has {list(shape)}",
                        next_steps=["leave out --input-shapes, which is for random inputs, or --load-inputs"],
                    )
    missing = {name: values[name] for feed in inputs.given for name in missing_inputs(feed, values)}
    if not missing or not inputs.complete:
        return GivenFeeds(inputs.given)
    extra = _generated(missing, inputs, len(inputs.given))
    # Merged lazily: given feeds may be large files, of which only the inputs shall be read.
    feeds = [ChosenTensors.merged(both) for both in zip(extra, inputs.given, strict=True)]
    return GivenFeeds(feeds, tuple(missing), _guessed(_drawn(missing), inputs))


def _guessed(tensors: Mapping[str, TensorType], inputs: Inputs) -> Mapping[str, tuple[int, ...]]:
    closed, completed_names = closed_shapes(tensors, inputs.shapes, inputs.symbols)
    completed_shapes = {name: closed[name] for name in closed if name in completed_names and name in tensors}
    return {**completed_shapes, **defaulted_shapes(tensors, closed, inputs.symbols)}


def _drawn(values: Mapping[str, ValueType]) -> dict[str, TensorType]:
    """The tensors to generate for these inputs."""
    return {part: type_ for name, kind in values.items() for part, type_ in drawn(name, kind).items()}


def require_inputs_of(wanted: Collection[str], feed: Feed, known: Collection[str] = ()) -> None:
    """Raise CannotCompare if a feed seems to belong to another model: an input is missing and other names are there.

    The ``known`` names do not count as other names.
    """
    fed = {item_of(name, wanted) for name in feed}
    missing = [name for name in wanted if name not in fed]
    unknown = [name for name in feed if name not in known and item_of(name, wanted) is None]
    if missing and (unknown or not feed):
        raise errors.CannotCompare(
            f"the inputs do not fit this model: given {listed(list(feed))}; required {listed(wanted)}; "
            f"missing {listed(missing)}",
            details=["none of the names given is in the model: they are of another one"]
            * (len(unknown) == len(feed) > 0),
            next_steps=["biopsy inspect data FILE    and    biopsy inspect model MODEL    show both"],
        )


def _generated(values: Mapping[str, ValueType], inputs: Inputs, iterations: int) -> list[dict[str, Array]]:
    tensors = _drawn(values)
    feeds = generate_feeds(
        tensors,
        iterations=iterations,
        seed=inputs.seed,
        val_range=inputs.val_range,
        shapes=closed_shapes(tensors, inputs.shapes, inputs.symbols)[0],
        symbols=inputs.symbols,
    )
    for name, kind in values.items():
        for feed in feeds:
            feed.update(completed(feed, name, kind))
    return feeds


class Cast(NamedTuple):
    """A tensor that was given in one element type and is fed in another."""

    name: str
    given: str
    fed: str

    def __str__(self) -> str:
        return f"{self.name!r} from {self.given} to {self.fed}"


def cast(name: str, array: Array, target: np.dtype[Any]) -> Array:
    """The values in the type ``target``. Only floats may change, by rounding: ``np.random.rand`` for a float32 input
    needs that.

    Raises CannotCompare if a value would be lost: a fraction that becomes an integer or boolean, a number outside the
    range of ``target``, an integer that a float only holds rounded.
    """
    if array.dtype.kind in "OUSTM":
        raise errors.CannotCompare(f"input {name!r} is {target} in the model, but the value given is {array.dtype}")
    with np.errstate(all="ignore"):
        # Widened first, without loss, since ml_dtypes cannot cast int4 to uint4.
        values = widened(array) if is_extended(array.dtype) else array
        result = (
            values.real.astype(target) if (array.dtype.kind == "c" and target.kind != "c") else values.astype(target)
        )
        lost = _lost(array, result) if _may_round(array.dtype, target) else differing(result, array)
    if lost.any():
        place = tuple(int(at) for at in np.argwhere(lost)[0])
        where = f" at {list(place)}" if place else ""
        value = f"{array[place]}{where} ({count(int(np.count_nonzero(lost)), 'such value')})"
        raise errors.CannotCompare(
            f"input {name!r} is {target} in the model, and the {array.dtype} values given {_why(array.dtype, target)}:"
            f" {value}",
            next_steps=[f"values.astype({str(target)!r}), where {name!r} is made, if that is what you mean"],
        )
    return result


def _may_round(given: np.dtype[Any], target: np.dtype[Any]) -> bool:
    """Whether both are floats. A complex number does not become a real one by rounding."""
    is_given_float, is_target_float = (dtype.kind == "c" or is_float(dtype) for dtype in (given, target))
    return is_given_float and is_target_float and not (given.kind == "c" and target.kind != "c")


def _lost(array: Array, result: Array) -> Any:
    """Where a float changed by more than rounding: to or from NaN or an infinity, or to the largest number."""
    wide = np.complex128 if array.dtype.kind == "c" or result.dtype.kind == "c" else np.float64
    before, after = array.astype(wide), result.astype(wide)
    lost = np.isnan(before) != np.isnan(after)
    lost |= np.isinf(before) != np.isinf(after)
    lost |= np.isinf(before) & np.isinf(after) & (before != after)
    # A cast to a type without infinities may turn greater numbers into its largest one.
    largest = float(number_info(result.dtype).max)
    return lost | (np.isfinite(before) & (np.abs(before) > _ROUNDED_DOWN * largest))


_ROUNDED_DOWN = 1.25
"""How many times the largest value of a type a number may be that is rounded to it: half a step of float4_e2m1fn."""


def _why(given: np.dtype[Any], target: np.dtype[Any]) -> str:
    if target.kind == "b":
        return "are not all 0 or 1"
    if target.kind == "c" or is_float(target):
        return f"are not all {'in its range' if _may_round(given, target) else 'numbers that it holds exactly'}"
    return "are not all whole numbers in its range"


def casts(feeds: Iterable[Feed], fed: Iterable[Feed]) -> tuple[Cast, ...]:
    """The casts between ``feeds`` and ``fed``, each once."""
    changes: dict[Cast, None] = {}
    for before, after in zip(feeds, fed, strict=True):
        for name, value in after.items():
            if name in before and (change := _cast_of(name, form_of(before, name), value.dtype)) is not None:
                changes[change] = None
    return tuple(changes)


def _cast_of(name: str, given: TensorForm, wanted: np.dtype[Any]) -> Cast | None:
    same = given.dtype.name == wanted.name or given.dtype.kind in "OUST"
    return None if same else Cast(name, given.dtype.name, wanted.name)


def casts_text(changes: Sequence[Cast]) -> str:
    """One line about casts, for the user."""
    return f"cast to the {'type' if len(changes) == 1 else 'types'} of the model: input {', '.join(map(str, changes))}"


def in_declared_types(
    feeds: Sequence[Feed], declared: Callable[[str], ValueType | None]
) -> tuple[Sequence[Feed], tuple[Cast, ...]]:
    """Feeds with every tensor in its ``declared`` type, if there is one, and the casts that this took.

    Only tensors that must be cast are read. Raises CannotCompare as ``cast`` does.
    """
    changes: dict[Cast, None] = {}
    typed: list[Feed] = []
    for feed in feeds:
        changed: dict[str, Array] = {}
        for name in feed:
            kind = declared(name)
            if isinstance(kind, TensorType) and kind.elem in DTYPE_OF_ELEM and kind.elem != STRING:
                wanted = dtype_named(kind.dtype)
                if (change := _cast_of(name, form_of(feed, name), wanted)) is not None:
                    changed[name] = cast(name, feed[name], wanted)
                    changes[change] = None
        typed.append(ChosenTensors.merged((feed, changed)) if changed else feed)
    return typed, tuple(changes)


_OTHER_SEED = 7920
"""Added to the seed, from which the usual iterations count up."""

_WIDE = (-4.0, 4.0)
"""A range beyond the usual one from 0 to 1, outside which many failures show only."""

_ARITHMETIC = frozenset({"Add", "Sub", "Mul", "Relu", "Clip", "Max", "Min", "Abs", "Neg", "Sign", "Sum"})
"""Operators that accept any integer; for others it may be an index, a size or an axis."""


def wider_sample(index: ModelIndex, wanted: Mapping[str, ValueType | None], drawn: Inputs) -> Feed | None:
    """One sample of numbers in a wider range than the usual one; None if inputs or their range were given.

    The model may not be defined there: the caller must look at what the trusted engine computes.
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
    wider = replace(drawn, val_range=ranges, seed=drawn.seed + _OTHER_SEED, iterations=1)
    try:
        return feeds_for(wanted, wider).feeds[0]
    except errors.BiopsyError:
        return None
