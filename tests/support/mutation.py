"""Files as chance, or somebody who means ill, would change them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random

HUGE_VARINTS = (b"\xff" * 9 + b"\x01", b"\xff" * 4 + b"\x07", b"\x80" * 9 + b"\x01", b"\xff" * 10)
EXTREMES = tuple(
    value.to_bytes(size, "little", signed=True)
    for size in (4, 8)
    for value in (-1, 1 << (8 * size - 2), (1 << (8 * size - 1)) - 1, 0)
)
NUMBERS = (b"-1", b"0", b"99999999999999999999", b"1e999", b"NaN", b"4611686018427387904", b'"x"', b"null", b"1.5")
WORDS = (b"[]", b"{}", b'"\\u001b[2J\\ud800"', b"true", b'"' + b"a" * 100_000 + b'"', b'"../victims/secret"')
NESTED = (b"[" * 100_000, b'{"a":' * 50_000, b"((((((((((" * 1_000)


def mutated(data: bytes, others: Sequence[bytes], rng: Random) -> bytes:
    """The bytes with one to four changes; now and then others altogether."""
    if rng.random() < 0.05:
        return rng.randbytes(rng.choice((0, 1, 7, 64, 4096)))
    for _ in range(rng.choice((1, 1, 1, 1, 2, 4))):
        data = rng.choice(_CHANGES)(data, others, rng)
    return data


def _span(data: bytes, rng: Random) -> tuple[int, int]:
    start = rng.randrange(len(data) + 1)
    return start, min(len(data), start + rng.choice((1, 2, 8, 64, 512)))


def _flip(data: bytes, others: Sequence[bytes], rng: Random) -> bytes:
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 3)) if found else 0):
        found[rng.randrange(len(found))] ^= 1 << rng.randrange(8)
    return bytes(found)


def _truncate(data: bytes, others: Sequence[bytes], rng: Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _splice(data: bytes, others: Sequence[bytes], rng: Random) -> bytes:
    other = rng.choice(others)
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]


def _double(data: bytes, others: Sequence[bytes], rng: Random) -> bytes:
    start, end = _span(data, rng)
    return data[:end] + data[start:end] * rng.choice((1, 2, 100)) + data[end:]


def _drop(data: bytes, others: Sequence[bytes], rng: Random) -> bytes:
    start, end = _span(data, rng)
    return data[:start] + data[end:]


def _insert(data: bytes, others: Sequence[bytes], rng: Random) -> bytes:
    start = rng.randrange(len(data) + 1)
    return data[:start] + rng.choice((*HUGE_VARINTS, *EXTREMES, *NESTED, rng.randbytes(5))) + data[start:]


def _overwrite(data: bytes, others: Sequence[bytes], rng: Random) -> bytes:
    start = rng.randrange(len(data) + 1)
    value = rng.choice((*HUGE_VARINTS, *EXTREMES))
    return data[:start] + value + data[start + len(value) :]


def _length(data: bytes, others: Sequence[bytes], rng: Random) -> bytes:
    """A small number, which may be a length, is another one."""
    places = [place for place, value in enumerate(data) if 0 < value < 128]
    if not places:
        return data
    place = rng.choice(places)
    return (
        data[:place] + bytes([rng.choice((0, 1, 127, data[place] - 1, min(data[place] + 1, 127)))]) + data[place + 1 :]
    )


def _number(data: bytes, others: Sequence[bytes], rng: Random) -> bytes:
    """A number that is written in digits is another one, or none."""
    found = list(re.finditer(rb"-?\d+(\.\d+)?", data))
    if not found:
        return data
    one = rng.choice(found)
    return data[: one.start()] + rng.choice(NUMBERS) + data[one.end() :]


def _word(data: bytes, others: Sequence[bytes], rng: Random) -> bytes:
    """A string in JSON is another value."""
    found = list(re.finditer(rb'"[^"]*"', data))
    if not found:
        return data
    one = rng.choice(found)
    return data[: one.start()] + rng.choice((*NUMBERS, *WORDS)) + data[one.end() :]


_Change = Callable[[bytes, Sequence[bytes], Random], bytes]
_CHANGES: tuple[_Change, ...] = (
    _flip, _flip, _flip, _flip, _length, _length, _length, _number, _number, _number, _word, _word,
    _truncate, _splice, _double, _drop, _insert, _overwrite,
)  # fmt: skip
"""Small changes more often: what is not read to its end is refused by the first line of a reader."""
