"""The first question: does the model fail, in which engine, compared with which, and is an engine at fault?"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx

from biopsy import errors
from biopsy.checks.command import ARBITER
from biopsy.checks.command_line import OwnRun, parse
from biopsy.checks.judge import passes_needed, signature_of
from biopsy.checks.outcome import Judged, Outcome
from biopsy.comparison.mismatch import NOT_FINITE, error_size, error_text, form_text
from biopsy.diagnosis.context import (
    REPORT_OPTION,
    StepAnswer,
    StepContext,
    diagnosis_step,
    fails,
    passes,
    reason_in_full,
)
from biopsy.diagnosis.facts import EngineComparison, FailureReport, FaultBeforeEngines, KnownFacts, ModelFailure
from biopsy.diagnosis.question import (
    Words,
    larger_inputs,
    other_inputs_of_same_size,
    shape_words,
    shapes_of,
    with_inputs,
)
from biopsy.engines.registry import EXACT, PLAIN, names, parse_spec
from biopsy.engines.worker import Worker
from biopsy.model.nodes import warning_of_random
from biopsy.processes.cleanup import temporary_folder
from biopsy.processes.reading import read_plain
from biopsy.questions.lint.lint import breaches
from biopsy.questions.lint.rules import CHECKER, INFERENCE, RULES, LintEntry
from biopsy.recording.dependence import independent_of
from biopsy.text import first_of

REPORT = "run.json"
"""The report of the latest run, in the folder of the evidence."""

_MOST_BYTES = 256 << 20


def read_tree(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if the file is missing, incomplete or too large."""
    try:
        tree = json.loads(read_plain(path, _MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return tree if isinstance(tree, dict) else {}


def read_run(folder: Path) -> dict[str, Any]:
    """The key ``run`` of the latest run's report; empty if the run ended before it was written."""
    run = read_tree(folder / REPORT).get("run")
    return run if isinstance(run, dict) else {}


def _blames_trusted(failure: ModelFailure) -> bool:
    """Whether the suspect gives the type or shape that the model declares, so that the trusted engine is wrong."""
    return failure.trusted is not None and failure.mismatch is not None and failure.mismatch.is_as_declared


_RUNS = 8
"""Runs that must pass before the model is said to pass: a 50% flaky failure is missed in 1 of 256 cases."""

_LARGER_RUNS = passes_needed(5, 5)
"""Runs that must pass with larger inputs; with the given ones it is run five times (``rounding.steadiness``)."""

_FEWEST_RUNS = 2
_SHARE_OF_RUNS = 0.1
"""The share of the time left that these runs may take; once it is spent, ``_FEWEST_RUNS`` are enough."""

_SHARE_OF_ANOTHER = 0.25
"""The share of the time left for a comparison with another engine: the reference evaluator may be slow."""

_MOST_OUTPUT = 2000
"""Characters kept of the end of an output."""


@dataclass(kw_only=True)
class _FailureSearch:
    """Runs the model until it fails. The other fields are those of ``EngineComparison``."""

    context: StepContext
    engines: dict[str, str] = field(default_factory=dict)
    rows: list[Words] = field(default_factory=list)
    passed: list[str] = field(default_factory=list)
    not_compared: list[str] = field(default_factory=list)

    def failure(self) -> ModelFailure | None:
        """How the model fails: the user's check, a comparison of engines, NaN, or one of several repeated runs."""
        question = self.context.question
        if question.check is not None:
            return self._by_check(question.check)
        for engines in question.rivals:
            share = 1.0 if engines == question.rivals[0] else _SHARE_OF_ANOTHER
            run = self._run(engines, description=f"{' against '.join(engines)}", share=share)
            if run.evidence.timed_out:
                self.not_compared.append(f"{engines[0]} gave no answer in {run.evidence.seconds:.0f} s")
            elif fails(run):
                failure = self._blamed(engines, run)
                if failure is not None:
                    return failure
            elif passes(run):
                self.rows.append(engines)
                self.passed.append(f"{' and '.join(engines)} agree")
        failure = self._not_finite()
        if failure is not None:
            return failure
        engines = next(iter(self.rows), question.engines)
        for number in self._further_runs(1, "{0} of {0} runs pass"):
            run = self._run(engines, description=f"run {number}")
            if fails(run):
                failure = self._blamed(engines, run)
                return failure and replace(failure, fault=None)
        return None

    def versions(self, suspect: str | None) -> Iterator[tuple[str, str]]:
        """The version of each engine; a suspect that dies in every run has told none, so it is asked alone."""
        yield from self.engines.items()
        if suspect is None or suspect in self.engines:
            return
        with (
            contextlib.suppress(errors.BiopsyError),
            temporary_folder("biopsy-") as scratch,
            Worker(suspect, scratch, 60.0) as worker,
        ):
            yield suspect, worker.version()

    def is_contradicted(self) -> bool:
        """Whether float64 contradicts engines that agree: two may have the same bug."""
        question = self.context.question
        words = (*question.original_words((EXACT, self.rows[0][-1])), ARBITER)
        run = self.context.run(words, question.model, description="held against float64", share=_SHARE_OF_RUNS)
        seen = run.evidence.verdict
        return fails(run) and seen.stage == "compare" and seen.rounding is not None and seen.rounding.verdict == "bug"

    def _run(self, engines: Sequence[str], *more: str, description: str, share: float = 1.0) -> Judged:
        """Run the original in engines. Raises CheckError if nothing can be said of the model."""
        report = str(self.context.question.folder / REPORT)
        words = self.context.question.original_words(engines, *more, REPORT_OPTION, report)
        return self._reported(words, description, share)

    def _reported(self, words: Words, description: str, share: float = 1.0) -> Judged:
        """Run a command that may write a report. Raises CheckError if nothing can be said of the model."""
        question = self.context.question
        (question.folder / REPORT).unlink(missing_ok=True)
        run = self.context.run(words, question.model, description=description, share=share)
        ran = read_run(question.folder).get("engines", [])
        self.engines.update((str(engine["label"]), str(engine["version"])) for engine in ran if engine.get("version"))
        if run.outcome is Outcome.INVALID:
            raise errors.CheckError(f"nothing can be said of this model: {run.reason}")
        return run

    def _further_runs(self, done: int, text: str) -> Iterator[int]:
        """Yield the numbers of further runs until they suffice or take too long; then add ``text`` to ``passed``."""
        context = self.context
        started, most = context.seconds_left, context.seconds_left * _SHARE_OF_RUNS
        for number in range(done + 1, _RUNS + 1):
            if number > _FEWEST_RUNS and started - context.seconds_left >= most:
                break
            yield number
            done = number
        self.passed.append(f"{text.format(done)}{'' if done >= _RUNS else ', too few to notice a flaky failure'}")

    def _by_check(self, check: Words) -> ModelFailure | None:
        """The failure of the user's check, if it fails. A ``biopsy run`` also writes its report."""
        command, engines, words = parse(check), self.context.question.engines, check
        if isinstance(command, OwnRun) and REPORT_OPTION not in command.words:
            words = command.with_options(REPORT_OPTION, str(self.context.question.folder / REPORT)).words
        for number in self._further_runs(0, "the check passes in {0} of {0} runs"):
            run = self._reported(words, f"run {number}")
            if fails(run):
                # A crash outside of several engines is of none, and a script runs an engine only if it is told which.
                is_told = self.context.question.template is not None
                is_sure = len(engines) == 1 if isinstance(command, OwnRun) else is_told
                reported, last = run.evidence.verdict.engine, engines[-1] if engines and is_sure else None
                is_engine = reported.partition(":")[0] in names()  # a script may have names of its own
                suspect = _engine_called(reported, engines) if is_engine else last
                trusted = engines[0] if len(engines) > 1 and engines[0] != suspect else None
                failure = failure_of(run, check, trusted=trusted, suspect=suspect)
                return failure.swapped if _blames_trusted(failure) else failure
        return None

    def _blamed(self, engines: Sequence[str], run: Judged) -> ModelFailure | None:
        """The failure of a run, with the engine at fault; None if that is not one of the question's engines."""
        question, verdict = self.context.question, run.evidence.verdict
        words_of = question.original_words
        if verdict.stage != "compare":
            return self._refused(engines, run)
        suspect = verdict.engine if verdict.engine in engines else engines[-1]
        pair, words = tuple(dict.fromkeys((engines[0], suspect))), words_of(engines)
        if len(engines) > len(pair):
            fewer = self._run(pair, description=f"only {' against '.join(pair)}")
            if fails(fewer):
                run, words = fewer, words_of(pair)
        failure = failure_of(run, words, trusted=pair[0] if len(pair) > 1 else None, suspect=suspect)
        if failure.mismatch is None or not _blames_trusted(failure):
            return failure
        if pair[0] in question.engines:
            return failure.swapped
        given = form_text(failure.mismatch.from_other_side, suspect)
        self.not_compared.append(f"{pair[0]} cannot say: it gives {given}")
        return None

    def _refused(self, engines: Sequence[str], run: Judged) -> ModelFailure | None:
        """Which engine cannot load, build or run the model: each is run alone.

        If none fails alone, the failure is flaky or needs several engines; the engine that the run names is then the
        suspect. None if the engine that fails only served as a comparison.
        """
        question = self.context.question
        reported = _engine_called(run.evidence.verdict.engine, engines)
        alone = {engine: self._run([engine], description=f"{engine} alone") for engine in dict.fromkeys(engines)}
        if all(map(fails, alone.values())):
            more = [engine for engine in PLAIN if _names([engine]) - _names(engines)]
            alone |= {engine: self._run([engine], description=f"{engine} alone") for engine in more}
        failing = [engine for engine, each in alone.items() if fails(each)]
        if not failing and reported is not None and reported not in question.engines:
            self.not_compared.append(f"{reported} failed once, and not when it was run again: {reason_in_full(run)}")
            return None
        if not failing:
            suspect = reported if reported in question.engines else None
            return failure_of(run, question.original_words(engines), trusted=None, suspect=suspect)
        own = [engine for engine in question.engines if engine in failing]
        if not own:  # an engine that only served as a comparison
            self.not_compared += [f"{engine} cannot say: {reason_in_full(alone[engine])}" for engine in failing]
            return None
        suspect = next((engine for engine in own if engine != engines[0]), own[0])
        trusted = next((engine for engine, each in alone.items() if not fails(each)), None)
        failure = failure_of(alone[suspect], question.original_words([suspect]), trusted=trusted, suspect=suspect)
        if trusted is not None and _names([trusted]) != _names([suspect]):
            plain = (trusted, parse_spec(trusted).name)
            if plain[0] != plain[1] and not fails(self._run(plain, description=f"{plain[1]} as it is")):
                self.rows.append(plain)
        if trusted is not None or len(_names(failing)) < 2:
            return failure
        text = f"every engine that was tried fails on the model ({', '.join(failing)})"
        return replace(failure, fault=FaultBeforeEngines(kind="refused", every=tuple(failing), text=text))

    def _not_finite(self) -> ModelFailure | None:
        """NaN in an output of engines that agree, which comparing does not show: the model or its inputs cause it."""
        question = self.context.question
        engines = tuple(dict.fromkeys(engine for row in self.rows for engine in row)) or question.engines
        run = self._run(engines, "--validate", description="NaN in an output?")
        outputs = read_run(question.folder).get("not_finite", []) if fails(run) else []
        with_nan = [output for output in outputs if output.get("nan")]  # infinity alone may be intended
        names = dict.fromkeys(str(output.get("output", output.get("name"))) for output in with_nan)
        labels = tuple(dict.fromkeys(str(output["engine"]) for output in with_nan))
        if fails(run) and not names and run.evidence.verdict.kind not in NOT_FINITE:
            return self._blamed(engines, run)
        if not names:
            self.passed.append("outputs hold infinity, but no NaN" if fails(run) else "no output holds NaN")
            return None
        suspect = question.engines[-1]
        words = question.original_words([suspect], "--validate")
        failure = failure_of(run, words, trusted=None, suspect=suspect)
        if _names(labels) != _names(engines) or len(_names(labels)) < 2:  # two settings of an engine are one engine
            return failure
        gives = "all give" if len(labels) > 1 else "gives"
        text = f"{' and '.join(labels)} {gives} NaN in {', '.join(map(repr, names))}"
        return replace(failure, fault=FaultBeforeEngines(kind="not-finite", every=labels, text=text))


def _engine_called(name: str, engines: Sequence[str]) -> str | None:
    """The engine that a verdict calls by its text or only by its name, the last of several; None if it is another."""
    called = [engine for engine in engines if name in (engine, parse_spec(engine).name)]
    return name if name in called else called[-1] if called else None


def _names(engines: Iterable[str]) -> set[str]:
    return {parse_spec(engine).name for engine in engines}


def failure_of(run: Judged, check: Words, *, trusted: str | None, suspect: str | None) -> ModelFailure:
    """The failure that a run of a check shows."""
    evidence, verdict = run.evidence, run.evidence.verdict
    size = error_size(verdict.mismatches, verdict.rounding)
    pair = () if trusted is None or suspect is None else (suspect, trusted)
    sides = [parse_spec(engine).name for engine in pair]
    sides = [*pair] if len(set(sides)) < len(sides) else sides
    return ModelFailure(
        check=check,
        report=FailureReport(
            signature=str(signature_of(evidence)) if run.outcome is Outcome.REPRODUCES else run.reason,
            **{key: getattr(verdict, key) for key in ("engine", "stage", "kind", "message", "outputs")},
        ),
        status=evidence.status,
        output=evidence.output.decode("utf-8", "replace")[-_MOST_OUTPUT:],
        error="" if size is None else error_text(size, sides[::-1] if verdict.engine == trusted else sides),
        mismatch=None if size is None else size.worst,
        trusted=trusted,
        suspect=suspect,
    )


@diagnosis_step("fails", "does it fail?", unless=lambda facts, context: {}, evidence="run", files=(REPORT,), warm=True)
def failing(facts: KnownFacts, context: StepContext) -> StepAnswer:
    """Run the model until it fails, or has passed often enough."""
    search = _FailureSearch(context=context)
    failure, question = search.failure(), context.question
    random = warning_of_random(question.index) if failure and failure.report.stage == "compare" else None
    if random is not None:  # it is believed where the reference evaluator differs from itself, or cannot tell
        words, why = question.original_words(["reference", "reference"]), "do random values show?"
        runs = (context.run(words, question.model, description=why) for _ in range(_RANDOM_COMPARISONS))
        random = None if all(map(passes, runs)) else random
    if failure is not None and random is not None:
        steady = independent_of(question.index, ())
        others = [name for name in failure.report.outputs if question.index.ids.get(name) in steady]
        if others:
            differ, them = ("differs", "this as an output") if len(others) == 1 else ("differ", "these as outputs")
            random += (
                f"; {first_of([*map(repr, others)], 3)} also {differ} without depending on them: mark only {them}, and "
                "ask again"
            )
        failure = replace(failure, fault=FaultBeforeEngines(kind="random", every=(), text=random))
    elif failure is not None:
        if question.check is None:
            failure = _with_larger_inputs(context, failure)
        if not failure.passes_with and (breach := _invalid(failure, context)) is not None:
            failure = replace(failure, fault=breach)
    lists = {key: tuple(getattr(search, key)) for key in ("rows", "passed", "not_compared")}
    is_contradicted = failure is None and question.check is None and bool(search.rows) and search.is_contradicted()
    versions = tuple(search.versions(None if failure is None else failure.suspect))
    compared = EngineComparison(engines=versions, contradicted=is_contradicted, **lists)
    facts = replace(facts, compared=compared, failure=failure)
    if failure is None:
        answer = "not known, float64 contradicts the engines" if is_contradicted else "no"
        return StepAnswer(facts, " · ".join([answer, *compared.passed, *compared.not_compared]))
    error = f" · {failure.error}" if failure.error else ""
    return StepAnswer(facts, f"{failure.report.signature}{error}" if failure.fault is None else failure.fault.text)


_RANDOM_COMPARISONS = 3
"""Few random values may be equal by chance, such as those of Bernoulli."""


def _invalid(failure: ModelFailure, context: StepContext) -> FaultBeforeEngines | None:
    """How a model that an engine refuses breaks the ONNX standard; None if it does not, as far as onnx can judge."""
    report, question = failure.report, context.question
    if report.stage not in errors.STAGE_VERBS or errors.is_crash(report.stage, report.kind) or failure.status < 0:
        return None
    index, folder = question.index, question.weights_folder or question.model.parent
    is_known = index.ir_version <= onnx.IR_VERSION and index.opset <= onnx.defs.onnx_opset_version()

    def counts(entry: LintEntry) -> bool:
        if entry.source == INFERENCE:  # onnx infers some sizes that an engine knows better
            return is_known and (failure.fault is not None or "elem type" in entry.message)
        return entry.source == RULES or (is_known and entry.source == CHECKER)

    try:
        found = breaches(question.model, folder, counts, timeout=max(1.0, context.seconds_left))
    except errors.BiopsyError:  # the file is no longer there, or has changed
        return None
    text = f"it breaks the ONNX standard: {first_of(found, 3, '; ')}"
    return FaultBeforeEngines(kind="invalid", every=(), text=text) if found else None


def _with_larger_inputs(context: StepContext, failure: ModelFailure) -> ModelFailure:
    """The failure, with larger shapes of inputs that pass, if any; the inputs' fault if every engine fails without.

    Larger inputs also have other values: only if other values of the same size fail too does the size matter.
    """
    question, fault = context.question, failure.fault

    def passes_alone(engine: str, inputs: Path) -> bool:
        words = question.original_words([engine], "--validate", files=[inputs])
        description = f"{engine} with other inputs"
        return all(passes(context.run(words, question.model, description=description)) for _ in range(_LARGER_RUNS))

    def fails_with_other_values() -> bool:
        try:
            path = other_inputs_of_same_size(question.index, question.samples, question.folder)
        except errors.BiopsyError:
            return False
        words = with_inputs(failure.check, path)
        if not fails(context.run(words, question.model, description="with other inputs of the same size")):
            return False
        return fault is None or not any(passes_alone(engine, path) for engine in fault.every)

    for shapes, path in larger_inputs(question.index, question.samples, question.folder):
        words, description = with_inputs(failure.check, path), f"with larger inputs: {' '.join(shapes)}"
        if not all(passes(context.run(words, question.model, description=description)) for _ in range(_LARGER_RUNS)):
            continue
        if not fails_with_other_values():
            return failure
        failure = replace(failure, passes_with=shapes, passing_inputs=str(path))
        if fault is None or not all(passes_alone(engine, path) for engine in fault.every):
            return failure
        now = shape_words(shapes_of(question.index, question.samples))
        text = f"{fault.text}, with {' '.join(now)}; none does with {' '.join(shapes)}"
        fault = replace(fault, kind="input", text=text, shapes=now, passes_with=shapes)
        return replace(failure, fault=fault)
    return failure
