"""The failure that a bundle shows: which engine is at fault, in which output, and what was excluded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal, TypeAlias

import numpy as np

from biopsy import errors
from biopsy.checks.judge import signature_of, status_text
from biopsy.comparison.mismatch import COSTS, NOT_FINITE, form_text, worst_of
from biopsy.comparison.runs import compare_runs
from biopsy.engines.base import Engine
from biopsy.engines.registry import PLAIN, TITLES, full_title, title_of
from biopsy.findings.bundle.job import BundleJob, EarlierFindings, Observation, RunQuestion
from biopsy.findings.bundle.reproduction import Reproduction
from biopsy.questions.layers.question import Judge
from biopsy.tensors.files import read_results
from biopsy.tensors.results import Array, Feed, RunnerResult
from biopsy.text import first_line, printable, shortened

Kind: TypeAlias = Literal["comparison", "non-finite", "engine failure", "crash", "timeout", "command"]

GOLDEN = "golden values"
"""What expected values are from that were recorded before."""

_LONGEST_MESSAGE = 300


@dataclass(frozen=True, kw_only=True)
class ObservedFailure:
    """How the model of a bundle failed.

    ``engine`` is the engine at fault, None if it is not known. ``stage``, ``name`` (of an exception or a signal) and
    ``message`` are as the check reported them. ``expected`` are the expected outputs of each sample, empty if none were
    compared; ``against`` says where they are from. ``output`` is the first one that is wrong, in the sample of this
    number; "" if it is not known. ``right_type`` is its element type if that is what is wrong.
    """

    kind: Kind
    title: str
    engine: Engine | None = None
    stage: str = ""
    name: str = ""
    message: str = ""
    expected: Sequence[Mapping[str, Array]] = ()
    against: str = ""
    output: str = ""
    sample: int = 0
    right_type: str = ""

    @property
    def against_title(self) -> str:
        """The engine that gives what is expected; the spec itself, quoted, if it holds further settings."""
        return full_title(self.against, "") if self.against in (*PLAIN, *TITLES) else repr(self.against)


def failure_of(job: BundleJob, observation: Observation) -> ObservedFailure:
    """The failure that was observed, under the title of the earlier findings, if they have one."""
    evidence, verdict = observation.evidence, observation.evidence.verdict
    engines = () if job.run is None else job.run.engines
    verb = errors.STAGE_VERBS.get(verdict.stage)
    when = "on the model" if verb is None else f"when it {verb} the model"
    if job.run is None:
        words = str(signature_of(evidence).words)
        failure = ObservedFailure(kind="command", title=f"The check fails: {observation.reason}", message=words)
    elif evidence.timed_out:
        named = [engine for engine in engines if verdict.engine in ("", engine.name)]
        engine = named[0] if len(named) == 1 else None
        title = f"{_name(engine)} does not end {when}"
        failure = ObservedFailure(kind="timeout", title=title, engine=engine, name="no end in time")
    elif verdict.stage == "compare":
        failure = _wrong_outputs(job.run, observation)
    else:
        # The verdict names the engine that failed; it is not among those that gave outputs.
        named = [engine for engine in engines if verdict.message.startswith(f"{engine.label} ")]
        without_outputs = [engine for place, engine in enumerate(engines) if place not in observation.results]
        likely = dict.fromkeys((*named, *without_outputs))
        fitting = [engine for engine in likely if verdict.engine in ("", engine.name)]
        is_crash = verdict.kind.startswith("SIG") or evidence.status < 0
        is_known = len(fitting) == 1 or (fitting and not is_crash)  # after a crash, no engine has outputs
        failing = fitting[0] if is_known else None
        name = verdict.kind or status_text(evidence.status).removeprefix("signal ")
        failure = ObservedFailure(
            kind="crash" if is_crash else "engine failure",
            title=f"{_name(failing)} {'crashes' if is_crash else 'fails'} {when}: {name}",
            engine=failing,
            stage=verdict.stage,
            name=name,
            message="" if is_crash else _line(first_line(verdict.message)),
        )
    return replace(failure, title=_line(job.earlier.title or failure.title))


def _line(text: str) -> str:
    return shortened(printable(" ".join(text.split())), _LONGEST_MESSAGE)


def _name(engine: Engine | None) -> str:
    """The name of the engine at the beginning of a sentence."""
    title = "the engine" if engine is None else title_of(engine.name)
    return title[:1].upper() + title[1:]


def _wrong_outputs(question: RunQuestion, observation: Observation) -> ObservedFailure:
    """The failure of an engine whose outputs differ from those of the first engine, or from golden values."""
    verdict, engines, results = observation.evidence.verdict, question.engines, observation.results
    place = next((at for at, engine in enumerate(engines) if engine.label == verdict.engine), None)
    names = ", ".join(map(repr, verdict.outputs[:3]))
    engine = engines[place or 0]
    if verdict.kind in COSTS:
        title = f"{_name(engine)} {COSTS[verdict.kind]} {engines[0].label}"
        return ObservedFailure(kind="command", title=title, engine=engine)
    if verdict.kind in NOT_FINITE:
        title = f"{_name(engine)} gives {NOT_FINITE[verdict.kind]} for {names}"
        given = [] if place is None or place not in results else results[place].iterations
        special = (
            (number, name)
            for number, iteration in enumerate(given)
            for name in verdict.outputs
            if name in iteration.outputs and not np.isfinite(iteration.outputs[name]).all()
        )
        sample, output = next(special, (0, ""))
        return ObservedFailure(
            kind="non-finite",
            title=title,
            engine=engine,
            stage="compare",
            name=verdict.kind,
            output=output,
            sample=sample,
        )
    actual = None if place is None else results.get(place)
    if actual is None:
        return ObservedFailure(kind="command", title=f"Outputs differ: {verdict.kind}")
    worst = worst_of(verdict.mismatches)
    title = f"{_name(engine)} computes {names or 'an output'} wrongly"
    if worst is not None and worst.is_of_form:
        title = f"{_name(engine)} gives {form_text(worst, 'the other side')}"
    of_type = [each for each in verdict.mismatches if each.kind == "type-mismatch"]
    right_type = (of_type[0].declared_form or of_type[0].expected_form) if of_type else ""
    failure = ObservedFailure(
        kind="comparison", title=title, engine=engine, stage="compare", name=verdict.kind, right_type=right_type
    )
    first = [(engines[0].label, results[0])] if place and 0 in results else []
    golden = ((GOLDEN, result) for path in question.golden for result in read_results(path))
    for against, expected in chain(first, golden):
        if of_type or question.unscriptable or not _agrees(question.judge, actual, expected):
            samples = [  # golden values may hold every tensor of the original
                {name: golden.outputs[name] for name in given.outputs if name in golden.outputs}
                for given, golden in zip(actual.iterations, expected.iterations, strict=False)
            ]
            wrong = (0, of_type[0].output) if of_type else _first_wrong(question.judge, actual, samples)
            sample, output = wrong
            return replace(failure, expected=samples, against=against, output=output, sample=sample)
    return failure


def _first_wrong(judge: Judge, actual: RunnerResult, expected: Sequence[Feed]) -> tuple[int, str]:
    """The number of the first sample with a wrong output, and the name of that; (0, "") if there is none."""
    for number, (given, right) in enumerate(zip(actual.iterations, expected, strict=False)):
        for name in given.outputs:
            if name in right and not judge.error(name, [given.outputs[name]], [right[name]]).passed:
                return number, name
    return 0, ""


def _agrees(judge: Judge, actual: RunnerResult, expected: RunnerResult) -> bool:
    try:
        return compare_runs(actual, expected, judge.tolerances, judge.stats, limits=judge.limits, detail="brief").passed
    except errors.CannotCompare:
        return True


def exclusions(
    observation: Observation,
    failure: ObservedFailure,
    reproduction: Reproduction,
    earlier: EarlierFindings,
    *,
    has_floats: bool = True,
) -> Iterator[tuple[str, bool]]:
    """Each cause that was looked at, and whether it is still open. ``has_floats``: the model computes with floats."""
    rounding = observation.evidence.verdict.rounding
    if failure.kind == "comparison" and failure.name == "mismatch" and not has_floats:
        yield "rounding (the attached model has no floating-point numbers)", False
    elif failure.kind == "comparison" and failure.name == "mismatch" and rounding is not None:
        times = "" if rounding.times is None else f"{rounding.times:.3g} times the rounding error of a plain run, "
        if rounding.verdict == "bug":
            yield f"rounding ({times}measured against float64 in the attached model)", False
        else:
            yield f"rounding ({rounding.reason or f'{times}measured against float64 in the attached model'})", True
    if earlier.how_often:
        yield f"chance ({earlier.how_often})", True
    elif not reproduction.steady:
        yield "chance (reproduce.py fails in some runs and not in others)", True
    elif observation.runs > 1:
        yield f"chance (it failed only in run {observation.runs} of the check)", True
    elif reproduction.reproduced != "not":
        yield "chance (it failed in the check and in reproduce.py, each in a process of its own)", False
    if failure.kind == "comparison" and failure.against == GOLDEN:
        yield "the golden values (they alone say what is right)", True
    if earlier.doubt:
        yield f"the model ({failure.against_title} {earlier.doubt})", True
