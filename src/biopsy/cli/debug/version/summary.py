"""What ``debug version`` has found, in words: the releases, their notes, the line to pin."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from biopsy.checks.words import as_word
from biopsy.cli.advice import Advice, say_advice
from biopsy.quantities import count
from biopsy.shell_words import is_refused, line_of

if TYPE_CHECKING:
    from biopsy.blame.releases.findings import ReleaseBorder, ReleaseFindings
    from biopsy.cli.console import Console
    from biopsy.environments.releases import Release


def say_result(console: Console, args: argparse.Namespace, found: ReleaseFindings) -> None:
    """Show the answer."""
    console.note("")
    for border in found.borders:
        _say_border(console, found, border)
    if not found.borders:
        console.say(f"{found.text}.")
        _say_undecided(console, found)
    elif len(found.borders) > 1:
        console.say("It changed more than once; --all asks every release.")
    if found.doubt:
        console.warn(found.doubt)
    if found.yardstick:
        console.note(f"compared  {found.yardstick} was as installed in every check; it did not vary")
    console.note(_machine())
    console.note(count(found.checks, "check") + (f"; report: {args.report}" if args.report else ""))
    say_advice(console, advice_of(args, found))


def say_known(console: Console, found: ReleaseFindings) -> None:
    """Show what is known of a search that ended early."""
    if any(one.side is not None for one in found.tried):
        console.say(f"So far: {found.text}.")


def advice_of(args: argparse.Namespace, found: ReleaseFindings) -> list[Advice]:
    """The lines that keep to releases without the failure; where there are none, what finds another way out."""
    if found.answer == "every release tried fails" and args.check[:2] == ["biopsy", "run"]:
        engine = ["--engine", args.engine] if args.engine else []
        words = ["biopsy", "debug", "workaround", as_word(args.model), *engine, "--skip", "release"]
        line = line_of([*words, "--check", *args.check])
        return [] if is_refused(line) else [Advice(line, "what avoids it in the release that is installed")]
    return [Advice(line_of(["pip", "install", f"{found.package}{pin}"])) for pin in found.pins[:3]]


def _say_border(console: Console, found: ReleaseFindings, border: ReleaseBorder) -> None:
    verified = "" if border.verified else "   (not confirmed when asked again)"
    console.say(f"{found.package}: {border.text}.{verified}")
    fails, passes = (border.after, border.before) if border.broke else (border.before, border.after)
    console.note(f"  passes  {_dated(passes)}", f"  fails   {_dated(fails)}", f"  notes   {border.notes}")


def _say_undecided(console: Console, found: ReleaseFindings) -> None:
    for one in [one for one in found.tried if one.side is None][:5]:
        console.note(f"  {one.release.version}: {one.words}: {' '.join(one.reason.split())[:100]}")


def _dated(release: Release) -> str:
    return release.version if release.date is None else f"{release.version} of {release.date.isoformat()}"


def _machine() -> str:
    from biopsy.report.versions import machine_tree

    facts = machine_tree()
    driver = f" · driver {facts['driver']}" if facts["driver"] else ""
    return f"machine   {facts['cpu']} · {facts['os']}{driver}"
