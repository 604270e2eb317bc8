"""Which engine ``biopsy debug build`` builds with, and the check that each of its builds gets."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from biopsy.cli.arguments import engine_options
from biopsy.cli.debug import checking, other_machines
from biopsy.cli.debug.build.options import PLACEHOLDER, USUAL_NAME

if TYPE_CHECKING:
    from biopsy import events
    from biopsy.cli.console import Console
    from biopsy.engines.registry import EngineSpec
    from biopsy.session.machines import OtherMachines
    from biopsy.tactics.build_plan import BuildPlan, CheckFor
    from biopsy.tactics.build_run import BuildRuns
    from biopsy.tactics.setting_changes import CheckTemplate


def engine_of(args: argparse.Namespace) -> EngineSpec:
    """The engine to build with: the one that is named, else that of the check, else TensorRT if it works here."""
    from biopsy.engines.registry import EngineSpec

    named = engine_options.only_engine(args)
    if named is not None:
        return named
    checked = _engine_of_check(args.check or [])
    if checked is not None:
        return EngineSpec(checked)
    return engine_options.default_engine(runs=False)


def say_choice(args: argparse.Namespace, spec: EngineSpec, console: Console) -> None:
    """Say which engine is used, and why that, where the line names none."""
    if engine_options.only_engine(args) is None:
        why = ", as in the check" if _engine_of_check(args.check or []) is not None else ""
        console.note(f"no engine is named: {spec.text} is used{why}")


def _engine_of_check(words: list[str]) -> str | None:
    from biopsy.checks.command_line import OwnRun, parse
    from biopsy.cli.debug.engine_substitution import engines_of_run

    command = parse(words)
    if not isinstance(command, OwnRun) or not {PLACEHOLDER, USUAL_NAME} & set(words):
        return None
    specs = engines_of_run(command)
    return specs[-1].name if specs else None


def runs_of(
    args: argparse.Namespace, plan: BuildPlan, machines: OtherMachines | None, listener: events.Listener
) -> tuple[BuildRuns, Callable[[], None]]:
    """Who builds and checks, here or on other machines; and what ends the check."""
    from biopsy.tactics.build_run import BuildsHere
    from biopsy.tactics.setting_changes import separate_checks

    if machines is None:
        check_for, close = _checks_here(args, plan)
        return BuildsHere(plan, check_for, listener), close
    from biopsy.tactics.builds_elsewhere import BuildsElsewhere

    separate = separate_checks(_template(args.check, plan), PLACEHOLDER, args.check_timeout)
    jobs = other_machines.jobs_on(machines, args.jobs)
    return BuildsElsewhere(plan, separate, machines, jobs, listener), lambda: None


def _checks_here(args: argparse.Namespace, plan: BuildPlan) -> tuple[CheckFor, Callable[[], None]]:
    """The check for each build, its words with what was built and the engine in their places; and what ends it."""
    from biopsy.tactics.setting_changes import varied_check

    if args.check is None:
        person = checking.check_of(args, 1)
        return lambda change: person, person.close
    varied = varied_check(_template(args.check, plan), PLACEHOLDER, args.check_timeout)
    return varied.with_change, varied.close


def _template(check: list[str], plan: BuildPlan) -> CheckTemplate:
    """The check's words. A ``biopsy run`` of what was built loads it with the settings that it was built with.

    A file of OpenVINO, for one, does not keep the precision that it was compiled for.
    """
    from biopsy.checks.command_line import OwnRun, parse
    from biopsy.cli.debug.engine_substitution import engines_of_run, own_template
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
    template = own_template(command, plan.spec.name)
    settings = {**plan.spec.settings, **template.spec.settings}
    return CheckTemplate(template.words, EngineSpec(plan.spec.name, settings), is_own_run=True)
