"""The question for a search for workarounds, the candidates (changes of the engine or patches of the model), and the
result: the changes that help, those that do not, and how the outputs were judged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from biopsy.checks.judge import Rules
from biopsy.engines.latency import Latency
from biopsy.engines.registry import PLAIN, EngineSpec, parse_spec
from biopsy.engines.runner import Inputs
from biopsy.model.index import ModelIndex
from biopsy.model.weights_file import MOST_SMALL
from biopsy.questions.builds.settings import ENGINE_PLACE, CheckTemplate, SettingChange
from biopsy.questions.layers.question import Judge
from biopsy.records import plain, plain_of
from biopsy.session.trial import Budget
from biopsy.slow_imports import onnx
from biopsy.tensors.results import Array, Feed, RunnerResult
from biopsy.text import count, html_table, printable

Kind: TypeAlias = Literal["setting", "release", "mark", "barrier", "precision", "spelling"]
"""What a workaround changes, in the order of what it costs the user."""

KINDS: tuple[Kind, ...] = get_args(Kind)

COST: Mapping[Kind, int] = {"setting": 1, "release": 2, "mark": 3, "barrier": 3, "precision": 4, "spelling": 5}
"""What a workaround of a kind costs the user, relative to the others."""

USUAL_SECONDS = 600.0
USUAL_BUDGET = Budget(seconds=USUAL_SECONDS)
"""The default budget of the search."""

FRESH = 2
"""How many fresh inputs, which the check has not seen, a workaround must be right on too."""


@dataclass(frozen=True, kw_only=True)
class WhatIsRight:
    """How to judge whether outputs are right.

    ``samples`` are the inputs of the check, all of which are tried, and ``drawn`` says how random ones are made;
    ``golden`` are the golden values of the check per sample, None if it has none. ``judge`` compares values.
    ``references`` are the engines to trust, of which the first that can run the model is used; ``named``: the user
    named them.
    """

    samples: Sequence[Feed]
    drawn: Inputs = field(default_factory=Inputs)
    golden: Sequence[Mapping[str, Array]] | None = None
    judge: Judge = field(default_factory=Judge)
    references: tuple[str, ...] = PLAIN
    named: bool = False


def golden_of(results: Iterable[RunnerResult], index: ModelIndex) -> list[Mapping[str, Array]] | None:
    """The golden values of a model's outputs, of the first result that has some; None if none has."""
    names = {index.names[tensor] for tensor in index.outputs}
    for result in results:
        if result.iterations and names & set(result.iterations[0].outputs):
            return [iteration.outputs for iteration in result.iterations]
    return None


@dataclass(frozen=True, kw_only=True)
class PatchedFile:
    """Where the best patched model is written.

    ``external`` is the name of a file beside it for weights of ``threshold`` bytes or more; None: they stay where they
    are, or are put into the model if it is in another folder than the original.
    """

    path: Path
    external: str | None = None
    threshold: int = MOST_SMALL


@dataclass(frozen=True, kw_only=True)
class WorkaroundQuestion:
    """Which workarounds to find.

    ``template`` is the check, with the spec of the engine that must be used. ``kinds`` are the kinds of changes to try.
    ``piece`` is a small failing part of the model, ``nodes`` are names of nodes or of the tensors that they compute:
    the nodes to change; without either, the model is reduced first. ``default_name`` stands for the model in the words,
    as ``{}`` does. ``timeout`` is in seconds per check. ``target`` is where the best patched model is written.
    """

    index: ModelIndex
    model: Path
    template: CheckTemplate
    right: WhatIsRight
    rules: Rules = field(default_factory=Rules)
    kinds: tuple[Kind, ...] = KINDS
    piece: Path | None = None
    nodes: tuple[str, ...] = ()
    default_name: str = "candidate.onnx"
    timeout: float | None = None
    budget: Budget = USUAL_BUDGET
    target: PatchedFile | None = None


def comparison_template(spec: EngineSpec, reference: str | None, options: Sequence[str]) -> CheckTemplate:
    """The ``biopsy run`` that compares an engine with ``reference``, by default the first other one of ``PLAIN``."""
    right = reference or next(engine for engine in PLAIN if parse_spec(engine) != spec)
    words = ("biopsy", "run", "{}", "--engine", right, "--engine", ENGINE_PLACE, *options)
    return CheckTemplate(words, spec, is_own_run=True)


