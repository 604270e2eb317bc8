"""Does it fail? Load, build, run, compare, NaN: which engine, against which, and whether that is an engine's fault."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from biopsy import errors
from biopsy.checks.command_line import OwnRun, parse
from biopsy.checks.judge import signature_of
from biopsy.checks.outcome import Outcome
from biopsy.comparison.mismatch import error_size, error_text
from biopsy.diagnosis.context import CheckRun, DiagnosisStep, StepAnswer, StepContext
from biopsy.diagnosis.facts import ComparisonSeen, FailureReport, FailureSeen, FaultBeforeEngines, KnownFacts
from biopsy.diagnosis.question import Words, larger, of_same_size, shape_words, shapes_of, with_inputs
from biopsy.engines.registry import PLAIN, parse_spec
from biopsy.model.nodes import random_words
from biopsy.processes.reading import read_plain

REPORT = "run.json"
"""The name of the file, in the folder of the evidence."""

_MOST_BYTES = 256 << 20


def tree_of(path: Path) -> dict[str, Any]:
    """The object in a file; an empty one where what makes it has ended before it was written, or it is too large."""
    try:
        tree = json.loads(read_plain(path, _MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return tree if isinstance(tree, dict) else {}


def run_of(path: Path) -> dict[str, Any]:
    """What the report of a run says of engines and comparisons; nothing where it has ended before that was written."""
    found = tree_of(path).get("run")
    return found if isinstance(found, dict) else {}


def versions_in(tree: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """The label of each engine that was run, and its version."""
    engines = tree.get("engines", [])
    return tuple((str(one["label"]), str(one["version"])) for one in engines if one.get("version"))


def nan_in(tree: dict[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The outputs in which an engine gives NaN, and the engines that do; infinity alone may be meant."""
    odd = [one for one in tree.get("not_finite", []) if one.get("nan")]
    names = dict.fromkeys(str(one.get("output", one.get("name"))) for one in odd)
    return tuple(names), tuple(dict.fromkeys(str(one["engine"]) for one in odd))


# Does it fail? Load, build, run, compare, NaN: which engine, against which, and whether that is an engine's fault.

_RUNS = 8
"""Runs after which a model is said to pass: a failure that shows every second time is missed in 1 of 256 cases."""

_REPORT_OPTION = "--report"

_SHARE_OF_ANOTHER = 0.25
"""Of the time that is left, for a comparison with a second engine: the reference evaluator may take long."""

_FEWEST_RUNS = 2
_SHARE_OF_RUNS = 0.1
"""Of the time that is left; where runs take longer, fewer of them are enough."""

_MOST_OUTPUT = 2000
"""Characters of the end of an output that are kept."""


@dataclass(kw_only=True)
class _Look:
    """What is being found out: the engines with their versions, the ``rows`` of them that agree, and that in words."""

    context: StepContext
    engines: dict[str, str] = field(default_factory=dict)
    rows: list[Words] = field(default_factory=list)
    passed: list[str] = field(default_factory=list)
    not_compared: list[str] = field(default_factory=list)

    def run(self, engines: Sequence[str], *more: str, description: str, share: float = 1.0) -> CheckRun:
        """Run the original in engines. Raises CheckError if nothing can be said of it."""
        question = self.context.question
        report = question.folder / REPORT
        report.unlink(missing_ok=True)
        words = question.original_words(engines, *more, _REPORT_OPTION, str(report))
        seen = self.context.run(words, question.model, description=description, share=share)
        self.engines.update(versions_in(run_of(report)))
        return _said(seen)

    def check(self, check: Words, description: str) -> CheckRun:
        """Run a check of the user's on the original; one that is ``biopsy run`` also writes its report."""
        question, command = self.context.question, parse(check)
        report = question.folder / REPORT
        report.unlink(missing_ok=True)
        if isinstance(command, OwnRun) and _REPORT_OPTION not in command.words:
            check = command.with_options(_REPORT_OPTION, str(report)).words
        seen = self.context.run(check, question.model, description=description)
        self.engines.update(versions_in(run_of(report)))
        return _said(seen)

    @property
    def compared(self) -> ComparisonSeen:
        """What was compared so far."""
        return ComparisonSeen(
            engines=tuple(self.engines.items()),
            rows=tuple(self.rows),
            passed=tuple(self.passed),
            not_compared=tuple(self.not_compared),
        )


