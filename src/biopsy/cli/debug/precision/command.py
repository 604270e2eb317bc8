"""``biopsy debug precision``: which layers need a high precision, and the model in which only those have it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.cli import line_again
from biopsy.cli.arguments import checks, file_kinds, groups
from biopsy.cli.debug import checking, other_machines
from biopsy.cli.debug.precision import options
from biopsy.cli.debug.precision.models import calibration_feeds, precisions_of
from biopsy.cli.report_file import report_file

if TYPE_CHECKING:
    from biopsy import events
    from biopsy.checks.outcome import Check
    from biopsy.cli.console import Console
    from biopsy.cli.debug.precision.report import PrecisionSections
    from biopsy.cli.report_file import ReportFile
    from biopsy.mixed_precision.result import PrecisionResult
    from biopsy.model.index import ModelIndex
    from biopsy.session.machines import OtherMachines
    from biopsy.session.pool import Parallelism

REST_OPTIONS = checks.REST_OPTIONS

_NOT_ELSEWHERE = {
    "--artifacts": other_machines.STAYS_THERE,
    "--no-remove-intermediate": other_machines.STAYS_THERE,
}
"""Options that cannot be combined with ``--on``, each with the reason."""

warmed_up = checking.warmed_up

_EPILOG = f"""\
examples:
  First golden values, then the layers for which fp16 is not enough:
    biopsy run model.onnx --onnxrt --save-inputs inputs.json --save-outputs golden.json
    biopsy debug precision model.onnx --fp16 -o mixed.onnx --list keep.txt \\
        --check biopsy run {{}} --onnxrt --load-inputs inputs.json \\
                --load-outputs golden.json --rtol 1e-2 --atol 1e-2
  How many of the last layers must be high, by halving:
    biopsy debug precision model.onnx --fp16 --mode bisect --dir reverse --check ...
  With the checks on the GPUs of a Ray cluster:
    biopsy debug precision model.onnx --fp16 --trt --on ray --resources GPU=1 --check ...

The report, on the terminal and as JSON ("form"), says how candidates got their low precision: emulated by Casts around
float32 arithmetic (--emulate, the default), or native (--native; the default with --trt, except for --fp8).

A candidate passes if its check does. Anything else (a failure, 'cannot say', no answer in time) rules it out.

{checks.STATUSES}"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``debug precision``."""
    parser.epilog = _EPILOG
    options.add(parser)


def derived_files(args: argparse.Namespace) -> file_kinds.Derived:
    """The file for weights, the journal, and that of candidates: with an engine, also the model that it builds."""
    options.complete(args)
    candidate = args.candidate if args.candidate != args.iter_artifact else None
    journal = None if args.output is None else checks.journal_of(args.output)
    return {
        **groups.derived_weights(args),
        "the candidate": (candidate, file_kinds.ITERATION),
        "the journal": (journal, file_kinds.WRITTEN),
    }


def execute(args: argparse.Namespace, console: Console) -> int:
    """Search; returns 0, or 5 if a limit ended the search; raises what ends with another status."""
    built = {} if args.engine is None else {"--iter-info": "the check of what --engine builds is told no other file"}
    with other_machines.machines_of(args, console, {**_NOT_ELSEWHERE, **built}) as machines:
        return _execute(args, console, machines)


def _execute(args: argparse.Namespace, console: Console, machines: OtherMachines | None) -> int:
    from biopsy.cli.run.names import require_names_of_check
    from biopsy.model.index import index_file
    from biopsy.session.pool import Parallelism

    report = report_file(args, console)
    has_one_file = args.engine is not None and machines is None  # of what is built; elsewhere each machine has one
    jobs = 1 if has_one_file else checking.jobs_of(args, console, machines)
    check = _check(args, jobs)
    try:
        index = index_file(args.model, args.external_data_dir)
        require_names_of_check(checking.own_run(args), index, args.load_inputs or ())
        _warn_of_dropped_casts(args, console)
        _warn_of_check_without_reference(args, console)
        checking.note_on_check(check, args, console)
        return _searched(
            args,
            console,
            report,
            index,
            partial(_search, args, console, index, check, Parallelism(jobs=jobs, executor=machines)),
        )
    except errors.Interrupted as stop:
        if stop.kept is None or args.output is None:
            raise
        raise errors.Interrupted(stop.message, kept=stop.kept, resume=_same_line(args)) from stop
    except errors.CheckChanged as error:
        if args.output is None:
            raise
        raise line_again.begun_anew(error, line_again.fresh_line(args.words, REST_OPTIONS, "precision")) from error
    finally:
        check.close()


