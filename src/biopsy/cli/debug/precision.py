"""``biopsy debug precision``: finds the layers that need a high precision, and makes a model in which only those have
it. Importing this imports no search, because the process of the checks is to start first.
"""

from __future__ import annotations

import argparse
import contextlib

from biopsy.checks.command import CommandCheck
from biopsy.checks.outcome import Check
from biopsy.checks.task import EngineFileCheck
from biopsy.checks.words import as_word
from biopsy.cli import advice
from biopsy.cli.arguments import checks, types
from biopsy.cli.console import Console
from biopsy.cli.debug import checking, other_machines
from biopsy.cli.debug.precision_options import LOW, PrecisionOptions
from biopsy.session.pool import Parallelism

REST_OPTIONS = checks.REST_OPTIONS

_NOT_ELSEWHERE = {
    "--artifacts": other_machines.STAYS_THERE,
    "--no-remove-intermediate": other_machines.STAYS_THERE,
}
"""Options that cannot be combined with ``--on``, each with the reason."""

warmed_up = checking.warmed_up

EPILOG = f"""\
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
    PrecisionOptions.add(
        parser,
        without=("trt_outputs", "trt_exclude_outputs", *(f"trt_{low}" for low in LOW)),
        model=", in its high precision",
        output="write the mixed-precision model, ready to use",
        check="the command that tells whether a candidate passes; takes the rest of the line. "
        f"In it, {checks.CANDIDATE}. {checks.ASKED}",
        match="has no effect here: a candidate with any failure does not pass",
        check_timeout="20 times as long as with every layer high, at least 60",
        hide_fail_output="the check with every layer low",
        iter_artifact=f"where each candidate is written (default: {checks.DEFAULT_CANDIDATE}; with --trt: "
        "polygraphy_debug.engine)",
        load_inputs="calibrate --int8 with these inputs (default: those of the check if it is 'biopsy run', else "
        "random ones)",
    )
    other_machines.MachineOptions.add(parser, on=other_machines.meaning())


def derived_files(args: argparse.Namespace) -> types.Derived:
    """The file for weights, the journal, and the candidate if an engine builds another file from it."""
    options = PrecisionOptions.of(args)
    args.iter_artifact = options.artifact
    journal = None if options.output is None else checks.journal_of(options.output)
    return {
        **options.derived_weights(options.output),
        "the candidate": (options.candidate if options.candidate != options.artifact else None, types.ITERATION),
        "the journal": (journal, types.WRITTEN),
    }


def execute(args: argparse.Namespace, console: Console) -> int:
    """Search; returns 0, or 5 if a limit ended the search; raises what ends with another status."""
    options = PrecisionOptions.of(args)
    is_built = options.builder is not None
    refused = {"--iter-info": "the check of the file that --engine builds gets no other file"} if is_built else {}
    with (
        other_machines.machines_of(args, console, {**_NOT_ELSEWHERE, **refused}) as machines,
        advice.resumable(options.words, REST_OPTIONS, "precision", has_journal=options.output is not None),
    ):
        report = options.report_file(console)
        has_one_file = is_built and machines is None  # all checks share it; other machines have one each
        jobs = 1 if has_one_file else options.jobs_of(console, machines)
        with contextlib.closing(_of_what_is_built(options, options.check_of(jobs))) as check:
            from biopsy.cli.debug.precision_search import search  # while the process of the checks starts

            options.note_on(check, console)
            return search(options, check, Parallelism(jobs=jobs, executor=machines), report)


def _of_what_is_built(options: PrecisionOptions, check: Check) -> Check:
    """The check of the candidate, or of the file that an engine builds from it."""
    if options.builder is None:
        return check
    saved = ["--build-only", "--save-engine", as_word(options.artifact)]
    words = ["biopsy", "run", "{}", "--engine", options.builder, *saved]
    builder = CommandCheck(words, "", options.check_timeout, options.check_memory)
    return EngineFileCheck(builder, check, options.artifact, keep=options.no_remove_intermediate)
