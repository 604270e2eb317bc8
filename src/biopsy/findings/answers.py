"""The sections of a report that answer questions about a failing model: known failures, layers, settings, builds,
releases, transformations and workarounds; and those of ``biopsy run``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from biopsy import errors
from biopsy.checks.judge import RunTally, interval
from biopsy.comparison.describe import noise_tree, run_tree
from biopsy.comparison.metrics import NotFinite
from biopsy.comparison.noise import NoiseReport
from biopsy.comparison.runs import RunComparison
from biopsy.engines.base import Engine
from biopsy.engines.registry import parse_spec
from biopsy.findings.bundle.engine_script import calls_of
from biopsy.findings.model import MeasuredErrors, map_tree
from biopsy.findings.report import Tree
from biopsy.findings.verdict import Verdict, Workaround
from biopsy.model.index import ModelIndex
from biopsy.questions.builds.building import BuildFindings
from biopsy.questions.builds.difference import Difference
from biopsy.questions.builds.flags import Flags
from biopsy.questions.known_failures.lookup import KnownLookup
from biopsy.questions.layers.findings import Engines, LayerFindings, layers_tree
from biopsy.questions.releases.findings import ReleaseFindings
from biopsy.questions.transformations.question import TransformationFindings
from biopsy.questions.workarounds.question import Workarounds
from biopsy.records import plain, plain_of
from biopsy.text import count, first_of


def known_verdict(lookup: KnownLookup) -> Verdict:
    """Whether the piece looks like a known bug. ``certainty`` says what keeps a match from being sure."""
    best = lookup.best
    not_tried = [f"Whether it looks like {each}: comparing them took too long." for each in lookup.undecided]
    if best is None:
        return Verdict(
            kind="unknown", text=f"It {'' if lookup.matches else 'is '}{lookup.sentence}.", not_tried=not_tried
        )
    doubt = None if best.is_sure else "pattern, engine, way of failing and release do not all agree, or are not known"
    if doubt is None and best.failure.conditions:
        doubt = f"what else it needs is not checked: {' '.join(best.failure.conditions)}"
    kind = "fails" if lookup.seen.stage or lookup.seen.kind else "unknown"
    return Verdict(kind=kind, text=f"It {best.sentence}.", certainty=doubt, not_tried=not_tried)


_MOST_NAMED = 5


def layers_sections(
    findings: LayerFindings, index: ModelIndex, path: Path, engines: Engines, samples: int
) -> dict[str, Any]:
    """The sections of an examination of layers: ``verdict``, ``whole`` (the map with the errors) and ``layers``.

    ``path`` is the file of the model.
    """
    ratios: dict[str, dict[int, float]] = {"introduced": {}, "propagated": {}}
    for layer in findings.layers:
        for kind, error in (("introduced", layer.introduced), ("propagated", layer.propagated)):
            if error is not None and not math.isnan(error.tolerance_ratio):
                ratios[kind][layer.node.number] = error.tolerance_ratio
    wrong = {node for suspect in findings.suspects for node in suspect.nodes}
    return {
        "verdict": _layers_verdict(findings),
        "whole": map_tree(index, sorted(wrong), MeasuredErrors(**ratios)),
        "layers": layers_tree(findings, path, engines, samples),
    }


def _layers_verdict(findings: LayerFindings) -> Verdict:
    unmeasured, misfits, suspects = len(findings.unmeasured), len(findings.misfits), findings.suspects
    not_tried = {
        "layers that were not measured before it was interrupted": not findings.complete,
        f"{count(unmeasured, 'layer')} that no golden value judges": unmeasured,
        f"{count(misfits, 'golden value')} not of the type or shape that the model computes": misfits,
    }
    kind, text = "unknown", "Tensors are out of tolerance, and no isolated layer makes them so."
    if suspects:
        places = [f" ({suspect.origins.places[0]})" if suspect.origins.places else "" for suspect in suspects]
        named = [f"{suspect.name}{place}" for suspect, place in zip(suspects, places, strict=True)]
        masked = " The outputs are right all the same: what follows hides the error." if findings.is_masked else ""
        if findings.wrong_if_marked:
            names = first_of([suspect.name for suspect in findings.wrong_if_marked], _MOST_NAMED)
            masked += f" Only if a result is an output of the model: {names}; the model itself is right there."
        number = count(len(suspects), "layer or group", "layers or groups")
        kind, text = "wrong-layers", f"{number} make errors: {'; '.join(named[:_MOST_NAMED])}.{masked}"
    elif findings.failure is not None:
        kind, text = "fails", f"the engine {findings.failure.text}"
    elif findings.nothing_wrong:
        kind, text = "passes" if findings.passed else "unknown", "No tensor is out of tolerance."
    return Verdict(kind=kind, text=text, not_tried=[text for text, holds in not_tried.items() if holds])


def settings_tree(flags: Flags, engine: str, version: str | None) -> Tree:
    """The key ``settings`` of a search for the settings that matter; ``engine`` is the spec that was varied."""
    tree = flags.as_json()
    for entry, trial in zip(tree["tried"], flags.tried, strict=True):
        entry["change"] = trial.change.text
    for entry, switch in zip(tree["switches"], flags.switches, strict=True):
        entry |= {"change": switch.change.text, "text": switch.text}
    return {"engine": engine, "version": version, **tree}


def settings_verdict(flags: Flags, lines: Sequence[str], engines: Sequence[str]) -> Verdict:
    """Which settings make the failure go away.

    ``lines`` are command lines of the check with each of the switches, ``engines`` the specs with their settings.
    """
    if not flags.switches:
        return Verdict(kind="unknown", text="None of the settings that were tried makes the failure go away.")
    best = flags.switches[0]
    workarounds = [
        Workaround(text=f"It goes away {switch.text}.", line=line, engine=None if switch.change.environment else engine)
        for switch, line, engine in zip(flags.switches, lines, engines, strict=True)
        if switch.verified
    ]
    doubt = None if best.verified else "not confirmed by fresh processes"
    return Verdict(kind="fails", text=f"The failure goes away {best.text}.", certainty=doubt, workarounds=workarounds)


_MOST_GROUPS = 500
_MOST_KINDS = 200


def builds_tree(builds: BuildFindings) -> Tree:
    """The key ``builds``: the engine, how many builds had which outcome, and what bad builds have in common."""
    return {
        "engine": builds.engine,
        "version": builds.version or None,
        "runs": builds.runs,
        "outcomes": {outcome.value: times for outcome, times in builds.outcomes.items()},
        "seconds": round(builds.seconds, 3),
        "difference": difference_tree(builds.difference),
    }


def builds_verdict(builds: BuildFindings) -> Verdict:
    """How many builds are bad, and what they have in common."""
    text = f"{builds.bad} of {count(builds.runs, 'build')} are bad."
    causes = [group.representative.text for group in builds.difference.decided]
    if causes:
        return Verdict(kind="flaky", text=f"{text} It goes with {', '.join(causes[:3])}.")
    if not builds.runs:
        return Verdict(kind="unknown", text="Nothing was built.")
    return Verdict(kind="passes" if not builds.bad else "fails" if not builds.good else "flaky", text=text)


def difference_tree(difference: Difference) -> Tree:
    """The choices that are more frequent in bad builds than in good ones."""
    return {
        **plain_of(difference, "good bad"),
        "tests": difference.groups_compared,
        "decided": len(difference.decided),
        "more_builds": difference.more,
        "groups": [
            {
                "choices": [choice._asdict() for choice in group.choices],
                **plain_of(group.table, "bad good"),
                **plain_of(group, "chance adjusted"),
            }
            for group in difference.groups[:_MOST_GROUPS]
        ],
    }


def repeat_tree(tally: RunTally, command: Sequence[str], until: Any, *, interrupted: bool) -> Tree:
    """The key ``repeat``: how often a command passed, the 95 % confidence interval of that rate, and how it failed."""
    return {
        "command": list(command),
        "until": until,
        "interrupted": interrupted,
        "iterations": tally.runs,
        **plain_of(tally, "passed failed"),
        "others": {outcome.value: times for outcome, times in tally.undecided.items()},
        "pass_rate": tally.passed / tally.decided if tally.decided else None,
        "pass_rate_interval": list(interval(tally.passed, tally.decided)),
        "failures": [plain_of(kind, "reason times first") for kind in tally.kinds[:_MOST_KINDS]],
    }


def repeat_verdict(tally: RunTally) -> Verdict:
    """How often the command failed."""
    text = f"It failed in {tally.failed} of {count(tally.decided, 'run')}."
    if not tally.decided:
        return Verdict(kind="unknown", text="No run has passed or failed.")
    return Verdict(kind="passes" if not tally.failed else "fails" if not tally.passed else "flaky", text=text)


def releases_verdict(releases: ReleaseFindings) -> Verdict:
    """Which release broke or mended it; ``workarounds`` are the releases to keep to."""
    pins = [f"{releases.package}{pin}" for pin in releases.pins]
    workarounds = [Workaround(text=f"Keep to {pin}.", line=f"pip install '{pin}'") for pin in pins]
    unsure = [f"not confirmed when asked again: {border.text}" for border in releases.borders if not border.verified]
    certainty = "; ".join(filter(None, [*unsure, releases.doubt])) or None
    kind = {None: "unknown", "no release tried fails": "passes"}.get(releases.answer, "fails")
    return Verdict(kind=kind, text=f"{releases.text}.", certainty=certainty, workarounds=workarounds)


AGREE = (
    "in the reference evaluator both models give the same: the engine may be wrong about the transformed one, and not "
    "the tool"
)
"""The doubt about a tool that breaks a model in the engine, but not in the reference evaluator."""


def transformation_verdict(findings: TransformationFindings) -> Verdict:
    """What the tool does wrong, and how to leave out the pass that does it."""
    passes = findings.passes
    if findings.fault == "control":
        return Verdict(kind="fails", text=findings.sentence)
    lines = [line for line in (passes.omission.command, passes.omission.python) if line]
    workarounds = [Workaround(text="The piece is right without it.", line=line) for line in lines if passes.verified]
    doubt = None if passes.verified or not passes.without else "not confirmed by fresh processes"
    if findings.where.second_opinion == "right":
        doubt = AGREE
    return Verdict(kind="fails", text=findings.sentence, certainty=doubt, workarounds=workarounds)


def workarounds_tree(workarounds: Workarounds, index: ModelIndex) -> Tree:
    """The key ``workaround``; ``python`` of the best ones are lines of Python that run the model with it."""
    tree = workarounds.as_json()
    for entry, change in zip(tree["best"], workarounds.best, strict=True):
        entry["python"] = list(calls_of(parse_spec(change.engine), index))
    return tree


def workarounds_verdict(search: Workarounds, lines: Mapping[int, str]) -> Verdict:
    """Which changes make the model right. ``lines`` are the checks that show it, by rank among the best, from 1."""
    if not search.tried:
        return Verdict(kind="unknown", text="No change could be tried.")
    if not search.found:
        text = f"Nothing that was tried makes the model right in {search.engine}."
        return Verdict(kind="unknown" if search.stopped else "fails", text=text)
    engines = [None if change.environment or change.changes_model else change.engine for change in search.best]
    best = [
        Workaround(text=f"{change.text}.", line=lines.get(rank), engine=engines[rank - 1])
        for rank, change in enumerate(search.best, 1)
    ]
    doubt = None
    if not search.trust.confirmed_by:
        doubt = f"what is right is what {search.trust.reference} gives; nothing else confirms it"
    text = f"The model is right with: {search.best[0].text}."
    return Verdict(kind="fails", text=text, certainty=doubt, workarounds=best)


@dataclass(frozen=True, kw_only=True)
class EngineRun:
    """The run of one engine: ``seconds`` of each iteration (None where not measured), or how it failed."""

    engine: Engine
    seconds: Sequence[float | None] = ()
    remarks: Sequence[str] = ()
    failure: errors.EngineFailure | None = None

    @property
    def version(self) -> str | None:
        """The version of the engine's package; None after a crash, since asking could crash this process too."""
        return None if isinstance(self.failure, errors.EngineCrash) else self.engine.version()


def run_section(
    engines: Sequence[EngineRun],
    compared: Sequence[RunComparison] = (),
    noise: Sequence[NoiseReport] = (),
    not_finite: Sequence[tuple[str, NotFinite]] = (),
) -> Tree:
    """The key ``run``; ``not_finite`` pairs the label of an engine with NaN or infinity in its outputs."""
    return {
        "engines": [
            {
                **plain_of(run.engine, "label name"),
                **plain_of(run, "version seconds remarks"),
                "failure": run.failure and plain_of(run.failure, "stage kind message"),
            }
            for run in engines
        ],
        "comparisons": [run_tree(each) for each in compared],
        "noise": [noise_tree(each) for each in noise],
        "not_finite": [{"engine": engine, **plain(values)} for engine, values in not_finite],
    }
