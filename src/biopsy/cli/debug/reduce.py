"""``biopsy debug reduce``: the smallest part of a model that still fails the same way. Importing this imports no
search: the process of the checks starts first.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biopsy import errors, events
from biopsy.checks.command import CommandCheck
from biopsy.checks.outcome import Check
from biopsy.cli.advice import begun_anew, fresh_line, resume_line
from biopsy.cli.arguments import absent_options, checks, comparing, engines, groups, types
from biopsy.cli.arguments.limits import RunMemoryOption
from biopsy.cli.console import Console
from biopsy.cli.debug import bundling, checking, other_machines
from biopsy.cli.debug.bundling import explanation_journal, feeds_recorded, output_of
from biopsy.cli.report import ReportFile, ReportOption, report_file
from biopsy.cli.run.options import RunOptions
from biopsy.model.index import ModelIndex, index_file
from biopsy.questions.variation.result import Variation
from biopsy.reduction.result import Reduction, inputs_file
from biopsy.reduction.schedule import MODEL_PASSES, PASSES

if TYPE_CHECKING:
    from biopsy.findings.bundle.job import EarlierFindings
    from biopsy.findings.search_history import SearchHistory
    from biopsy.reduction.job import ReductionJob
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
    add(parser)


def derived_files(args: argparse.Namespace) -> types.Derived:
    """The result, if no option names it, the files beside it, and the journal."""
    output = output_of(args)
    fed = feeds_recorded(args, checking.own_run(args), output)
    weights = groups.WeightsFileOption.of(args).weights_file(output)
    return {
        "the result": (None if args.output else output, types.WRITTEN),
        "the weights of the result": (output.with_name(weights) if weights else None, types.WRITTEN),
        "the inputs of the result": (inputs_file(output) if fed else None, types.WRITTEN),
        "the journal": (checks.journal_of(output), types.WRITTEN),
        "the journal of --explain": (explanation_journal(args, output), types.WRITTEN),
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
        from biopsy.cli.debug.reduce_job import explained, is_wanted, job_of, require_explainable
        from biopsy.cli.run.names import require_names_of_check

        report = report_file(args, console)
        require_explainable(args)
        job = job_of(args, jobs, machines)
        index = index_of_model()
        require_names_of_check(own_run, index, args.load_inputs or (), args.iter_inputs)
        fed = [index.names[tensor] for tensor in index.fed_inputs()]
        groups.RecordedInputs.of(args).require_draws(fed, random=job.recording.samples is None, console=console)
        checking.note_on_check(check, args, console)
        search = partial(_search, index, check, job, is_wanted(args))
        return _reduced(args, console, report, index, search, partial(explained, args, jobs))
    except errors.Interrupted as stop:
        if stop.kept is None:
            raise
        raise errors.Interrupted(stop.message, kept=stop.kept, resume=_same_line(args)) from stop
    except errors.CheckChanged as error:
        raise begun_anew(error, fresh_line(args.words, REST_OPTIONS, "reduce")) from error
    finally:
        check.close()


def _search(
    index: ModelIndex, check: Check, job: ReductionJob, tells_values: bool, listener: events.Listener
) -> Reduction:
    from biopsy.reduction.job import run_job

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
    from biopsy.cli.debug.reduction_report import ReductionReport, Sections, advice_of, say_result

    words = bundling.words_to_hide(args)  # the result may take the place of the model
    with ReductionReport(
        console, args.events, "all" if args.show_output else "none" if args.hide_fail_output else "original"
    ) as progress:
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
            packing = bundling.Packing(
                target=args.bundle,
                original=args.model,
                model=result.output,
                check=CommandCheck(args.check, str(args.iter_artifact), args.check_timeout, args.check_memory),
                rules=checking.rules_of(args),
                own_run=checking.own_run(args),
                inputs=result.inputs,
                words=words,
                reports={}
                if words is not None
                else bundling.reports_of(made, console),  # they tell of the whole original
            )
            bundling.pack(replace(packing, found=_earlier(variation, progress.history)), console)
        return progress.ended(status, result.nodes)


def _earlier(variation: Variation | None, history: SearchHistory) -> EarlierFindings:
    from biopsy.findings.bundle.job import EarlierFindings

    sentence = "" if variation is None else variation.sentence
    return EarlierFindings(variation=sentence, how_often=history.how_often)


def _index(args: argparse.Namespace) -> ModelIndex:

    return index_file(args.model, args.external_data_dir)


def _same_line(args: argparse.Namespace, without: Sequence[str] = ()) -> str:
    return resume_line(args.words, REST_OPTIONS, without)


# The options of ``biopsy debug reduce``.


def add(parser: argparse.ArgumentParser) -> None:
    """Add all of them."""
    parser.add_argument("model", type=types.READ, metavar="MODEL", help="the ONNX model that fails")
    parser.add_argument(
        "-o",
        "--output",
        type=types.WRITTEN,
        metavar="FILE",
        help="the reduced model (default: MODEL_reduced.onnx)",
    )
    ReportOption.add(parser)
    parser.add_argument(
        "--min-good",
        "--minimal-good",
        type=types.WRITTEN,
        metavar="FILE",
        help="also write the passing model that is closest in size",
    )
    bundling.add(parser, "the result")
    parser.add_argument(
        "--mode",
        choices=("minimal", "bisect", "linear"),
        default="minimal",
        help="minimal: bisect, then search for the needed nodes wherever they are, until no single node can be removed "
        "(default); bisect: one piece, by halving, O(log N) checks; linear: node by node, O(N) checks",
    )
    _add_check(parser)
    engines.PackageOptions.add(
        parser.add_argument_group("the releases that the check is made with"),
        packages="run the engines of this package in a check that is 'biopsy run' from this release of it; in any "
        "other check, {python} stands for the interpreter of an environment with it",
    )
    checks.RepeatOptions.add(parser.add_argument_group("flaky failures"))
    _add_limits(parser)
    _add_iteration(parser)
    _add_model(parser)
    _add_boundary(parser)
    _add_passes(parser)
    _add_explaining(parser)
    absent_options.add(parser, "debug reduce")


def _add_check(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the check")
    checks.CheckOption.add(
        group,
        check="the command that tells whether a candidate fails; takes the rest of the line. "
        f"In it, {checks.CANDIDATE}. {checks.ASKED}. "
        "The check that allows the smallest results is 'biopsy run' without --load-outputs, which computes its "
        "reference anew for each candidate",
    )
    checks.RuleOptions.add(group)
    checks.CheckTimeOptions.add(group, check_timeout="20 times as long as the original's, at least 60")
    checks.CheckMemoryOption.add(
        group, check_memory="; this counts as another failure, unless the original needs more too"
    )
    group.add_argument(
        "--allow-vacuous-check",
        action="store_true",
        help="continue even if a model of a single Identity node fails the check the same way, so that the result says "
        "nothing; without this the status is then 4, and nothing is written",
    )
    checks.ColdOption.add(group)
    checks.ShownOutputOptions.add(group, hide_fail_output="the original's failure")


def _add_limits(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("time limits, and resuming")
    checks.BudgetOptions.add(group)
    checks.ResumeOptions.add(
        group,
        fresh="start over instead of resuming an interrupted reduction, whose journal (OUTPUT.journal) is kept aside",
    )
    other_machines.add(parser)


def _add_iteration(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("files of each iteration")
    checks.ArtifactOptions.add(group)
    checks.IterationOptions.add(
        group,
        defaults={"iter_artifact": Path(checks.DEFAULT_CANDIDATE)},
        iter_artifact=f"where each candidate is written (default: {checks.DEFAULT_CANDIDATE})",
    )
    group.add_argument(
        "--iter-inputs",
        type=types.ITERATION,
        metavar="FILE",
        help="write the recorded values of each candidate's inputs (.json, .npz, .safetensors)",
    )
    group.add_argument(
        "--keep-other",
        type=types.FOLDER_WRITTEN,
        metavar="DIR",
        help="keep one model of each other failure met on the way",
    )
    checks.EventsOption.add(group)


def _add_model(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the model")
    group.add_argument(
        "--model-input-shapes",
        "--model-inputs",
        nargs="+",
        metavar="NAME:[SHAPE]",
        help="fix the shapes of dynamic inputs: x:[1,3,224,224] y:[2]",
    )
    shapes = group.add_mutually_exclusive_group()
    shapes.add_argument(
        "--no-shape-inference", action="store_true", help="take types only from the model's own value_info"
    )
    shapes.add_argument(
        "--force-fallback-shape-inference", action="store_true", help="take types and shapes from a run of the model"
    )
    groups.RecordedInputs.add(
        group,
        load_inputs="record values with these inputs, all iterations of them (default: those of the check, else random "
        "ones)",
    )
    group.add_argument(
        "--record-with",
        metavar="NAME[:key=value,...]",
        help="the engine that records the original's values (default: onnxrt with its optimizer off, else reference)",
    )
    RunMemoryOption.add(group)
    groups.WeightsFolderOption.add(group)
    groups.WeightsFileOption.add(group)


def _add_boundary(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what may change")
    kept = group.add_mutually_exclusive_group()
    kept.add_argument("--no-reduce-inputs", action="store_true", help="keep the inputs: remove nodes only from the end")
    kept.add_argument(
        "--no-reduce-outputs", action="store_true", help="keep the outputs: remove nodes only from the beginning"
    )
    group.add_argument(
        "--cut",
        choices=("auto", "input", "constant"),
        default="auto",
        help="what happens to a cut tensor: it becomes an input, a constant, or either, by its kind (default: auto)",
    )
    group.add_argument(
        "--values",
        choices=("auto", "keep", "free"),
        default="auto",
        help="may candidates compute other values than the original? keep: no; free: yes, which allows smaller results "
        "but misleads a check against golden values; auto: find out (default)",
    )
    group.add_argument(
        "--mark-intermediate",
        action="store_true",
        help="start with every tensor marked as an output, for a failure that later nodes mask (automatic where a "
        "check with --load-outputs passes but finds an inner tensor wrong)",
    )


def _add_explaining(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what may vary")
    group.add_argument(
        "--explain",
        action="store_true",
        help="find out which attributes, sizes, types, weights and inputs of the result may be others, and it still "
        "fails in the same way, and which must be as they are",
    )
    group.add_argument(
        "--explain-checks",
        type=types.positive,
        metavar="N",
        help="as --explain, with at most N checks (default: 60; in any case it ends after 5 minutes)",
    )


class _ListPasses(argparse.Action):
    """Shows the table of passes and exits, as --help does: no model is needed."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:

        rows = [(named.name, named.summary, "") for named in PASSES]
        rows += [
            (named.name, named.summary, " or ".join(f"--{option}" for option in named.only_with))
            for named in MODEL_PASSES
        ]
        width = max(len(name) for name, _, _ in rows)
        table = [f"{name:<{width}}  {summary}{f' ({only})' if only else ''}" for name, summary, only in rows]
        Console().say(*table)
        parser.exit()


