"""Values by name, from the words of an option: shapes, sizes, tolerances, ranges, and the script that makes inputs.

Every function takes the words of one option (None where it was not given) and raises UsageError that names the option
and shows an example. A name ends at the last colon that can end one, so names may hold ``:`` and ``/``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from biopsy import errors
from biopsy.comparison.tolerance import STATS, Stat
from biopsy.model.tensor_type import Dim, Shape

Value = TypeVar("Value")


def parse_shapes(words: Sequence[str] | None, option: str = "--input-shapes") -> dict[str, tuple[int, ...]]:
    """``x:[1,3,224,224] y:[2]`` -> shapes by name, all dimensions known; ``x:[]`` is a scalar's."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in parse_symbolic_shapes(words, option).items():
        known = tuple(dim for dim in shape if isinstance(dim, int))
        if len(known) < len(shape):
            raise _wrong(option, f"{name}:[...]", "every dimension must be a number", "x:[1,3,224,224] y:[2]")
        shapes[name] = known
    return shapes


def parse_open_shapes(words: Sequence[str] | None, option: str = "--input-shapes") -> dict[str, tuple[int | None, ...]]:
    """As ``parse_shapes``, and a dimension may be -1 for what the model says, else 1 (None)."""
    shapes: dict[str, tuple[int | None, ...]] = {}
    for name, shape in parse_symbolic_shapes(words, option).items():
        if any(isinstance(dim, str) for dim in shape):
            raise _wrong(option, f"{name}:[...]", "every dimension must be a number", "x:[1,3,224,224] y:[2]")
        shapes[name] = tuple(dim for dim in shape if not isinstance(dim, str))
    return shapes


def parse_symbolic_shapes(words: Sequence[str] | None, option: str = "--input-shapes") -> dict[str, Shape]:
    """As ``parse_shapes``, and a dimension may be a symbol (``N`` or ``'N'``), or -1 for an unknown size (None)."""
    shapes: dict[str, Shape] = {}
    for word in words or ():
        name, found, text = word.rpartition(":[")
        if not found or not name or not text.endswith("]"):
            raise _wrong(option, word, "a name and a shape are needed", "x:[1,3,224,224] y:[2]")
        dims = [dim.strip() for dim in text[:-1].split(",")] if text[:-1].strip() else []
        shapes[name] = tuple(_dim(option, word, dim) for dim in dims)
    return shapes


def parse_symbols(words: Sequence[str] | None, option: str = "--input-symbols") -> dict[str, int]:
    """``N=8 length=128`` -> sizes by name; commas may stand for spaces."""
    sizes: dict[str, int] = {}
    for word in ",".join(words or ()).split(",") if words else ():
        name, found, text = word.rpartition("=")
        if not found or not name or not text.isdecimal():
            raise _wrong(option, word, "a name and a size are needed", "N=8 length=128")
        sizes[name] = int(text)
    return sizes


def _dim(option: str, word: str, text: str) -> Dim:
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    if quoted and text[1:-1]:
        return text[1:-1]
    if text.isdecimal():
        return int(text)
    if text == "-1":
        return None
    if not text.isidentifier():
        raise _wrong(option, word, f"{text!r} is no dimension", "x:[1,3,224,224] y:[2]")
    return text


def parse_tolerances(words: Sequence[str] | None, option: str = "--atol") -> dict[str, float]:
    """``1e-3 out:1e-5`` -> tolerances by name, "" for all outputs that are not named."""
    return by_name(words, option, "1e-3 out:1e-5", _tolerance)


def _tolerance(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise ValueError(f"{text!r} is no tolerance: it must be a number, 0 or more")
    return value


def parse_quantiles(words: Sequence[str] | None, option: str = "--error-quantile") -> dict[str, float]:
    """``0.99 out:0.5`` -> quantiles by name, "" for all outputs that are not named."""
    return by_name(words, option, "0.99 out:0.5", _quantile)


def _quantile(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError(f"{text!r} is no quantile: it must lie between 0 and 1")
    return value


def parse_stats(words: Sequence[str] | None, option: str = "--check-error-stat") -> dict[str, Stat]:
    """``max out:mean`` -> statistics by name, "" for all outputs that are not named."""
    return by_name(words, option, "max out:mean", _stat)


def _stat(text: str) -> Stat:
    for stat in STATS:
        if text == stat:
            return stat
    raise ValueError(f"{text!r} is none of {', '.join(STATS)}")


def parse_ranges(words: Sequence[str] | None, option: str = "--val-range") -> dict[str, tuple[float, float]]:
    """``[0,1] x:[2,5]`` -> (least, greatest) by name, "" for all inputs that are not named."""
    return by_name(words, option, "[0,1] x:[2,5]", _range)


def _range(text: str) -> tuple[float, float]:
    ends = [float(end) for end in text[1:-1].split(",")] if text[:1] + text[-1:] == "[]" else []
    if len(ends) != 2 or not all(map(math.isfinite, ends)) or ends[0] > ends[1]:
        raise ValueError(f"{text!r} is no range: it needs two numbers, the smaller one first")
    return ends[0], ends[1]


def by_name(words: Sequence[str] | None, option: str, example: str, parse: Callable[[str], Value]) -> dict[str, Value]:
    """``[NAME:]VALUE`` words -> values by name, "" for all that are not named; names may hold colons."""
    values = {}
    for word in words or ():
        name, colon, text = word.rpartition(":")
        try:
            if colon and not name:
                raise ValueError("there is no name before the colon")
            values[name] = parse(text)
        except ValueError as error:
            why = f"{text!r} is no number" if "could not convert" in str(error) else str(error)
            raise _wrong(option, word, why, example) from error
    return values


def parse_script(word: str, default: str = "load_data") -> tuple[Path, str]:
    """``FILE.py[:function]`` -> (path, name of the function). A drive letter is no function."""
    path, colon, function = word.rpartition(":")
    if colon and function.isidentifier() and path:
        return Path(path), function
    return Path(word), default


def _wrong(option: str, word: str, why: str, example: str) -> errors.UsageError:
    return errors.UsageError(f"{option} {word}: {why}", next_steps=[f"{option} {example}"])
