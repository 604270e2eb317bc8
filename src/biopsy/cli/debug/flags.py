"""``biopsy debug flags``: the smallest set of engine settings that makes a failure go away."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from typing import Any

from biopsy import errors
from biopsy.checks.outcome import Outcome
from biopsy.checks.words import as_word
from biopsy.cli.advice import Advice, say_advice
from biopsy.cli.arguments import checks, groups
from biopsy.cli.arguments.declared import option
from biopsy.cli.console import COLUMN, Console
from biopsy.cli.debug import checking, other_machines
from biopsy.cli.progress import CheckProgress
from biopsy.cli.report import ReportOption
from biopsy.engines.base import ModelInput
from biopsy.findings.model import model_tree_of
from biopsy.findings.report import versions_tree
from biopsy.model.load import read_bytes
from biopsy.questions.builds.flags import Flags, Switch, find_switches
from biopsy.questions.builds.settings import CheckTemplate, varied_check
from biopsy.text import count, is_refused, line_of

REST_OPTIONS = checks.REST_OPTIONS

EPILOG = f"""\
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


class FlagsOptions(
    groups.ModelOption,
    ReportOption,
    checks.CheckOptions,
    groups.WeightsFolderOption,
):
    """All options of ``debug flags``."""

    engine: str | None = option(
        "--engine",
        metavar="NAME[:key=value,...]",
        meaning="the engine whose settings to vary: the last one in 'biopsy run' written exactly so, else the last one "
        "of this name (default: the last one)",
    )


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``debug flags``."""
    FlagsOptions.add(
        parser,
        also={"report": ["--save-report", "-o", "--output"]},
        model=" that fails",
        check="the command that tells whether the model fails; takes the rest of the line. In it, {}, or the name "
        f"{checks.DEFAULT_CANDIDATE}, stands for the model",
    )
    other_machines.MachineOptions.add(
        parser,
        on=other_machines.meaning(sent=other_machines.MODEL_SENT, has_jobs=False),
    )


def execute(args: argparse.Namespace, console: Console) -> int:
    """Find the settings; returns 0 even if there are none."""
    if not args.check:
        raise errors.UsageError(
            "there is no command to run", next_steps=["--check biopsy run {} --onnxrt    at the end"]
        )
    with other_machines.machines_of(args, console) as machines:
        options = FlagsOptions.of(args)
        report = options.report_file(console)
        folder = options.external_data_dir or options.model.parent
        ModelInput(read_bytes(options.model), folder, options.model)  # checks what it names
        checking.require_names(options.check, options.model)
        unnamed = (
            "the check does not tell whose settings to vary: it is not 'biopsy run', or names the engine as {engine}"
        )
        template = checking.template_of(options.check or (), options.engine, unnamed)
        if not template.names_settings:
            console.note("the check has no {engine} and no {settings}: it must read BIOPSY_ENGINE from its environment")
        check = varied_check(template, checks.DEFAULT_CANDIDATE, options.check_timeout)
        rules = options.rules()
        progress = CheckProgress(console, options, head="flags", needs="a setting switches it off")
        with progress, report.also_of_errors():
            with closing(check), checking.ended_politely():
                progress.line("flags", f"settings of {template.spec.text} with which {options.model} passes")
                flags = find_switches(check, options.model, rules, progress, options.external_data_dir, machines)
            advice = _advice(options, template, flags)
            report.write(0, partial(_sections, options, template, flags, advice, progress))
            _say_result(console, template, flags, f"; report: {options.report}" if options.report else "")
            say_advice(console, advice)
        return 0


def _say_result(console: Console, template: CheckTemplate, flags: Flags, report: str) -> None:
    """Show the effect of each setting, and what switches the failure off; ``report`` is added to the last line."""
    for place, tried in enumerate(flags.tried):
        words = {
            Outcome.PASSES: "goes away",
            Outcome.REPRODUCES: "still fails",
            Outcome.INFRASTRUCTURE: f"cannot be set here: {tried.reason}",
        }.get(tried.outcome, f"{tried.outcome.value}: {tried.reason}")
        head = "" if place else "tried"
        console.note(f"{head:<{COLUMN}} {tried.change.text:<42} {' '.join(words.split())[:100]}")
    console.note("")
    if not flags.switches:
        console.say(f"None of the settings that were tried makes it go away ({count(flags.checks, 'check')}).")
        if not template.names_settings:
            console.say("Does the check read BIOPSY_ENGINE? It names neither {engine} nor {settings}.")
        return
    for number, switch in enumerate(flags.switches):
        verified = "" if switch.verified else "   (not confirmed by fresh processes)"
        console.say(f"It {'also ' if number else ''}goes away {switch.text}.{verified}")
    if not flags.complete:
        console.say("Other changes, and smaller ones, may help too: not all were tried.")
    console.note(count(flags.checks, "check") + report)


def _advice(options: FlagsOptions, template: CheckTemplate, flags: Flags) -> list[Advice]:
    """The check with the smallest change, which passes; if there is none, the command that finds other changes."""
    if flags.switches:
        advice = [Advice(_line_with(options, template, flags.switches[0]), "the check without the failure")]
    elif template.is_own_run:
        words = ["biopsy", "debug", "workaround", as_word(options.model), "--skip", "setting"]
        line = line_of([*words, "--engine", template.spec.text, "--check", *(options.check or ())])
        advice = [Advice(line, "whether another release, or a change of the model, avoids it")]
    else:
        advice = []
    return [each for each in advice if not is_refused(each.line)]


def _line_with(options: FlagsOptions, template: CheckTemplate, switch: Switch) -> str:
    change = switch.change
    return checking.line_with(template, template.changed(change).text, change.environment, options.model)


def _sections(
    options: FlagsOptions, template: CheckTemplate, flags: Flags, advice: list[Advice], progress: CheckProgress
) -> Mapping[str, Any]:
    """The sections of the report."""
    from biopsy.findings.answers import settings_tree, settings_verdict  # imports numpy

    versions = versions_tree([template.spec.text])
    return {
        "verdict": settings_verdict(
            flags,
            [_line_with(options, template, switch) for switch in flags.switches],
            [template.changed(switch.change).text for switch in flags.switches],
        ),
        "model": model_tree_of(options.model),
        "versions": versions,
        "search": progress.history.tree(),
        "next": [vars(each) for each in advice],
        "settings": settings_tree(flags, template.spec.text, versions["engines"][0]["version"]),
    }
