"""``biopsy debug precision``: which layers need a high precision, and the model in which only those have it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.cli import lines
from biopsy.cli.arguments import checks, file_kinds, groups
from biopsy.shell_words import option_line

if TYPE_CHECKING:
    from biopsy.checks.outcome import Check
    from biopsy.cli.console import Console
    from biopsy.model.index import ModelIndex
    from biopsy.precision.formats import Format
    from biopsy.precision.job import PrecisionJob
    from biopsy.precision.mixed_models import MixedModels
    from biopsy.session.options import SearchOptions
    from biopsy.session.workspace import Workspace
    from biopsy.tensors.results import Feed

REST_OPTIONS = checks.REST_OPTIONS

DEFAULT_CANDIDATE = "polygraphy_debug.onnx"

_EPILOG = """\
examples:
  Golden values first, then the layers that fp16 is not enough for:
    biopsy run model.onnx --onnxrt --save-inputs inputs.json --save-outputs golden.json
    biopsy debug precision model.onnx --fp16 -o mixed.onnx --list keep.txt \\
        --check biopsy run {} --onnxrt --load-inputs inputs.json \\
                --load-outputs golden.json --rtol 1e-2 --atol 1e-2
  How many of the last layers must be raised, by halves:
    biopsy debug precision model.onnx --fp16 --mode bisect --dir reverse --check ...

A candidate passes if its check does. All else (failures, 'cannot say', no answer in time) means: not this one.

