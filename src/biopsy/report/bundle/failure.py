"""What a bundle tells of: which of the three kinds of failure, in words, and the values that show it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from biopsy import errors
from biopsy.checks.signature import signature_of, status_text
from biopsy.checks.verdict import VerdictFile
from biopsy.comparison.runs import compare_runs
from biopsy.engines.base import Engine
from biopsy.engines.titles import title_of
from biopsy.report.bundle.job import BundleJob, RunQuestion
from biopsy.report.bundle.observation import Observation
from biopsy.tensors.files import read_results
from biopsy.tensors.results import Array, Iteration, RunnerResult
from biopsy.text import first_line, printable, shortened

Kind: TypeAlias = Literal["comparison", "non-finite", "engine failure", "crash", "timeout", "command"]

_LONGEST_MESSAGE = 300


@dataclass(frozen=True, kw_only=True)
class ObservedFailure:
    """How the model of a bundle failed.

    ``engine`` is whose fault it is, None where only a command tells. ``stage``, ``name`` (the name of an exception, of
    a signal) and ``message`` are as the check reported. ``actual`` and ``expected`` are values of each sample that
    differ, by output; empty where nothing was compared, or for a function of the user's.
    """

    kind: Kind
    title: str
    engine: Engine | None = None
    stage: str = ""
    name: str = ""
    message: str = ""
    actual: Sequence[Mapping[str, Array]] = ()
    expected: Sequence[Mapping[str, Array]] = field(default=())
    against: str = ""


def failure_of(job: BundleJob, observation: Observation) -> ObservedFailure:
    """The failure that was observed, under the title that was found for it before, if one was."""
    found = _observed(job, observation)
    return replace(found, title=_line(job.found.title)) if job.found.title else found


def _observed(job: BundleJob, observation: Observation) -> ObservedFailure:
    evidence = observation.evidence
    if job.run is None:
        words = str(signature_of(evidence).words)
        return ObservedFailure(kind="command", title=_line(f"The check fails: {observation.reason}"), message=words)
    said = evidence.verdict
    if evidence.timed_out:
        engine = job.run.engines[0] if len(job.run.engines) == 1 else None
        return ObservedFailure(
            kind="timeout", title=f"{_name(engine)} does not end", engine=engine, name="no end in time"
        )
    if said.stage == "compare":
        return _of_values(job.run, observation)
    engine = _failing_engine(job.run.engines, observation)
    is_crash = said.kind.startswith("SIG") or evidence.status < 0
    name = said.kind or status_text(evidence.status).removeprefix("signal ")
    does = {"load": "loads", "build": "builds"}.get(said.stage, "runs")
    title = f"{_name(engine)} {'crashes' if is_crash else 'fails'} when it {does} the model: {name}"
    message = "" if is_crash else _line(first_line(said.message))
    kind: Kind = "crash" if is_crash else "engine failure"
    return ObservedFailure(kind=kind, title=_line(title), engine=engine, stage=said.stage, name=name, message=message)


def _line(text: str) -> str:
    return shortened(printable(" ".join(text.split())), _LONGEST_MESSAGE)


def _name(engine: Engine | None) -> str:
    """The engine as a sentence begins with it."""
    title = "the engine" if engine is None else title_of(engine.name)
    return title[:1].upper() + title[1:]


def _failing_engine(engines: Sequence[Engine], observation: Observation) -> Engine | None:
    """The engine that failed: named in the verdict, and not among those that gave outputs."""
    said = observation.evidence.verdict
    named = [engine for engine in engines if said.message.startswith(f"{engine.label} ")]
    left = [engine for place, engine in enumerate(engines) if place not in observation.results]
    found = [engine for engine in (*named, *left) if said.engine in ("", engine.name)]
    return found[0] if found else None


def _of_values(question: RunQuestion, observation: Observation) -> ObservedFailure:
    said = observation.evidence.verdict
    place = next((at for at, engine in enumerate(question.engines) if engine.label == said.engine), None)
    if said.kind == "not-finite":
        place = 0 if place is None else place
        return _of_one(question.engines[place], said, "non-finite", "gives NaN or infinity")
    actual = None if place is None else observation.results.get(place)
    if place is None or actual is None:
        return ObservedFailure(kind="command", title=_line(f"Outputs differ: {said.kind}"))
    engine = question.engines[place]
    title = f"{_name(engine)} computes {', '.join(map(repr, said.outputs[:3])) or 'an output'} wrongly"
    found = ObservedFailure(kind="comparison", title=_line(title), engine=engine, stage="compare", name=said.kind)
    for against, expected in _expected(question, observation, place):
        if question.beyond or not _same(question, actual, expected):
            return _with_values(found, actual, expected, against)
    return found


def _of_one(engine: Engine, said: VerdictFile, kind: Kind, does: str) -> ObservedFailure:
    title = f"{_name(engine)} {does} for {', '.join(map(repr, said.outputs[:3]))}"
    return ObservedFailure(kind=kind, title=_line(title), engine=engine, stage="compare", name=said.kind)


def _expected(question: RunQuestion, observation: Observation, place: int) -> Iterator[tuple[str, RunnerResult]]:
    """What an engine was compared with, in order, and what that is called."""
    first = observation.results.get(0)
    if place > 0 and first is not None:
        yield question.engines[0].label, first
    for path in question.golden:
        for result in read_results(path):
            yield "golden values", result


def _same(question: RunQuestion, actual: RunnerResult, expected: RunnerResult) -> bool:
    try:
        limits = question.tolerances, question.stats
        return compare_runs(actual, expected, *limits, limits=question.limits, detail="brief").passed
    except errors.CannotCompare:
        return True


def _with_values(found: ObservedFailure, actual: RunnerResult, expected: RunnerResult, against: str) -> ObservedFailure:
    pairs = list(zip(actual.iterations, expected.iterations, strict=False))
    kept = [_sliced(one, other) for one, other in pairs]
    return ObservedFailure(
        kind=found.kind,
        title=found.title,
        engine=found.engine,
        stage=found.stage,
        name=found.name,
        actual=[dict(one.outputs) for one, _ in pairs],
        expected=kept,
        against=against,
    )


def _sliced(actual: Iteration, expected: Iteration) -> dict[str, Array]:
    """Of what was expected, possibly of every tensor of a whole model, what the model of the bundle gives."""
    return {name: expected.outputs[name] for name in actual.outputs if name in expected.outputs}