PatchKind: TypeAlias = Literal["mark", "barrier", "precision", "spelling"]


@dataclass(frozen=True, kw_only=True)
class Patch:
    """A change of some nodes of a model.

    ``text`` describes it in one line, ``cost`` what it costs the user. ``nodes`` are places in the main graph of the
    model that it was made for. ``exact``: the results are the same bit for bit; otherwise they may be rounded
    differently, and ``holds`` says for which values they are equal otherwise, empty for all.
    """

    kind: PatchKind
    name: str
    text: str
    cost: str
    exact: bool
    nodes: tuple[int, ...]
    change: Callable[[onnx.ModelProto], onnx.ModelProto | None]
    holds: str = ""

    def applied(self, model: onnx.ModelProto) -> onnx.ModelProto | None:
        """A changed copy of a model; None if the nodes are missing or have changed.

        The nodes are found by the tensors that they write, so patches can be applied one after the other. Inputs and
        outputs keep their names, order and types; outputs that a mark adds come last. References to external weights
        stay as they are.
        """
        return self.change(model)


@dataclass(frozen=True, kw_only=True)
class ChangeCandidate:
    """A change of the engine's settings, or a set of patches of the model."""

    kind: Kind
    text: str
    change: SettingChange = field(default_factory=SettingChange)
    patches: tuple[Patch, ...] = ()

    @property
    def nodes(self) -> tuple[int, ...]:
        """The places, in the original, of the nodes that it changes."""
        return tuple(sorted({node for patch in self.patches for node in patch.nodes}))


def of_patches(patches: Sequence[Patch]) -> ChangeCandidate:
    """The candidate of one or several patches; its kind is that of the most expensive one."""
    kinds: list[Kind] = [patch.kind for patch in patches]
    kind = max(kinds, key=KINDS.index)
    return ChangeCandidate(kind=kind, text="; ".join(patch.text for patch in patches), patches=tuple(patches))


def patched(model: onnx.ModelProto, patches: Sequence[Patch]) -> onnx.ModelProto | None:
    """A copy of a model with all patches; None if one of them does not fit, perhaps because of another one."""
    result: onnx.ModelProto | None = model
    for patch in patches:
        result = None if result is None else patch.applied(result)
    return result


def interface_objection(before: onnx.ModelProto, after: onnx.ModelProto, *, may_add: bool) -> str | None:
    """How inputs or outputs have changed; None if they have not. ``may_add``: outputs may be added at the end."""
    inputs = [info.SerializeToString(deterministic=True) for info in before.graph.input]
    if [info.SerializeToString(deterministic=True) for info in after.graph.input] != inputs:
        return "it has other inputs"
    outputs = list(before.graph.output)
    first = list(after.graph.output)[: len(outputs)]
    if [info.name for info in first] != [info.name for info in outputs]:
        return "it has other outputs, or in another order"
    if len(after.graph.output) > len(outputs) and not may_add:
        return "it has more outputs"
    for old, new in zip(outputs, first, strict=True):
        if old.type.WhichOneof("value") and old.type != new.type:
            return f"output {old.name!r} is of another type"
    return None


SHOWN = 3
"""How many workarounds are shown as the best."""


@dataclass(frozen=True, kw_only=True)
class VerifiedChange:
    """A change with which the whole model is right.

    ``engine`` is the spec to use, with the ``environment`` variables. ``nodes`` are the labels of the changed nodes of
    the original, ``difference`` the lines that differ between the original and the patched model; both are empty if the
    model is not changed. ``holds`` are the values for which the patched nodes compute the same, a line for each patch
    that is limited. ``model`` are the bytes of the patched model. ``runs`` is in how many fresh processes the check
    passed.
    """

    kind: Kind
    text: str
    engine: str
    environment: Mapping[str, str] = field(default_factory=dict)
    nodes: tuple[str, ...] = ()
    difference: tuple[str, ...] = ()
    holds: tuple[str, ...] = ()
    model: bytes | None = field(default=None, repr=False)
    latency: Latency | None = None
    runs: int = 1

    @property
    def changes_model(self) -> bool:
        """Whether it patches the model, and does not change the engine."""
        return self.model is not None

    def as_json(self) -> dict[str, Any]:
        """Its fields as plain values, without the model."""
        tree: dict[str, Any] = plain(replace(self, model=None))
        del tree["model"]
        return tree


