"""``biopsy debug reduce``: finds the smallest part of a model that still fails in the same way. Importing this imports
no search, because the process of the checks is to start first.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.cli.advice import resumable, resume_line
from biopsy.cli.arguments import checks, types
from biopsy.cli.arguments.engines import PackageOptions
from biopsy.cli.console import Console
from biopsy.cli.debug import bundling, checking, other_machines
from biopsy.cli.debug.reduce_options import ReduceOptions
from biopsy.cli.report import ReportFile

if TYPE_CHECKING:
    from biopsy import events
    from biopsy.cli.run.options import RunOptions
    from biopsy.model.index import ModelIndex
    from biopsy.questions.variation.result import Variation
    from biopsy.reduction.result import Reduction
    from biopsy.session.machines import OtherMachines

REST_OPTIONS = checks.REST_OPTIONS

_NOT_ELSEWHERE = {
    "--artifacts": other_machines.STAYS_THERE,
    "--no-remove-intermediate": other_machines.STAYS_THERE,
    "--explain": other_machines.ASKS_HERE,
    "--explain-checks": other_machines.ASKS_HERE,
}
"""Options that cannot be combined with ``--on``, each with the reason."""

warmed_up = checking.warmed_up

EPILOG = f"""\
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
    ReduceOptions.add(
        parser,
        without=("run_timeout",),
        defaults={"iter_artifact": Path(checks.DEFAULT_CANDIDATE)},
        titles=dict.fromkeys(PackageOptions.declared, "the releases that the check is made with"),
        model=" that fails",
        output="the reduced model (default: MODEL_reduced.onnx)",
        check="the command that tells whether a candidate fails; takes the rest of the line. "
        f"In it, {checks.CANDIDATE}. {checks.ASKED}. "
        "The check that allows the smallest results is 'biopsy run' without --load-outputs, which computes its "
        "reference anew for each candidate",
        check_timeout="20 times as long as the original's, at least 60",
        check_memory="; this counts as another failure, unless the original needs more too",
        hide_fail_output="the original's failure",
        packages="run the engines of this package in a check that is 'biopsy run' from this release of it; in any "
        "other check, {python} stands for the interpreter of an environment with it",
        fresh="start over instead of resuming an interrupted reduction, whose journal (OUTPUT.journal) is kept aside",
        iter_artifact=f"where each candidate is written (default: {checks.DEFAULT_CANDIDATE})",
        load_inputs="record values with these inputs, all iterations of them (default: those of the check, else random "
        "ones)",
    )
    bundling.add(parser, "the result")
    other_machines.MachineOptions.add(parser, on=other_machines.meaning())


@ReduceOptions.reading
def derived_files(options: ReduceOptions) -> types.Derived:
    """The result, unless an option names it, the files beside it, and the journals."""
    from biopsy.reduction.result import inputs_file

    output, weights = options.result, options.weights_file(options.result)
    fed = options.records_feeds(checking.own_run(options.check))
    return {
        "the result": (None if options.output else output, types.WRITTEN),
        "the weights of the result": (output.with_name(weights) if weights else None, types.WRITTEN),
        "the inputs of the result": (inputs_file(output) if fed else None, types.WRITTEN),
        "the journal": (checks.journal_of(output), types.WRITTEN),
        "the journal of --explain": (options.explanation_journal, types.WRITTEN),
    }


def execute(args: argparse.Namespace, console: Console) -> int:
    """Reduce the model; returns 0, or 5 if a limit ended the search; raises what ends with another status."""
    bundling.require_possible(args.bundle, has_check=args.check is not None)
    with other_machines.machines_of(args, console, _NOT_ELSEWHERE) as machines:
        return _execute(args, console, machines)


