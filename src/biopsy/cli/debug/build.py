"""``biopsy debug build``: one model, built again and again; which of the builds are bad, and what they share."""

from __future__ import annotations

import argparse
import contextlib
import secrets
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import errors, events
from biopsy.checks.words import as_word
from biopsy.cli.arguments import checks, engine_options, file_kinds, groups, tensorrt, types
from biopsy.cli.check_output import say_output
from biopsy.cli.live_line import COLUMN
from biopsy.cli.progress import Progress, shows, time_left
from biopsy.quantities import count
from biopsy.shell_words import line_of

if TYPE_CHECKING:
    from biopsy.cli.console import Console
    from biopsy.engines.registry import EngineSpec
    from biopsy.tactics.building import BuildIteration, BuildPlan, BuildTally, CheckFor
    from biopsy.tactics.setting_changes import CheckTemplate

REST_OPTIONS = checks.REST_OPTIONS

PLACEHOLDER = "{}"

USUAL_NAME = "polygraphy_debug.engine"
"""What Polygraphy calls the engine of an iteration: it stands for ours in a check, whatever its ending is."""

_LEAST_BUILDS = 10

_EPILOG = """\
examples:
  Which precision is to blame?
    biopsy debug build model.onnx --openvino --vary precision=f32,bf16 --until 20 \\
        --save-tactics replay.json --artifacts replay.json --art-dir replays \\
        --check biopsy run {} --openvino --load-inputs inputs.json --load-outputs golden.json
    biopsy debug diff-tactics --dir replays
  An engine that saves nothing, or a check that builds by itself: {engine} is the engine with its settings.
    biopsy debug build model.onnx --onnxrt --vary threads=1,2 --vary execution=sequential,parallel \\
        --check biopsy run model.onnx --engine onnxrt:optimization=none --engine {engine}
  Does it build each time?
    biopsy debug build model.onnx --trt --until 5 --check build

exit status of a check: 0 passes, 125 cannot say, 126 and 127 mean that it could not be run; any other fails.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``debug build``."""
    parser.epilog = _EPILOG
    parser.add_argument("model", type=file_kinds.READ, metavar="MODEL", help="the ONNX model")
    parser.add_argument(
        "--until",
        type=types.until,
        metavar="N|good|bad",
        help="stop after N builds, or after the first one that passes (good) or fails (bad) (default: every "
        f"combination of --vary once, and at least {_LEAST_BUILDS} builds)",
    )
    group = parser.add_argument_group("what differs from build to build")
    group.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="KEY=V1,V2,...",
        help="a setting of the engine, or with env.NAME a variable of the environment, and its values; "
        "repeatable: all combinations are built, equally often",
    )
    group.add_argument(
        "--seed",
        type=types.count,
        metavar="N",
        help="seed of the random build order; each block contains every combination equally often, so a periodic "
        "disturbance is not blamed on a setting (default: random, shown)",
    )
    group = parser.add_argument_group("files of each build")
    group.add_argument(
        "--save-tactics",
        type=file_kinds.ITERATION,
        metavar="FILE",
        help="write what the engine chose for each layer, as JSON, before the check; sorted with the artifacts",
    )
    checks.add_artifacts(group)
    group.add_argument(
        "--iter-artifact",
        "--intermediate-artifact",
        type=file_kinds.ITERATION,
        metavar="FILE",
        help="where the engine saves what it has built (default: polygraphy_debug and the engine's ending)",
    )
    group.add_argument("--no-remove-intermediate", action="store_true", help="leave the last one there")
    checks.add_iteration_info(group)
    checks.add_events(group)
    _add_check(parser)
    engine_options.add_engines(parser)
    tensorrt.add(parser)
    groups.add_weights_folder(parser)


def derived_files(args: argparse.Namespace) -> file_kinds.Derived:
    """What the engine saves, where it is not named."""
    from biopsy.tactics.building import artifact_name

    name = artifact_name(_spec(args)) if args.iter_artifact is None else None
    return {"--iter-artifact": (Path(name) if name else None, file_kinds.ITERATION)}