def _add_passes(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the passes of mode minimal")
    group.add_argument(
        "--simplify",
        action="store_true",
        help="when few nodes are left, also try to remove attributes, shrink sizes and fill weights",
    )
    group.add_argument(
        "--anonymize",
        action="store_true",
        help="when few nodes are left, also try to replace names and weights, so that the file can be shared; reports "
        "what could not be replaced",
    )
    group.add_argument(
        "--order-by",
        type=types.READ,
        metavar="LAYERS.json",
        help="try first the layers that a report of 'biopsy debug layers' finds wrong (--mode minimal and bisect)",
    )
    group.add_argument(
        "--list-passes", nargs=0, action=_ListPasses, default=argparse.SUPPRESS, help="list the passes in order"
    )
    group.add_argument("--skip-pass", nargs="+", action="extend", default=[], metavar="NAME", help="skip these passes")
    group.add_argument(
        "--only-pass", nargs="+", action="extend", default=[], metavar="NAME", help="run only these passes"
    )


# Open dimensions: a candidate gets the sizes that the check gives to those of the original.


def with_sizes_of_symbols(
    words: Sequence[str] | None,
    own_run: RunOptions | None,
    index_of_model: Callable[[], ModelIndex],
    console: Console,
) -> Sequence[str] | None:
    """The words of the check; for ``biopsy run`` with the sizes that its --input-shapes give to open dimensions.

    Without them, a candidate that has lost the input of this shape would run with other sizes than the original.
    """
    if words is None or own_run is None or not own_run.input_shapes or own_run.input_symbols:
        return words
    from biopsy.tensors.generate import symbols_bound

    index = index_of_model()
    kinds = {index.names[tensor]: index.tensor_type(tensor) for tensor in index.fed_inputs()}
    shapes = comparing.parse_shapes(own_run.input_shapes)
    sizes = symbols_bound({name: kind for name, kind in kinds.items() if kind is not None}, shapes)
    if not sizes:
        return words
    bindings = ",".join(f"{name}={size}" for name, size in sizes.items())
    console.note(
        f"sizes      {bindings.replace(',', ' ')} in every candidate, by the check's --input-shapes (--input-symbols)"
    )
    program, command, *others = words
    return [program, command, f"--input-symbols={bindings}", *others]
