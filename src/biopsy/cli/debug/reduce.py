"""``biopsy debug reduce``: the smallest part of a model that still fails in the same way."""

from __future__ import annotations

import argparse
import contextlib
import re
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from biopsy import errors
from biopsy.cli import option_groups, options

if TYPE_CHECKING:
    from biopsy.checks.judge import Rules
    from biopsy.checks.outcome import Check
    from biopsy.cli.console import Console
    from biopsy.reduction.job import Job
    from biopsy.tensors.results import Feed

REST_OPTIONS = ("--check", "--check-inference")
"""These take the whole rest of the line, whatever it holds."""

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
    parser.add_argument("model", type=Path, metavar="MODEL", help="the ONNX model that fails")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="the reduced model (default: MODEL_reduced.onnx)"
    )
    parser.add_argument(
        "--min-good", "--minimal-good", type=Path, metavar="FILE", help="also write the passing model closest in size"
    )
    parser.add_argument(
        "--mode",
        choices=("minimal", "bisect", "linear"),
        default="minimal",
        help="minimal: bisect, then the nodes that matter wherever they stand, until no single node can go (default); "
        "bisect: one piece, by halves, O(log N) checks; linear: node by node, O(N) checks",
    )
    _add_check_options(parser)
    _add_iteration_options(parser)
    _add_model_options(parser)
    _add_boundary_options(parser)
    _add_pass_options(parser)


def _add_check_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the check")
    group.add_argument(
        *REST_OPTIONS,
        nargs="...",
        metavar="COMMAND ...",
        help="the command that tells whether a candidate fails: the whole rest of the line. In it, {} or the name of "
        f"--iter-artifact ({DEFAULT_CANDIDATE}) stands for the candidate. Without --check you are asked. 'biopsy run' "
        "without --load-outputs, which computes its reference anew for each candidate, allows the most",
    )
    codes = group.add_mutually_exclusive_group()
    codes.add_argument(
        "--fail-code",
        "--fail-returncode",
        nargs="+",
        type=int,
        action="extend",
        metavar="STATUS",
        help="only these exit statuses fail",
    )
    codes.add_argument(
        "--ignore-fail-code",
        "--ignore-fail-returncode",
        nargs="+",
        type=int,
        action="extend",
        metavar="STATUS",
        help="these exit statuses do not fail",
    )
    group.add_argument(
        "--fail-regex",
        nargs="+",
        action="extend",
        metavar="REGEX",
        help="fails only if one of these is found in its output",
    )
    group.add_argument(
        "--match",
        choices=("any", "status", "message", "exact"),
        default="status",
        help="how alike two failures must be to count as the same (default: status, and what 'biopsy run' reports)",
    )
    group.add_argument(
        "--check-timeout",
        type=float,
        metavar="SECONDS",
        help="end a check that takes longer (default: 20 times as long as the original's, at least 60)",
    )
    group.add_argument(
        "--cold-checks",
        action="store_true",
        help="start a process for every check, also where the check is 'biopsy run' and could be a fork of a warm one",
    )
    shown = group.add_mutually_exclusive_group()
    shown.add_argument("--show-output", action="store_true", help="show the output of every check")
    shown.add_argument(
        "--hide-fail-output", action="store_true", help="do not even show the output of the original's failure"
    )