def _add_check(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the check")
    checks.add_command(
        group,
        f"the command that tells whether a build is bad: the whole rest of the line. In it, {{}}, {USUAL_NAME} or the "
        "name of --iter-artifact stands for what was built (for the model, if the engine saves nothing), {engine} for "
        "the engine with its settings; 'biopsy run {}' gets these settings by itself. 'build' alone: a build that "
        "fails is bad, and nothing else is checked. Without --check you are asked",
    )
    checks.add_rules(group, "has no effect here: any failure is bad")
    checks.add_timeout(group, "none")
    group.add_argument("--build-timeout", type=float, metavar="SECONDS", help="end a build that takes longer")
    checks.add_shown_output(group, "the first bad build")


def execute(args: argparse.Namespace, console: Console) -> int:
    """Build as often as asked; returns 0, whatever the builds were like, or raises what ends with another status."""
    from biopsy.session.claim import set_aside
    from biopsy.tactics.building import BuildTally, build_repeatedly, remove

    spec = _spec(args)
    plan = _plan(args, spec)
    checks.require_names(args, args.model)
    check_for, close = _checks(args, plan)
    tally, started, interrupted = BuildTally(), time.monotonic(), False
    with (
        checks.ended_politely(),
        set_aside(plan.artifact, "last build") as told,
        BuildProgress(console, args, plan) as display,
    ):
        if told is not None:
            console.note(told)
        try:
            display.plan()
            with contextlib.closing(build_repeatedly(plan, check_for, tally, display)) as builds:
                for iteration in builds:
                    display.ended(iteration, tally)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            close()
            if not args.no_remove_intermediate:
                remove(plan.artifact)
    _say_result(console, plan, tally, time.monotonic() - started)
    if interrupted:
        raise errors.Interrupted("the build that was going on is not counted")
    return 0


# What is asked for


def _spec(args: argparse.Namespace) -> EngineSpec:
    """The engine to build with: the one that is named, else that of the check, else TensorRT if it works here."""
    from biopsy.engines.registry import EngineSpec, installed

    if args.engines:
        specs = engine_options.engine_specs(args)
        if len(specs) > 1:
            raise errors.UsageError("one engine at a time is built: name only one")
        return specs[0]
    checked = _engine_of_check(args.check or [])
    if checked is not None:
        return EngineSpec(checked)
    works = [one.version is not None for one in installed() if one.name == "trt"]
    return EngineSpec("trt" if any(works) else "onnxrt")


def _engine_of_check(words: list[str]) -> str | None:
    from biopsy.checks.command_line import OwnRun, parse
    from biopsy.cli.debug.engine_substitution import engines_of_run

    command = parse(words)
    if not isinstance(command, OwnRun) or not {PLACEHOLDER, USUAL_NAME} & set(words):
        return None
    specs = engines_of_run(command)
    return specs[-1].name if specs else None


def _plan(args: argparse.Namespace, spec: EngineSpec) -> BuildPlan:
    from biopsy.checks.artifacts import Artifacts
    from biopsy.engines.base import ModelInput
    from biopsy.filesystem.write import require_writable
    from biopsy.model.load import read_bytes
    from biopsy.tactics.building import BuildPlan, artifact_name
    from biopsy.tactics.variations import combinations, parse_variation, require_possible

    variations = [parse_variation(text, spec.name) for text in args.vary]
    require_possible(spec, variations)
    name = artifact_name(spec)
    artifact = args.iter_artifact or (None if name is None else Path(name))
    if artifact is not None and name is None:
        raise errors.UsageError(f"--iter-artifact {artifact}: {spec.name} saves nothing", next_steps=[_USE_ENGINE])
    files = [artifact if artifact and str(file) == USUAL_NAME else file for file in args.artifacts]
    if args.save_tactics is not None and args.save_tactics not in files:
        files.append(args.save_tactics)
    for path in (artifact, args.save_tactics, args.iter_info):
        if path is not None:
            require_writable(path)
    model = ModelInput(read_bytes(args.model), args.external_data_dir or args.model.parent, args.model)
    return BuildPlan(
        model=model,
        spec=spec,
        until=args.until or max(_LEAST_BUILDS, combinations(variations)),
        artifact=artifact,
        variations=variations,
        seed=args.seed if args.seed is not None else secrets.randbelow(2**31),
        record=args.save_tactics,
        artifacts=Artifacts(tuple(files), args.art_dir),
        info=args.iter_info,
        rules=checks.rules_of(args),
        build_timeout=args.build_timeout,
        checks_building=args.check == ["build"],
    )


_USE_ENGINE = "write {engine} in the check, which then builds by itself: biopsy run {} --engine {engine}"


def _checks(args: argparse.Namespace, plan: BuildPlan) -> tuple[CheckFor, Callable[[], None]]:
    """The check for each build, its words with what was built and the engine in their places; and what ends it."""
    from biopsy.cli.debug.engine_substitution import varied_check

    if args.check is None:
        asked = checks.check_of(args, 1)
        return lambda change: asked, asked.close
    varied = varied_check(_template(args.check, plan), PLACEHOLDER, args.check_timeout)
    return varied.with_change, varied.close


def _template(check: list[str], plan: BuildPlan) -> CheckTemplate:
    """The check's words. A ``biopsy run`` of what was built loads it with the settings that it was built with.

    A file of OpenVINO, for one, does not keep the precision that it was compiled for.
    """
    from biopsy.checks.command_line import OwnRun, parse
    from biopsy.cli.debug.engine_substitution import engines_of_run, own_wording
    from biopsy.engines.registry import EngineSpec
    from biopsy.tactics.setting_changes import ENGINE_PLACE, CheckTemplate

    usual = {USUAL_NAME, str(plan.artifact)}
    words = tuple(PLACEHOLDER if word in usual else word for word in check)
    command = parse(words)
    if not isinstance(command, OwnRun):
        return CheckTemplate(words, plan.spec)
    if any(ENGINE_PLACE in word for word in words) or PLACEHOLDER not in words:
        return CheckTemplate(words, plan.spec, is_own_run=True)
    if plan.spec.name not in {spec.name for spec in engines_of_run(command)}:
        return CheckTemplate(words, plan.spec, is_own_run=True)
    found = own_wording(command, plan.spec.name)
    return CheckTemplate(
        found.words, EngineSpec(plan.spec.name, {**plan.spec.settings, **found.spec.settings}), is_own_run=True
    )


# What is shown


class BuildProgress(Progress):
    """A line for each way to fail that was not met before, and for each remark of the engine."""

    def __init__(self, console: Console, args: argparse.Namespace, plan: BuildPlan) -> None:
        super().__init__(console, args.events)
        self._args = args
        self._plan = plan
        self._told: set[str] = set()

    def plan(self) -> None:
        """Say what is going to happen."""
        from biopsy.engines.registry import find_class

        until = self._plan.until
        if isinstance(until, int):
            often = count(until, "time")
        else:
            often = "until one passes" if until == "good" else "until one fails"
        self.line("build", f"{self._plan.model.path} with {self._plan.spec.text}, {often}")
        for variation in self._plan.variations:
            self.line("vary", f"{variation.key} = {', '.join(variation.values)}")
        if self._plan.variations:
            self.line("order", f"by lot, in blocks of all combinations: --seed {self._plan.seed}")
        if self._plan.artifact is None and not self._plan.checks_building:
            self.line("", f"{self._plan.spec.name} saves nothing: the check is given the model itself")
        if self._plan.record is not None and not find_class(self._plan.spec.name).capabilities.layers:
            self.line("", f"{self._plan.spec.name} does not tell its layers: the records hold its settings only")

    @shows(events.Remark)
    def show_remark(self, event: events.Remark) -> None:
        """Show a remark once."""
        if event.text not in self._told:
            self._told.add(event.text)
            super().show_remark(event)

    @shows(events.Checked)
    def _show_checked(self, event: events.Checked) -> None:
        failed = event.outcome not in ("passed",)
        is_new = failed and event.reason not in self._told
        if self._args.show_output or (is_new and not self._args.hide_fail_output):
            self._live.stop()
            say_output(self._console, event.output, whole=self._args.show_output)
        if is_new:
            self._told.add(event.reason)
            head = "fails" if event.outcome == "reproduced" else "other"
            self.line(head, f"build {event.number}: {event.reason}")

    def ended(self, iteration: BuildIteration, tally: BuildTally) -> None:
        """A build has been checked and counted."""
        told = iteration.change.text or self._plan.spec.text
        for remark in iteration.built.remarks:
            if remark not in self._told:
                self._told.add(remark)
                self.line("", remark)
        self._console.detail(f"  build {iteration.number}  {told}: {_word(iteration.judged.outcome.name)}")
        until, spent = self._plan.until, time.monotonic() - self._started
        left = f" · {time_left(spent / tally.runs * (until - tally.runs))}" if isinstance(until, int) else ""
        done = tally.runs / until if isinstance(until, int) else 0.0
        self._live.update("build", f"{count(tally.runs, 'build')} · {_outcomes(tally)}{left}", done)


def _word(name: str) -> str:
    return {"PASSES": "good", "REPRODUCES": "bad"}.get(name, "other")


def _outcomes(tally: BuildTally) -> str:
    from biopsy.checks.outcome import Outcome

    good, bad = tally.outcomes[Outcome.PASSES], tally.outcomes[Outcome.REPRODUCES]
    rest = {outcome: times for outcome, times in tally.outcomes.items() if _word(outcome.name) == "other"}
    others = [f"{times} {outcome.value}" for outcome, times in rest.items()]
    return " · ".join([f"{good} good", f"{bad} bad", *others])


def _say_result(console: Console, plan: BuildPlan, tally: BuildTally, seconds: float) -> None:
    from biopsy.cli.inspect.diff_tactics import verdict_lines
    from biopsy.tactics.difference import difference

    console.note("")
    console.say(f"{count(tally.runs, 'build')}   {_outcomes(tally)} · {seconds:.1f} s")
    for variation in plan.variations:
        for value in variation.values:
            console.say(_rate_line(f"{variation.key}={value}", tally))
    if plan.artifacts.files and tally.runs:
        console.say(f"{'files':<{COLUMN}} {plan.artifacts.folder}, in good, bad and other")
    if not tally.builds:
        return
    console.note("")
    for line in verdict_lines(difference(tally.builds)):
        console.say(line)
    if plan.record is not None:
        words = ["biopsy", "debug", "diff-tactics", "--dir", as_word(plan.artifacts.folder)]
        console.note(f"{'Next':<{COLUMN}} {line_of(words)}")
    else:
        again = line_of(["biopsy", *sys.argv[1:3]])
        console.note(
            f"{'Next':<{COLUMN}} {again} ... --save-tactics replay.json    keeps what was chosen in each build"
        )


def _rate_line(key: str, tally: BuildTally) -> str:
    key_of = key.removeprefix("env.")
    kind = "environment" if key != key_of else "option"
    those = [build for build in tally.builds if any(c.kind == kind and c.value == key for c in build.choices)]
    bad = sum(build.is_bad for build in those)
    return f"{'':<{COLUMN}} {key:<32} {bad} of {len(those)} bad"
