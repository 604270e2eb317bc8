"""``biopsy debug flags``: the fewest settings of an engine that make a failure go away."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from biopsy import errors
from biopsy.checks.outcome import Outcome
from biopsy.checks.words import as_word
from biopsy.cli.advice import Advice, say_advice
from biopsy.cli.arguments import checks, groups
from biopsy.cli.console import COLUMN, Console
from biopsy.cli.debug import checking, other_machines
from biopsy.cli.progress import CheckProgress
from biopsy.cli.report import ReportOption, report_file
from biopsy.engines.base import ModelInput
from biopsy.engines.registry import EngineSpec
from biopsy.findings.model import model_tree_of
from biopsy.findings.report import versions_tree
from biopsy.model.load import read_bytes
from biopsy.questions.builds.settings import (
    CheckTemplate,
    SettingChange,
    varied_check,
)
from biopsy.text import count, is_refused, line_of

if TYPE_CHECKING:
    from biopsy.questions.builds.flags import Flags

REST_OPTIONS = checks.REST_OPTIONS

_EPILOG = f"""\
examples:
  An engine against itself; the last one of this name is the one whose settings vary:
    biopsy debug flags reduced.onnx --engine onnxrt \\
        --check biopsy run {{}} --engine onnxrt:optimization=none --engine onnxrt
  Against golden values:
    biopsy debug flags model.onnx --engine openvino \\
        --check biopsy run {{}} --openvino --load-inputs inputs.json --load-outputs golden.json
  Any command; {{engine}} is the engine with its settings, {{settings}} the settings alone: key=value,...
    biopsy debug flags model.onnx --engine onnxrt --check ./check.sh {{}} {{engine}}
  With the settings on many GPUs at once:
    biopsy debug flags model.onnx --engine trt --on ray --resources GPU=1 --check biopsy run {{}} --trt --onnxrt
  The environment variable BIOPSY_ENGINE holds the same as {{engine}}.

{checks.STATUSES}"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``debug flags``."""
    parser.epilog = _EPILOG
    groups.ModelOption.add(parser, model=" that fails")
    parser.add_argument(
        "--engine",
        metavar="NAME[:key=value,...]",
        help="the engine whose settings to vary: the last one in 'biopsy run' written exactly so, else the last one of "
        "this name (default: the last one)",
    )
    ReportOption.add(parser, also={"report": ["--save-report", "-o", "--output"]})
    group = parser.add_argument_group("the check")
    checks.CheckOption.add(
        group,
        check="the command that tells whether the model fails; takes the rest of the line. In it, {}, or the name "
        f"{checks.DEFAULT_CANDIDATE}, stands for the model",
    )
    checks.RuleOptions.add(group)
    checks.CheckTimeOptions.add(group)
    checks.ShownOutputOptions.add(group)
    other_machines.add(parser, sent="the model, its weights, and the files that the check names", has_jobs=False)
    checks.EventsOption.add(parser.add_argument_group("events"))
    groups.WeightsFolderOption.add(parser)


def execute(args: argparse.Namespace, console: Console) -> int:
    """Find the settings; returns 0 even if there are none, which the report says."""
    if not args.check:
        raise errors.UsageError(
            "there is no command to run", next_steps=["--check biopsy run {} --onnxrt    at the end"]
        )
    with other_machines.machines_of(args, console) as machines:
        from biopsy.questions.builds.flags import find_switches

        report = report_file(args, console)
        ModelInput(
            read_bytes(args.model), args.external_data_dir or args.model.parent, args.model
        )  # checks what it names
        checking.require_names(args.check, args.model)
        untold = (
            "the check does not tell whose settings to vary: it is not 'biopsy run', or names the engine as {engine}"
        )
        template = checking.template_of(args.check, args.engine, untold)
        if not template.names_settings:
            console.note("the check has no {engine} and no {settings}: it must read BIOPSY_ENGINE from its environment")
        check = varied_check(template, checks.DEFAULT_CANDIDATE, args.check_timeout)
        rules = checks.RuleOptions.of(args).rules()
        with FlagsProgress(console, args) as progress, report.also_of_errors():
            try:
                with checking.ended_politely():
                    progress.show_plan(template.spec)
                    found = find_switches(check, args.model, rules, progress, args.external_data_dir, machines)
            finally:
                check.close()
            report.write(0, lambda: _sections(args, template, found, progress))
            _say_result(console, args, template, found)
        return 0


