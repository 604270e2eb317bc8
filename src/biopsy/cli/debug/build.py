"""``biopsy debug build``: builds a model many times, and tells which builds are bad and what these have in common."""

from __future__ import annotations

import argparse
import contextlib
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from biopsy import errors, events
from biopsy.checks.command_line import OwnRun, parse
from biopsy.checks.outcome import Artifacts, InteractiveCheck, Outcome
from biopsy.checks.words import as_word
from biopsy.cli import advice
from biopsy.cli.arguments import checks, engines, groups, types
from biopsy.cli.arguments.declared import Options, option
from biopsy.cli.arguments.engines import TensorrtOptions
from biopsy.cli.console import COLUMN, Console
from biopsy.cli.debug import checking, other_machines
from biopsy.cli.debug.checking import engines_of_run, own_template
from biopsy.cli.inspect.diff_tactics import verdict_lines
from biopsy.cli.progress import Progress, finished_line, inconclusive, time_left
from biopsy.cli.report import ReportOption
from biopsy.engines.base import ModelInput
from biopsy.engines.registry import EngineSpec, find_class
from biopsy.findings.model import model_tree_of
from biopsy.findings.report import versions_tree
from biopsy.model.load import read_bytes
from biopsy.processes.writing import require_writable
from biopsy.questions.builds.building import (
    BuildFindings,
    BuildIteration,
    BuildPlan,
    BuildRuns,
    BuildsHere,
    BuildTally,
    artifact_name,
    build_repeatedly,
)
from biopsy.questions.builds.elsewhere import BuildsElsewhere
from biopsy.questions.builds.settings import (
    ENGINE_PLACE,
    CheckTemplate,
    combinations,
    parse_variation,
    require_possible,
    separate_checks,
    varied_check,
)
from biopsy.session.machines import OtherMachines
from biopsy.session.workspace import set_aside
from biopsy.text import count, line_of

REST_OPTIONS = checks.REST_OPTIONS

_NOT_ELSEWHERE = {
    "--iter-info": "the file stands on this machine, and several builds are made at once",
    "--no-remove-intermediate": "what was built last stays on the machine that built it",
    "--external-data-dir": "weights are sent that stand beside the model",
}
"""Options that cannot be combined with ``--on``, each with the reason."""

EPILOG = f"""\
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


PLACEHOLDER = "{}"
"""The placeholder of the built file in the words of a check."""

USUAL_NAME = "polygraphy_debug.engine"
"""Polygraphy's name for the built engine: in a check it stands for our file, whatever its suffix is."""

USUAL_RECORD = "replay.json"
"""The file for an engine's choices in proposed command lines."""

LEAST_BUILDS = 10


_VARIED = "what differs from build to build"


class VariedOptions(Options):
    """How many builds are made, what differs between them, and what is kept of each."""

    until: int | Literal["good", "bad"] | None = option(
        "--until",
        type=types.until,
        metavar="N|good|bad",
        meaning="stop after N builds, or after the first that passes (good) or fails (bad) (default: every combination "
        f"of --vary once, and at least {LEAST_BUILDS} builds)",
    )
    vary: Sequence[str] = option(
        "--vary",
        title=_VARIED,
        action="append",
        default=[],
        metavar="KEY=V1,V2,...",
        meaning="a setting of the engine, or an environment variable written env.NAME, and its values; repeatable: "
        "every combination is built, equally often",
    )
    seed: int | None = option(
        "--seed",
        title=_VARIED,
        type=types.count,
        meaning="seed of the random build order; each block contains every combination equally often, so a periodic "
        "disturbance is not blamed on a setting (default: random, shown)",
    )
    save_tactics: Path | None = option(
        "--save-tactics --save-tactic-replay",
        title="files of each iteration",
        type=types.ITERATION,
        meaning="before the check, write what the engine chose for each layer, as JSON; sorted with the artifacts",
    )
    build_timeout: float | None = option(
        "--build-timeout", title="the check", type=types.duration, meaning="end a build that takes longer"
    )


