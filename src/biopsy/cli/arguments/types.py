"""Types of option values for argparse: each takes one word, and raises UsageError that says what it must be.

The parser puts the name of the option before what they say.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Literal

from biopsy import errors

_LARGEST_COUNT = 1_000_000
_LONGEST_TIME = 1e8  # seconds: three years


def count(text: str) -> int:
    """A whole number, 0 or more."""
    if not text.isdecimal():
        raise errors.UsageError("must be a whole number, 0 or more")
    return int(text)


def model_type(*known: str) -> Callable[[str], str]:
    """The ``type`` of --model-type: one of those that a command takes."""

    def parse(text: str) -> str:
        if text not in known:
            raise errors.UsageError(f"must be {' or '.join(known)}: convert other models to ONNX first")
        return text

    return parse


def positive(text: str) -> int:
    """A whole number from 1 to 1000000."""
    if not text.isdecimal() or not 1 <= int(text) <= _LARGEST_COUNT:
        raise errors.UsageError(f"must be a whole number from 1 to {_LARGEST_COUNT}")
    return int(text)


def status(text: str) -> int:
    """An exit status, or a signal as a negative number."""
    if re.fullmatch(r"-?\d{1,3}", text) is None or not -128 <= int(text) <= 255:
        raise errors.UsageError("must be an exit status from 0 to 255, or a signal such as -11")
    return int(text)


def count_or_all(text: str) -> int:
    """A whole number, 0 or more; or -1 for no limit."""
    if text == "-1":
        return -1
    try:
        return count(text)
    except errors.UsageError as error:
        raise errors.UsageError(f"{error.message}, or -1 for all") from error


def until(text: str) -> int | Literal["good", "bad"]:
    """How often a command is run: a number of times, or until one run is ``good`` or ``bad``."""
    if text == "good":
        return "good"
    if text == "bad":
        return "bad"
    try:
        return positive(text)
    except errors.UsageError as error:
        raise errors.UsageError(f"{error.message}, or good or bad") from error


def probability(text: str) -> float:
    """A number between 0 and 1, both excluded."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < 1:
        raise errors.UsageError("must be a number between 0 and 1, such as 0.99")
    return value


def tolerance(text: str) -> float:
    """A number, 0 or more."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise errors.UsageError("must be a number, 0 or more, such as 1e-3")
    return value


def byte_size(text: str) -> int:
    """``500MB``, ``2GB``, ``1.5GiB`` or a number of bytes -> bytes."""
    from biopsy.quantities import bytes_of

    number = bytes_of(text)
    if number is None:
        raise errors.UsageError("not a valid size: write 500MB, 2GB or 1.5GiB")
    return number


def duration(text: str) -> float:
    """``90``, ``90s``, ``10m`` or ``1.5h`` -> seconds."""
    match = re.fullmatch(r"(\d*\.?\d+)\s*([smh]?)", text)
    seconds = 0.0 if match is None else float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]
    if not 0 < seconds <= _LONGEST_TIME:
        raise errors.UsageError("not a valid time: write 90s, 10m or 1.5h")
    return seconds


def regex(option: str, text: str) -> re.Pattern[str]:
    """The regular expression given to ``option``, whose name the error holds: it is read after the command line."""
    try:
        return re.compile(text)
    except re.error as error:
        raise errors.UsageError(f"{option} {text}: not a valid regular expression: {error}") from error


def binary_size(text: str) -> int:
    """Bytes, or as Polygraphy writes thresholds: ``16K``, ``16M`` or ``1G`` are KiB, MiB and GiB."""
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,15})?)([kKmMgG]?)", text)
    if match is None:
        raise errors.UsageError("not a valid size: write a number of bytes, or 16K, 16M or 1G for KiB, MiB or GiB")
    return int(float(match[1]) * 1024 ** " KMG".index(match[2].upper() or " "))