def _said(seen: CheckRun) -> CheckRun:
    """Raise CheckError for a run that says nothing of the model."""
    if seen.judged.outcome is Outcome.INVALID:
        raise errors.CheckError(f"nothing can be said of this model: {seen.judged.reason}")
    return seen


def _answer(facts: KnownFacts, context: StepContext) -> StepAnswer:
    question = context.question
    look = _Look(context=context)
    if question.check is not None:
        failure = _by_check(look, question.check)
        return _answered(facts, look, failure, None)
    for engines in question.rivals:
        share = 1.0 if engines == question.rivals[0] else _SHARE_OF_ANOTHER
        seen = look.run(engines, description=f"{' against '.join(engines)}", share=share)
        if seen.timed_out:
            look.not_compared.append(f"{engines[0]} gave no answer in {seen.judged.evidence.seconds:.0f} s")
            continue
        failure, fault = _failure(look, engines, seen) if seen.fails else (None, None)
        if failure is not None:
            return _answered(facts, look, failure, fault)
        if seen.passes:
            look.rows.append(engines)
            look.passed.append(f"{' and '.join(engines)} agree")
    failure, fault = _not_finite(look)
    if failure is None:
        failure = _after_more_runs(look)
    return _answered(facts, look, failure, fault)


def _answered(
    facts: KnownFacts, look: _Look, failure: FailureSeen | None, fault: FaultBeforeEngines | None
) -> StepAnswer:
    random = random_words(look.context.question.index)
    if failure is not None and failure.said.stage == "compare" and random is not None:
        fault = FaultBeforeEngines(kind="random", every=(), text=random)
    elif failure is not None and look.context.question.check is None:
        failure, fault = _with_larger_inputs(look, failure, fault)
    known = replace(facts, compared=look.compared, failure=failure, fault_before=fault)
    return StepAnswer(known, _line(known))


def _line(facts: KnownFacts) -> str:
    compared, failure = facts.compared, facts.failure
    if failure is None:
        assert compared is not None
        return f"no · {' · '.join([*compared.passed, *compared.not_compared])}"
    if facts.fault_before is not None:
        return facts.fault_before.text
    error = f" · {failure.error}" if failure.error else ""
    return f"{failure.said.signature}{error}"


# A check of the user's


def _by_check(look: _Look, check: Words) -> FailureSeen | None:
    context = look.context
    question = context.question
    number, started, most = 0, context.seconds_left, context.seconds_left * _SHARE_OF_RUNS
    while number < _RUNS and (number < _FEWEST_RUNS or started - context.seconds_left < most):
        number += 1
        seen = look.check(check, f"run {number}")
        if seen.fails:
            named = seen.judged.evidence.verdict.engine
            several = len(question.engines) > 1
            suspect = named if named in question.engines else question.engines[-1] if question.engines else None
            trusted = question.engines[0] if several and question.engines[0] != suspect else None
            return failure_of(seen, check, trusted=trusted, suspect=suspect)
    look.passed.append(f"the check passes in {number} of {number} runs")
    return None


