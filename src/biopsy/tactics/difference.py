"""Which choices go with failing: what bad builds have in common that good ones have not, and whether that is chance.

A choice is one fact of a build, such as "layer conv1: precision bfloat16" or "option threads=4". Choices that were made
in exactly the same builds cannot be told apart by these builds: they are one group, with one test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from biopsy.engines.base import LayerRecord
from biopsy.tactics.chance import Table, fisher, holm, more_builds
from biopsy.tactics.record import TacticRecord
from biopsy.tactics.replay import TacticReplay

LEVEL = 0.05
"""The chance of naming a choice that has nothing to do with it, over all that are compared."""

_ORDER = (
    "option",
    "environment",
    "engine",
    "device",
    "precision",
    "kernel",
    "algorithm",
    "layout",
    "fusion",
    "number",
)
"""Kinds of choices, in the order in which one of them is named for its group: what a person can set comes first."""


class Choice(NamedTuple):
    """One fact of a build: of a node of the model or a layer (empty for the whole build), of which kind, and what."""

    where: str
    kind: str
    value: str

    @property
    def text(self) -> str:
        """Words for a person."""
        if self.kind in ("option", "environment"):
            return self.value
        value = self.value.partition(" | ")[0] if self.kind == "algorithm" else self.value
        return f"{self.where}: {self.kind} {value}" if self.where else f"{self.kind} {value}"


@dataclass(frozen=True)
class Build:
    """One build as its file tells of it."""

    name: str
    is_bad: bool
    choices: frozenset[Choice]


@dataclass(frozen=True)
class Group:
    """Choices that were all made in the same builds: in how many bad and good ones, and how likely that is by chance.

    ``chance`` is that of Fisher's test, ``adjusted`` the same after Holm's correction for all groups compared.
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


@dataclass(frozen=True)
class Difference:
    """What differs between good and bad builds: ``groups``, those that explain the outcomes best first.

    ``tests`` is how many groups were compared; ``more`` is how many more builds would decide for the first of them if
    it goes on as it did, None if none would.
    """

    good: int
    bad: int
    groups: tuple[Group, ...] = ()
    more: int | None = None
    remarks: tuple[str, ...] = field(default=())

    @property
    def tests(self) -> int:
        """How many groups were compared."""
        return len(self.groups)

    @property
    def decided(self) -> tuple[Group, ...]:
        """The groups that chance does not explain."""
        return tuple(group for group in self.groups if group.adjusted <= LEVEL)

    @property
    def only_in_bad(self) -> tuple[Group, ...]:
        """The groups that no good build has: what a plain difference of sets finds."""
        return tuple(group for group in self.groups if group.only_bad)


def build_of(name: str, tactics: TacticRecord | TacticReplay, *, is_bad: bool) -> Build:
    """The choices that a file of tactics tells."""
    if isinstance(tactics, TacticReplay):
        found = {Choice(layer, "algorithm", str(one)) for layer, one in tactics.algorithms.items()}
        return Build(name, is_bad, frozenset(found))
    return Build(name, is_bad, frozenset(_choices_of(tactics)))


def _choices_of(record: TacticRecord) -> Iterable[Choice]:
    yield Choice("", "engine", f"{record.engine} {record.version}".strip())
    if record.device:
        yield Choice("", "device", record.device)
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
    """Compare builds: every choice that was made in some of them but not in all."""
    bad = sum(build.is_bad for build in builds)
    good = len(builds) - bad
    patterns: dict[tuple[bool, ...], list[Choice]] = {}
    for choice in dict.fromkeys(choice for build in builds for choice in sorted(build.choices)):
        pattern = tuple(choice in build.choices for build in builds)
        if not all(pattern):
            patterns.setdefault(pattern, []).append(choice)
    if not (bad and good):
        return Difference(good, bad)
    tables = [_table(pattern, builds) for pattern in patterns]
    chances = [fisher(table) for table in tables]
    groups = [
        Group(tuple(sorted(choices, key=_rank)), table, chance, adjusted)
        for choices, table, chance, adjusted in zip(patterns.values(), tables, chances, holm(chances), strict=True)
    ]
    groups.sort(key=lambda group: (group.chance, not group.table.is_perfect, _rank(group.told)))
    more = more_builds(groups[0].table, len(groups), LEVEL) if groups else None
    return Difference(good, bad, tuple(groups), more)


def _table(pattern: Sequence[bool], builds: Sequence[Build]) -> Table:
    bad = sum(made and build.is_bad for made, build in zip(pattern, builds, strict=True))
    good = sum(made and not build.is_bad for made, build in zip(pattern, builds, strict=True))
    all_bad = sum(build.is_bad for build in builds)
    return Table(bad, all_bad, good, len(builds) - all_bad)


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
