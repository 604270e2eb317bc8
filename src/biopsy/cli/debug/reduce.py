"""``biopsy debug reduce``: the smallest part of a model that still fails in the same way."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biopsy import errors
from biopsy.cli import lines
from biopsy.cli.arguments import checks, file_kinds, groups, named_values

if TYPE_CHECKING:
    from biopsy.cli.console import Console
    from biopsy.model.index import ModelIndex
    from biopsy.reduction.job import ReductionJob
    from biopsy.session.iteration import IterationFiles
    from biopsy.session.options import SearchOptions
    from biopsy.tensors.results import Feed

REST_OPTIONS = checks.REST_OPTIONS

DEFAULT_CANDIDATE = "polygraphy_debug.onnx"

_EPILOG = """\
examples:
  Golden values first, then the reduction; a layer's inputs are those it had in the whole model:
    biopsy run model.onnx --onnxrt --save-inputs inputs.json \\
        --onnx-outputs mark all --save-outputs layerwise_golden.json
    biopsy data to-input inputs.json layerwise_golden.json -o layerwise_inputs.json
    biopsy debug reduce model.onnx -o reduced.onnx --mode=bisect \\
        --check biopsy run polygraphy_debug.onnx --openvino \\
                --load-inputs layerwise_inputs.json --load-outputs layerwise_golden.json
  One engine against itself, both run for each candidate:
    biopsy debug reduce model.onnx -o reduced.onnx \\
        --check biopsy run {} --engine onnxrt:optimization=none --onnxrt
  Any command; it fails when it prints a certain line:
    biopsy debug reduce model.onnx -o reduced.onnx --fail-regex "Op: Mul" \\
        --check biopsy inspect model {} --mode=basic
  By hand, without --check: you are asked about each candidate.