def _search(
    args: argparse.Namespace,
    console: Console,
    index: ModelIndex,
    check: Check,
    parallelism: Parallelism,
    sections: PrecisionSections,
    listener: events.Listener,
) -> PrecisionResult:
    from biopsy.cli.debug.precision.job import job_of
    from biopsy.mixed_precision.job_run import run_job
    from biopsy.mixed_precision.precisions import mixed_models
    from biopsy.session.claim import set_aside

    job = job_of(args, parallelism, sections.write)
    built = args.iter_artifact if args.engine is not None else None
    with checking.ended_politely(), set_aside(built, "search", console.warn) as remark:
        if remark is not None:
            console.note(remark)
        feeds = calibration_feeds(args, index, console)
        precisions = precisions_of(args)
        return run_job(index, lambda place: mixed_models(index, place, precisions, feeds), check, job, listener)


def _searched(
    args: argparse.Namespace,
    console: Console,
    report: ReportFile,
    index: ModelIndex,
    search: Callable[[PrecisionSections, events.Listener], PrecisionResult],
) -> int:
    """Search, write the report, show what was found; the exit status."""
    from biopsy.cli.debug.precision.report import PrecisionSections
    from biopsy.cli.debug.precision_report import PrecisionReport, say_result

    with PrecisionReport(console, args.events, _shown(args)) as progress:
        sections = PrecisionSections(args, index, progress.history, report)
        with report.also_of_errors(sections.of_error):
            result = search(sections, progress)
        without = (result.stopped or "").split()[:1]
        say_result(console, result, args.list, _same_line(args, without) if args.output is not None else None)
        return progress.ended(errors.Interrupted.status if result.stopped else 0)


def _same_line(args: argparse.Namespace, without: Sequence[str] = ()) -> str:
    return line_again.resume_line(args.words, REST_OPTIONS, without)


def _warn_of_dropped_casts(args: argparse.Namespace, console: Console) -> None:
    """Say so if the check runs an engine that optimizes emulated rounding away, as OpenVINO does on a CPU."""
    own = checking.own_run(args)
    engines = (own.engines or ()) if own is not None else ()
    if args.form == "emulate" and args.low in (None, "fp16") and any(each.startswith("openvino") for each in engines):
        console.warn("OpenVINO drops Casts to fp16 and back on a CPU, so little is rounded there: check with --onnxrt")


def _warn_of_check_without_reference(args: argparse.Namespace, console: Console) -> None:
    """Say so if the check compares a candidate only with itself: both sides then lose the same in low layers."""
    own = checking.own_run(args)
    if own is None or own.load_outputs or own.validate or own.compare_with or own.build_only:
        return
    console.warn(
        "this check compares the mixed model with nothing but itself and cannot see what lower precision loses: save"
        " inputs and outputs of the original (biopsy run MODEL --save-inputs --save-outputs), and have the check load"
        " them (--load-inputs --load-outputs)"
    )


def _shown(args: argparse.Namespace) -> str:
    return "all" if args.show_output else "none" if args.hide_fail_output else "ends"


def _check(args: argparse.Namespace, jobs: int) -> Check:
    """The check: of the candidate, or of what an engine builds from it."""
    check = checking.check_of(args, jobs)
    if args.engine is None:
        return check
    from biopsy.checks.command import CommandCheck
    from biopsy.checks.engine_file import EngineFileCheck
    from biopsy.checks.words import as_word

    words = [
        "biopsy",
        "run",
        "{}",
        "--engine",
        args.engine,
        "--build-only",
        "--save-engine",
        as_word(args.iter_artifact),
    ]
    builder = CommandCheck(words, "", args.check_timeout, args.check_memory)
    return EngineFileCheck(builder, check, args.iter_artifact, keep=args.no_remove_intermediate)
