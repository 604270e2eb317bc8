"""The command tree: one line per command, and what the help says of them all.

A command module has two functions: ``configure(parser)`` adds its options, ``execute(args, console)`` does the work
and returns the exit status. It may have three more: ``derived_files(args)`` declares the files that it names itself
(see ``arguments.conflicts``); ``warmed_up(args)`` is entered before anything else is imported, and begins what takes a
while; ``conclude_crash(args, console, crash)`` reports on an engine that ended the process in which the command worked,
and returns the exit status. Adding a command takes one file and one line in ``COMMANDS``; what else it must declare are
the fields of ``Command``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

STATUSES = """\
exit status:
  0  done, or the model passes        3  the original does not fail: nothing to reduce
  1  the thing checked fails          4  infrastructure error: nothing was concluded
  2  wrong usage                      5  interrupted, with the best result saved"""


class Command(NamedTuple):
    """One command: its words, the module that holds it, and its line in the help."""

    words: tuple[str, ...]
    module: str
    summary: str
    may_crash: bool = False
    """Engines, or other native code that a wrong model may crash, work in its process: it is watched from another."""
    says_when_it_looks: bool = False
    """It calls ``verdict.report_looking`` by itself, once all that it needs is loaded and before it opens its model:
    what ends it earlier is not the model's fault. For the others this is said before they begin."""


COMMANDS: tuple[Command, ...] = (
    Command(
        ("run",),
        "biopsy.cli.run.command",
        "run a model in one or more engines and compare the outputs",
        may_crash=True,
        says_when_it_looks=True,
    ),
    Command(
        ("debug", "reduce"), "biopsy.cli.debug.reduce.command", "find the smallest part of a model that still fails"
    ),
    Command(("debug", "precision"), "biopsy.cli.debug.precision.command", "find the layers that need high precision"),
    Command(
        ("debug", "repeat"),
        "biopsy.cli.debug.repeat.command",
        "repeat a command to see how often it fails, and how",
    ),
    Command(
        ("debug", "build"),
        "biopsy.cli.debug.build.command",
        "build a model repeatedly, and sort the builds by a check",
    ),
    Command(
        ("debug", "diff-tactics"),
        "biopsy.cli.inspect.diff_tactics",
        "show which engine choices go with bad builds",
    ),
    Command(("debug", "flags"), "biopsy.cli.debug.flags", "find the engine setting that makes a failure go away"),
    Command(("debug", "layers"), "biopsy.cli.debug.layers", "find the layers that an engine computes wrongly"),
    Command(("data", "to-input"), "biopsy.cli.data.to_input", "merge inputs and outputs into one file of inputs"),
    Command(("data", "merge"), "biopsy.cli.data.to_input", "the same as 'data to-input'"),
    Command(
        ("inspect", "model"),
        "biopsy.cli.inspect.model",
        "show the nodes, attributes and weights of a model",
        may_crash=True,
        says_when_it_looks=True,
    ),
    Command(("inspect", "data"), "biopsy.cli.inspect.data", "show statistics of saved inputs or outputs"),
    Command(
        ("inspect", "capability"),
        "biopsy.cli.inspect.capability",
        "show which nodes an engine refuses, and why",
        may_crash=True,
        says_when_it_looks=True,
    ),
    Command(("inspect", "tactics"), "biopsy.cli.inspect.tactics", "show what an engine chose for each layer"),
    Command(
        ("inspect", "diff-tactics"),
        "biopsy.cli.inspect.diff_tactics",
        "show which engine choices go with bad builds",
    ),
    Command(
        ("surgeon", "sanitize"),
        "biopsy.cli.surgeon.sanitize",
        "fix shapes, fold constants, clean up",
        may_crash=True,
        says_when_it_looks=True,
    ),
    Command(
        ("surgeon", "extract"),
        "biopsy.cli.surgeon.extract",
        "cut a subgraph out of a model",
        may_crash=True,
        says_when_it_looks=True,
    ),
    Command(
        ("doctor",), "biopsy.cli.doctor", "show which engines work here, and how to get the others", may_crash=True
    ),
    Command(("demo",), "biopsy.cli.demo", "find a real engine bug in a model of 458 nodes"),
)

GROUPS = {
    "debug": "find what makes a model fail",
    "data": "files of inputs and outputs",
    "inspect": "show what a file holds",
    "surgeon": "change a model",
}


def find(words: Sequence[str]) -> Command | None:
    """The command that a command line begins with; None for words that are none."""
    for command in COMMANDS:
        if tuple(words[: len(command.words)]) == command.words:
            return command
    return None


def commands_like(words: Sequence[str]) -> list[str]:
    """The commands that wrong words may mean: with the group forgotten, or mistyped; only the likeliest."""
    from difflib import get_close_matches

    by_last: dict[str, list[str]] = {}
    for command in COMMANDS:
        by_last.setdefault(command.words[-1], []).append(" ".join(command.words))
    if words[0] in by_last:
        return by_last[words[0]]
    names = [" ".join(command.words) for command in COMMANDS]
    close = get_close_matches(" ".join(words), names, n=1, cutoff=0.7)
    if close or words[0] in GROUPS:
        return close
    return [name for last in get_close_matches(words[0], by_last, n=1, cutoff=0.6) for name in by_last[last]]


def overview(program: str, group: str | None) -> list[str]:
    """The lines of ``biopsy --help``, or of the help of one group."""
    chosen = [command for command in COMMANDS if group in (None, command.words[0])]
    width = max(len(" ".join(command.words)) for command in chosen)
    about = GROUPS[group] if group else "find the smallest piece of a failing ONNX model that still fails the same way"
    lines = [f"usage: {program} {group or ''}{' ' if group else ''}COMMAND ...", "", about, "", "commands:"]
    lines += [f"  {' '.join(command.words):<{width}}  {command.summary}" for command in chosen]
    lines += ["", f"{program} COMMAND --help shows the options of a command, with examples.", "", *STATUSES.split("\n")]
    return lines