exit status of a check: 0 passes, 125 cannot say, 126 and 127 mean that it could not be run; any other fails.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``debug precision``."""
    parser.epilog = _EPILOG
    parser.add_argument("model", type=file_kinds.READ, metavar="MODEL", help="the ONNX model, in its high precision")
    parser.add_argument(
        "-o", "--output", type=file_kinds.WRITTEN, metavar="FILE", help="write the mixed model, ready to deploy"
    )
    parser.add_argument("--report", type=file_kinds.WRITTEN, metavar="FILE.json", help="write what was found as JSON")
    parser.add_argument(
        "--list",
        type=file_kinds.WRITTEN,
        metavar="FILE.txt",
        help="write the names of the layers that must be high, one a line: nodes_to_exclude, node_block_list",
    )
    _add_precisions(parser)
    _add_search(parser)
    _add_check_options(parser)
    group = parser.add_argument_group("time, and going on later")
    checks.add_limits(group)
    checks.add_resume(group, "search")
    _add_iteration_options(parser)
    group = parser.add_argument_group("the model")
    group.add_argument(
        "--load-inputs",
        "--load-input-data",
        nargs="+",
        type=file_kinds.READ,
        metavar="FILE",
        help="inputs to calibrate --int8 with (default: those of the check if it is 'biopsy run', else random ones)",
    )
    groups.add_weights_folder(group)
    groups.add_weights_file(group)


def _add_precisions(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("precisions")
    low = group.add_mutually_exclusive_group()
    low.add_argument("--fp16", action="store_const", dest="low", const="fp16", help="float16 is the low one (default)")
    low.add_argument("--bf16", action="store_const", dest="low", const="bf16", help="bfloat16 is the low one")
    low.add_argument("--fp8", action="store_const", dest="low", const="fp8", help="float8 is the low one")
    low.add_argument("--int8", action="store_const", dest="low", const="int8", help="int8 with scales is the low one")
    group.add_argument(
        "--fp8-format", choices=("e4m3fn", "e5m2"), default="e4m3fn", help="which float8 (default: e4m3fn)"
    )
    group.add_argument(
        "-p", "--precision", choices=("float32", "float16"), default="float32", help="the high one (default: float32)"
    )
    form = group.add_mutually_exclusive_group()
    form.add_argument(
        "--emulate",
        action="store_const",
        dest="form",
        const="emulate",
        help="low layers compute in float32, and their inputs, weights and outputs are rounded by pairs of Casts: for "
        "engines that have no such arithmetic, as on CPUs (default)",
    )
    form.add_argument(
        "--native",
        action="store_const",
        dest="form",
        const="native",
        help="low layers have low types, with Casts only where precisions meet: for engines that compute so",
    )

    engine = parser.add_argument_group("check an engine built from the mixed model, and not the model")
    which = engine.add_mutually_exclusive_group()
    which.add_argument(
        "--trt",
        action="store_const",
        dest="engine",
        const="trt",
        help="build with TensorRT, whose file is what {} stands for in the check; low layers are --native",
    )
    which.add_argument(
        "--engine", metavar="NAME[:key=value,...]", help="the same with any engine that writes such files"
    )


def _add_search(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the search")
    group.add_argument(
        "--mode",
        choices=("minimal", "bisect", "linear"),
        default="minimal",
        help="minimal: few layers, wherever they are, none of which can be low (default); bisect: how many from one "
        "end of the network, by halves; linear: one more each time",
    )
    group.add_argument(
        "--dir",
        "--direction",
        dest="direction",
        choices=("forward", "reverse"),
        default="forward",
        help="bisect and linear: raise the first layers, or the last (default: forward)",
    )
    group.add_argument(
        "--cost",
        choices=("flops", "bytes", "count"),
        default="count",
        help="what of the high layers is to be kept small: those that cost most are lowered first (default: count)",
    )


def _add_check_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the check")
    checks.add_command(
        group,
        "the command that tells whether a candidate passes: the whole rest of the line. In it, {} or the name of "
        f"--iter-artifact ({DEFAULT_CANDIDATE}) stands for the candidate. Without --check you are asked",
    )
    checks.add_rules(group, "changes nothing here, where any failure means that a candidate does not pass")
    checks.add_timeout(group, "20 times as long as with every layer high, at least 60")
    checks.add_memory(group)
    checks.add_cold(group)
    checks.add_shown_output(group, "the check with every layer low")
    checks.add_repeating(group)


def _add_iteration_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("files of each iteration")
    checks.add_artifacts(group)
    group.add_argument(
        "--iter-artifact",
        "--intermediate-artifact",
        type=file_kinds.ITERATION,
        metavar="FILE",
        help=f"where each candidate is written (default: {DEFAULT_CANDIDATE}, and polygraphy_debug.engine with --trt)",
    )
    group.add_argument("--no-remove-intermediate", action="store_true", help="leave the last candidate there")
    checks.add_iteration_info(group)
    checks.add_events(group)


def derived_files(args: argparse.Namespace) -> file_kinds.Derived:
    """The file for weights, and where candidates stand: with an engine also the model that it is built from."""
    _complete(args)
    candidate = args.candidate if args.candidate != args.iter_artifact else None
    journal = None if args.output is None else checks.journal_of(args.output)
    return {
        **groups.derived_weights(args),
        "the candidate": (candidate, file_kinds.ITERATION),
        "the journal": (journal, file_kinds.WRITTEN),
    }


def execute(args: argparse.Namespace, console: Console) -> int:
    """Search; returns 0, 5 if a limit ended the search, or raises what ends with another status."""
    from biopsy.checks.command import CommandCheck
    from biopsy.cli.debug.precision_report import PrecisionReport, say_result
    from biopsy.cli.run.names import require_names_of_check
    from biopsy.model.index import index_file
    from biopsy.precision.job_run import run_job
    from biopsy.session.claim import set_aside

    jobs = 1 if args.engine is not None else checks.jobs_of(args, console)
    check = _check(args, jobs)
    try:
        job = _job(args, jobs)
        index = index_file(args.model, args.external_data_dir)
        require_names_of_check(checks.own_run(args), index, args.load_inputs or ())
        _warn_of_dropped_casts(args, console)
        _warn_of_check_without_reference(args, console)
        if isinstance(check, CommandCheck) and not check.names_candidate:
            console.note(f"the check names neither {{}} nor {args.iter_artifact}: it must know by itself where to look")
        built = args.iter_artifact if args.engine is not None else None
        with (
            checks.ended_politely(),
            set_aside(built, "search") as told,
            PrecisionReport(console, args.events, _shown(args)) as report,
        ):
            if told is not None:
                console.note(told)
            feeds = _feeds(args, index, console) if args.low == "int8" else ()
            result = run_job(index, lambda place: _mixed_models(args, index, place, feeds), check, job, report)
    except errors.Interrupted as stop:
        if stop.kept is None or args.output is None:
            raise
        raise errors.Interrupted(stop.message, kept=stop.kept, resume=_same_line(args)) from stop
    finally:
        check.close()
    without = (result.stopped or "").split()[:1]
    say_result(console, result, args.list, _same_line(args, without) if args.output is not None else None)
    return errors.Interrupted.status if result.stopped else 0


def _same_line(args: argparse.Namespace, without: Sequence[str] = ()) -> str:
    return lines.resume_line(args.words, REST_OPTIONS, without)


def _warn_of_dropped_casts(args: argparse.Namespace, console: Console) -> None:
    """Say so if the check runs an engine that takes rounding for a detour, as OpenVINO does on a CPU."""
    own = checks.own_run(args)
    engines = (own.engines or ()) if own is not None else ()
    if args.form == "emulate" and args.low in (None, "fp16") and any(each.startswith("openvino") for each in engines):
        console.warn("OpenVINO drops Casts to fp16 and back on a CPU, so little is rounded there: check with --onnxrt")


def _warn_of_check_without_reference(args: argparse.Namespace, console: Console) -> None:
    """Say so if the check compares a mixed model with nothing but itself: what low layers lose is in both sides."""
    own = checks.own_run(args)
    if own is None or own.load_outputs or own.validate or own.compare_with or own.build_only:
        return
    console.warn(
        "this check compares the mixed model with nothing but itself and cannot see what lower precision loses: save"
        " inputs and outputs of the original (biopsy run MODEL --save-inputs --save-outputs), and have the check load"
        " them (--load-inputs --load-outputs)"
    )


def _shown(args: argparse.Namespace) -> str:
    return "all" if args.show_output else "none" if args.hide_fail_output else "low"


def _mixed_models(args: argparse.Namespace, index: ModelIndex, place: Workspace, feeds: Sequence[Feed]) -> MixedModels:
    from biopsy.model.load import parse
    from biopsy.precision.mixed_models import CastModels

    model = parse(index.buffer[:], index.path)
    places = {index.names[tensor]: data for tensor, data in place.places.items()}
    if args.low == "int8":
        from biopsy.precision.quantized import QuantizedModels

        return QuantizedModels(model, index.folder, places, feeds)
    return CastModels(model, _low(args), _high(args), args.form, index.folder, places)


def _feeds(args: argparse.Namespace, index: ModelIndex, console: Console) -> Sequence[Feed]:
    """Inputs to calibrate int8 with: the user's, else those that a check of ours loads, else random ones."""
    from biopsy.recording.random_samples import random_samples
    from biopsy.tensors.files import read_feeds

    if args.precision != "float32":
        raise errors.UsageError("--int8 goes with -p float32 only")
    own = checks.own_run(args)
    files = args.load_inputs or (own.load_inputs if own is not None else None) or ()
    feeds = [feed for file in files for feed in read_feeds(file)]
    if files:
        console.note(f"int8 is calibrated with {len(feeds)} inputs of {', '.join(map(str, files))}")
        return feeds
    console.warn(
        "int8 is calibrated with RANDOM inputs, between 0 and 1: what overflows for yours may not be seen. "
        "Give typical ones by --load-inputs"
    )
    return random_samples(index)


