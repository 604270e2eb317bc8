"""Inputs and other tensors that Python users give, and how random ones are to be, each refused if it cannot be used."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TypeAlias

import numpy as np

from biopsy import errors
from biopsy.api.arguments import require_whole
from biopsy.engines.casting import casts, casts_told
from biopsy.engines.feeding import Inputs, feeds_for
from biopsy.engines.runner import checked_feed
from biopsy.model.tensor_type import ValueType
from biopsy.tensors.results import Feed

GivenInputs: TypeAlias = "Feed | Sequence[Feed] | str | PathLike[str] | None"
"""One feed (tensor name -> array), several, or a file of them; None for random ones."""

GivenRanges: TypeAlias = "tuple[float, float] | Mapping[str, tuple[float, float]] | None"
"""From where to where random values go: for all inputs, or by name."""


def inputs_of(
    inputs: GivenInputs,
    iterations: int = 1,
    seed: int = 1,
    val_range: GivenRanges = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> Inputs:
    """What was said about inputs. Raises DataError if a file of them is damaged, UsageError for what is no input."""
    require_whole(iterations=iterations)
    ranges = val_range if isinstance(val_range, Mapping) else {} if val_range is None else {"": val_range}
    for one in ranges.values():
        if not isinstance(one, Sequence) or len(one) != 2:
            raise errors.UsageError(
                f"val_range={val_range!r}: it is a pair of numbers, or a dictionary of these by name"
            )
    require_shapes("shapes", shapes)
    return Inputs(
        given=feeds_of(inputs), iterations=iterations, seed=seed, val_range=ranges, shapes=shapes or {}, complete=False
    )


def require_shapes(argument: str, shapes: Mapping[str, tuple[int, ...]] | None) -> None:
    """Raise UsageError for what are no shapes by name."""
    for name, shape in (shapes or {}).items():
        if not isinstance(shape, Sequence) or not all(
            isinstance(size, int | np.integer) and size >= 0 for size in shape
        ):
            raise errors.UsageError(f"{argument}={{{name!r}: {shape!r}}}: sizes are whole numbers, 0 or more")


def feeds_of(inputs: GivenInputs) -> Sequence[Feed] | None:
    """The feeds that are given; None if there are to be random ones. Raises DataError and UsageError."""
    if inputs is None:
        return None
    if isinstance(inputs, str | PathLike):
        from biopsy.tensors.files import read_feeds

        return read_feeds(Path(inputs))
    feeds = [inputs] if isinstance(inputs, Mapping) else list(inputs)
    if not feeds:
        raise errors.UsageError("inputs=[]: nothing would be run", next_steps=["inputs=None    makes random ones"])
    for feed in feeds:
        require_arrays("inputs", feed)
    return feeds


def require_arrays(argument: str, feed: Feed) -> None:
    """Raise UsageError for what is no dictionary of arrays; what a file holds is one, and is not looked into."""
    if not isinstance(feed, Mapping):
        raise errors.UsageError(f"{argument}: {type(feed).__name__} is no dictionary of arrays by name")
    for name, value in feed.items() if isinstance(feed, dict) else ():
        if not isinstance(value, np.ndarray | np.generic) or isinstance(value, np.ma.MaskedArray):
            kind = type(value).__name__
            raise errors.UsageError(
                f"{argument}: the value of {name!r} is a {kind}, and no array",
                next_steps=["numpy.asarray(...) makes one" + (", mask and all" if kind == "MaskedArray" else "")],
            )


def fed(inputs: Mapping[str, ValueType | None], wanted: Inputs, stacklevel: int = 3) -> Sequence[Feed]:
    """The feeds that a model takes, with a warning for inputs that are cast."""
    given = feeds_for(inputs, wanted).feeds
    feeds = [checked_feed(feed, inputs, number) for number, feed in enumerate(given)]
    changes = casts(given, feeds)
    if changes:
        warnings.warn(casts_told(changes), UserWarning, stacklevel=stacklevel)
    return feeds
