"""``biopsy debug reduce``: the smallest part of a model that still fails the same way."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import cache, partial
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.cli import lines
from biopsy.cli.arguments import checks, file_kinds, groups
from biopsy.cli.debug import checking
from biopsy.cli.debug.reduce import options
from biopsy.cli.debug.reduce.outputs import explanation_journal, feeds_recorded, output_of
from biopsy.cli.debug.reduce.symbols import with_sizes_of_symbols

if TYPE_CHECKING:
    from biopsy.cli.console import Console
    from biopsy.model.index import ModelIndex

REST_OPTIONS = checks.REST_OPTIONS

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
    jobs = checking.jobs_of(args, console)
    own_run = checking.own_run(args)
    index_of_model = cache(partial(_index, args))
    args.check = with_sizes_of_symbols(args.check, own_run, index_of_model, console)
    check = checking.check_of(args, jobs)  # it warms up while the rest is loaded
    try:
        from biopsy.cli.debug.recorded_inputs import require_draws
        from biopsy.cli.debug.reduce.explanation import explained, is_wanted, require_explainable
        from biopsy.cli.debug.reduce.job import job_of
        from biopsy.cli.debug.reduction_report import ReductionReport, say_result
        from biopsy.cli.run.names import require_names_of_check
        from biopsy.reduction.job_run import run_job

        require_explainable(args)
        job = job_of(args, jobs)
        index = index_of_model()
        require_names_of_check(own_run, index, args.load_inputs or (), args.iter_inputs)
        fed = [index.names[tensor] for tensor in index.fed_inputs()]
        require_draws(args, fed, random=job.recording.samples is None, console=console)
        checking.note_on_check(check, args, console)
        with checking.ended_politely(), ReductionReport(console, args.events, _shown(args)) as report:
            result = run_job(index, check, job, report, tells_values=is_wanted(args))
            variation = explained(args, result, jobs, report)
    except errors.Interrupted as stop:
        if stop.kept is None:
            raise
        raise errors.Interrupted(stop.message, kept=stop.kept, resume=_same_line(args)) from stop
    except errors.CheckChanged as error:
        raise lines.begun_anew(error, lines.fresh_line(args.words, REST_OPTIONS, "reduce")) from error
    finally:
        check.close()
    say_result(console, result, _same_line(args, without=(result.stopped or "").split()[:1]), variation)
    return errors.Interrupted.status if result.stopped else 0


def _index(args: argparse.Namespace) -> ModelIndex:
    from biopsy.model.index import index_file

    return index_file(args.model, args.external_data_dir)


def _same_line(args: argparse.Namespace, without: Sequence[str] = ()) -> str:
    return lines.resume_line(args.words, REST_OPTIONS, without)


def _shown(args: argparse.Namespace) -> str:
    return "all" if args.show_output else "none" if args.hide_fail_output else "original"