def _low(args: argparse.Namespace) -> Format:
    from biopsy.precision import formats

    fp8 = formats.FP8_E4M3FN if args.fp8_format == "e4m3fn" else formats.FP8_E5M2
    found: Format = {None: formats.FP16, "fp16": formats.FP16, "bf16": formats.BF16, "fp8": fp8}[args.low]
    return found


def _high(args: argparse.Namespace) -> Format:
    from biopsy.precision import formats

    return formats.FP32 if args.precision == "float32" else formats.FP16


def _check(args: argparse.Namespace, jobs: int) -> Check:
    """The check: of the candidate, or of what an engine builds from it."""
    check = checks.check_of(args, jobs)
    if args.engine is None:
        return check
    from biopsy.checks.command import CommandCheck
    from biopsy.checks.words import as_word
    from biopsy.precision.engine_file import EngineFileCheck

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


def _complete(args: argparse.Namespace) -> None:
    """Fill in what depends on other options: the form, and where the files of an iteration stand."""
    args.candidate = Path(DEFAULT_CANDIDATE)
    if args.engine is not None:
        from biopsy.engines.registry import find_class, parse_spec

        saves = [kind for kind in find_class(parse_spec(args.engine).name).capabilities.saves if kind != ".onnx"]
        if not saves:
            raise errors.UsageError(
                f"{args.engine} writes no file of what it builds, so it cannot be checked",
                next_steps=[f"let the check build it: --check biopsy run {{}} {option_line('--engine', args.engine)}"],
            )
        args.iter_artifact = args.iter_artifact or Path(DEFAULT_CANDIDATE).with_suffix(saves[0])
        args.candidate = args.iter_artifact.with_suffix(".onnx")
    elif args.iter_artifact is not None:
        args.candidate = args.iter_artifact
    args.iter_artifact = args.iter_artifact or args.candidate
    low_types = args.engine is not None and args.engine.startswith("trt") and args.low != "fp8"
    args.form = args.form or ("native" if low_types else "emulate")