exit status of a check: 0 passes, 125 cannot say, 126 and 127 mean that it could not be run; any other fails.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``debug reduce``."""
    parser.epilog = _EPILOG
    parser.add_argument("model", type=file_kinds.READ, metavar="MODEL", help="the ONNX model that fails")
    parser.add_argument(
        "-o",
        "--output",
        type=file_kinds.WRITTEN,
        metavar="FILE",
        help="the reduced model (default: MODEL_reduced.onnx)",
    )
    parser.add_argument(
        "--min-good",
        "--minimal-good",
        type=file_kinds.WRITTEN,
        metavar="FILE",
        help="also write the passing model closest in size",
    )
    parser.add_argument(
        "--mode",
        choices=("minimal", "bisect", "linear"),
        default="minimal",
        help="minimal: bisect, then the nodes that matter wherever they stand, until no single node can go (default); "
        "bisect: one piece, by halves, O(log N) checks; linear: node by node, O(N) checks",
    )
    _add_check_options(parser)
    _add_work_options(parser)
    _add_iteration_options(parser)
    _add_model_options(parser)
    _add_boundary_options(parser)
    _add_pass_options(parser)


def _add_check_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the check")
    checks.add_command(
        group,
        "the command that tells whether a candidate fails: the whole rest of the line. In it, {} or the name of "
        f"--iter-artifact ({DEFAULT_CANDIDATE}) stands for the candidate. Without --check you are asked. 'biopsy run' "
        "without --load-outputs, which computes its reference anew for each candidate, allows the most",
    )
    checks.add_rules(group, "how alike two failures must be to count as the same")
    checks.add_timeout(group, "20 times as long as the original's, at least 60")
    checks.add_memory(group, "; it is another failure, unless the original needs more too")
    group.add_argument(
        "--allow-vacuous-check",
        action="store_true",
        help="go on where a model of one Identity node fails the check in the same way, so that the result says "
        "nothing; without this, the status is then 4 and nothing is written",
    )
    checks.add_cold(group)
    checks.add_shown_output(group, "the original's failure")


def _add_work_options(parser: argparse.ArgumentParser) -> None:
    checks.add_repeating(parser.add_argument_group("flaky failures"))
    group = parser.add_argument_group("time, and going on later")
    checks.add_limits(group)
    checks.add_resume(group, "reduction")


def _add_iteration_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("files of each iteration")
    checks.add_artifacts(group)
    group.add_argument(
        "--iter-artifact",
        "--intermediate-artifact",
        type=file_kinds.ITERATION,
        default=Path(DEFAULT_CANDIDATE),
        metavar="FILE",
        help=f"where each candidate is written (default: {DEFAULT_CANDIDATE})",
    )
    group.add_argument("--no-remove-intermediate", action="store_true", help="leave the last candidate there")
    checks.add_iteration_info(group)
    group.add_argument(
        "--iter-inputs",
        type=file_kinds.ITERATION,
        metavar="FILE",
        help="write the recorded values of each candidate's inputs (.json, .npz, .safetensors)",
    )
    group.add_argument(
        "--keep-other",
        type=file_kinds.FOLDER_WRITTEN,
        metavar="DIR",
        help="keep one model of each other failure that is met on the way",
    )
    checks.add_events(group)


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the model")
    group.add_argument(
        "--model-input-shapes",
        "--model-inputs",
        nargs="+",
        metavar="NAME:[SHAPE]",
        help="freeze dynamic inputs to these shapes: x:[1,3,224,224] y:[2]",
    )
    shapes = group.add_mutually_exclusive_group()
    shapes.add_argument(
        "--no-shape-inference", action="store_true", help="take types from the model's own value_info only"
    )
    shapes.add_argument(
        "--force-fallback-shape-inference", action="store_true", help="take types and shapes from running the model"
    )
    group.add_argument(
        "--load-inputs",
        "--load-input-data",
        nargs="+",
        type=file_kinds.READ,
        metavar="FILE",
        help="inputs to record values with; all iterations are used (default: those of the check, else random ones)",
    )
    group.add_argument(
        "--record-with",
        metavar="NAME[:key=value,...]",
        help="the engine that records the original's values (default: onnxrt, its optimizer off, else reference)",
    )
    groups.add_weights_folder(group)
    groups.add_weights_file(group)


def _add_boundary_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what may change")
    kept = group.add_mutually_exclusive_group()
    kept.add_argument("--no-reduce-inputs", action="store_true", help="keep the inputs: only nodes from the end go")
    kept.add_argument(
        "--no-reduce-outputs", action="store_true", help="keep the outputs: only nodes from the beginning go"
    )
    group.add_argument(
        "--cut",
        choices=("auto", "input", "constant"),
        default="auto",
        help="what a tensor becomes that is no longer computed: an input, a constant, or by its kind (default: auto)",
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
        help="begin with every tensor marked as an output, if the failure is masked otherwise",
    )


class _ListPasses(argparse.Action):
    """Shows the table of passes and ends, as --help does: no model is needed."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        from biopsy.cli.console import Console
        from biopsy.reduction.schedule import MODEL_PASSES, PASSES

        rows = [(named.name, named.summary, "") for named in PASSES]
        rows += [
            (named.name, named.summary, " or ".join(f"--{option}" for option in named.only_with))
            for named in MODEL_PASSES
        ]
        width = max(len(name) for name, _, _ in rows)
        lines = [f"{name:<{width}}  {summary}{f' ({only})' if only else ''}" for name, summary, only in rows]
        Console().say(*lines)
        parser.exit()


def _add_pass_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the passes of mode minimal")
    group.add_argument(
        "--simplify",
        action="store_true",
        help="once the nodes are few also try to remove attributes, to make sizes smaller, and to fill weights",
    )
    group.add_argument(
        "--anonymize",
        action="store_true",
        help="once the nodes are few also try to replace names and weights, so that the file can be shared; what could "
        "not be replaced is said",
    )
    group.add_argument(
        "--order-by",
        type=file_kinds.READ,
        metavar="LAYERS.json",
        help="try the layers first that a report of 'biopsy debug layers' names as wrong (--mode minimal and bisect)",
    )
    group.add_argument(
        "--list-passes", nargs=0, action=_ListPasses, default=argparse.SUPPRESS, help="show the passes in their order"
    )
    group.add_argument("--skip-pass", nargs="+", action="extend", default=[], metavar="NAME", help="leave these out")
    group.add_argument("--only-pass", nargs="+", action="extend", default=[], metavar="NAME", help="run only these")


