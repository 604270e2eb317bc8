"""``biopsy debug reduce``: the smallest part of a model that still fails the same way."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.cli import line_again
from biopsy.cli.arguments import checks, file_kinds, groups
from biopsy.cli.debug import bundling, checking, other_machines
from biopsy.cli.debug.reduce import options
from biopsy.cli.debug.reduce.outputs import explanation_journal, feeds_recorded, output_of
from biopsy.cli.debug.reduce.symbols import with_sizes_of_symbols
from biopsy.cli.report_file import report_file

if TYPE_CHECKING:
    from biopsy import events
    from biopsy.checks.outcome import Check
    from biopsy.cli.console import Console
    from biopsy.cli.report_file import ReportFile
    from biopsy.model.index import ModelIndex
    from biopsy.reduction.job import ReductionJob
    from biopsy.reduction.result import Reduction
    from biopsy.report.bundle.job import EarlierFindings
    from biopsy.report.search_history import SearchHistory
    from biopsy.session.machines import OtherMachines
    from biopsy.variation.result import Variation

REST_OPTIONS = checks.REST_OPTIONS

_NOT_ELSEWHERE = {
    "--artifacts": other_machines.STAYS_THERE,
    "--no-remove-intermediate": other_machines.STAYS_THERE,
    "--explain": other_machines.ASKS_HERE,
    "--explain-checks": other_machines.ASKS_HERE,
}
"""Options that cannot be combined with ``--on``, each with the reason."""

warmed_up = checking.warmed_up

_EPILOG = f"""\
examples:
  First golden values, then the reduction; each layer gets the inputs that it had in the whole model:
    biopsy run model.onnx --onnxrt --save-inputs inputs.json \\
        --onnx-outputs mark all --save-outputs layerwise_golden.json
    biopsy data to-input inputs.json layerwise_golden.json -o layerwise_inputs.json
    biopsy debug reduce model.onnx -o reduced.onnx --mode=bisect \\
        --check biopsy run polygraphy_debug.onnx --openvino \\
                --load-inputs layerwise_inputs.json --load-outputs layerwise_golden.json
  One engine against itself; both sides run for each candidate:
    biopsy debug reduce model.onnx -o reduced.onnx \\
        --check biopsy run {{}} --engine onnxrt:optimization=none --onnxrt
  Any command; here it fails if it prints a certain line:
    biopsy debug reduce model.onnx -o reduced.onnx --fail-regex "Op: Mul" \\
        --check biopsy inspect model {{}} --mode=basic
  By hand: without --check, you are asked about each candidate.

{checks.STATUSES}"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``debug reduce``."""
    parser.epilog = _EPILOG
    options.add(parser)


def derived_files(args: argparse.Namespace) -> file_kinds.Derived:
    """The result, if no option names it, the files beside it, and the journal."""
    from biopsy.reduction.inputs_file import inputs_file

    output = output_of(args)
    fed = feeds_recorded(args, checking.own_run(args), output)
    weights = groups.weights_file(args, output)
    return {
        "the result": (None if args.output else output, file_kinds.WRITTEN),
        "the weights of the result": (output.with_name(weights) if weights else None, file_kinds.WRITTEN),
        "the inputs of the result": (inputs_file(output) if fed else None, file_kinds.WRITTEN),
        "the journal": (checks.journal_of(output), file_kinds.WRITTEN),
        "the journal of --explain": (explanation_journal(args, output), file_kinds.WRITTEN),
    }


def execute(args: argparse.Namespace, console: Console) -> int:
    """Reduce the model; returns 0, or 5 if a limit ended the search; raises what ends with another status."""
    bundling.require_possible(args)
    with other_machines.machines_of(args, console, _NOT_ELSEWHERE) as machines:
        return _execute(args, console, machines)


