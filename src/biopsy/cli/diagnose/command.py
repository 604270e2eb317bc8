"""``biopsy diagnose``: why a model fails, in words, and what avoids it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.cli import line_again
from biopsy.cli.arguments import checks, file_kinds
from biopsy.cli.debug import bundling
from biopsy.cli.diagnose import options
from biopsy.cli.report_file import report_file

if TYPE_CHECKING:
    from biopsy.cli.console import Console
    from biopsy.diagnosis.facts import Diagnosis
    from biopsy.diagnosis.question import DiagnosisQuestion

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


def derived_files(args: argparse.Namespace) -> file_kinds.Derived:
    """The folder of the evidence, if no option names it."""
    folder = None if args.dir else options.folder_of(args)
    return {"the folder of the evidence": (folder, file_kinds.FOLDER_WRITTEN)}


def execute(args: argparse.Namespace, console: Console) -> int:
    """Diagnose the model; returns 0 if it does not fail, 1 if it does, and raises what ends with another status."""
    with ExitStack() as held:
        return _executed(args, console, held)


def _executed(args: argparse.Namespace, console: Console, held: ExitStack) -> int:
    """The same; the folder is kept for this diagnosis until ``held`` is closed."""
    from biopsy.cli.debug.checking import ended_politely
    from biopsy.cli.diagnose.progress import DiagnosisProgress, say_result
    from biopsy.cli.diagnose.question import question_of
    from biopsy.cli.live_line import COLUMN
    from biopsy.diagnosis.diagnose import diagnose
    from biopsy.diagnosis.report_tree import diagnosis_sections
    from biopsy.diagnosis.workarounds import next_lines

    bundling.require_target(args)
    _require_sense(args)
    shown = console.on_stderr() if args.json else console
    report = report_file(args, shown)
    question = question_of(args, shown, held)
    with ended_politely(), DiagnosisProgress(shown, args.events) as progress, report.also_of_errors():
        found = diagnose(question, progress)
        status = progress.ended(_status(found))
    say_result(shown, found, list(next_lines(found.facts, question)))
    sections = partial(diagnosis_sections, found, question)
    report.write(status, partial(sections, report.folder))
    if report.path is not None:
        shown.note(f"{'report':<{COLUMN}} {report.path}")
    if args.json:
        console.program_text(report.as_bytes(status, partial(sections, Path())).decode("ascii"))
    if status == errors.Interrupted.status:
        raise errors.Interrupted(
            "what is known so far is said above",
            kept=f"{found.folder}, with what was found",
            resume=line_again.resume_line(args.words, REST_OPTIONS),
        )
    _pack(args, found, question, partial(report.as_bytes, status, partial(sections, args.bundle)), shown)
    if found.stopped is not None:
        shown.note(f"resume     {line_again.resume_line(args.words, REST_OPTIONS, ['--max-time'])}")
    return status


def _pack(
    args: argparse.Namespace,
    found: Diagnosis,
    question: DiagnosisQuestion,
    report: Callable[[], bytes],
    console: Console,
) -> None:
    if args.bundle is None:
        return
    from biopsy.cli.diagnose import bundle

    bundle.pack(args, question, found, report(), console)


def _status(found: Diagnosis) -> int:
    from biopsy.diagnosis.step import PERSON

    if found.stopped == PERSON or (found.stopped is not None and found.failed is None):
        return errors.Interrupted.status
    return {True: 1, False: 0, None: errors.CannotCompare.status}[found.failed]


def _require_sense(args: argparse.Namespace) -> None:
    from biopsy.filesystem.write import require_writable
    from biopsy.model.load import require_file

    require_file(args.model)
    if args.events is not None:
        require_writable(args.events)
