"""``biopsy diagnose``: why a model fails, in words, and what avoids it. It shows each question that is answered, and
the verdict.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from biopsy import errors, events
from biopsy.cli import advice
from biopsy.cli.arguments import checks, types
from biopsy.cli.console import COLUMN, Console
from biopsy.cli.debug import bundling
from biopsy.cli.debug.checking import ended_politely
from biopsy.cli.diagnose import options
from biopsy.cli.progress import Progress, shows
from biopsy.cli.report import report_file
from biopsy.diagnosis.facts import Diagnosis
from biopsy.model.load import require_file
from biopsy.processes.writing import require_writable
from biopsy.text import count

REST_OPTIONS = checks.REST_OPTIONS

_EPILOG = """\
It asks one question after the other, and stops where the answer is reached: does it fail? is it rounding? is it steady?
which is the smallest part that still fails? is it one node, or several together? which setting switches it off?

examples:
  biopsy diagnose model.onnx --onnxrt --atol 1e-3 --rtol 1e-3
  biopsy diagnose model.onnx --onnxrt --openvino --load-inputs inputs.npz
  biopsy diagnose model.onnx --openvino --input-shapes x:[1,3,224,224] --max-time 5m --report report.json
  biopsy diagnose model.onnx --onnxrt --thorough --max-time 20m
  biopsy diagnose model.onnx --openvino --by onnxslim
  biopsy diagnose model.onnx --check ./check.sh {}
  biopsy diagnose model.onnx --engine onnxrt --check ./check.sh {} {engine}

exit status: 0 the model does not fail; 1 it fails, and why is said as far as it is known; 2 wrong usage;
4 nothing was concluded (an engine is missing, there is nothing to compare with); 5 interrupted, or the time was over
before it was known whether the model fails: the same command goes on"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``diagnose``."""
    parser.epilog = _EPILOG
    options.add(parser)


def derived_files(args: argparse.Namespace) -> types.Derived:
    """The folder of the evidence, if no option names it."""
    folder = None if args.dir else options.folder_of(args)
    return {"the folder of the evidence": (folder, types.FOLDER_WRITTEN)}


def execute(args: argparse.Namespace, console: Console) -> int:
    """Diagnose the model; returns 0 if it does not fail, 1 if it does, and raises what ends with another status."""
    with ExitStack() as held:
        from biopsy.cli.diagnose.question import question_of
        from biopsy.diagnosis.diagnose import diagnose, diagnosis_sections
        from biopsy.diagnosis.verdict import next_lines

        bundling.require_target(args)
        require_file(args.model)
        if args.events is not None:
            require_writable(args.events)
        shown = console.on_stderr() if args.json else console
        report = report_file(args, shown)
        question = question_of(args, shown, held)
        with ended_politely(), DiagnosisProgress(shown, args.events) as progress, report.also_of_errors():
            diagnosis = diagnose(question, progress)
            status = progress.ended(_status(diagnosis))
        say_result(shown, diagnosis, list(next_lines(diagnosis.facts, question)))
        sections = partial(diagnosis_sections, diagnosis, question)
        report.write(status, partial(sections, report.folder))
        if report.path is not None:
            shown.note(f"{'report':<{COLUMN}} {report.path}")
        if args.json:
            console.program_text(report.as_bytes(status, partial(sections, Path())).decode("ascii"))
        if status == errors.Interrupted.status:
            raise errors.Interrupted(
                "what is known so far is said above",
                kept=f"{diagnosis.folder}, with what was found",
                resume=advice.resume_line(args.words, REST_OPTIONS),
            )
        if args.bundle is not None:
            options.pack(args, question, diagnosis, report.as_bytes(status, partial(sections, args.bundle)), shown)
        if diagnosis.stopped is not None:
            shown.note(f"resume     {advice.resume_line(args.words, REST_OPTIONS, ['--max-time'])}")
        return status


def _status(diagnosis: Diagnosis) -> int:
    from biopsy.diagnosis.context import PERSON

    if diagnosis.stopped == PERSON or (diagnosis.stopped is not None and diagnosis.failed is None):
        return errors.Interrupted.status
    return {True: 1, False: 0, None: errors.CannotCompare.status}[diagnosis.failed]


# What a diagnosis shows: a line for each question that is answered, one live line on a terminal, and the verdict.


class DiagnosisProgress(Progress):
    """Listens to a diagnosis."""

    def __init__(self, console: Console, log: Path | None) -> None:
        super().__init__(console, log)
        self._step = events.StepStarted("", "", 0, 1)
        self._checks = 0

    @shows(events.StepStarted)
    def _show_started(self, event: events.StepStarted) -> None:
        self._step, self._checks = event, 0
        self._update(event.question)

    @shows(events.StepDone)
    def _show_done(self, event: events.StepDone) -> None:
        if event.outcome == "skipped" or (event.outcome == "stopped" and not event.seconds):
            self._console.detail(f"{event.name:<{COLUMN}} not asked: {event.answer}")
            return
        spent = f"{count(event.checks, 'check')} · {event.seconds:.1f} s" if event.checks else f"{event.seconds:.1f} s"
        told = {"failed": "no answer: ", "stopped": ""}.get(event.outcome, "")
        self.line(event.name, f"{told}{event.answer}   {spent}")

    @shows(events.Checking)
    def _show_checking(self, event: events.Checking) -> None:
        self._update(event.description)

    @shows(events.Checked)
    def _show_checked(self, event: events.Checked) -> None:
        self._checks += 1
        self._console.detail(f"  check {event.number}  {event.outcome}: {event.reason} · {event.seconds:.2f} s")

    @shows(events.Measured)
    def _show_measured(self, event: events.Measured) -> None:
        self._update(f"{event.stage}: {event.done} of {event.total}")

    @shows(events.Resumed)
    def _show_resumed(self, event: events.Resumed) -> None:
        self.line("resumed", f"{count(event.runs, 'answer')} remembered in {event.journal}")

    def _update(self, doing: str) -> None:
        step = self._step
        checks = [count(self._checks, "check")] if self._checks else []
        parts = [f"question {step.number} of {step.total}", *checks, doing[:70]]
        self._live.update(step.name, " · ".join(parts), (step.number - 1) / step.total)


def say_result(console: Console, diagnosis: Diagnosis, following: Sequence[tuple[str, str]]) -> None:
    """The verdict, how sure it is, what avoids the failure, what was left open, and what to do next."""
    verdict = diagnosis.verdict
    word = {True: "FAILED", False: "PASSED", None: "UNKNOWN"}[diagnosis.failed]
    console.note("")
    console.say(f"{word} | {verdict.text}")
    if verdict.certainty is not None:
        console.say(f"{'sure':<{COLUMN}} {verdict.certainty}")
    for workaround in verdict.workarounds:
        console.say(f"{'workaround':<{COLUMN}} {workaround.text}")
        if workaround.line is not None:
            console.say(f"{'':<{COLUMN}} {workaround.line}")
    for question in verdict.not_tried:
        console.say(f"{'open':<{COLUMN}} {question}")
    console.note(f"{'evidence':<{COLUMN}} {diagnosis.folder} · {diagnosis.seconds:.1f} s")
    if following:
        console.note("")
    for number, (line, why) in enumerate(following):
        console.note(f"{'' if number else 'Next':<{COLUMN}} {why}:", f"{'':<{COLUMN}} {line}")
