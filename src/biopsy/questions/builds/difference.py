"""Which choices go with failing: what bad builds have in common that good ones have not, and whether that is chance."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import combinations, product
from math import comb, lgamma, log
from typing import NamedTuple, TypeAlias

from biopsy.engines.base import LayerRecord
from biopsy.questions.builds.record import TacticRecord, TacticReplay

LEVEL = 0.05
"""The chance of naming a choice that has nothing to do with it, over all that are compared."""

SETTINGS = ("option", "environment", "settings")
"""Kinds that a person can set; ``settings`` are two of the others together, which no file holds."""

_ORDER = (*SETTINGS, "engine", "machine", "device", "precision", "kernel", "algorithm", "layout", "fusion", "number")
"""Kinds of choices, in the order in which one of them is named for its group: what a person can set comes first."""


class Choice(NamedTuple):
    """One fact of a build: of a node of the model or a layer (empty for the whole build), of which kind, and what."""

    where: str
    kind: str
    value: str

    @property
    def text(self) -> str:
        """Words for a person."""
        if self.kind in SETTINGS:
            return self.value
        value = self.value.partition(" | ")[0] if self.kind == "algorithm" else self.value
        return f"{self.where}: {self.kind} {value}" if self.where else f"{self.kind} {value}"


@dataclass(frozen=True)
class Build:
    """One build as its file tells of it. ``block``: the seed and the block of builds that its place was drawn in."""

    name: str
    is_bad: bool
    choices: frozenset[Choice]
    block: tuple[int, int] | None = None


@dataclass(frozen=True)
class ChoiceGroup:
    """Choices that were all made in the same builds: in how many bad and good ones, and how likely that is by chance.

    ``chance`` is that of Fisher's test, or of its like where builds were put in order in blocks; of a pair of settings
    the greatest of its tests. ``adjusted`` is the same after Holm's correction for all groups compared.
    """

    choices: tuple[Choice, ...]
    table: Table
    chance: float
    adjusted: float

    @property
    def only_bad(self) -> bool:
        """Whether no good build has them."""
        return self.table.good == 0

    @property
    def told(self) -> Choice:
        """The choice that stands for all."""
        return self.choices[0]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """What differs between good and bad builds: ``groups`` of choices, first those that explain the outcomes best.

    ``more`` is how many further builds would decide whether the first group is to blame, if they come out in the same
    shares as those so far; None if no number would.
    """

    good: int
    bad: int
    groups: tuple[ChoiceGroup, ...] = ()
    more: int | None = None
    remarks: tuple[str, ...] = field(default=())

    @property
    def tests(self) -> int:
        """How many groups were compared."""
        return len(self.groups)

    @property
    def decided(self) -> tuple[ChoiceGroup, ...]:
        """The groups that chance does not explain."""
        return tuple(group for group in self.groups if group.adjusted <= LEVEL)

    @property
    def only_in_bad(self) -> tuple[ChoiceGroup, ...]:
        """The groups that no good build has: what a plain difference of sets finds. No pairs: no file holds them."""
        return tuple(group for group in self.groups if group.only_bad and group.choices[-1].kind != "settings")


def build_of(name: str, tactics: TacticRecord | TacticReplay, *, is_bad: bool) -> Build:
    """The choices that a file of tactics tells."""
    if isinstance(tactics, TacticReplay):
        found = {Choice(layer, "algorithm", str(one)) for layer, one in tactics.algorithms.items()}
        return Build(name, is_bad, frozenset(found))
    block = None if tactics.seed is None or tactics.block is None else (tactics.seed, tactics.block)
    return Build(name, is_bad, frozenset(_choices_of(tactics)), block)


def _choices_of(record: TacticRecord) -> Iterable[Choice]:
    whole = {"engine": f"{record.engine} {record.version}".strip(), "machine": record.machine, "device": record.device}
    yield from (Choice("", kind, value) for kind, value in whole.items() if value)
    for key, value in record.settings.items():
        yield Choice("", "option", f"{key}={value}")
    for name, value in record.environment.items():
        yield Choice("", "environment", f"env.{name}={value}")
    yield from _choices_of_nodes(record.layers)
    for layer in record.layers:
        if len(layer.nodes) > 1:
            yield Choice("", "fusion", " + ".join(layer.nodes))
    made_up = Counter(layer.kind for layer in record.layers if not layer.nodes and layer.kind)
    for kind, times in made_up.items():  # they have no nodes to be known by
        yield Choice("", "number", f"of layers {kind} that the engine put in: {times}")


def _choices_of_nodes(engine_layers: Iterable[LayerRecord]) -> Iterable[Choice]:
    by_node: dict[str, list[LayerRecord]] = {}
    for layer in engine_layers:
        for node in dict.fromkeys(layer.nodes):
            by_node.setdefault(node, []).append(layer)
    for node, layers in by_node.items():  # a node may be in several layers
        values = {
            "kernel": [f"{layer.kind} {layer.implementation}".strip() for layer in layers],
            "precision": [layer.precision for layer in layers],
            "layout": [layer.layout for layer in layers],
        }
        for kind, texts in values.items():
            if any(texts):
                yield Choice(node, kind, " + ".join(dict.fromkeys(filter(None, texts))))


def difference(builds: Sequence[Build]) -> Difference:
    """Compare builds: every choice that was made in some of them but not in all, and every pair of settings."""
    bad = sum(build.is_bad for build in builds)
    good = len(builds) - bad
    patterns: dict[Pattern, list[Choice]] = {}
    for choice in dict.fromkeys(choice for build in builds for choice in sorted(build.choices)):
        pattern = tuple(choice in build.choices for build in builds)
        if not all(pattern):
            patterns.setdefault(pattern, []).append(choice)
    if not (bad and good):
        return Difference(good=good, bad=bad)
    compared = _compared(patterns, builds)
    chances = [max(exchanged_in_blocks(_by_block(builds, test)) for test in tests) for _, tests in compared.values()]
    found = []
    for (pattern, (choices, tests)), chance, adjusted in zip(compared.items(), chances, holm(chances), strict=True):
        table = _table([(made, build.is_bad) for made, build in zip(pattern, builds, strict=True)])
        found.append((ChoiceGroup(tuple(sorted(choices, key=_rank)), table, chance, adjusted), tests))
    found.sort(key=lambda each: (each[0].chance, not each[0].table.is_perfect, _rank(each[0].told)))
    more = None
    if found:
        best, tests = found[0]
        more = _more(builds, tests, best.chance, LEVEL / len(found))
    return Difference(good=good, bad=bad, groups=tuple(group for group, _ in found), more=more)


def _compared(
    patterns: Mapping[Pattern, Sequence[Choice]], builds: Sequence[Build]
) -> dict[Pattern, tuple[list[Choice], tuple[Test, ...]]]:
    """What is compared, by the builds that have it: the choices, and the tests that it must stand."""
    everywhere = (True,) * len(builds)
    compared: dict[Pattern, tuple[list[Choice], tuple[Test, ...]]] = {
        pattern: (list(choices), (Test(pattern, everywhere),)) for pattern, choices in patterns.items()
    }
    settings: dict[str, dict[str, Pattern]] = {}
    for pattern, choices in patterns.items():
        for choice in choices:
            if choice.kind in ("option", "environment"):
                settings.setdefault(choice.value.partition("=")[0], {})[choice.text] = pattern
    for pair in pairs({key: dict(sorted(values.items())) for key, values in sorted(settings.items())}):
        if len(set(pair.pattern)) > 1:
            together, _ = compared.setdefault(pair.pattern, ([], pair.tests))
            if not any(choice.kind in ("option", "environment") for choice in together):
                together.append(Choice("", "settings", pair.text))
    return compared


def _by_block(builds: Sequence[Build], test: Test) -> list[Table]:
    """In how many bad and good builds of each block something was made, of those that a test is about."""
    blocks: dict[tuple[int, int] | None, list[tuple[bool, bool]]] = {}
    for made, among, build in zip(test.made, test.among, builds, strict=True):
        if among:
            blocks.setdefault(build.block, []).append((made, build.is_bad))
    return list(map(_table, blocks.values()))


def _more(builds: Sequence[Build], tests: Sequence[Test], chance: float, level: float) -> int | None:
    """How many more builds bring the chance to ``level``; blocks tell a little less per build, and go on so."""
    whole = [replace(build, block=None) for build in builds]
    tables = [table for test in tests for table in _by_block(whole, test)]
    at_once = max(map(fisher, tables))
    power = log(chance) / log(at_once) if 0 < at_once < chance < 1 else 1.0
    return more_for_all(tables, len(builds), level ** (1 / power))


def _table(builds: Sequence[tuple[bool, bool]]) -> Table:
    """The table of builds, each with whether it was made there and whether it is bad."""
    all_bad = sum(is_bad for _, is_bad in builds)
    bad = sum(made and is_bad for made, is_bad in builds)
    return Table(bad, all_bad, sum(made for made, _ in builds) - bad, len(builds) - all_bad)


def _rank(choice: Choice) -> tuple[int, str, str]:
    return _ORDER.index(choice.kind), choice.where, choice.value


def summarized(choices: Iterable[Choice]) -> dict[tuple[str, str], list[str]]:
    """The places of choices by kind and value: what many layers have in common is told once."""
    found: dict[tuple[str, str], list[str]] = {}
    for choice in choices:
        found.setdefault((choice.kind, choice.value), []).append(choice.where)
    return found


def remarks_on(files: Mapping[str, TacticRecord | TacticReplay]) -> list[str]:
    """What makes files hard to compare: records of several models or engines, two programs' files together."""
    records = [found for found in files.values() if isinstance(found, TacticRecord)]
    found = []
    digests = {record.model_digest for record in records}
    if len(digests) > 1:
        found.append(f"the records are of {len(digests)} different models: layers of the same name may not be the same")
    engines = {record.engine for record in records}
    if len(engines) > 1:
        found.append(f"the records are of different engines: {', '.join(sorted(engines))}")
    if records and len(records) < len(files):
        found.append("records of biopsy and replays of Polygraphy have no choice in common")
    return found