@dataclass(frozen=True, kw_only=True)
class TriedChange:
    """A change that was tried; ``reason`` says why the model is not ``right`` with it."""

    kind: Kind
    text: str
    right: bool
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class FailureRate:
    """The failure of the original in words, seen in ``failed`` of ``runs`` runs."""

    text: str
    failed: int
    runs: int


@dataclass(frozen=True, kw_only=True)
class Trust:
    """Whose values count as right: those of ``reference``; ``confirmed_by`` is another package's engine that agrees.

    A workaround is right on ``samples`` samples of the check and on ``fresh`` others.
    """

    reference: str
    confirmed_by: str | None
    samples: int
    fresh: int


@dataclass(frozen=True, kw_only=True)
class Workarounds:
    """The workarounds of a failure.

    ``piece`` names the nodes at which changes were searched for. ``output`` is the file of the best patched model, if
    it was written. ``stopped`` says what ended the search early, ``interrupted`` whether that was Ctrl-C.
    """

    model: str
    engine: str
    failure: FailureRate
    trust: Trust
    found: tuple[VerifiedChange, ...] = ()
    tried: tuple[TriedChange, ...] = ()
    piece: tuple[str, ...] = ()
    output: Path | None = None
    checks: int = 0
    seconds: float = 0.0
    stopped: str | None = None
    interrupted: bool = False

    @property
    def ordered(self) -> tuple[VerifiedChange, ...]:
        """All workarounds, the best first: by their cost for the user, then by the number of nodes, then by latency."""
        groups: dict[tuple[int, int], list[VerifiedChange]] = {}
        for change in self.found:
            groups.setdefault((COST[change.kind], len(change.nodes)), []).append(change)
        return tuple(change for rank in sorted(groups) for change in _fastest_first(groups[rank]))

    @property
    def best(self) -> tuple[VerifiedChange, ...]:
        """The best three, in order: the best one of each cost before the second one of any."""
        ordered = self.ordered
        costs = [COST[change.kind] for change in ordered]
        turns = sorted(range(len(ordered)), key=lambda place: (costs[:place].count(costs[place]), place))
        return tuple(ordered[place] for place in sorted(turns[:SHOWN]))

    @property
    def patched(self) -> VerifiedChange | None:
        """The best one that patches the model; None if there is none."""
        return next((change for change in self.ordered if change.changes_model), None)

    def __repr__(self) -> str:
        best = "; ".join(printable(each.text) for each in self.best) or f"none of {count(len(self.tried), 'change')}"
        return f"<Workarounds for {printable(self.failure.text)}: {best}>"

    def _repr_html_(self) -> str:
        rows = [
            (change.kind, change.text, "right", change.latency.text if change.latency is not None else "")
            for change in self.best
        ]
        rows += [(tried.kind, tried.text, "not right", tried.reason) for tried in self.tried if not tried.right]
        return html_table(f"{self.model} in {self.engine}: {self.failure.text}", ["kind", "change", "", ""], rows)

    def as_json(self) -> dict[str, Any]:
        """The part of a report with this result."""
        trust = self.trust
        return {
            "engine": self.engine,
            "failure": self.failure.text,
            "rate": plain_of(self.failure, "failed runs"),
            **plain_of(trust, "reference confirmed_by samples"),
            "fresh_samples": plain(trust.fresh),
            "best": [change.as_json() for change in self.best],
            "found": [change.as_json() for change in self.ordered],
            **plain_of(self, "tried piece checks stopped output"),
        }


def _fastest_first(changes: Sequence[VerifiedChange]) -> list[VerifiedChange]:
    """The changes by latency; those that may be as fast as the fastest come first, in their order, then the others."""

    def ratio(change: VerifiedChange, bound: Literal["ratio", "low", "high"], unknown: float) -> float:
        value = None if change.latency is None else getattr(change.latency, bound)
        return unknown if value is None else value

    left, ordered = list(changes), list[VerifiedChange]()
    while left:
        fastest = min(left, key=lambda change: ratio(change, "ratio", math.inf))
        equal = [change for change in left if ratio(change, "low", 0.0) <= ratio(fastest, "high", math.inf)]
        ordered += equal
        left = [change for change in left if change not in equal]
    return ordered


def labels(nodes: Sequence[int], names: Sequence[str]) -> tuple[str, ...]:
    """The names of the nodes at these places; ``names`` are those of all nodes."""
    return tuple(names[node] for node in nodes if node < len(names))
