"""``biopsy debug precision``: which layers need a high precision, and the model in which only those have it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import errors, events
from biopsy.checks.command import CommandCheck
from biopsy.checks.outcome import Check
from biopsy.checks.words import as_word
from biopsy.cli import advice
from biopsy.cli.arguments import absent_options, checks, groups, types
from biopsy.cli.arguments.engines import TensorrtOptions
from biopsy.cli.console import Console
from biopsy.cli.debug import checking, other_machines
from biopsy.cli.report import ReportOption, report_file
from biopsy.engines.registry import EngineSpec, find_class, parse_spec
from biopsy.model.index import ModelIndex, index_file
from biopsy.questions.precision.mixed_models import Low, Precisions, mixed_models
from biopsy.recording.reference_run import random_samples
from biopsy.session.workspace import set_aside
from biopsy.tensors.results import Feed
from biopsy.text import option_line

if TYPE_CHECKING:
    from biopsy.cli.debug.precision_search import PrecisionSections
    from biopsy.questions.precision.search import PrecisionResult
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
    add(parser)


def derived_files(args: argparse.Namespace) -> types.Derived:
    """The file for weights, the journal, and that of candidates: with an engine, also the model that it builds."""
    complete(args)
    candidate = args.candidate if args.candidate != args.iter_artifact else None
    journal = None if args.output is None else checks.journal_of(args.output)
    return {
        **groups.WeightsFileOption.of(args).derived_weights(args.output),
        "the candidate": (candidate, types.ITERATION),
        "the journal": (journal, types.WRITTEN),
    }


def execute(args: argparse.Namespace, console: Console) -> int:
    """Search; returns 0, or 5 if a limit ended the search; raises what ends with another status."""
    built = {} if args.engine is None else {"--iter-info": "the check of what --engine builds is told no other file"}
    with other_machines.machines_of(args, console, {**_NOT_ELSEWHERE, **built}) as machines:
        return _execute(args, console, machines)


def _execute(args: argparse.Namespace, console: Console, machines: OtherMachines | None) -> int:
    from biopsy.cli.run.files import require_names_of_check
    from biopsy.session.pool import Parallelism

    report = report_file(args, console)
    has_one_file = args.engine is not None and machines is None  # of what is built; elsewhere each machine has one
    jobs = 1 if has_one_file else checking.CheckedOptions.of(args).jobs_of(console, machines)
    check = _check(args, jobs)
    try:
        index = index_file(args.model, args.external_data_dir)
        own = checking.own_run(args.check)
        require_names_of_check(own, index, args.load_inputs or ())
        engines = (own.engines or ()) if own is not None else ()
        if (
            args.form == "emulate"
            and args.low in (None, "fp16")
            and any(each.startswith("openvino") for each in engines)
        ):
            console.warn(
                "OpenVINO drops Casts to fp16 and back on a CPU, so little is rounded there: check with --onnxrt"
            )
        _warn_of_check_without_reference(args, console)
        checking.CheckedOptions.of(args).note_on(check, console)
        search = partial(_search, args, console, index, check, Parallelism(jobs=jobs, executor=machines))
        from biopsy.cli.debug.precision_search import PrecisionReport, PrecisionSections, say_result

        with PrecisionReport(
            console, args.events, "all" if args.show_output else "none" if args.hide_fail_output else "ends"
        ) as progress:
            sections = PrecisionSections(args, index, progress.history, report)
            with report.also_of_errors(sections.of_error):
                result = search(sections, progress)
            without = (result.stopped or "").split()[:1]
            say_result(console, result, args.list, _same_line(args, without) if args.output is not None else None)
            return progress.ended(errors.Interrupted.status if result.stopped else 0)
    except errors.Interrupted as stop:
        if stop.kept is None or args.output is None:
            raise
        raise errors.Interrupted(stop.message, kept=stop.kept, resume=_same_line(args)) from stop
    except errors.CheckChanged as error:
        if args.output is None:
            raise
        raise advice.begun_anew(error, advice.fresh_line(args.words, REST_OPTIONS, "precision")) from error
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
    from biopsy.cli.debug.precision_search import job_of
    from biopsy.questions.precision.task import run_job

    job = job_of(args, parallelism, sections.write)
    built = args.iter_artifact if args.engine is not None else None
    with checking.ended_politely(), set_aside(built, "search", console.warn) as remark:
        if remark is not None:
            console.note(remark)
        feeds = calibration_feeds(args, index, console)
        precisions = precisions_of(args)
        return run_job(index, lambda place: mixed_models(index, place, precisions, feeds), check, job, listener)


def _same_line(args: argparse.Namespace, without: Sequence[str] = ()) -> str:
    return advice.resume_line(args.words, REST_OPTIONS, without)


def _warn_of_check_without_reference(args: argparse.Namespace, console: Console) -> None:
    """Say so if the check compares a candidate only with itself: both sides then lose the same in low layers."""
    own = checking.own_run(args.check)
    if own is None or own.load_outputs or own.validate or own.compare_with or own.build_only:
        return
    console.warn(
        "this check compares the mixed model with nothing but itself and cannot see what lower precision loses: save"
        " inputs and outputs of the original (biopsy run MODEL --save-inputs --save-outputs), and have the check load"
        " them (--load-inputs --load-outputs)"
    )


def _check(args: argparse.Namespace, jobs: int) -> Check:
    """The check: of the candidate, or of what an engine builds from it."""
    check = checking.CheckedOptions.of(args).check_of(jobs)
    if args.engine is None:
        return check
    from biopsy.checks.task import EngineFileCheck

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


# The options of ``biopsy debug precision``, and those that follow from others.


def add(parser: argparse.ArgumentParser) -> None:
    """Add all of them."""
    groups.ModelOption.add(parser, model=", in its high precision")
    groups.OutputOption.add(parser, output="write the mixed-precision model, ready to use")
    ReportOption.add(parser)
    parser.add_argument(
        "--list",
        type=types.WRITTEN,
        metavar="FILE.txt",
        help="write the names of the layers that must be high, one per line, as for nodes_to_exclude, node_block_list",
    )
    _add_precisions(parser)
    _add_engine(parser)
    _add_search(parser)
    _add_check(parser)
    group = parser.add_argument_group("time limits, and resuming")
    checks.BudgetOptions.add(group)
    checks.ResumeOptions.add(group)
    other_machines.add(parser)
    _add_iteration(parser)
    group = parser.add_argument_group("the model")
    groups.RecordedInputs.add(
        group,
        load_inputs="calibrate --int8 with these inputs (default: those of the check if it is 'biopsy run', else "
        "random ones)",
    )
    groups.ModelTypeOption.add(group)
    groups.WeightsFolderOption.add(group)
    groups.WeightsFileOption.add(group)
    TensorrtOptions.add_tensorrt(
        parser, without=("trt_outputs", "trt_exclude_outputs", *(f"trt_{low}" for low in _LOW))
    )
    absent_options.add(parser, "debug precision")


def _add_precisions(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("precisions")
    low = group.add_mutually_exclusive_group()
    for name, meaning in _LOW.items():
        low.add_argument(f"--{name}", action="store_const", dest="low", const=name, help=meaning)
    group.add_argument(
        "--fp8-format", choices=("e4m3fn", "e5m2"), default="e4m3fn", help="which float8 (default: e4m3fn)"
    )
    group.add_argument(
        "-p",
        "--precision",
        choices=("float32", "float16"),
        default="float32",
        help="the high precision (default: float32)",
    )
    form = group.add_mutually_exclusive_group()
    form.add_argument(
        "--emulate",
        action="store_const",
        dest="form",
        const="emulate",
        help="low layers compute in float32, and pairs of Casts round their inputs, weights and outputs: for engines "
        "without such arithmetic, as on CPUs (default)",
    )
    form.add_argument(
        "--native",
        action="store_const",
        dest="form",
        const="native",
        help="low layers have low types, with Casts only where precisions meet: for engines that compute in them",
    )


_LOW = {
    "fp16": "the low precision is float16 (default)",
    "bf16": "the low precision is bfloat16",
    "fp8": "the low precision is float8",
    "int8": "the low precision is int8 with scales",
}
"""The low precisions, each an option, with its help."""


def _add_engine(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("check an engine built from the mixed-precision model, instead of the model")
    which = group.add_mutually_exclusive_group()
    which.add_argument(
        "--trt",
        action="store_const",
        dest="engine",
        const="trt",
        help="build with TensorRT; {} in the check then stands for the file it writes, and low layers are --native",
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
        help="minimal: few layers, anywhere, none of which can be low (default); bisect: how many from one end of the "
        "network, by halving; linear: the same, one layer at a time",
    )
    group.add_argument(
        "--dir",
        "--direction",
        dest="direction",
        choices=("forward", "reverse"),
        default="forward",
        help="for bisect and linear: raise the first layers, or the last (default: forward)",
    )
    group.add_argument(
        "--cost",
        choices=("flops", "bytes", "count"),
        default="count",
        help="the cost to minimize: the most expensive layers are lowered first (default: count)",
    )


def _add_check(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the check")
    checks.CheckOption.add(
        group,
        check="the command that tells whether a candidate passes; takes the rest of the line. "
        f"In it, {checks.CANDIDATE}. {checks.ASKED}",
    )
    checks.RuleOptions.add(group, match="has no effect here: a candidate with any failure does not pass")
    checks.CheckTimeOptions.add(group, check_timeout="20 times as long as with every layer high, at least 60")
    checks.CheckMemoryOption.add(group)
    checks.ColdOption.add(group)
    checks.ShownOutputOptions.add(group, hide_fail_output="the check with every layer low")
    checks.RepeatOptions.add(group)


def _add_iteration(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("files of each iteration")
    checks.ArtifactOptions.add(group)
    checks.IterationOptions.add(
        group,
        iter_artifact=f"where each candidate is written (default: {checks.DEFAULT_CANDIDATE}; with --trt: "
        "polygraphy_debug.engine)",
    )
    checks.EventsOption.add(group)


def _with_settings(args: argparse.Namespace) -> str | None:
    """The engine to build with, TensorRT with its settings. Raises UsageError for settings without a plain --trt."""
    engine: str | None = args.engine
    settings = TensorrtOptions.of(args)
    given = settings.options_given()
    if not given:
        return engine
    if engine != "trt":
        raise errors.UsageError(
            f"{given[0]} is a setting of --trt, which is not given",
            next_steps=["--trt", "with --engine, write settings after the name"],
        )
    return EngineSpec("trt", settings.settings()).text


def complete(args: argparse.Namespace) -> None:
    """Fill in what depends on other options: the form, and the paths of an iteration's files."""
    args.candidate = Path(checks.DEFAULT_CANDIDATE)
    args.engine = _with_settings(args)
    if args.engine is not None:
        saves = [kind for kind in find_class(parse_spec(args.engine).name).capabilities.saves if kind != ".onnx"]
        if not saves:
            raise errors.UsageError(
                f"{args.engine} writes no file of what it builds, so it cannot be checked",
                next_steps=[f"let the check build it: --check biopsy run {{}} {option_line('--engine', args.engine)}"],
            )
        args.iter_artifact = args.iter_artifact or Path(checks.DEFAULT_CANDIDATE).with_suffix(saves[0])
        args.candidate = args.iter_artifact.with_suffix(".onnx")
    elif args.iter_artifact is not None:
        args.candidate = args.iter_artifact
    args.iter_artifact = args.iter_artifact or args.candidate
    low_types = args.engine is not None and args.engine.startswith("trt") and args.low != "fp8"
    args.form = args.form or ("native" if low_types else "emulate")