# Causes of two settings: a build is bad where both have certain values, or where exactly one of them has.
#
# A pair is believed only where both of its settings are needed: with the first as it is, the second must go with
# failing, and the other way round. So its chance is the greatest of those of these tests, and a single setting that
# explains the failures alone never looks like a pair. This is an intersection-union test: R. L. Berger,
# Multiparameter hypothesis testing and acceptance sampling. Technometrics 24 (1982), 295-300.

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
            yield Pair(
                f"{left} and {right}", tuple(x and y for x, y in zip(a, b, strict=True)), (Test(b, a), Test(a, b))
            )
        if len(one) == len(other) == 2:
            (left, a), *_ = one.items()
            for right, b in other.items():
                exclusive = tuple(x != y for x, y in zip(a, b, strict=True))
                tests = Test(_not(b), a), Test(b, _not(a))
                yield Pair(f"{left} or {right}, but not both", exclusive, tests)


def _not(one: Sequence[bool]) -> Pattern:
    return tuple(not x for x in one)


# How much of what was seen is chance: Fisher's exact test, Holm's correction, and how many builds would decide.

MOST_BUILDS = 10_000
"""Where this many builds would not decide, no number is told."""


@dataclass(frozen=True)
class Table:
    """In how many builds a choice was made: ``bad`` of ``all_bad``, and ``good`` of ``all_good``."""

    bad: int
    all_bad: int
    good: int
    all_good: int

    @property
    def is_perfect(self) -> bool:
        """Whether it is in every bad build and in no good one."""
        return self.bad == self.all_bad > 0 and self.good == 0 < self.all_good

    @property
    def can_tell(self) -> bool:
        """Whether the totals leave more than one way."""
        with_it = self.bad + self.good
        return 0 < with_it < self.all_bad + self.all_good and self.all_bad > 0 and self.all_good > 0

    @property
    def tends_to_fail(self) -> bool:
        """Whether it is more frequent in bad builds."""
        return self.bad * self.all_good > self.good * self.all_bad

    def grown(self, times: float) -> Table:
        """The table of so many times as many builds."""
        return Table(*(round(count * times) for count in (self.bad, self.all_bad, self.good, self.all_good)))


