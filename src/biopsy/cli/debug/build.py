"""``biopsy debug build``: one model, built again and again; which builds are bad, and what they share."""

from __future__ import annotations

import argparse
import contextlib
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biopsy import errors, events
from biopsy.checks.command_line import OwnRun, parse
from biopsy.checks.outcome import Artifacts, Outcome
from biopsy.checks.words import as_word
from biopsy.cli import advice
from biopsy.cli.arguments import absent_options, checks, engines, groups, types
from biopsy.cli.arguments.engines import TensorrtOptions
from biopsy.cli.console import COLUMN, Console
from biopsy.cli.debug import checking, other_machines
from biopsy.cli.debug.checking import engines_of_run, own_template
from biopsy.cli.inspect.diff_tactics import verdict_lines
from biopsy.cli.progress import Progress, finished_line, inconclusive, say_output, shows, time_left
from biopsy.cli.report import ReportOption, report_file
from biopsy.engines.base import ModelInput
from biopsy.engines.registry import EngineSpec, find_class
from biopsy.findings.model import model_tree_of
from biopsy.findings.report import versions_tree
from biopsy.model.load import read_bytes
from biopsy.processes.writing import require_writable
from biopsy.questions.builds.building import BuildIteration, BuildTally, build_repeatedly, findings_of, remove
from biopsy.questions.builds.difference import difference
from biopsy.questions.builds.one_build import BuildPlan, BuildRuns, BuildsHere, CheckFor, artifact_name
from biopsy.questions.builds.settings import (
    ENGINE_PLACE,
    CheckTemplate,
    combinations,
    parse_variation,
    require_possible,
    separate_checks,
    varied_check,
)
from biopsy.session.workspace import set_aside
from biopsy.text import count, line_of

if TYPE_CHECKING:
    from biopsy.session.machines import OtherMachines

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
    add(parser)


def derived_files(args: argparse.Namespace) -> types.Derived:
    """The file that the engine saves, if no option names it."""
    name = artifact_name(engine_of(args)) if args.iter_artifact is None else None
    return {"--iter-artifact": (Path(name) if name else None, types.ITERATION)}


def execute(args: argparse.Namespace, console: Console) -> int:
    """Build as often as asked; returns 0 whether builds are good or bad; raises what ends with another status."""
    if args.jobs is not None and args.on is None:
        raise errors.UsageError(
            "--jobs is how many builds --on makes at once: here they are made one at a time", next_steps=["--on ray"]
        )
    with other_machines.machines_of(args, console, _NOT_ELSEWHERE) as machines:
        spec = engine_of(args)
        report = report_file(args, console)
        say_choice(args, spec, console)
        plan = plan_of(args, spec)
        checking.require_names(args.check, args.model)
        tally, started = BuildTally(), time.monotonic()
        with BuildProgress(console, args, plan) as progress:
            interrupted = _is_interrupted(args, console, plan, machines, tally, progress)
            seconds = time.monotonic() - started
            doubt = inconclusive(tally.outcomes, "builds")
            status = progress.ended(errors.Interrupted.status if interrupted else doubt.status if doubt else 0)
            report.write(status, lambda: sections(plan, tally, seconds, progress))
            recorded = advice.line_with(args.words, REST_OPTIONS, "build", ["--save-tactics", USUAL_RECORD])
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


# The options of ``biopsy debug build``.

PLACEHOLDER = "{}"
"""What stands for a build in the words of a check."""

USUAL_NAME = "polygraphy_debug.engine"
"""What Polygraphy calls the engine of an iteration: it stands for ours in a check, whatever its ending is."""

LEAST_BUILDS = 10


def add(parser: argparse.ArgumentParser) -> None:
    """Add all of them."""
    groups.ModelOption.add(parser)
    parser.add_argument(
        "--until",
        type=types.until,
        metavar="N|good|bad",
        help="stop after N builds, or after the first that passes (good) or fails (bad) (default: every combination "
        f"of --vary once, and at least {LEAST_BUILDS} builds)",
    )
    _add_variations(parser)
    _add_files(parser)
    _add_check(parser)
    engines.EngineOptions.add_groups(
        parser,
        "the engine to build with (default: that of the check, else TensorRT if it works here, else ONNX Runtime)",
    )
    group = other_machines.add(
        parser, runs="the builds and their checks", sent="the model, its weights, and the files that the check names"
    )
    checks.BudgetOptions.add(
        group,
        only=["jobs"],
        jobs="with --on, make N builds at once; they are told of in the order that they have without it",
    )
    TensorrtOptions.add_tensorrt(parser)
    groups.ModelTypeOption.add(parser)
    groups.WeightsFolderOption.add(parser)
    absent_options.add(parser, "debug build")