def _job(args: argparse.Namespace, jobs: int) -> PrecisionJob:
    from biopsy.precision.job import PrecisionJob
    from biopsy.precision.result import PrecisionTarget

    if args.save_external_data is not None and args.output is None:
        raise errors.UsageError("--save-external-data needs an output", next_steps=["-o mixed.onnx"])
    external = None if args.output is None else groups.weights_file(args, args.output)
    return PrecisionJob(
        target=PrecisionTarget(args.output, external, args.report, args.list),
        mode=args.mode,
        direction=args.direction,
        cost=args.cost,
        search=_search(args, jobs),
    )


def _search(args: argparse.Namespace, jobs: int) -> SearchOptions:
    from biopsy.checks.artifacts import Artifacts
    from biopsy.session.budget import Budget
    from biopsy.session.flakiness import Repeating
    from biopsy.session.iteration import IterationFiles
    from biopsy.session.options import SearchOptions
    from biopsy.session.pool import Parallelism

    return SearchOptions(
        rules=checks.rules_of(args),
        candidate=args.candidate,
        files=IterationFiles(
            artifacts=Artifacts(tuple(args.artifacts), args.art_dir),
            info=args.iter_info,
            keep_last=args.no_remove_intermediate,
        ),
        parallelism=Parallelism(jobs),
        budget=Budget(args.max_checks, args.max_time),
        repeating=Repeating(args.repeat, args.confidence),
        resume=checks.resume_of(args, _journal(args), "search"),
    )


def _journal(args: argparse.Namespace) -> Path | None:
    """Where the journal stands; None without an output to name it after. Raises UsageError if it is needed then."""
    if args.output is not None:
        return checks.journal_of(args.output)
    wanted = {"--fresh": args.fresh, "--load-debug-replay": args.load_debug_replay}
    wanted["--save-debug-replay"] = args.save_debug_replay
    for option, value in wanted.items():
        if value:
            raise errors.UsageError(f"{option} needs an output", next_steps=["-o mixed.onnx"])
    return None