# What is shown


class FlagsProgress(CheckProgress):
    """A line for what was learnt on the way, and the output of the first failure."""

    def __init__(self, console: Console, args: argparse.Namespace) -> None:
        super().__init__(console, checks.ShownChecks.of(args), head="flags", needs="a setting switches it off")
        self._model = args.model

    def show_plan(self, spec: EngineSpec) -> None:
        """Say what is going to happen."""
        self.line("flags", f"settings of {spec.text} with which {self._model} passes")


def _say_result(console: Console, args: argparse.Namespace, template: CheckTemplate, found: Flags) -> None:
    head = "tried"
    for tried in found.tried:
        words = {Outcome.PASSES: "goes away", Outcome.REPRODUCES: "still fails"}.get(tried.outcome)
        words = words or f"{tried.outcome.value}: {tried.reason}"
        if tried.outcome is Outcome.INFRASTRUCTURE:
            words = f"cannot be set here: {tried.reason}"
        console.note(f"{head:<{COLUMN}} {tried.change.text:<42} {' '.join(words.split())[:100]}")
        head = ""
    console.note("")
    if not found.switches:
        console.say(f"None of the settings that were tried makes it go away ({count(found.checks, 'check')}).")
        if not template.names_settings:
            console.say("Does the check read BIOPSY_ENGINE? It names neither {engine} nor {settings}.")
        say_advice(console, _advice(args, template, found))
        return
    for number, switch in enumerate(found.switches):
        verified = "" if switch.verified else "   (not confirmed by fresh processes)"
        console.say(f"It {'also ' if number else ''}goes away {switch.text}.{verified}")
    if not found.complete:
        console.say("More sets of this size may exist; the search stopped at its limit.")
    console.note(count(found.checks, "check") + (f"; report: {args.report}" if args.report else ""))
    say_advice(console, _advice(args, template, found))


def _advice(args: argparse.Namespace, template: CheckTemplate, found: Flags) -> list[Advice]:
    """The check with the shortest change, which passes; where there is none, what finds other changes."""
    if not found.switches:
        words = ["biopsy", "debug", "workaround", as_word(args.model), "--skip", "setting"]
        other = line_of([*words, "--engine", template.spec.text, "--check", *args.check])
        is_asked = template.is_own_run and not is_refused(other)
        return [Advice(other, "whether another release, or a change of the model, avoids it")] if is_asked else []
    lines = [_line_with(args, template, switch.change) for switch in found.switches[:1]]
    return [Advice(line, "the check without the failure") for line in lines if not is_refused(line)]


def _line_with(args: argparse.Namespace, template: CheckTemplate, change: SettingChange) -> str:
    return checking.line_with(template, template.changed(change).text, change.environment, args.model)


def _sections(
    args: argparse.Namespace, template: CheckTemplate, found: Flags, progress: FlagsProgress
) -> Mapping[str, Any]:
    """What a report tells."""
    from biopsy.findings.answers import settings_tree, settings_verdict

    versions = versions_tree([template.spec.text])
    return {
        "verdict": settings_verdict(found, [_line_with(args, template, one.change) for one in found.switches]),
        "model": model_tree_of(args.model),
        "versions": versions,
        "search": progress.history.tree(),
        "next": [vars(one) for one in _advice(args, template, found)],
        "settings": settings_tree(found, template.spec.text, versions["engines"][0]["version"]),
    }
