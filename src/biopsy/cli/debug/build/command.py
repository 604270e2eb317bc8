"""``biopsy debug build``: one model, built again and again; which builds are bad, and what they share."""

from __future__ import annotations

import argparse
import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.cli import line_again
from biopsy.cli.arguments import checks, file_kinds
from biopsy.cli.debug import checking, other_machines
from biopsy.cli.debug.build import options
from biopsy.cli.debug.build.checked import engine_of, runs_of, say_choice
from biopsy.cli.debug.build.progress import BuildProgress
from biopsy.cli.debug.build.summary import USUAL_RECORD, say_result, sections
from biopsy.cli.report_file import report_file

if TYPE_CHECKING:
    from biopsy.cli.console import Console
    from biopsy.engines.registry import EngineSpec
    from biopsy.session.machines import OtherMachines
    from biopsy.tactics.build_plan import BuildPlan
    from biopsy.tactics.building import BuildTally

REST_OPTIONS = checks.REST_OPTIONS

_NOT_ELSEWHERE = {
    "--iter-info": "the file stands on this machine, and several builds are made at once",
    "--no-remove-intermediate": "what was built last stays on the machine that built it",
    "--external-data-dir": "weights are sent that stand beside the model",
}
"""Options that cannot be combined with ``--on``, each with the reason."""

_EPILOG = f"""\
examples:
  Which precision is to blame?
    biopsy debug build model.onnx --openvino --vary precision=f32,bf16 --until 20 \\
        --save-tactics replay.json --artifacts replay.json --art-dir replays \\
        --check biopsy run {{}} --openvino --load-inputs inputs.json --load-outputs golden.json
    biopsy debug diff-tactics --dir replays
  An engine that saves nothing, or a check that builds the model itself: {{engine}} is the engine with its settings.
    biopsy debug build model.onnx --onnxrt --vary threads=1,2 --vary execution=sequential,parallel \\
        --check biopsy run model.onnx --engine onnxrt:optimization=none --engine {{engine}}
  Does it build every time?
    biopsy debug build model.onnx --trt --until 5 --check build

{checks.STATUSES}"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``debug build``."""
    parser.epilog = _EPILOG
    options.add(parser)


def derived_files(args: argparse.Namespace) -> file_kinds.Derived:
    """The file that the engine saves, if no option names it."""
    from biopsy.tactics.build_plan import artifact_name

    name = artifact_name(engine_of(args)) if args.iter_artifact is None else None
    return {"--iter-artifact": (Path(name) if name else None, file_kinds.ITERATION)}


def execute(args: argparse.Namespace, console: Console) -> int:
    """Build as often as asked; returns 0 whether builds are good or bad; raises what ends with another status."""
    if args.jobs is not None and args.on is None:
        raise errors.UsageError(
            "--jobs is how many builds --on makes at once: here they are made one at a time", next_steps=["--on ray"]
        )
    with other_machines.machines_of(args, console, _NOT_ELSEWHERE) as machines:
        return _execute(args, console, engine_of(args), machines)


def _execute(args: argparse.Namespace, console: Console, spec: EngineSpec, machines: OtherMachines | None) -> int:
    from biopsy.cli.debug.build.plan import plan_of
    from biopsy.cli.debug.finished import inconclusive
    from biopsy.tactics.building import BuildTally

    report = report_file(args, console)
    say_choice(args, spec, console)
    plan = plan_of(args, spec)
    checking.require_names(args, args.model)
    tally, started = BuildTally(), time.monotonic()
    with BuildProgress(console, args, plan) as progress:
        interrupted = _is_interrupted(args, console, plan, machines, tally, progress)
        seconds = time.monotonic() - started
        doubt = inconclusive(tally.outcomes, "builds")
        status = progress.ended(errors.Interrupted.status if interrupted else doubt.status if doubt else 0)
        report.write(status, lambda: sections(plan, tally, seconds, progress))
        recorded = line_again.line_with(args.words, REST_OPTIONS, "build", ["--save-tactics", USUAL_RECORD])
        say_result(console, plan, tally, seconds=seconds, recorded=recorded)
    if interrupted:
        raise errors.Interrupted("the build in progress is not counted")
    if doubt is not None:
        raise doubt
    return 0


def _is_interrupted(
    args: argparse.Namespace,
    console: Console,
    plan: BuildPlan,
    machines: OtherMachines | None,
    tally: BuildTally,
    progress: BuildProgress,
) -> bool:
    """Build as often as the plan says; whether the user has ended that before."""
    from biopsy.session.claim import set_aside
    from biopsy.tactics.building import build_repeatedly, remove

    with checking.ended_politely(), set_aside(plan.artifact, "last build", console.warn) as remark:
        if remark is not None:
            console.note(remark)
        runs, close = runs_of(args, plan, machines, progress)
        try:
            progress.show_plan()
            with contextlib.closing(build_repeatedly(plan, runs, tally, progress)) as builds:
                for iteration in builds:
                    progress.show_iteration(iteration, tally)
        except KeyboardInterrupt:
            return True
        finally:
            close()
            if not args.no_remove_intermediate:
                remove(plan.artifact)
    return False
