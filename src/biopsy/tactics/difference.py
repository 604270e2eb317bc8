"""Which choices go with failing: what bad builds have in common that good ones have not, and whether that is chance.

A choice is one fact of a build, such as "layer conv1: precision bfloat16" or "option threads=4". Choices that were made
in exactly the same builds cannot be told apart by these builds: they are one group, with one test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import log
from typing import NamedTuple

from biopsy.engines.base import LayerRecord
from biopsy.tactics.pairs import Pair, Pattern, Test, pairs
from biopsy.tactics.record import TacticRecord
from biopsy.tactics.replay import TacticReplay
from biopsy.tactics.significance import Table, exchanged_in_blocks, fisher, holm, more_for_all

LEVEL = 0.05
"""The chance of naming a choice that has nothing to do with it, over all that are compared."""

_ORDER = (
    "option",
    "environment",
    "settings",
    "engine",
    "machine",
    "device",
    "precision",
    "kernel",
    "algorithm",
    "layout",
    "fusion",
    "number",
)
"""Kinds of choices, in the order in which one of them is named for its group: what a person can set comes first."""


SETTINGS = ("option", "environment", "settings")
"""Kinds that a person can set; ``settings`` are two of the others together, which no file holds."""


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
    """What differs between good and bad builds: ``groups``, those that explain the outcomes best first.

    ``tests`` is how many groups were compared; ``more`` is how many more builds would decide for the first of them if
    it goes on as it did, None if none would.
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
    by_node: dict[str, list[LayerRecord]] = {}
    for layer in record.layers:
        for node in dict.fromkeys(layer.nodes):
            by_node.setdefault(node, []).append(layer)
    for node, layers in by_node.items():
        yield from _choices_of_node(node, layers)
    for layer in record.layers:
        if len(layer.nodes) > 1:
            yield Choice("", "fusion", " + ".join(layer.nodes))
    made_up = Counter(layer.kind for layer in record.layers if not layer.nodes and layer.kind)
    for kind, times in made_up.items():  # they have no nodes to be known by
        yield Choice("", "number", f"of layers {kind} that the engine put in: {times}")


def _choices_of_node(node: str, layers: Sequence[LayerRecord]) -> Iterable[Choice]:
    """A node may be in several layers."""
    kernels = [f"{layer.kind} {layer.implementation}".strip() for layer in layers]
    yield from _known(node, "kernel", kernels)
    yield from _known(node, "precision", [layer.precision for layer in layers])
    yield from _known(node, "layout", [layer.layout for layer in layers])


def _known(node: str, kind: str, values: Sequence[str]) -> Iterable[Choice]:
    told = " + ".join(dict.fromkeys(filter(None, values)))
    if told:
        yield Choice(node, kind, told)


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
    evidence = {pattern: CauseTests(builds, tests) for pattern, (_, tests) in compared.items()}
    chances = [one.chance for one in evidence.values()]
    outcomes = [build.is_bad for build in builds]
    groups = []
    for (pattern, (choices, _)), chance, adjusted in zip(compared.items(), chances, holm(chances), strict=True):
        table = _table(list(zip(pattern, outcomes, strict=True)))
        groups.append((ChoiceGroup(tuple(sorted(choices, key=_rank)), table, chance, adjusted), pattern))
    groups.sort(key=lambda found: (found[0].chance, not found[0].table.is_perfect, _rank(found[0].told)))
    more = evidence[groups[0][1]].more(LEVEL / len(groups)) if groups else None
    return Difference(good=good, bad=bad, groups=tuple(group for group, _ in groups), more=more)


def _compared(
    patterns: Mapping[Pattern, Sequence[Choice]], builds: Sequence[Build]
) -> dict[Pattern, tuple[list[Choice], tuple[Test, ...]]]:
    """What is compared, by the builds that have it: the choices, and the tests that it must stand."""
    compared: dict[Pattern, tuple[list[Choice], tuple[Test, ...]]] = {}
    everywhere = (True,) * len(builds)
    for pattern, choices in patterns.items():
        compared[pattern] = list(choices), (Test(pattern, everywhere),)
    for pair in _pairs(patterns):
        if len(set(pair.pattern)) < 2:
            continue
        together, _ = compared.setdefault(pair.pattern, ([], pair.tests))
        if not any(choice.kind in ("option", "environment") for choice in together):
            together.append(Choice("", "settings", pair.text))
    return compared


def _pairs(patterns: Mapping[Pattern, Sequence[Choice]]) -> Iterable[Pair]:
    settings: dict[str, dict[str, Pattern]] = {}
    for pattern, choices in patterns.items():
        for choice in choices:
            if choice.kind in ("option", "environment"):
                settings.setdefault(choice.value.partition("=")[0], {})[choice.text] = pattern
    return pairs({key: dict(sorted(values.items())) for key, values in sorted(settings.items())})


class CauseTests:
    """What tests say of one cause, where all of them must speak for it."""

    def __init__(self, builds: Sequence[Build], tests: Sequence[Test]) -> None:
        self._builds = builds
        self._tests = tests
        self.chance = max(exchanged_in_blocks(self._by_block(test)) for test in tests)

    def table(self, test: Test) -> Table:
        """In how many bad and good builds something was made, of those that a test is about."""
        return _table([(made, build.is_bad) for made, _, build in self._of(test)])

    def _by_block(self, test: Test) -> list[Table]:
        blocks: dict[tuple[int, int] | None, list[tuple[bool, bool]]] = {}
        for made, _, build in self._of(test):
            blocks.setdefault(build.block, []).append((made, build.is_bad))
        return list(map(_table, blocks.values()))

    def _of(self, test: Test) -> list[tuple[bool, bool, Build]]:
        return [found for found in zip(test.made, test.among, self._builds, strict=True) if found[1]]

    def more(self, level: float) -> int | None:
        """How many more builds bring the chance to ``level``; blocks tell a little less per build, and go on so."""
        tables = list(map(self.table, self._tests))
        at_once = max(map(fisher, tables))
        power = 1.0
        if 0 < at_once < self.chance < 1:
            power = log(self.chance) / log(at_once)
        return more_for_all(tables, len(self._builds), level ** (1 / power))


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