def _execute(args: argparse.Namespace, console: Console, machines: OtherMachines | None) -> int:
    jobs = checking.jobs_of(args, console, machines)
    own_run = checking.own_run(args)
    index_of_model = cache(partial(_index, args))
    args.check = with_sizes_of_symbols(args.check, own_run, index_of_model, console)
    check = checking.check_of(args, jobs)  # it warms up while the rest is loaded
    try:
        from biopsy.cli.debug.recorded_inputs import require_draws
        from biopsy.cli.debug.reduce.explanation import explained, is_wanted, require_explainable
        from biopsy.cli.debug.reduce.job import job_of
        from biopsy.cli.run.names import require_names_of_check

        report = report_file(args, console)
        require_explainable(args)
        job = job_of(args, jobs, machines)
        index = index_of_model()
        require_names_of_check(own_run, index, args.load_inputs or (), args.iter_inputs)
        fed = [index.names[tensor] for tensor in index.fed_inputs()]
        require_draws(args, fed, random=job.recording.samples is None, console=console)
        checking.note_on_check(check, args, console)
        search = partial(_search, index, check, job, is_wanted(args))
        return _reduced(args, console, report, index, search, partial(explained, args, jobs))
    except errors.Interrupted as stop:
        if stop.kept is None:
            raise
        raise errors.Interrupted(stop.message, kept=stop.kept, resume=_same_line(args)) from stop
    except errors.CheckChanged as error:
        raise line_again.begun_anew(error, line_again.fresh_line(args.words, REST_OPTIONS, "reduce")) from error
    finally:
        check.close()


def _search(
    index: ModelIndex, check: Check, job: ReductionJob, tells_values: bool, listener: events.Listener
) -> Reduction:
    from biopsy.reduction.job_run import run_job

    with checking.ended_politely():
        return run_job(index, check, job, listener, tells_values=tells_values)


def _reduced(
    args: argparse.Namespace,
    console: Console,
    report: ReportFile,
    index: ModelIndex,
    search: Callable[[events.Listener], Reduction],
    explain: Callable[[Reduction, events.Listener], Variation | None],
) -> int:
    """Search, show what was found, write the report; the exit status."""
    from biopsy.cli.debug.reduce.next_lines import advice_of
    from biopsy.cli.debug.reduce.report import Sections
    from biopsy.cli.debug.reduction_report import ReductionReport, say_result

    words = bundling.words_to_hide(args)  # the result may take the place of the model
    with ReductionReport(console, args.events, _shown(args)) as progress:
        sections = Sections(args, index, progress.history, wanted=report.path is not None or args.bundle is not None)
        with report.also_of_errors(sections.of_error):
            result = search(progress)
            variation = explain(result, progress)
        status = errors.Interrupted.status if result.stopped else 0
        advice = advice_of(result, args)
        told = partial(sections.of_result, result, variation, advice)
        report.write(status, partial(told, report.folder))
        line = _same_line(args, without=(result.stopped or "").split()[:1])
        say_result(console, result, line, advice, variation)
        if args.bundle is not None:
            made = report.as_bytes(status, partial(told, args.bundle))
            packing = _packing(args, result, words, made, console)
            bundling.pack(replace(packing, found=_earlier(variation, progress.history)), console)
        return progress.ended(status, result.nodes)


def _earlier(variation: Variation | None, history: SearchHistory) -> EarlierFindings:
    from biopsy.report.bundle.job import EarlierFindings

    sentence = "" if variation is None else variation.sentence
    return EarlierFindings(variation=sentence, how_often=history.how_often)


def _packing(
    args: argparse.Namespace, result: Reduction, words: Mapping[str, str] | None, report: bytes, console: Console
) -> bundling.Packing:
    from biopsy.checks.command import CommandCheck

    return bundling.Packing(
        target=args.bundle,
        original=args.model,
        model=result.output,
        check=CommandCheck(args.check, str(args.iter_artifact), args.check_timeout, args.check_memory),
        rules=checking.rules_of(args),
        own_run=checking.own_run(args),
        inputs=result.inputs,
        words=words,
        reports={} if words is not None else bundling.reports_of(report, console),  # they tell of the whole original
    )


def _index(args: argparse.Namespace) -> ModelIndex:
    from biopsy.model.index import index_file

    return index_file(args.model, args.external_data_dir)


def _same_line(args: argparse.Namespace, without: Sequence[str] = ()) -> str:
    return line_again.resume_line(args.words, REST_OPTIONS, without)


def _shown(args: argparse.Namespace) -> str:
    return "all" if args.show_output else "none" if args.hide_fail_output else "original"
