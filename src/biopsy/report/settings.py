"""The sections of a search for the setting that switches a failure off."""

from __future__ import annotations

from collections.abc import Sequence

from biopsy.report.tree import Tree
from biopsy.report.verdict import verdict_tree
from biopsy.tactics.flags import Flags


def settings_tree(found: Flags, engine: str, version: str | None) -> Tree:
    """The key ``settings``; ``engine`` is the one whose settings were varied, as it was asked for."""
    tree = found.as_json()
    for told, one in zip(tree["tried"], found.tried, strict=True):
        told["change"] = one.change.text
    for told, switch in zip(tree["switches"], found.switches, strict=True):
        told["change"] = switch.change.text
        told["text"] = switch.text
    return {"engine": engine, "version": version, **tree}


def settings_verdict(found: Flags, lines: Sequence[str]) -> Tree:
    """What makes the failure go away, if anything does. ``lines`` are the check with each of the switches."""
    if not found.switches:
        return verdict_tree("unknown", "None of the settings that were tried makes the failure go away.")
    best = found.switches[0]
    workarounds = [
        {"text": f"It goes away {one.text}.", "line": line}
        for one, line in zip(found.switches, lines, strict=True)
        if one.verified
    ]
    doubt = None if best.verified else "not confirmed by fresh processes"
    return verdict_tree("fails", f"The failure goes away {best.text}.", certainty=doubt, workarounds=workarounds)