def derived_files(args: argparse.Namespace) -> file_kinds.Derived:
    """The result, where it is not named, what stands beside it, and the journal."""
    from biopsy.reduction.inputs_file import inputs_file

    output = _output(args)
    fed = _feeds_recorded(args, checks.own_run(args), output)
    weights = groups.weights_file(args, output)
    return {
        "the result": (None if args.output else output, file_kinds.WRITTEN),
        "the weights of the result": (output.with_name(weights) if weights else None, file_kinds.WRITTEN),
        "the inputs of the result": (inputs_file(output) if fed else None, file_kinds.WRITTEN),
        "the journal": (checks.journal_of(output), file_kinds.WRITTEN),
    }


def _output(args: argparse.Namespace) -> Path:
    return args.output or Path(f"{args.model.stem}_reduced.onnx")


def execute(args: argparse.Namespace, console: Console) -> int:
    """Reduce the model; returns 0, 5 if a limit ended the search, or raises what ends with another status."""
    from biopsy.checks.command import CommandCheck

    jobs = checks.jobs_of(args, console)
    own_run = checks.own_run(args)
    index_of_model = cache(partial(_index, args))
    args.check = _with_sizes_of_symbols(args.check, own_run, index_of_model, console)
    check = checks.check_of(args, jobs)  # what warms up for it does so while the rest is loaded
    try:
        from biopsy.cli.debug.reduction_report import ReductionReport, say_result
        from biopsy.cli.run.names import require_names_of_check
        from biopsy.reduction.job_run import run_job

        job = _job(args, jobs)
        index = index_of_model()
        require_names_of_check(own_run, index, args.load_inputs or (), args.iter_inputs)
        if isinstance(check, CommandCheck) and not check.names_candidate:
            console.note(f"the check names neither {{}} nor {args.iter_artifact}: it must know by itself where to look")
        with checks.ended_politely(), ReductionReport(console, args.events, _shown(args)) as report:
            result = run_job(index, check, job, report)
    except errors.Interrupted as stop:
        if stop.kept is None:
            raise
        raise errors.Interrupted(stop.message, kept=stop.kept, resume=_same_line(args)) from stop
    finally:
        check.close()
    say_result(console, result, _same_line(args, without=(result.stopped or "").split()[:1]))
    return errors.Interrupted.status if result.stopped else 0


def _index(args: argparse.Namespace) -> ModelIndex:
    from biopsy.model.index import index_file

    return index_file(args.model, args.external_data_dir)


def _with_sizes_of_symbols(
    words: Sequence[str] | None,
    own_run: argparse.Namespace | None,
    index_of_model: Callable[[], ModelIndex],
    console: Console,
) -> Sequence[str] | None:
    """The words of the check; our own ``run`` also gets the sizes that its --input-shapes give to open dimensions.

    A candidate that has lost the input of this shape would be run with other sizes than the original.
    """
    if words is None or own_run is None or not own_run.input_shapes or own_run.input_symbols:
        return words
    from biopsy.tensors.generate import symbols_bound

    index = index_of_model()
    kinds = {index.names[tensor]: index.tensor_type(tensor) for tensor in index.fed_inputs()}
    shapes = named_values.parse_shapes(own_run.input_shapes)
    sizes = symbols_bound({name: kind for name, kind in kinds.items() if kind is not None}, shapes)
    if not sizes:
        return words
    given = ",".join(f"{name}={size}" for name, size in sizes.items())
    console.note(
        f"sizes      {given.replace(',', ' ')} in every candidate, by the check's --input-shapes (--input-symbols)"
    )
    program, command, *others = words
    return [program, command, f"--input-symbols={given}", *others]


def _same_line(args: argparse.Namespace, without: Sequence[str] = ()) -> str:
    return lines.resume_line(args.words, REST_OPTIONS, without)


def _shown(args: argparse.Namespace) -> str:
    return "all" if args.show_output else "none" if args.hide_fail_output else "original"


def _files(args: argparse.Namespace) -> IterationFiles:
    from biopsy.checks.artifacts import Artifacts
    from biopsy.session.iteration import IterationFiles

    return IterationFiles(
        artifacts=Artifacts(tuple(args.artifacts), args.art_dir),
        info=args.iter_info,
        inputs=args.iter_inputs,
        keep_last=args.no_remove_intermediate,
    )