def failure_of(seen: CheckRun, check: Words, *, trusted: str | None, suspect: str | None) -> FailureSeen:
    """The record of a run that fails."""
    evidence = seen.judged.evidence
    said, size = evidence.verdict, error_size(evidence.verdict.mismatches, evidence.verdict.rounding)
    return FailureSeen(
        check=check,
        said=FailureReport(
            signature=str(signature_of(evidence)) if seen.judged.outcome is Outcome.REPRODUCES else seen.judged.reason,
            engine=said.engine,
            stage=said.stage,
            kind=said.kind,
            message=said.message,
            outputs=said.outputs,
        ),
        status=evidence.status,
        output=evidence.output.decode("utf-8", "replace")[-_MOST_OUTPUT:],
        error="" if size is None else error_text(size),
        tolerance_ratio=None if size is None else size.worst.times_tolerance,
        trusted=trusted,
        suspect=suspect,
        seconds=evidence.seconds,
    )


# Engines that are compared


def _failure(
    look: _Look, engines: Sequence[str], seen: CheckRun
) -> tuple[FailureSeen | None, FaultBeforeEngines | None]:
    """Whose failure it is; nothing if only an engine fails that nobody asked about."""
    said = seen.judged.evidence.verdict
    if said.stage == "compare":
        suspect = said.engine if said.engine in engines else engines[-1]
        pair = (engines[0], suspect) if suspect != engines[0] else (suspect,)
        words = look.context.question.original_words(engines)
        if len(engines) > len(pair):
            fewer = look.run(pair, description=f"only {' against '.join(pair)}")
            if fewer.fails:
                seen, words = fewer, look.context.question.original_words(pair)
        return failure_of(seen, words, trusted=pair[0] if len(pair) > 1 else None, suspect=suspect), None
    return _refusal(look, engines, seen)


def _refusal(
    look: _Look, engines: Sequence[str], seen: CheckRun
) -> tuple[FailureSeen | None, FaultBeforeEngines | None]:
    """Which engine cannot load, build or run the model: each is asked alone."""
    question = look.context.question
    alone = {engine: look.run([engine], description=f"{engine} alone") for engine in dict.fromkeys(engines)}
    names = {parse_spec(engine).name for engine in engines}
    if all(seen.fails for seen in alone.values()):
        more = [engine for engine in PLAIN if parse_spec(engine).name not in names]
        alone |= {engine: look.run([engine], description=f"{engine} alone") for engine in more}
    failing = [engine for engine, run in alone.items() if run.fails]
    if not failing:
        return _only_together(look, engines, seen)
    asked = [engine for engine in question.engines if engine in failing]
    if not asked:  # an engine that was only to be compared with
        look.not_compared += [f"{engine} cannot say: {alone[engine].judged.reason}" for engine in failing]
        return None, None
    suspect = next((engine for engine in asked if engine != engines[0]), asked[0])
    trusted = next((engine for engine, run in alone.items() if not run.fails), None)
    failure = failure_of(alone[suspect], question.original_words([suspect]), trusted=trusted, suspect=suspect)
    if trusted is not None or len({parse_spec(engine).name for engine in failing}) < 2:
        return failure, None
    text = f"every engine that was tried fails on the model: {', '.join(failing)}"
    return failure, FaultBeforeEngines(kind="refused", every=tuple(failing), text=text)


def _only_together(
    look: _Look, engines: Sequence[str], seen: CheckRun
) -> tuple[FailureSeen | None, FaultBeforeEngines | None]:
    """The failure of a run of several engines, each of which has run alone: it is flaky, or they do not go together.

    It is that of the engine that the run names; nothing if that is one that was only to be compared with.
    """
    question, named = look.context.question, seen.judged.evidence.verdict.engine
    if named in engines and named not in question.engines:
        look.not_compared.append(f"{named} failed once, and not when it was asked again: {seen.judged.reason}")
        return None, None
    suspect = named if named in question.engines else None
    return failure_of(seen, question.original_words(engines), trusted=None, suspect=suspect), None


# NaN that no comparison sees