def _execute(args: argparse.Namespace, console: Console, machines: OtherMachines | None) -> int:
    from biopsy.model.index import index_file

    jobs = ReduceOptions.of(args).jobs_of(console, machines)
    index_of_model = cache(partial(index_file, args.model, args.external_data_dir))
    args.check = with_sizes_of_symbols(args.check, checking.own_run(args.check), index_of_model, console)
    options, own_run = ReduceOptions.of(args), checking.own_run(args.check)
    check = options.check_of(jobs)  # it warms up during the imports below
    with contextlib.closing(check), resumable(options.words, REST_OPTIONS, "reduce"):
        from biopsy.cli.debug.reduction_report import explained, job_of, require_explainable
        from biopsy.cli.run.files import require_names_of_check
        from biopsy.reduction.reduce import run_job

        report = options.report_file(console)
        require_explainable(options)
        job = job_of(options, own_run, jobs, machines)
        index = index_of_model()
        require_names_of_check(own_run, index, options.load_inputs or (), options.iter_inputs)
        fed = [index.names[tensor] for tensor in index.fed_inputs()]
        options.require_draws(fed, random=job.recording.samples is None, console=console)
        options.note_on(check, console)

        def search(listener: events.Listener) -> tuple[Reduction, Variation | None]:
            with checking.ended_politely():
                result = run_job(index, check, job, listener, tells_values=options.explains)
            begin = partial(options.check_of, jobs)
            return result, explained(options, own_run, begin, jobs, result, listener)

        hidden = bundling.words_to_hide(args)  # read now: the result may overwrite the model
        return _reduced(options, own_run, console, report, index=index, hidden=hidden, search=search)


def _reduced(
    options: ReduceOptions,
    own_run: RunOptions | None,
    console: Console,
    report: ReportFile,
    *,
    index: ModelIndex,
    hidden: Mapping[str, str] | None,
    search: Callable[[events.Listener], tuple[Reduction, Variation | None]],
) -> int:
    """Search, show and report the result; returns the exit status. A bundle contains none of the ``hidden`` words."""
    from biopsy.checks.command import CommandCheck
    from biopsy.cli.debug.reduction_report import ReductionReport, Sections, advice_of, say_result

    shown = "all" if options.show_output else "none" if options.hide_fail_output else "original"
    with ReductionReport(console, options.events, shown) as progress:
        wanted = report.path is not None or options.bundle is not None
        sections = Sections(options, own_run, index, progress.history, wanted=wanted)
        with report.also_of_errors(sections.of_error):
            result, variation = search(progress)
        status = errors.Interrupted.status if result.stopped else 0
        advice = advice_of(result, options)
        of_result = partial(sections.of_result, result, variation, advice)
        report.write(status, partial(of_result, report.folder))
        line = resume_line(options.words, REST_OPTIONS, (result.stopped or "").split()[:1])
        say_result(console, result, line, advice, variation)
        if options.bundle is not None:
            from biopsy.findings.bundle.job import BundleJob, EarlierFindings
            from biopsy.findings.page.document import reports_of
            from biopsy.findings.verdict import Note

            assert options.check is not None
            written = report.as_bytes(status, partial(of_result, options.bundle))
            notes = [] if variation is None else [Note(label="cause", text=f"It {variation.sentence}.")]
            job = BundleJob(
                target=options.bundle,
                original=options.model,
                model=result.output,
                folder=result.output.parent,
                check=CommandCheck(options.check, str(options.candidate), options.check_timeout, options.check_memory),
                rules=options.rules(),
                inputs=result.inputs,
                # A report describes the whole original.
                reports={} if hidden is not None else reports_of(written),
                earlier=EarlierFindings(notes=notes, how_often=progress.history.how_often),
            )
            bundling.pack(job, own_run, console, hidden)
        return progress.ended(status, result.nodes)


def with_sizes_of_symbols(
    words: Sequence[str] | None,
    own_run: RunOptions | None,
    index_of_model: Callable[[], ModelIndex],
    console: Console,
) -> Sequence[str] | None:
    """The words of the check; ``biopsy run`` gets the sizes that its ``--input-shapes`` give to symbolic dimensions.

    Without them, a candidate without the input of this shape would run with other sizes than the original.
    """
    if words is None or own_run is None or not own_run.input_shapes or own_run.input_symbols:
        return words
    from biopsy.tensors.generate import symbols_bound

    index = index_of_model()
    kinds = {index.names[tensor]: index.tensor_type(tensor) for tensor in index.fed_inputs()}
    shapes = types.parse_shapes(own_run.input_shapes)
    sizes = symbols_bound({name: kind for name, kind in kinds.items() if kind is not None}, shapes)
    if not sizes:
        return words
    bindings = ",".join(f"{name}={size}" for name, size in sizes.items())
    console.note(
        f"sizes      {bindings.replace(',', ' ')} in every candidate, by the check's --input-shapes (--input-symbols)"
    )
    program, command, *others = words
    return [program, command, f"--input-symbols={bindings}", *others]