class BuildOptions(
    groups.ModelOption,
    VariedOptions,
    checks.ArtifactOptions,
    checks.IterationOptions,
    ReportOption,
    checks.CheckOptions,
    engines.EngineOptions,
    checks.BudgetOptions,
    groups.ModelTypeOption,
    groups.WeightsFolderOption,
):
    """All options of ``debug build``."""

    @cached_property
    def spec(self) -> EngineSpec:
        """The engine to build with: the named one, else that of the check, else the default for builds."""
        checked = self.engine_of_check
        return self.only_spec() or (engines.default_engine(runs=False) if checked is None else EngineSpec(checked))

    @cached_property
    def engine_of_check(self) -> str | None:
        """The name of the last engine of the check, if that is ``biopsy run`` of the built file; else None."""
        command = parse(self.check or ())
        if not isinstance(command, OwnRun) or not {PLACEHOLDER, USUAL_NAME} & set(command.words):
            return None
        specs = engines_of_run(command)
        return specs[-1].name if specs else None

    def plan(self) -> BuildPlan:
        """What to build, how often, and where to. Raises UsageError for what the engine cannot do."""
        variations = [parse_variation(text, self.spec.name) for text in self.vary]
        require_possible(self.spec, variations)
        name = artifact_name(self.spec)
        artifact = self.iter_artifact or (None if name is None else Path(name))
        if artifact is not None and name is None:
            raise errors.UsageError(
                f"--iter-artifact {artifact}: {self.spec.name} saves nothing",
                next_steps=[
                    "write {engine} in the check, which then builds by itself: biopsy run {} --engine {engine}"
                ],
            )
        files = [artifact if artifact and str(file) == USUAL_NAME else file for file in self.artifacts]
        if self.save_tactics is not None and self.save_tactics not in files:
            files.append(self.save_tactics)
        for path in filter(None, (artifact, self.save_tactics, self.iter_info)):
            require_writable(path)
        return BuildPlan(
            model=ModelInput(read_bytes(self.model), self.external_data_dir or self.model.parent, self.model),
            spec=self.spec,
            until=self.until or max(LEAST_BUILDS, combinations(variations)),
            artifact=artifact,
            variations=variations,
            seed=self.seed if self.seed is not None else secrets.randbelow(2**31),
            record_to=self.save_tactics,
            artifacts=Artifacts(tuple(files), self.art_dir),
            info=self.iter_info,
            rules=self.rules(),
            build_timeout=self.build_timeout,
            checks_building=self.check == ["build"],
        )

    def template(self, plan: BuildPlan) -> CheckTemplate:
        """The check's words; ``biopsy run`` loads the built file with the settings that it was built with.

        OpenVINO's files, for example, do not tell the precision that they were compiled for.
        """
        file_names = {USUAL_NAME, str(plan.artifact)}
        words = tuple(PLACEHOLDER if word in file_names else word for word in self.check or ())
        command = parse(words)
        is_own_run = isinstance(command, OwnRun)
        if (
            not isinstance(command, OwnRun)
            or any(ENGINE_PLACE in word for word in words)
            or PLACEHOLDER not in words
            or plan.spec.name not in {spec.name for spec in engines_of_run(command)}
        ):
            return CheckTemplate(words, plan.spec, is_own_run=is_own_run)
        template = own_template(command, plan.spec.name)
        settings = {**plan.spec.settings, **template.spec.settings}
        return CheckTemplate(template.words, EngineSpec(plan.spec.name, settings), is_own_run=True)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``debug build``."""
    BuildOptions.add(
        parser,
        without=("max_checks", "max_time", *TensorrtOptions.declared),
        titles={
            "engines": "the engine to build with (default: that of the check, else TensorRT if it works here, else "
            "ONNX Runtime)",
            "jobs": "other machines",
        },
        iter_artifact="where the engine saves what it has built (default: polygraphy_debug with the engine's suffix)",
        no_remove_intermediate="the last build",
        check="the command that tells whether a build is bad; takes the rest of the line. "
        f"In it, {{}}, {USUAL_NAME} or the name of --iter-artifact stands for what was built (for the model, if the "
        "engine saves nothing), and {engine} for the engine with its settings; 'biopsy run {}' gets these settings "
        "automatically. 'build' alone: a build that fails is bad, and nothing else is checked. "
        f"{checks.ASKED}",
        match="has no effect here: any failure is bad",
        check_timeout="none",
        hide_fail_output="the first bad build",
        jobs="with --on, make N builds at once; they are shown in the same order as without it",
    )
    other_machines.MachineOptions.add(
        parser,
        on=other_machines.meaning(runs="the builds and their checks", sent=other_machines.MODEL_SENT),
    )
    TensorrtOptions.add(parser)


@BuildOptions.reading
def derived_files(options: BuildOptions) -> types.Derived:
    """The file that the engine saves, unless an option names it."""
    name = artifact_name(options.spec) if options.iter_artifact is None else None
    return {"--iter-artifact": (Path(name) if name else None, types.ITERATION)}


def execute(args: argparse.Namespace, console: Console) -> int:
    """Build and check; returns 0 whether builds are good or bad; raises what ends with another status."""
    if args.jobs is not None and args.on is None:
        raise errors.UsageError(
            "--jobs is how many builds --on makes at once: here they are made one at a time", next_steps=["--on ray"]
        )
    with other_machines.machines_of(args, console, _NOT_ELSEWHERE) as machines:
        options = BuildOptions.of(args)
        report = options.report_file(console)
        if options.only_spec() is None:
            why = ", as in the check" if options.engine_of_check is not None else ""
            console.note(f"no engine is named: {options.spec.text} is used{why}")
        plan = options.plan()
        checking.require_names(options.check, options.model)
        tally = BuildTally(plan=plan)
        with BuildProgress(console, options, plan) as progress:
            interrupted = not _built_all(options, plan, machines, tally, progress)
            findings = tally.findings()
            end: errors.BiopsyError | None = inconclusive(tally.outcomes, "builds")
            end = errors.Interrupted("the build in progress is not counted") if interrupted else end
            status = progress.ended(0 if end is None else end.status)
            report.write(status, lambda: _sections(options, findings, progress))
            recorded = advice.line_with(options.words, REST_OPTIONS, "build", ["--save-tactics", USUAL_RECORD])
            _say_result(console, plan, findings, recorded)
        if end is not None:
            raise end
        return 0


def _built_all(
    options: BuildOptions, plan: BuildPlan, machines: OtherMachines | None, tally: BuildTally, progress: BuildProgress
) -> bool:
    """Build as often as the plan says; returns False if the user interrupts it."""
    runs: BuildRuns
    with contextlib.ExitStack() as held:
        held.enter_context(checking.ended_politely())
        remark = held.enter_context(set_aside(plan.artifact, "last build", progress.console.warn))
        if remark is not None:
            progress.console.note(remark)
        if plan.artifact is not None and not options.no_remove_intermediate:
            held.callback(_remove, plan.artifact)
        if machines is not None:
            separate = separate_checks(options.template(plan), PLACEHOLDER, options.check_timeout)
            jobs = machines.jobs(options.jobs)
            runs = BuildsElsewhere(plan, separate, machines, jobs, progress)
        elif options.check is None:
            person = InteractiveCheck(checking.ask)
            runs = BuildsHere(plan, lambda change: person, progress)
        else:
            varied = varied_check(options.template(plan), PLACEHOLDER, options.check_timeout)
            held.callback(varied.close)
            runs = BuildsHere(plan, varied.with_change, progress)
        try:
            progress.show_plan()
            for iteration in held.enter_context(contextlib.closing(build_repeatedly(runs, tally, progress))):
                progress.show_iteration(iteration, tally)
        except KeyboardInterrupt:
            return False
    return True


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


class BuildProgress(Progress):
    """Shows each remark of the engine, and each new kind of failure."""

    def __init__(self, console: Console, options: BuildOptions, plan: BuildPlan) -> None:
        super().__init__(console, options.events)
        self.console = console
        self._options = options
        self._plan = plan
        self._shown_texts: set[str] = set()

    def show_plan(self) -> None:
        """Show what will be built, and what differs."""
        plan = self._plan
        often = {"good": "until one passes", "bad": "until one fails"}.get(str(plan.until))
        often = often or count(int(plan.until), "time")
        self.line("build", f"{plan.model.path} with {plan.spec.text}, {often}")
        for variation in plan.variations:
            self.line("vary", f"{variation.key} = {', '.join(variation.values)}")
        if plan.variations:
            self.line("order", f"random, in blocks of all combinations: --seed {plan.seed}")
        if plan.artifact is None and not plan.checks_building:
            self.line("", f"{plan.spec.name} saves nothing: the check is given the model itself")
        if plan.record_to is not None and not find_class(plan.spec.name).capabilities.layers:
            self.line("", f"{plan.spec.name} does not tell its layers: the records hold its settings only")

    def show(self, event: events.Event) -> None:
        """Show each remark once, and the first build that fails in a new way."""
        match event:
            case events.Remark():
                if self._is_new(event.text):
                    super().show(event)
            case events.Checked():
                is_new = event.outcome != "passed" and self._is_new(event.reason)
                self.show_output(self._options, event.output, is_first=is_new)
                if is_new:
                    head = "fails" if event.outcome == "reproduced" else "other"
                    self.line(head, f"build {event.number}: {event.reason}")
            case _:
                super().show(event)

    def _is_new(self, text: str) -> bool:
        """Whether this text is shown for the first time."""
        is_new = text not in self._shown_texts
        self._shown_texts.add(text)
        return is_new

    def show_iteration(self, iteration: BuildIteration, tally: BuildTally) -> None:
        """Show a build that was checked and counted."""
        for remark in filter(self._is_new, iteration.built.remarks):
            self.line("", remark)
        settings = iteration.change.text or self._plan.spec.text
        self._console.detail(f"  build {iteration.number}  {settings}: {iteration.word}")
        until, text = self._plan.until, f"{count(tally.runs, 'build')} · {outcomes_text(tally.outcomes)}"
        if isinstance(until, int):
            spent = time.monotonic() - self._started
            text += f" · {time_left(spent / tally.runs * (until - tally.runs))}"
        self._live.update("build", text, tally.runs / until if isinstance(until, int) else 0.0)


def outcomes_text(outcomes: Mapping[Outcome, int]) -> str:
    """``13 good · 7 bad · 1 timed out``."""
    decided = {Outcome.PASSES: "good", Outcome.REPRODUCES: "bad"}
    others = [f"{times} {outcome.value}" for outcome, times in outcomes.items() if outcome not in decided]
    return " · ".join([*(f"{outcomes.get(outcome, 0)} {word}" for outcome, word in decided.items()), *others])


_NEXT = "Next"


def _say_result(console: Console, plan: BuildPlan, findings: BuildFindings, recorded: str) -> None:
    """Show how many builds are bad, what these have in common, and what to type next.

    ``recorded`` is the same command line, which also records the engine's choices.
    """
    runs = findings.runs
    console.note("")
    console.say(f"{count(runs, 'build')}   {outcomes_text(findings.outcomes)} · {findings.seconds:.1f} s")
    if runs:
        console.say(finished_line(findings.good, runs))
    for key in (f"{variation.key}={value}" for variation in plan.variations for value in variation.values):
        kind = "environment" if key.startswith("env.") else "option"
        builds = [build for build in findings.builds if any(choice[1:] == (kind, key) for choice in build.choices)]
        bad = sum(build.is_bad for build in builds)
        console.say(f"{'':<{COLUMN}} {key:<32} {bad} of {len(builds)} bad")
    if plan.artifacts.files and plan.artifacts.folder.is_dir():
        console.say(f"{'files':<{COLUMN}} {plan.artifacts.folder}, in good, bad and other")
    if not findings.builds:
        return
    if plan.checks_building and findings.good == runs:
        console.say(f"built {runs} of {count(runs, 'time')}")
        return
    console.note("")
    verdict = list(verdict_lines(findings.difference))
    console.say(*verdict)
    has_advice = any(line.startswith(_NEXT) for line in verdict)
    for place, line in enumerate(_next(plan, findings, recorded)):
        console.note(f"{'' if has_advice or place else _NEXT:<{COLUMN}} {line}")


def _next(plan: BuildPlan, findings: BuildFindings, recorded: str) -> Iterator[str]:
    """What to type next, in lines: a comparison if there are good builds and bad ones."""
    good, bad = findings.good, findings.bad
    if good and bad and plan.record_to is not None:
        yield line_of(["biopsy", "debug", "diff-tactics", "--dir", as_word(plan.artifacts.folder)])
    elif good and bad:
        yield "with a record of what is chosen in each build:"
        yield recorded
    elif good and plan.until != "bad":
        yield "--until bad    goes on building until one fails"
    elif bad and not plan.variations:
        doctor = line_of(["biopsy", "doctor", plan.spec.name])
        yield f"--vary KEY=V1,V2    builds with other settings, as listed by: {doctor}"


def _sections(options: BuildOptions, findings: BuildFindings, progress: BuildProgress) -> Mapping[str, Any]:
    """The sections of the report."""
    from biopsy.findings.answers import builds_tree, builds_verdict  # imports numpy

    return {
        "verdict": builds_verdict(findings),
        "model": model_tree_of(options.model),
        "versions": versions_tree([options.spec.text]),
        "search": progress.history.tree(),
        "builds": builds_tree(findings),
    }