def _add_iteration_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("files of each iteration")
    group.add_argument(
        "--artifacts",
        nargs="+",
        type=Path,
        default=[],
        metavar="FILE",
        help="files to sort into 'good', 'bad' and 'other' after each check",
    )
    group.add_argument(
        "--art-dir",
        "--artifacts-dir",
        type=Path,
        default=Path("polygraphy_artifacts"),
        metavar="DIR",
        help="where they are sorted to (default: polygraphy_artifacts)",
    )
    group.add_argument(
        "--iter-artifact",
        "--intermediate-artifact",
        type=Path,
        default=Path(DEFAULT_CANDIDATE),
        metavar="FILE",
        help=f"where each candidate is written (default: {DEFAULT_CANDIDATE})",
    )
    group.add_argument("--no-remove-intermediate", action="store_true", help="leave the last candidate there")
    group.add_argument(
        "--iter-info", "--iteration-info", type=Path, metavar="FILE", help='write {"iteration": N} before each check'
    )
    group.add_argument(
        "--iter-inputs",
        type=Path,
        metavar="FILE",
        help="write the recorded values of each candidate's inputs (.json, .npz, .safetensors)",
    )
    group.add_argument("--events", type=Path, metavar="FILE", help="write what happens as JSON lines")


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
        type=Path,
        metavar="FILE",
        help="inputs to record values with; all iterations are used (default: those of the check, else random ones)",
    )
    group.add_argument(
        "--record-with",
        metavar="NAME[:key=value,...]",
        help="the engine that records the original's values (default: onnxrt, its optimizer off, else reference)",
    )
    option_groups.add_weights_folder(group)
    option_groups.add_weights_file(group)


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
        Console().say("\n".join(lines))
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
        "--list-passes", nargs=0, action=_ListPasses, default=argparse.SUPPRESS, help="show the passes in their order"
    )
    group.add_argument("--skip-pass", nargs="+", action="extend", default=[], metavar="NAME", help="leave these out")
    group.add_argument("--only-pass", nargs="+", action="extend", default=[], metavar="NAME", help="run only these")


def execute(args: argparse.Namespace, console: Console) -> int:
    """Reduce the model; returns 0, or raises what ends with another status."""
    from biopsy.checks.command import CommandCheck
    from biopsy.cli.debug.reduction_report import Report, say_result
    from biopsy.model.index import index_file
    from biopsy.reduction.job import run_job

    job = _job(args)
    check = _check(args)
    index = index_file(args.model, args.external_data_dir)
    if isinstance(check, CommandCheck) and not check.names_candidate:
        console.note(f"the check names neither {{}} nor {args.iter_artifact}: it must know by itself where to look")
    with _ended_politely(), Report(console, args.events, _shown(args)) as report:
        try:
            result = run_job(index, check, job, report)
        except errors.Interrupted as stop:
            again = shlex.join(["debug", "reduce", str(job.target.output), *_after_model(args)])
            steps = [f"biopsy {again}    goes on from there"] if stop.kept else []
            raise errors.Interrupted(stop.message, kept=stop.kept, next_steps=steps) from stop
    say_result(console, result)
    return 0


def _after_model(args: argparse.Namespace) -> list[str]:
    """The rest of the command line, to repeat it on another model."""
    words = list(sys.argv[1:])
    try:
        words.remove("debug")
        words.remove("reduce")
        words.remove(str(args.model))
    except ValueError:
        return ["..."]
    return words


def _shown(args: argparse.Namespace) -> str:
    return "all" if args.show_output else "none" if args.hide_fail_output else "original"


def _job(args: argparse.Namespace) -> Job:
    from biopsy.checks.artifacts import Artifacts
    from biopsy.cli.debug import safeguards
    from biopsy.reduction.driver import IterationFiles
    from biopsy.reduction.job import Job
    from biopsy.reduction.recording import ENGINES
    from biopsy.reduction.result import Target
    from biopsy.reduction.schedule import Selection

    own_run = _own_run(args)
    output = args.output or Path(f"{args.model.stem}_reduced.onnx")
    safeguards.require_distinct_files(args, output)
    safeguards.require_writable_candidate(args.iter_artifact)
    safeguards.require_inputs_of_golden_values(own_run, keep_inputs=args.no_reduce_inputs)
    return Job(
        Target(output, args.min_good, option_groups.weights_file(args, output)),
        args.mode,
        _rules(args),
        args.iter_artifact,
        IterationFiles(
            Artifacts(tuple(args.artifacts), args.art_dir),
            args.iter_info,
            args.iter_inputs,
            args.no_remove_intermediate,
        ),
        _samples(args, own_run),
        (args.record_with,) if args.record_with else ENGINES,
        dict(options.parse_shapes(args.model_input_shapes, "--model-input-shapes")),
        args.cut,
        args.values,
        _compares_recorded(args, own_run),
        infer_types=not args.no_shape_inference,
        types_by_running=args.force_fallback_shape_inference,
        keep_inputs=args.no_reduce_inputs,
        keep_outputs=args.no_reduce_outputs,
        mark_intermediate=args.mark_intermediate,
        selection=Selection(args.simplify, args.anonymize, tuple(args.skip_pass), tuple(args.only_pass)),
    )