def _not_finite(look: _Look) -> tuple[FailureSeen | None, FaultBeforeEngines | None]:
    """NaN in an output of the engines that agree: the model or its inputs make it."""
    question = look.context.question
    engines = tuple(dict.fromkeys(engine for row in look.rows for engine in row)) or question.engines
    seen = look.run(engines, "--validate", description="NaN in an output?")
    names, labels = nan_in(run_of(question.folder / REPORT)) if seen.fails else ((), ())
    if seen.fails and not names and seen.judged.evidence.verdict.kind != "not-finite":
        return _failure(look, engines, seen)
    if not names:
        look.passed.append("no output holds NaN" if not seen.fails else "outputs hold infinity, but no NaN")
        return None, None
    suspect = question.engines[-1]
    words = question.original_words([suspect], "--validate")
    failure = failure_of(seen, words, trusted=None, suspect=suspect)
    text = f"{' and '.join(labels)} {'all give' if len(labels) > 1 else 'gives'} NaN in {', '.join(map(repr, names))}"
    if {parse_spec(label).name for label in labels} != {parse_spec(label).name for label in engines}:
        return failure, None
    return failure, FaultBeforeEngines(kind="not-finite", every=labels, text=text)


def _after_more_runs(look: _Look) -> FailureSeen | None:
    """The failure, if it shows in one of some more runs."""
    context = look.context
    engines = next(iter(look.rows), context.question.engines)
    number, started, most = 1, context.seconds_left, context.seconds_left * _SHARE_OF_RUNS
    while number < _RUNS and (number < _FEWEST_RUNS or started - context.seconds_left < most):
        number += 1
        seen = look.run(engines, description=f"run {number}")
        if seen.fails:
            return _failure(look, engines, seen)[0]
    look.passed.append(f"{number} of {number} runs pass")
    return None


# Inputs that are too small


def _with_larger_inputs(
    look: _Look, failure: FailureSeen, fault: FaultBeforeEngines | None
) -> tuple[FailureSeen, FaultBeforeEngines | None]:
    """The failure, with shapes of inputs that do not fail; the inputs' fault if no engine can do with these.

    Larger inputs have other values too: it is their size only if other values of the same size fail as well.
    """
    question, context = look.context.question, look.context
    for shapes, path in larger(question.index, question.samples, question.folder):
        words = with_inputs(failure.check, path)
        if not context.run(words, question.model, description=f"with larger inputs: {' '.join(shapes)}").passes:
            continue
        if not _fails_with_other_values(context, failure, fault):
            return failure, fault
        failure = replace(failure, passes_with=shapes, passing_inputs=str(path))
        if fault is None or not all(_passes_alone(context, engine, path) for engine in fault.every):
            return failure, fault
        now = shape_words(shapes_of(question.index, question.samples))
        text = f"{fault.text}, with {' '.join(now)}; none does with {' '.join(shapes)}"
        return failure, replace(fault, kind="input", text=text, shapes=now, passes_with=shapes)
    return failure, fault


def _fails_with_other_values(context: StepContext, failure: FailureSeen, fault: FaultBeforeEngines | None) -> bool:
    """Whether it fails with other random inputs of the same size, in every engine that is said to fail."""
    question = context.question
    try:
        path = of_same_size(question.index, question.samples, question.folder)
    except errors.BiopsyError:
        return False
    words = with_inputs(failure.check, path)
    if not context.run(words, question.model, description="with other inputs of the same size").fails:
        return False
    return fault is None or not any(_passes_alone(context, engine, path) for engine in fault.every)


def _passes_alone(context: StepContext, engine: str, inputs: Path) -> bool:
    """Whether an engine can do with other inputs, without NaN."""
    words = context.question.original_words([engine], "--validate", files=[inputs])
    return context.run(words, context.question.model, description=f"{engine} with other inputs").passes


FAILING = DiagnosisStep(
    name="fails",
    question="does it fail?",
    not_asked=lambda facts, context: None,
    answer=_answer,
    evidence="run",
    files=(REPORT,),
)
"""The first question, which is always asked."""
