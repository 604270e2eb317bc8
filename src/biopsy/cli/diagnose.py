"""``biopsy diagnose``: finds out why a model fails and what avoids it, and shows each answer and the verdict."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import errors, events
from biopsy.cli import advice
from biopsy.cli.arguments import checks, types
from biopsy.cli.console import COLUMN, Console
from biopsy.cli.debug import bundling, checking
from biopsy.cli.diagnose_options import DiagnoseOptions, add
from biopsy.cli.progress import Progress
from biopsy.findings.verdict import Note, notes_of
from biopsy.model.load import require_file
from biopsy.processes.writing import require_writable
from biopsy.text import count

if TYPE_CHECKING:
    from biopsy.diagnosis.facts import Diagnosis
    from biopsy.diagnosis.question import DiagnosisQuestion

_EPILOG = """\
It asks one question after the other, and stops where the answer is reached: does it fail? is it rounding? is it steady?
which is the smallest part that still fails? is that all that fails? which setting switches it off?

examples:
  biopsy diagnose model.onnx --onnxrt --atol 1e-3 --rtol 1e-3
  biopsy diagnose model.onnx --onnxrt --openvino --load-inputs inputs.npz
  biopsy diagnose model.onnx --openvino --input-shapes x:[1,3,224,224] --max-time 5m --report report.json
  biopsy diagnose model.onnx --onnxrt --thorough --max-time 20m
  biopsy diagnose model.onnx --openvino --by onnxslim
  biopsy diagnose model.onnx --check ./check.sh {}
  biopsy diagnose model.onnx --engine onnxrt --check ./check.sh {} {engine}

exit status: 0 the model does not fail, or --answered has written what was wanted; 1 it fails, and the verdict says why
as far as it is known; 2 wrong usage; 4 nothing was concluded (an engine is missing, there is nothing to compare with,
float64 contradicts engines that agree); 5 interrupted, or the time was over before it was known whether the model
fails: the same command goes on"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``diagnose``."""
    parser.epilog = _EPILOG
    add(parser)


@DiagnoseOptions.reading
def derived_files(options: DiagnoseOptions) -> types.Derived:
    """The folder of the evidence, unless an option names it."""
    folder = None if options.dir else options.folder
    return {"the folder of the evidence": (folder, types.FOLDER_WRITTEN)}


@DiagnoseOptions.reading
def execute(options: DiagnoseOptions, console: Console) -> int:
    """Diagnose the model; returns 0 if it does not fail, 1 if it does, and raises what ends with another status."""
    with ExitStack() as held:
        from biopsy.cli.diagnose_question import question_of
        from biopsy.diagnosis.context import PERSON
        from biopsy.diagnosis.diagnose import diagnose, diagnosis_sections
        from biopsy.diagnosis.following import next_lines

        bundling.require_possible(options.bundle)
        require_file(options.model)
        if options.events is not None:
            require_writable(options.events)
        shown = console.on_stderr() if options.json else console
        report = options.report_file(shown)
        question = question_of(options, shown, held)
        with (
            checking.ended_politely(),
            DiagnosisProgress(shown, options.events) as progress,
            report.also_of_errors(),
        ):
            only_writes = options.answered and (report.path is not None or options.bundle is not None)
            diagnosis = diagnose(question, progress.keep if only_writes else progress)
            status = {True: 1, False: 0, None: errors.CannotCompare.status}[diagnosis.failed]
            if diagnosis.stopped == PERSON or (diagnosis.stopped is not None and diagnosis.failed is None):
                status = errors.Interrupted.status
            progress.ended(0 if only_writes else status)
        following = [advice.Advice(line, why) for line, why in next_lines(diagnosis.facts, question)]
        if not only_writes:
            _say_result(shown, diagnosis, following)
        sections = partial(diagnosis_sections, diagnosis, question)
        report.write(status, partial(sections, report.folder))
        if report.path is not None:
            shown.note(f"{'report':<{COLUMN}} {report.path}")
        if options.json:
            console.program_text(report.as_bytes(status, partial(sections, Path())).decode("ascii"))
        if status == errors.Interrupted.status and not only_writes:
            raise errors.Interrupted(
                "what is known so far is shown above",
                kept=f"{diagnosis.folder}, with what was found",
                resume=advice.resume_line(options.words, checks.REST_OPTIONS),
            )
        if options.bundle is not None:
            written = report.as_bytes(status, partial(sections, options.bundle))
            _pack(options.bundle, question, diagnosis, written, shown)
        if only_writes:
            return 0
        if diagnosis.stopped is not None:
            shown.note(f"resume     {advice.resume_line(options.words, checks.REST_OPTIONS, ['--max-time'])}")
        return status