def _search(args: argparse.Namespace, jobs: int, output: Path) -> SearchOptions:
    from biopsy.session.budget import Budget
    from biopsy.session.flakiness import Repeating
    from biopsy.session.options import SearchOptions
    from biopsy.session.pool import Parallelism

    return SearchOptions(
        rules=checks.rules_of(args),
        candidate=args.iter_artifact,
        files=_files(args),
        parallelism=Parallelism(jobs),
        budget=Budget(args.max_checks, args.max_time),
        repeating=Repeating(args.repeat, args.confidence),
        resume=checks.resume_of(args, checks.journal_of(output), "reduction"),
        keep_other=args.keep_other,
    )


def _job(args: argparse.Namespace, jobs: int) -> ReductionJob:
    from biopsy.cli.debug.preconditions import require_inputs_of_golden_values, require_writable_candidate
    from biopsy.engines.yardsticks import PLAIN
    from biopsy.reduction.job import BorderOptions, RecordingOptions, ReductionJob
    from biopsy.reduction.result import Target
    from biopsy.reduction.schedule import Selection

    own_run = checks.own_run(args)
    output = _output(args)
    require_writable_candidate(args.iter_artifact)
    require_inputs_of_golden_values(own_run, keep_inputs=args.no_reduce_inputs)
    return ReductionJob(
        target=Target(output, args.min_good, groups.weights_file(args, output)),
        mode=args.mode,
        search=_search(args, jobs, output),
        recording=RecordingOptions(
            samples=_samples(args, own_run),
            engines=(args.record_with,) if args.record_with else PLAIN,
            infer_types=not args.no_shape_inference,
            types_by_running=args.force_fallback_shape_inference,
        ),
        border=BorderOptions(
            cut=args.cut,
            keep_inputs=args.no_reduce_inputs,
            keep_outputs=args.no_reduce_outputs,
            mark_intermediate=args.mark_intermediate,
        ),
        input_shapes=dict(named_values.parse_shapes(args.model_input_shapes, "--model-input-shapes")),
        values=args.values,
        compares_recorded=_compares_recorded(args),
        selection=Selection(
            simplify=args.simplify, anonymize=args.anonymize, skip=tuple(args.skip_pass), only=tuple(args.only_pass)
        ),
        ranking=_ranking(args),
        allow_vacuous_check=args.allow_vacuous_check,
        feeds_recorded=_feeds_recorded(args, own_run, output),
    )


def _feeds_recorded(args: argparse.Namespace, own_run: argparse.Namespace | None, output: Path) -> bool:
    """Whether the check is ``run`` with inputs of the whole model alone, and makes up what a candidate is fed."""
    from biopsy.reduction.inputs_file import inputs_file

    if own_run is None or not own_run.load_inputs or own_run.load_outputs or args.iter_inputs or args.no_reduce_inputs:
        return False
    if args.load_inputs and args.load_inputs != own_run.load_inputs:
        return False
    files = [file.resolve() for file in own_run.load_inputs if file.exists()]
    return len(files) == len(own_run.load_inputs) and inputs_file(output).resolve() not in files


def _ranking(args: argparse.Namespace) -> Sequence[Sequence[int]]:
    if args.order_by is None:
        return ()
    from biopsy.layerwise.report import ranking_in

    return ranking_in(args.order_by, args.model)


def _samples(args: argparse.Namespace, own_run: argparse.Namespace | None) -> Callable[[], Sequence[Feed]] | None:
    """Inputs to record with: the user's, else those that a check of ours loads: both must speak of the same values.

    The user's are read now, so that a wrong file is told now. Those of the check are told by the check.
    """
    if args.load_inputs:
        feeds = _read(args.load_inputs)
        return lambda: feeds
    if own_run is not None and own_run.load_inputs:
        # A file that is made anew for each candidate (--iter-inputs) is of another time, or not there yet.
        files = own_run.load_inputs
        if args.iter_inputs not in files and all(file.exists() for file in files):
            return lambda: _read(files)
    return None


def _read(files: Sequence[Path]) -> Sequence[Feed]:
    from biopsy.tensors.files import read_feeds

    return [feed for file in files for feed in read_feeds(file)]


def _compares_recorded(args: argparse.Namespace) -> bool | None:
    """Whether the check's words tell that it looks at the values of the recorded run; None if they do not tell."""
    from biopsy.checks.command_line import parse

    return parse(args.check or ()).compares_recorded
