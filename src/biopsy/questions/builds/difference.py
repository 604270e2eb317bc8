"""Which choices go with failing: what bad builds have in common that good ones lack, and whether that is chance.

Causes of two settings are compared too: a build may be bad where both have certain values, or where exactly one has. A
pair is believed only if both of its settings are needed: with the first as it is, the second must go with failing, and
the other way round. Its chance is therefore the greatest of those of these tests, and a single setting that explains
the failures alone never looks like a pair. This is an intersection-union test: R. L. Berger, Multiparameter hypothesis
testing and acceptance sampling. Technometrics 24 (1982), 295-300.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, product
from math import comb, lgamma, log
from typing import NamedTuple, TypeAlias

from biopsy.engines.base import LayerRecord
from biopsy.questions.builds.record import TacticRecord, TacticReplay
from biopsy.slow_imports import np

LEVEL = 0.05
"""The family-wise error rate: how likely any choice is named that has nothing to do with the failure."""

SETTINGS = ("option", "environment", "settings")
"""Kinds of choices that a person can set; ``settings`` are pairs of the other two, which no file holds."""

_ORDER = (*SETTINGS, "engine", "machine", "device", "precision", "kernel", "algorithm", "layout", "fusion", "number")
"""Kinds of choices, those that represent their group first: what a person can set comes before the rest."""


class Choice(NamedTuple):
    """One fact of a build. ``where`` is a node of the model or a layer, "" for the whole build."""

    where: str
    kind: str
    value: str

    @property
    def text(self) -> str:
        """The choice as a person reads it."""
        if self.kind in SETTINGS:
            return self.value
        value = self.value.partition(" | ")[0] if self.kind == "algorithm" else self.value
        return f"{self.where}: {self.kind} {value}" if self.where else f"{self.kind} {value}"


@dataclass(frozen=True)
class Build:
    """One build and its choices. ``block`` is the seed and the number of the block in which its place was drawn."""

    name: str
    is_bad: bool
    choices: frozenset[Choice]
    block: tuple[int, int] | None = None


@dataclass(frozen=True)
class ChoiceGroup:
    """Choices that were all made in the same builds: in how many bad and good ones, and how likely that is by chance.

    ``chance`` is the p-value of Fisher's test, or of its blocked form if builds were ordered in blocks; for a pair of
    settings the greatest of its tests. ``adjusted`` is ``chance`` after Holm's correction for all groups compared.
    """

    choices: tuple[Choice, ...]
    table: Table
    chance: float
    adjusted: float

    @property
    def representative(self) -> Choice:
        """The choice that stands for all."""
        return self.choices[0]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """What differs between good and bad builds: ``groups`` of choices, first those that explain the outcomes best.

    ``more`` is how many further builds would decide whether the first group is to blame, if good and bad keep their
    shares; None if no number would.
    """

    good: int
    bad: int
    groups: tuple[ChoiceGroup, ...] = ()
    more: int | None = None
    remarks: tuple[str, ...] = ()

    @property
    def groups_compared(self) -> int:
        """How many groups were compared."""
        return len(self.groups)

    @property
    def decided(self) -> tuple[ChoiceGroup, ...]:
        """The groups that chance does not explain."""
        return tuple(group for group in self.groups if group.adjusted <= LEVEL)

    @property
    def only_in_bad(self) -> tuple[ChoiceGroup, ...]:
        """The groups that no good build has, without pairs of settings: the plain difference of the sets of choices."""
        return tuple(group for group in self.groups if group.table.good == 0 and group.choices[-1].kind != "settings")


def build_of(name: str, tactics: TacticRecord | TacticReplay, *, is_bad: bool) -> Build:
    """A build with the choices that its record or replay holds."""
    if isinstance(tactics, TacticReplay):
        choices = {Choice(layer, "algorithm", str(algorithm)) for layer, algorithm in tactics.algorithms.items()}
        return Build(name, is_bad, frozenset(choices))
    block = None if tactics.seed is None or tactics.block is None else (tactics.seed, tactics.block)
    return Build(name, is_bad, frozenset(_choices_of(tactics)), block)


def _choices_of(record: TacticRecord) -> Iterable[Choice]:
    facts = {"engine": f"{record.engine} {record.version}".strip(), "machine": record.machine, "device": record.device}
    yield from (Choice("", kind, value) for kind, value in facts.items() if value)
    for key, value in record.settings.items():
        yield Choice("", "option", f"{key}={value}")
    for name, value in record.environment.items():
        yield Choice("", "environment", f"env.{name}={value}")
    yield from _choices_of_nodes(record.layers)
    for layer in record.layers:
        if len(layer.nodes) > 1:
            yield Choice("", "fusion", " + ".join(layer.nodes))
    inserted = Counter(layer.kind for layer in record.layers if not layer.nodes and layer.kind)
    for kind, times in inserted.items():  # such layers have no nodes that identify them
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
    """Compare good with bad builds by each choice that some but not all made, and by each pair of settings."""
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
    tested = []
    for (pattern, (choices, tests)), chance, adjusted in zip(compared.items(), chances, holm(chances), strict=True):
        table = _table([(made, build.is_bad) for made, build in zip(pattern, builds, strict=True)])
        tested.append((ChoiceGroup(tuple(sorted(choices, key=_rank)), table, chance, adjusted), tests))
    tested.sort(key=lambda each: (each[0].chance, not each[0].table.is_perfect, _rank(each[0].representative)))
    more = None
    if tested:
        best, tests = tested[0]
        more = _builds_to_decide(builds, tests, best.chance, LEVEL / len(tested))
    return Difference(good=good, bad=bad, groups=tuple(group for group, _ in tested), more=more)


def _compared(
    patterns: Mapping[Pattern, Sequence[Choice]], builds: Sequence[Build]
) -> dict[Pattern, tuple[list[Choice], tuple[Test, ...]]]:
    """The choices to compare and the tests that they must all pass, by the pattern of builds that made them."""
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
    """The table of each block, of the builds that a test compares."""
    blocks: dict[tuple[int, int] | None, list[tuple[bool, bool]]] = {}
    for made, among, build in zip(test.made, test.among, builds, strict=True):
        if among:
            blocks.setdefault(build.block, []).append((made, build.is_bad))
    return list(map(_table, blocks.values()))


def _builds_to_decide(builds: Sequence[Build], tests: Sequence[Test], chance: float, level: float) -> int | None:
    """How many more builds bring the chance to ``level``.

    Computed as if the builds had no blocks, and corrected by what the blocks have cost in the builds so far.
    """
    unblocked = [replace(build, block=None) for build in builds]
    tables = [table for test in tests for table in _by_block(unblocked, test)]
    unblocked_chance = max(map(fisher, tables))
    power = log(chance) / log(unblocked_chance) if 0 < unblocked_chance < chance < 1 else 1.0
    return builds_to_decide(tables, len(builds), level ** (1 / power))


def _table(builds: Sequence[tuple[bool, bool]]) -> Table:
    """The table of builds, each given as whether it made the choice and whether it is bad."""
    all_bad = sum(is_bad for _, is_bad in builds)
    bad = sum(made and is_bad for made, is_bad in builds)
    return Table(bad, all_bad, sum(made for made, _ in builds) - bad, len(builds) - all_bad)


def _rank(choice: Choice) -> tuple[int, str, str]:
    return _ORDER.index(choice.kind), choice.where, choice.value


def summarized(choices: Iterable[Choice]) -> dict[tuple[str, str], list[str]]:
    """The places of choices by kind and value, so that a choice of many layers is listed once."""
    places: dict[tuple[str, str], list[str]] = {}
    for choice in choices:
        places.setdefault((choice.kind, choice.value), []).append(choice.where)
    return places


def remarks_on(files: Mapping[str, TacticRecord | TacticReplay]) -> list[str]:
    """Why files are hard to compare: records of several models or engines, or files of two programs."""
    records = [tactics for tactics in files.values() if isinstance(tactics, TacticRecord)]
    remarks = []
    digests = {record.model_digest for record in records}
    if len(digests) > 1:
        remarks.append(
            f"the records are of {len(digests)} different models: layers of the same name may not be the same"
        )
    engines = {record.engine for record in records}
    if len(engines) > 1:
        remarks.append(f"the records are of different engines: {', '.join(sorted(engines))}")
    if records and len(records) < len(files):
        remarks.append("records of biopsy and replays of Polygraphy have no choice in common")
    return remarks


Pattern: TypeAlias = tuple[bool, ...]
"""For each build, whether it made a choice."""


@dataclass(frozen=True)
class Test:
    """Whether builds that ``made`` a choice fail more often, compared only with the builds ``among``."""

    made: Pattern
    among: Pattern


@dataclass(frozen=True)
class Pair:
    """A cause of two settings: its text, the builds that have it, and the tests that it must both pass."""

    text: str
    pattern: Pattern
    tests: tuple[Test, Test]


def pairs(settings: Mapping[str, Mapping[str, Pattern]]) -> Iterator[Pair]:
    """Every cause of two settings that vary. ``settings`` maps key and ``key=value`` to the builds that have it.

    "A and B" is tried for all values; "A or B, but not both" only for settings of two values, where it has one meaning.
    """

    def negated(pattern: Pattern) -> Pattern:
        return tuple(not made for made in pattern)

    for first, second in combinations(settings.values(), 2):
        for (left, a), (right, b) in product(first.items(), second.items()):
            yield Pair(
                f"{left} and {right}", tuple(x and y for x, y in zip(a, b, strict=True)), (Test(b, a), Test(a, b))
            )
        if len(first) == len(second) == 2:
            (left, a), *_ = first.items()
            for right, b in second.items():
                exclusive = tuple(x != y for x, y in zip(a, b, strict=True))
                tests = Test(negated(b), a), Test(b, negated(a))
                yield Pair(f"{left} or {right}, but not both", exclusive, tests)


MOST_BUILDS = 10_000
"""If this many builds would not decide, no number is given."""


@dataclass(frozen=True)
class Table:
    """The contingency table of a choice: ``bad`` of ``all_bad`` builds made it, and ``good`` of ``all_good``."""

    bad: int
    all_bad: int
    good: int
    all_good: int

    @property
    def is_perfect(self) -> bool:
        """Whether it is in every bad build and in no good one."""
        return self.bad == self.all_bad > 0 and self.good == 0 < self.all_good

    @property
    def is_informative(self) -> bool:
        """Whether its totals allow more than one table."""
        with_choice = self.bad + self.good
        return 0 < with_choice < self.all_bad + self.all_good and self.all_bad > 0 and self.all_good > 0

    @property
    def tends_to_fail(self) -> bool:
        """Whether it is more frequent in bad builds."""
        return self.bad * self.all_good > self.good * self.all_bad

    def grown(self, times: float) -> Table:
        """The table of ``times`` as many builds."""
        return Table(*(round(count * times) for count in (self.bad, self.all_bad, self.good, self.all_good)))


@lru_cache(maxsize=4096)
def fisher(table: Table) -> float:
    """The one-sided p-value of Fisher's exact test: of this many bad builds or more among those with the choice.

    R. A. Fisher, The logic of inductive inference. Journal of the Royal Statistical Society 98 (1935), 39-82.
    """
    with_choice = table.bad + table.good
    builds = table.all_bad + table.all_good
    most = min(with_choice, table.all_bad)
    ways = sum(
        comb(table.all_bad, bad) * comb(table.all_good, with_choice - bad)
        for bad in range(max(table.bad, with_choice - table.all_good), most + 1)
    )
    return ways / comb(builds, with_choice)


def holm(chances: Sequence[float]) -> list[float]:
    """The p-values after Holm's correction for multiple tests, in the same order.

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
    """The one-sided p-value where builds were shuffled within blocks; one table for each block.

    Fisher's test takes all builds as exchangeable, but here only those of one block are: a failure with the period of
    the blocks would look less like chance than it is. The distribution of the sum over blocks is exact: those of the
    blocks, convolved. J. Cornfield, A statistical problem arising from retrospective studies. Proceedings of the Third
    Berkeley Symposium 4 (1956), 135-148.
    """
    informative = tuple(table for table in tables if table.is_informative)
    if len(informative) <= 1:
        return fisher(informative[0]) if informative else 1.0

    likelihoods, place = np.ones(1), 0
    for table in informative:
        least, shares = _shares(table)
        likelihoods = np.convolve(likelihoods, shares)
        place += table.bad - least
    return min(1.0, float(likelihoods[place:].sum()))