class DiagnosisProgress(Progress):
    """Shows a line for each question that is answered, and on the live line the one that is being asked."""

    def __init__(self, console: Console, log: Path | None) -> None:
        super().__init__(console, log)
        self._step = events.StepStarted("", "", 0, 1)
        self._checks = 0

    def show(self, event: events.Event) -> None:
        """Show each question that is answered, and on the live line what goes on."""
        match event:
            case events.StepStarted():
                self._step, self._checks = event, 0
                self._update(event.question)
            case events.StepDone():
                if event.outcome == "skipped" or (event.outcome == "stopped" and not event.seconds):
                    self._console.detail(f"{event.name:<{COLUMN}} not asked: {event.answer}")
                else:
                    no_answer = "no answer: " if event.outcome == "failed" else ""
                    checks = f"{count(event.checks, 'check')} · " if event.checks else ""
                    self.line(event.name, f"{no_answer}{event.answer}   {checks}{event.seconds:.1f} s")
            case events.Checking():
                self._update(event.description)
            case events.Checked():
                self._checks += 1
                answer = f"{event.outcome}: {event.reason} · {event.seconds:.2f} s"
                self._console.detail(f"  check {event.number}  {answer}")
            case events.Measured():
                self._update(f"{event.stage}: {event.done} of {event.total}")
            case events.Resumed():
                self.line("resumed", f"{count(event.runs, 'answer')} remembered in {event.journal}; --fresh asks again")
            case _:
                super().show(event)

    def _update(self, doing: str) -> None:
        step = self._step
        checks = [count(self._checks, "check")] if self._checks else []
        parts = [f"question {step.number} of {step.total}", *checks, doing[:70]]
        self._live.update(step.name, " · ".join(parts), (step.number - 1) / step.total)


_MOST_REASONS = 2
"""Reasons that stand below the verdict's first line; the others are evidence."""


def _say_result(console: Console, diagnosis: Diagnosis, following: Sequence[advice.Advice]) -> None:
    """Show the verdict in up to four lines, the last of which is what avoids the failure; then all that it rests on."""
    word = {True: "FAILED", False: "PASSED", None: "UNKNOWN"}[diagnosis.failed]
    console.note("")
    first, further = diagnosis.verdict.reasons[:_MOST_REASONS], diagnosis.verdict.reasons[_MOST_REASONS:]
    console.say(f"{word} | {diagnosis.verdict.text}", *(f"{'':<{COLUMN}} {text}" for text in first))
    notes = [*(Note(label="evidence", text=text) for text in further), *notes_of(diagnosis.verdict)]
    for note in sorted(notes, key=lambda note: note.label != "workaround"):
        console.say(f"{note.label:<{COLUMN}} {note.text}")
        for line in (*note.code, *([] if note.line is None else [note.line])):
            console.say(f"{'':<{COLUMN}} {line}")
    console.note(f"{'folder':<{COLUMN}} {diagnosis.folder} · {diagnosis.seconds:.1f} s")
    advice.say_advice(console, following)


def _pack(bundle: Path, question: DiagnosisQuestion, diagnosis: Diagnosis, report: bytes, console: Console) -> None:
    """Pack the piece, or the whole model if there is none, with the check that it fails; warn if nothing fails.

    Raises CheckError if the script of the bundle does not show the failure.
    """
    from biopsy.diagnosis.following import bundle_job

    job = bundle_job(bundle, question, diagnosis, report)
    if job is None:
        console.warn(f"{bundle} is not written: no failure was found that could be packed")
        return
    bundling.pack(job, checking.own_run(job.check.command.words), console, width=COLUMN)
