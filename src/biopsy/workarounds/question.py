"""What is asked of a search for a workaround: the model, the engine that must be used, the check, what to try."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from biopsy.checks.judge import Rules
from biopsy.engines.feeding import Inputs
from biopsy.engines.yardsticks import PLAIN
from biopsy.layerwise.tensor_errors import Judge
from biopsy.model.index import ModelIndex
from biopsy.model.weights_file import MOST_SMALL
from biopsy.session.budget import Budget
from biopsy.tactics.setting_changes import CheckTemplate
from biopsy.tensors.results import Array, Feed, RunnerResult

Kind: TypeAlias = Literal["setting", "release", "mark", "barrier", "precision", "spelling"]
"""What a workaround changes, in the order of what it costs the user."""

KINDS: tuple[Kind, ...] = get_args(Kind)

COST: Mapping[Kind, int] = {"setting": 1, "release": 2, "mark": 3, "barrier": 3, "precision": 4, "spelling": 5}
"""What a workaround of a kind costs the user, beside the others."""

USUAL_SECONDS = 600.0
USUAL_BUDGET = Budget(seconds=USUAL_SECONDS)
"""What the search may cost, if nobody says otherwise."""

FRESH = 2
"""Inputs that the check has not seen, on which a workaround must be right too."""


@dataclass(frozen=True, kw_only=True)
class WhatIsRight:
    """How it is told that outputs are right.

    ``samples`` are the inputs of the check, each of which is tried, and ``drawn`` how random ones are made; ``golden``
    are the values that the check itself holds against, per sample, None if it has none. ``judge`` says what is equal.
    ``references`` are the engines to trust, the first that can run the model; ``named``: the user has named them.
    """

    samples: Sequence[Feed]
    drawn: Inputs = field(default_factory=Inputs)
    golden: Sequence[Mapping[str, Array]] | None = None
    judge: Judge = field(default_factory=Judge)
    references: tuple[str, ...] = PLAIN
    named: bool = False


def golden_of(results: Iterable[RunnerResult], index: ModelIndex) -> list[Mapping[str, Array]] | None:
    """The values that a check holds the outputs of a model against: of the first runner that has some; None if none."""
    names = {index.names[tensor] for tensor in index.outputs}
    for result in results:
        if result.iterations and names & set(result.iterations[0].outputs):
            return [iteration.outputs for iteration in result.iterations]
    return None


@dataclass(frozen=True, kw_only=True)
class PatchedFile:
    """Where the best patched model is written.

    ``external`` is the name of a file beside it for weights of ``threshold`` bytes or more; None to leave them where
    they are, or inside if it stands in another folder than the original.
    """

    path: Path
    external: str | None = None
    threshold: int = MOST_SMALL


@dataclass(frozen=True, kw_only=True)
class WorkaroundQuestion:
    """What to find.

    ``template`` are the words of the check with a place for the engine that must be used, whose spec it holds.
    ``kinds`` is what to try. ``piece`` is a small failing part of the model, ``nodes`` are names of nodes or of what
    they compute: where to look; without both the model is reduced first. ``default_name`` stands for the model in the
    words, as ``{}`` does. ``timeout`` is in seconds per check. ``target`` is where the best patched model is written.
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