@lru_cache(maxsize=4096)
def fisher(table: Table) -> float:
    """The chance of as many bad builds or more among those with a choice, if it had nothing to do with failing.

    One-sided, for given totals. R. A. Fisher, The logic of inductive inference. Journal of the Royal Statistical
    Society 98 (1935), 39-82.
    """
    with_it = table.bad + table.good
    builds = table.all_bad + table.all_good
    most = min(with_it, table.all_bad)
    ways = sum(
        comb(table.all_bad, bad) * comb(table.all_good, with_it - bad)
        for bad in range(max(table.bad, with_it - table.all_good), most + 1)
    )
    return ways / comb(builds, with_it)


def holm(chances: Sequence[float]) -> list[float]:
    """The same chances with regard to how many were looked at: below 0.05, one in twenty such analyses errs at all.

    S. Holm, A simple sequentially rejective multiple test procedure. Scandinavian Journal of Statistics 6 (1979),
    65-70.
    """
    order = sorted(range(len(chances)), key=chances.__getitem__)
    adjusted = [1.0] * len(chances)
    greatest = 0.0
    for rank, place in enumerate(order):
        greatest = max(greatest, min(1.0, (len(chances) - rank) * chances[place]))
        adjusted[place] = greatest
    return adjusted


def exchanged_in_blocks(tables: Sequence[Table]) -> float:
    """The same chance where builds were put in order by lot within blocks: a table for each block.

    Fisher's test takes all builds as exchangeable. If the lot was drawn block by block, only those of one block are,
    and a failure with the period of the blocks would look less like chance than it is. The exact distribution of the
    sum: each block's, convolved. J. Cornfield, A statistical problem arising from retrospective studies. Proceedings of
    the Third Berkeley Symposium 4 (1956), 135-148.
    """
    telling = tuple(table for table in tables if table.can_tell)
    if len(telling) <= 1:
        return fisher(telling[0]) if telling else 1.0
    import numpy as np

    ways, at = np.ones(1), 0
    for table in telling:
        least, shares = _shares(table)
        ways = np.convolve(ways, shares)
        at += table.bad - least
    return min(1.0, float(ways[at:].sum()))