# From the arguments of ``biopsy debug precision`` to the precisions it mixes, and the inputs to calibrate with.


def precisions_of(args: argparse.Namespace) -> Precisions:
    """Which precisions are mixed."""
    low: Low = "fp8_e5m2" if (args.low, args.fp8_format) == ("fp8", "e5m2") else args.low or "fp16"
    return Precisions(low=low, high=args.precision, form=args.form)


def calibration_feeds(args: argparse.Namespace, index: ModelIndex, console: Console) -> Sequence[Feed]:
    """Inputs to calibrate int8 with: the user's, else those that the check loads, else random ones.

    None are needed, and none given, for other precisions.
    """
    inputs = groups.RecordedInputs.of(args)
    if args.low != "int8":
        given = [*inputs.sources_given(), *inputs.draws_given()]
        if given:
            console.warn(f"{', '.join(given)} has no effect without --int8: only calibration needs inputs")
        return ()
    from biopsy.engines.runner import casts_told, in_declared_types
    from biopsy.tensors.files import read_feeds

    precisions_of(args).require_possible()
    own = checking.own_run(args.check)
    feeds = inputs.given_feeds()
    origin = args.load_inputs or [args.data_loader_script]
    if feeds is None and own is not None and own.load_inputs:
        origin = own.load_inputs
        feeds = [feed for file in origin for feed in read_feeds(file)]
    fed = [index.names[tensor] for tensor in index.fed_inputs()]
    inputs.require_draws(fed, random=feeds is None, console=console)
    if feeds is not None:
        console.note(f"int8 is calibrated with {len(feeds)} inputs of {', '.join(map(str, origin))}")
        typed, changes = in_declared_types(feeds, index.declared_type)
        if changes:
            console.warn(casts_told(changes))
        return typed
    console.warn(
        "int8 is calibrated with RANDOM inputs, between 0 and 1, which may not show what overflows with yours. "
        "Give typical ones with --load-inputs"
    )
    return random_samples(index, inputs.draws())