def _rules(args: argparse.Namespace) -> Rules:
    from biopsy.checks.judge import Rules

    patterns = []
    for text in args.fail_regex or ():
        try:
            patterns.append(re.compile(text))
        except re.error as error:
            raise errors.UsageError(f"--fail-regex {text}: no regular expression: {error}") from error
    return Rules(frozenset(args.fail_code or ()), frozenset(args.ignore_fail_code or ()), tuple(patterns), args.match)


def _check(args: argparse.Namespace) -> Check:
    from biopsy.checks.command import CommandCheck, own_words
    from biopsy.checks.interactive import InteractiveCheck
    from biopsy.checks.warm import WarmCheck

    if args.check is None:
        return InteractiveCheck(_ask)
    own = own_words(args.check)
    warm = own is not None and own[:1] == ("run",) and not args.cold_checks
    return (WarmCheck if warm else CommandCheck)(args.check, str(args.iter_artifact), args.check_timeout)


def _ask(question: str) -> str:
    """Show a question and read a line; where no terminal echoes it, begin a new line after it."""
    answer = input(question)
    if not sys.stdin.isatty():
        print()  # noqa: T201 -- this is the command line
    return answer


def _samples(args: argparse.Namespace, own_run: argparse.Namespace | None) -> Sequence[Feed] | None:
    """Inputs to record with: the user's, else those that a check of ours loads: both must speak of the same values."""
    files: Sequence[Path] | None = args.load_inputs
    if files is None and own_run is not None and own_run.load_inputs:
        # A file that is made anew for each candidate (--iter-inputs) is of another time, or not there yet.
        stable = args.iter_inputs not in own_run.load_inputs and all(file.exists() for file in own_run.load_inputs)
        files = own_run.load_inputs if stable else None
    if files is None:
        return None
    from biopsy.tensors.files import read_feeds

    return [feed for file in files for feed in read_feeds(file)]


def _compares_recorded(args: argparse.Namespace, own_run: argparse.Namespace | None) -> bool | None:
    """Whether the check's words tell that it looks at the values of the recorded run; None if they do not tell."""
    from biopsy.checks.command import own_words

    if own_run is not None:
        return bool(own_run.load_outputs or own_run.validate)
    words = own_words(args.check or ())
    return False if words and words[0] == "inspect" else None


def _own_run(args: argparse.Namespace) -> argparse.Namespace | None:
    """The options of a check such as ``biopsy run {} ...``; None if the check is something else, or is wrong."""
    from biopsy.checks.command import own_words
    from biopsy.cli import run
    from biopsy.cli.app import Parser

    words = own_words(args.check or ())
    if not words or words[0] != "run":
        return None
    parser = Parser(prog="biopsy run", allow_abbrev=False, add_help=False)
    run.configure(parser)
    try:
        return parser.parse_known_args(list(words[1:]))[0]
    except errors.UsageError:
        return None  # the check itself will tell what is wrong with it


@contextlib.contextmanager
def _ended_politely() -> Iterator[None]:
    """SIGTERM ends a reduction as Ctrl-C does: with the best result saved."""

    def stop(number: int, frame: object) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