def _add_variations(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what differs from build to build")
    group.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="KEY=V1,V2,...",
        help="a setting of the engine, or an environment variable written env.NAME, and its values; repeatable: every "
        "combination is built, equally often",
    )
    group.add_argument(
        "--seed",
        type=types.count,
        metavar="N",
        help="seed of the random build order; each block contains every combination equally often, so a periodic "
        "disturbance is not blamed on a setting (default: random, shown)",
    )


def _add_files(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("files of each build")
    group.add_argument(
        "--save-tactics",
        "--save-tactic-replay",
        type=types.ITERATION,
        metavar="FILE",
        help="before the check, write what the engine chose for each layer, as JSON; sorted with the artifacts",
    )
    checks.ArtifactOptions.add(group)
    checks.IterationOptions.add(
        group,
        iter_artifact="where the engine saves what it has built (default: polygraphy_debug with the engine's suffix)",
        no_remove_intermediate="the last build",
    )
    checks.EventsOption.add(group)
    ReportOption.add(group)


def _add_check(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the check")
    checks.CheckOption.add(
        group,
        check="the command that tells whether a build is bad; takes the rest of the line. "
        f"In it, {{}}, {USUAL_NAME} or the name of --iter-artifact stands for what was built (for the model, if the "
        "engine saves nothing), and {engine} for the engine with its settings; 'biopsy run {}' gets these settings "
        "automatically. 'build' alone: a build that fails is bad, and nothing else is checked. "
        f"{checks.ASKED}",
    )
    checks.RuleOptions.add(group, match="has no effect here: any failure is bad")
    checks.CheckTimeOptions.add(group, check_timeout="none")
    group.add_argument("--build-timeout", type=types.duration, metavar="SECONDS", help="end a build that takes longer")
    checks.ShownOutputOptions.add(group, hide_fail_output="the first bad build")


# From the arguments of ``biopsy debug build`` to the plan of its builds. Importing this imports what builds.


def plan_of(args: argparse.Namespace, spec: EngineSpec) -> BuildPlan:
    """What is to be built, how often, and where. Raises UsageError for what the engine cannot do."""
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
        until=args.until or max(LEAST_BUILDS, combinations(variations)),
        artifact=artifact,
        variations=variations,
        seed=args.seed if args.seed is not None else secrets.randbelow(2**31),
        record=args.save_tactics,
        artifacts=Artifacts(tuple(files), args.art_dir),
        info=args.iter_info,
        rules=checks.RuleOptions.of(args).rules(),
        build_timeout=args.build_timeout,
        checks_building=args.check == ["build"],
    )


_USE_ENGINE = "write {engine} in the check, which then builds by itself: biopsy run {} --engine {engine}"


# Which engine ``biopsy debug build`` builds with, and the check that each of its builds gets.


def engine_of(args: argparse.Namespace) -> EngineSpec:
    """The engine to build with: the one that is named, else that of the check, else TensorRT if it works here."""
    named = engines.EngineOptions.of(args).only_spec()
    if named is not None:
        return named
    checked = _engine_of_check(args.check or [])
    if checked is not None:
        return EngineSpec(checked)
    return engines.default_engine(runs=False)


def say_choice(args: argparse.Namespace, spec: EngineSpec, console: Console) -> None:
    """Say which engine is used, and why that, where the line names none."""
    if engines.EngineOptions.of(args).only_spec() is None:
        why = ", as in the check" if _engine_of_check(args.check or []) is not None else ""
        console.note(f"no engine is named: {spec.text} is used{why}")


def _engine_of_check(words: list[str]) -> str | None:
    command = parse(words)
    if not isinstance(command, OwnRun) or not {PLACEHOLDER, USUAL_NAME} & set(words):
        return None
    specs = engines_of_run(command)
    return specs[-1].name if specs else None


def runs_of(
    args: argparse.Namespace, plan: BuildPlan, machines: OtherMachines | None, listener: events.Listener
) -> tuple[BuildRuns, Callable[[], None]]:
    """Who builds and checks, here or on other machines; and what ends the check."""
    if machines is None:
        check_for, close = _checks_here(args, plan)
        return BuildsHere(plan, check_for, listener), close
    from biopsy.questions.builds.elsewhere import BuildsElsewhere

    separate = separate_checks(_template(args.check, plan), PLACEHOLDER, args.check_timeout)
    jobs = other_machines.jobs_on(machines, args.jobs)
    return BuildsElsewhere(plan, separate, machines, jobs, listener), lambda: None


def _checks_here(args: argparse.Namespace, plan: BuildPlan) -> tuple[CheckFor, Callable[[], None]]:
    """The check for each build, its words with what was built and the engine in their places; and what ends it."""
    if args.check is None:
        person = checking.CheckedOptions.of(args).check_of(1)
        return lambda change: person, person.close
    varied = varied_check(_template(args.check, plan), PLACEHOLDER, args.check_timeout)
    return varied.with_change, varied.close


def _template(check: list[str], plan: BuildPlan) -> CheckTemplate:
    """The check's words. A ``biopsy run`` of what was built loads it with the settings that it was built with.

    A file of OpenVINO, for one, does not keep the precision that it was compiled for.
    """
    usual = {USUAL_NAME, str(plan.artifact)}
    words = tuple(PLACEHOLDER if word in usual else word for word in check)
    command = parse(words)
    if not isinstance(command, OwnRun):
        return CheckTemplate(words, plan.spec)
    if any(ENGINE_PLACE in word for word in words) or PLACEHOLDER not in words:
        return CheckTemplate(words, plan.spec, is_own_run=True)
    if plan.spec.name not in {spec.name for spec in engines_of_run(command)}:
        return CheckTemplate(words, plan.spec, is_own_run=True)
    template = own_template(command, plan.spec.name)
    settings = {**plan.spec.settings, **template.spec.settings}
    return CheckTemplate(template.words, EngineSpec(plan.spec.name, settings), is_own_run=True)


# What ``biopsy debug build`` shows while it builds.


class BuildProgress(Progress):
    """A line for each way to fail that was not met before, and for each remark of the engine."""

    def __init__(self, console: Console, args: argparse.Namespace, plan: BuildPlan) -> None:
        super().__init__(console, args.events)
        self._args = args
        self._plan = plan
        self._shown: set[str] = set()

    def show_plan(self) -> None:
        """Say what is going to happen."""
        until = self._plan.until
        if isinstance(until, int):
            often = count(until, "time")
        else:
            often = "until one passes" if until == "good" else "until one fails"
        self.line("build", f"{self._plan.model.path} with {self._plan.spec.text}, {often}")
        for variation in self._plan.variations:
            self.line("vary", f"{variation.key} = {', '.join(variation.values)}")
        if self._plan.variations:
            self.line("order", f"random, in blocks of all combinations: --seed {self._plan.seed}")
        if self._plan.artifact is None and not self._plan.checks_building:
            self.line("", f"{self._plan.spec.name} saves nothing: the check is given the model itself")
        if self._plan.record is not None and not find_class(self._plan.spec.name).capabilities.layers:
            self.line("", f"{self._plan.spec.name} does not tell its layers: the records hold its settings only")

    @shows(events.Remark)
    def show_remark(self, event: events.Remark) -> None:
        """Show a remark once."""
        if event.text not in self._shown:
            self._shown.add(event.text)
            super().show_remark(event)

    @shows(events.Checked)
    def _show_checked(self, event: events.Checked) -> None:
        failed = event.outcome not in ("passed",)
        is_new = failed and event.reason not in self._shown
        if self._args.show_output or (is_new and not self._args.hide_fail_output):
            self._live.stop()
            say_output(self._console, event.output, whole=self._args.show_output)
        if is_new:
            self._shown.add(event.reason)
            head = "fails" if event.outcome == "reproduced" else "other"
            self.line(head, f"build {event.number}: {event.reason}")

    def show_iteration(self, iteration: BuildIteration, tally: BuildTally) -> None:
        """A build has been checked and counted."""
        settings = iteration.change.text or self._plan.spec.text
        for remark in iteration.built.remarks:
            if remark not in self._shown:
                self._shown.add(remark)
                self.line("", remark)
        self._console.detail(f"  build {iteration.number}  {settings}: {word_for(iteration.judged.outcome.name)}")
        until, spent = self._plan.until, time.monotonic() - self._started
        left = f" · {time_left(spent / tally.runs * (until - tally.runs))}" if isinstance(until, int) else ""
        done = tally.runs / until if isinstance(until, int) else 0.0
        self._live.update("build", f"{count(tally.runs, 'build')} · {outcomes_text(tally)}{left}", done)


def word_for(name: str) -> str:
    """What users call the outcome of this name."""
    return {"PASSES": "good", "REPRODUCES": "bad"}.get(name, "other")


def outcomes_text(tally: BuildTally) -> str:
    """``13 good · 7 bad · 1 timed out``."""
    good, bad = tally.outcomes[Outcome.PASSES], tally.outcomes[Outcome.REPRODUCES]
    rest = {outcome: times for outcome, times in tally.outcomes.items() if word_for(outcome.name) == "other"}
    others = [f"{times} {outcome.value}" for outcome, times in rest.items()]
    return " · ".join([f"{good} good", f"{bad} bad", *others])


# What ``biopsy debug build`` says at the end: how many builds are bad, and which choices go with them.

_NEXT = "Next"


USUAL_RECORD = "replay.json"
"""Where examples and proposed lines keep what an engine chose."""


def say_result(console: Console, plan: BuildPlan, tally: BuildTally, *, seconds: float, recorded: str) -> None:
    """What was counted, what bad builds share, and what to type next.

    ``recorded`` is the same command line with a record of what the engine chose.
    """
    console.note("")
    console.say(f"{count(tally.runs, 'build')}   {outcomes_text(tally)} · {seconds:.1f} s")
    if tally.runs:
        console.say(finished_line(tally.outcomes[Outcome.PASSES], tally.runs))
    for variation in plan.variations:
        for value in variation.values:
            console.say(_rate_line(f"{variation.key}={value}", tally))
    if plan.artifacts.files and plan.artifacts.folder.is_dir():
        console.say(f"{'files':<{COLUMN}} {plan.artifacts.folder}, in good, bad and other")
    if not tally.builds:
        return
    if plan.checks_building and tally.outcomes[Outcome.PASSES] == tally.runs:
        console.say(f"built {tally.runs} of {count(tally.runs, 'time')}")
        return
    console.note("")
    verdict = list(verdict_lines(difference(tally.builds)))
    console.say(*verdict)
    has_advice = any(line.startswith(_NEXT) for line in verdict)
    for place, line in enumerate(_next(plan, tally, recorded)):
        console.note(f"{'' if has_advice or place else _NEXT:<{COLUMN}} {line}")


def _next(plan: BuildPlan, tally: BuildTally, recorded: str) -> Iterator[str]:
    """What to type next: a comparison only where there are two kinds of builds to compare."""
    good, bad = tally.outcomes[Outcome.PASSES], tally.outcomes[Outcome.REPRODUCES]
    if good and bad and plan.record is not None:
        yield line_of(["biopsy", "debug", "diff-tactics", "--dir", as_word(plan.artifacts.folder)])
    elif good and bad:
        yield "with a record of what is chosen in each build:"
        yield recorded
    elif good and plan.until != "bad":
        yield "--until bad    goes on building until one fails"
    elif bad and not plan.variations:
        doctor = line_of(["biopsy", "doctor", plan.spec.name])
        yield f"--vary KEY=V1,V2    builds with other settings, as listed by: {doctor}"


def sections(plan: BuildPlan, tally: BuildTally, seconds: float, progress: BuildProgress) -> Mapping[str, Any]:
    """What a report tells."""
    from biopsy.findings.answers import builds_tree, builds_verdict

    found, path = findings_of(plan, tally, seconds), plan.model.path
    return {
        "verdict": builds_verdict(found),
        "model": None if path is None else model_tree_of(path),
        "versions": versions_tree([plan.spec.text]),
        "search": progress.history.tree(),
        "builds": builds_tree(found),
    }


def _rate_line(key: str, tally: BuildTally) -> str:
    key_of = key.removeprefix("env.")
    kind = "environment" if key != key_of else "option"
    those = [
        build for build in tally.builds if any(choice.kind == kind and choice.value == key for choice in build.choices)
    ]
    bad = sum(build.is_bad for build in those)
    return f"{'':<{COLUMN}} {key:<32} {bad} of {len(those)} bad"