@lru_cache(maxsize=4096)
def _shares(table: Table) -> tuple[int, list[float]]:
    """The least number of bad builds with the choice that the totals allow; how likely it and each larger one is."""
    with_choice, builds = table.bad + table.good, table.all_bad + table.all_good
    least, most = max(0, with_choice - table.all_good), min(with_choice, table.all_bad)
    ways = [comb(table.all_bad, bad) * comb(table.all_good, with_choice - bad) for bad in range(least, most + 1)]
    return least, [way / comb(builds, with_choice) for way in ways]


def builds_to_decide(tables: Sequence[Table], builds: int, level: float) -> int | None:
    """How many more builds bring the chance of every table to ``level``, if each grows in proportion from ``builds``.

    None if no number up to ``MOST_BUILDS`` does. Counts are rounded to whole builds, so the chance does not fall evenly
    with them: after a bisection, the sizes a little below the border are tried one by one.
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
"""A margin far above the error of the sums of logarithms, and far below any difference that matters."""

_NEAR = 64
"""Steps of 2 % below the border that are tried: enough for the earliest that decides in each of 20,000 tables."""


@lru_cache(maxsize=64)
def _sizes(builds: int) -> tuple[int, ...]:
    """The numbers of builds to consider: each 2 % more than the last, up to ``MOST_BUILDS``."""
    sizes = [builds + max(1, builds // 50)]
    while sizes[-1] < MOST_BUILDS:
        sizes.append(sizes[-1] + max(1, sizes[-1] // 50))
    return tuple(sizes)


def _log_chance(table: Table) -> float:
    """The logarithm of ``fisher`` for tables of any size: its first term, and others until they add nothing."""

    def log_comb(things: int, chosen: int) -> float:
        return lgamma(things + 1) - lgamma(chosen + 1) - lgamma(things - chosen + 1)

    with_choice, builds = table.bad + table.good, table.all_bad + table.all_good
    first = log_comb(table.all_bad, table.bad) + log_comb(table.all_good, table.good) - log_comb(builds, with_choice)
    term, total = 1.0, 1.0
    for bad in range(table.bad, min(with_choice, table.all_bad)):
        good = with_choice - bad
        term *= (table.all_bad - bad) * good / ((bad + 1) * (table.all_good - good + 1))
        total += term
        if term < total * 1e-17:
            break
    return first + log(total)