@lru_cache(maxsize=4096)
def _shares(table: Table) -> tuple[int, list[float]]:
    """How likely each number of bad builds with the choice is, from the least that the totals allow."""
    with_it, builds = table.bad + table.good, table.all_bad + table.all_good
    least, most = max(0, with_it - table.all_good), min(with_it, table.all_bad)
    ways = [comb(table.all_bad, bad) * comb(table.all_good, with_it - bad) for bad in range(least, most + 1)]
    return least, [way / comb(builds, with_it) for way in ways]


def more_for_all(tables: Sequence[Table], builds: int, level: float) -> int | None:
    """How many builds more than ``builds`` bring the chance of every table to ``level`` if all go on as they did.

    The number is sought by halves. Counts are whole, so near the border a few more builds may decide less than a few
    fewer: what lies a little before is looked at one by one.
    """
    if not all(table.tends_to_fail for table in tables):
        return None
    sizes = _sizes(builds)

    def decides(place: int) -> bool:
        times = sizes[place] / builds
        return all(_log_chance(table.grown(times)) <= log(level) + _ROUNDING for table in tables)

    border = bisect_left(range(len(sizes)), True, key=decides)
    near = range(max(0, border - _NEAR), min(border + 1, len(sizes)))
    return next((sizes[place] - builds for place in near if decides(place)), None)


_ROUNDING = 1e-9
"""Far above the error of sums of logarithms, far below what anybody would tell from the level."""

_NEAR = 64
"""Steps of 2 % before the border within which whole counts were seen to decide earlier, in 20,000 tables."""


@lru_cache(maxsize=64)
def _sizes(builds: int) -> tuple[int, ...]:
    """The numbers of builds that are thought of: each 2 % more than the last, up to ``MOST_BUILDS``."""
    found = [builds + max(1, builds // 50)]
    while found[-1] < MOST_BUILDS:
        found.append(found[-1] + max(1, found[-1] // 50))
    return tuple(found)


def _log_chance(table: Table) -> float:
    """The logarithm of ``fisher``, for tables of any size: the first term, and others as far as they count."""
    with_it, builds = table.bad + table.good, table.all_bad + table.all_good
    first = _log_comb(table.all_bad, table.bad) + _log_comb(table.all_good, table.good) - _log_comb(builds, with_it)
    term, total = 1.0, 1.0
    for bad in range(table.bad, min(with_it, table.all_bad)):
        good = with_it - bad
        term *= (table.all_bad - bad) * good / ((bad + 1) * (table.all_good - good + 1))
        total += term
        if term < total * 1e-17:
            break
    return first + log(total)


def _log_comb(things: int, chosen: int) -> float:
    return lgamma(things + 1) - lgamma(chosen + 1) - lgamma(things - chosen + 1)
