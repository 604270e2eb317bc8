"""Causes of two settings: a build is bad where both have certain values, or where exactly one of them has.

A pair is believed only where both of its settings are needed: with the first as it is, the second must go with failing,
and the other way round. So its chance is the greatest of those of these tests, and a single setting that explains the
failures alone never looks like a pair. This is an intersection-union test: R. L. Berger, Multiparameter hypothesis
testing and acceptance sampling. Technometrics 24 (1982), 295-300.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import TypeAlias

Pattern: TypeAlias = tuple[bool, ...]
"""In which of the builds something is so."""


@dataclass(frozen=True)
class Test:
    """Whether builds in which something is ``made`` fail more often, among those builds that are ``among``."""

    made: Pattern
    among: Pattern


@dataclass(frozen=True)
class Pair:
    """A cause of two settings, its words, the builds that have it, and the tests that it must all stand."""

    text: str
    pattern: Pattern
    tests: tuple[Test, Test]


def pairs(settings: Mapping[str, Mapping[str, Pattern]]) -> Iterator[Pair]:
    """Every cause of two settings that vary: ``settings`` has, by key and by ``key=value``, the builds with it.

    Both at once for all values of both; one without the other for settings of two values, where it has one meaning.
    """
    for one, other in combinations(settings.values(), 2):
        for (left, a), (right, b) in product(one.items(), other.items()):
            yield Pair(f"{left} and {right}", _both(a, b), (Test(b, a), Test(a, b)))
        if len(one) == len(other) == 2:
            (left, a), *_ = one.items()
            for right, b in other.items():
                exclusive = tuple(x != y for x, y in zip(a, b, strict=True))
                tests = Test(_not(b), a), Test(b, _not(a))
                yield Pair(f"{left} or {right}, but not both", exclusive, tests)


def _both(one: Sequence[bool], other: Sequence[bool]) -> Pattern:
    return tuple(x and y for x, y in zip(one, other, strict=True))


def _not(one: Sequence[bool]) -> Pattern:
    return tuple(not x for x in one)
