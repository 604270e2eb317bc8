"""The command tree: one line per command, what the help says of them all, and which of them the words of a check
run. A command module has two functions: ``configure(parser)`` adds its options, ``execute(args, console)`` does
the work and returns the exit status. It may have three more: ``derived_files(args)`` declares the files that it
names itself (see ``parser``); ``warmed_up(args, console)`` is entered before anything else is imported, and
begins what takes a while; ``conclude_crash(args, console, crash)`` reports on an engine that ended the process in
which the command worked, and returns the exit status. Adding a command takes one file and one line in
``COMMANDS``; what else it must declare are the fields of ``Command``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from biopsy import errors
from biopsy.checks.own_program import split_leading
from biopsy.text import ask_for, similar

REST_OPTIONS = ("--check", "--check-inference")
"""These take the whole rest of the line, whatever it holds."""

STATUSES = """\
exit status:
  0  done, or the model passes      3  the original does not fail
  1  the thing checked fails        4  infrastructure error: nothing was concluded
  2  wrong usage                    5  interrupted, with the best result saved"""


class Command(NamedTuple):
    """One command: its words, the module that holds it, and its line in the help."""

    words: tuple[str, ...]
    module: str
    summary: str
    may_crash: bool = False
    """Engines, or other native code that a wrong model may crash, work in its process: it is watched from another,
    which also ends it at its limits. So it has ``--timeout`` and ``--memory-limit``."""
    may_take: str = ""
    """How long it may take if ``--timeout`` does not say, as one would type it; "" for any time."""
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
    Command(("diagnose",), "biopsy.cli.diagnose.command", "find out why a model fails, and what avoids it"),
    Command(("torch",), "biopsy.cli.torch", "find the line of a PyTorch module that its ONNX model is wrong for"),
    Command(("debug", "reduce"), "biopsy.cli.debug.reduce", "find the smallest part of a model that still fails"),
    Command(("debug", "precision"), "biopsy.cli.debug.precision", "find the layers that need high precision"),
    Command(("debug", "repeat"), "biopsy.cli.debug.repeat", "repeat a command to see how often it fails, and how"),
    Command(("debug", "build"), "biopsy.cli.debug.build", "build a model repeatedly, and sort the builds by a check"),
    Command(
        ("debug", "diff-tactics"), "biopsy.cli.inspect.diff_tactics", "show which engine choices go with bad builds"
    ),
    Command(("debug", "flags"), "biopsy.cli.debug.flags", "find the engine setting that makes a failure go away"),
    Command(
        ("debug", "version"), "biopsy.cli.debug.version", "find the release of a package that broke or mended a model"
    ),
    Command(
        ("debug", "workaround"), "biopsy.cli.debug.workaround", "find the smallest change with which the model is right"
    ),
    Command(
        ("debug", "transform"),
        "biopsy.cli.debug.transform",
        "find what a simplifier, an optimizer or a converter breaks",
    ),
    Command(("debug", "known"), "biopsy.cli.debug.known", "look up which known bugs a small failing model looks like"),
    Command(("debug", "layers"), "biopsy.cli.debug.layers", "find the layers that an engine computes wrongly"),
    Command(
        ("convert",),
        "biopsy.cli.convert",
        "write a model in the form of an engine, or in fp16",
        may_crash=True,
        says_when_it_looks=True,
    ),
    Command(("data", "to-input"), "biopsy.cli.data.to_input", "merge inputs and outputs into one file of inputs"),
    Command(("data", "merge"), "biopsy.cli.data.to_input", "the same as 'data to-input'"),
    Command(("data", "concat"), "biopsy.cli.data.concat", "join the iterations of several files"),
    Command(("data", "from-torch"), "biopsy.cli.data.from_torch", "record golden values of a PyTorch module"),
    Command(
        ("inspect", "model"),
        "biopsy.cli.inspect.model",
        "show the nodes, attributes and weights of a model",
        may_crash=True,
        may_take="24h",
        says_when_it_looks=True,
    ),
    Command(
        ("inspect", "data"),
        "biopsy.cli.inspect.data",
        "show statistics of saved inputs or outputs",
        may_crash=True,
        may_take="24h",
    ),
    Command(
        ("inspect", "capability"),
        "biopsy.cli.inspect.capability",
        "show which nodes an engine refuses, and why",
        may_crash=True,
        says_when_it_looks=True,
    ),
    Command(
        ("inspect", "sparsity"),
        "biopsy.cli.inspect.sparsity",
        "show which weights follow the 2:4 pattern of sparsity",
        may_crash=True,
        may_take="24h",
        says_when_it_looks=True,
    ),
    Command(
        ("inspect", "tactics"),
        "biopsy.cli.inspect.tactics",
        "show what an engine chose for each layer",
        may_crash=True,
        may_take="24h",
    ),
    Command(
        ("inspect", "diff-tactics"),
        "biopsy.cli.inspect.diff_tactics",
        "show which engine choices go with bad builds",
        may_crash=True,
        may_take="24h",
    ),
    Command(
        ("check", "lint"),
        "biopsy.cli.lint",
        "find the nodes of a model that are invalid or fail, and what else is wrong",
        may_crash=True,
        may_take="24h",
        says_when_it_looks=True,
    ),
    Command(
        ("surgeon", "sanitize"),
        "biopsy.cli.surgeon.sanitize",
        "fix shapes, fold constants, clean up",
        may_crash=True,
        may_take="24h",
        says_when_it_looks=True,
    ),
    Command(
        ("surgeon", "extract"),
        "biopsy.cli.surgeon.extract",
        "cut a subgraph out of a model",
        may_crash=True,
        may_take="24h",
        says_when_it_looks=True,
    ),
    Command(
        ("surgeon", "insert"),
        "biopsy.cli.surgeon.insert",
        "insert a node between tensors of a model",
        may_crash=True,
        may_take="24h",
        says_when_it_looks=True,
    ),
    Command(
        ("surgeon", "prune"),
        "biopsy.cli.surgeon.prune",
        "make weights 2:4 sparse, whatever that does to accuracy",
        may_crash=True,
        may_take="24h",
        says_when_it_looks=True,
    ),
    Command(
        ("surgeon", "weight-strip"),
        "biopsy.cli.surgeon.weight_strip",
        "leave out the weights that an engine can be refitted with",
        may_crash=True,
        may_take="24h",
        says_when_it_looks=True,
    ),
    Command(
        ("surgeon", "weight-reconstruct"),
        "biopsy.cli.surgeon.weight_reconstruct",
        "make up values for a stripped model",
        may_crash=True,
        may_take="24h",
        says_when_it_looks=True,
    ),
    Command(
        ("doctor",), "biopsy.cli.doctor", "show which engines work here, and how to get the others", may_crash=True
    ),
    Command(("cache", "list"), "biopsy.cli.cache.list", "list the environments that hold other releases of packages"),
    Command(("cache", "clear"), "biopsy.cli.cache.clear", "remove environments that hold other releases of packages"),
    Command(("report",), "biopsy.cli.report", "make a page of a report"),
    Command(("completion",), "biopsy.cli.completion", "write a script that lets a shell complete commands and options"),
    Command(("demo",), "biopsy.cli.demo", "find a real engine bug in a model of 458 nodes"),
)

ABSENT: dict[tuple[str, ...], tuple[str, tuple[str, ...]]] = {
    ("check", "accuracy"): (
        "'run' compares saved outputs with any tolerances",
        ("biopsy run MODEL --onnxrt --load-inputs FILE --load-outputs FILE --atol 1e-3",),
    ),
    ("template",): (
        "it writes Python scripts for TensorRT and ONNX-GraphSurgeon, which biopsy does not use",
        ("biopsy surgeon --help    changes a model without a script", "polygraphy template, of NVIDIA's package"),
    ),
    ("plugin",): (
        "it puts TensorRT plugins into a model, of which biopsy has none",
        (
            "biopsy surgeon insert MODEL -o FILE --op PLUGIN --inputs NAME --outputs NAME    replaces a subgraph",
            "polygraphy plugin, of NVIDIA's package",
        ),
    ),
    ("multi-device",): (
        "it splits a model over several devices, and biopsy runs on one",
        ("polygraphy multi-device, of NVIDIA's package",),
    ),
}
"""Commands of Polygraphy that are not here: why, and what to use instead. A command with these words goes before."""

GROUPS = {
    "debug": "find what makes a model fail",
    "data": "files of inputs and outputs",
    "inspect": "show what a file holds",
    "surgeon": "change a model",
    "check": "examine a model",
    "cache": "environments with other releases of packages",
}


def find(words: Sequence[str]) -> Command | None:
    """The command that a command line begins with; None for words that are none."""
    for command in COMMANDS:
        if tuple(words[: len(command.words)]) == command.words:
            return command
    return None


def why_absent(words: Sequence[str]) -> tuple[str, tuple[str, ...]] | None:
    """Of words that are a command of Polygraphy and none of ours: a line that says why, and what to use instead."""
    for absent, (why, instead) in ABSENT.items():
        if tuple(words[: len(absent)]) == absent:
            return f"Polygraphy's command '{' '.join(absent)}' is not here: {why}", instead
    return None


class Asked(NamedTuple):
    """What the words of a command line begin with."""

    command: Command | None
    leading: list[str]
    """The common options before the command's words, and between them."""
    rest: list[str]
    """What follows the command's words; without a command, all words but the leading options."""


def read(words: Sequence[str]) -> Asked:
    """The command that a command line names, with the options that every command has wherever they stand."""
    leading, rest = split_leading(words)
    if rest and rest[0] in GROUPS:
        more, behind = split_leading(rest[1:])
        leading, rest = leading + more, [rest[0], *behind]
    command = find(rest)
    return Asked(command, leading, rest[len(command.words) :] if command else rest)


def unknown(program: str, words: Sequence[str]) -> errors.UsageError:
    """The error for words that are no command, with those that they may mean: the group forgotten, or mistyped."""
    absent = why_absent(words)
    if absent is not None:
        return errors.UsageError(absent[0], next_steps=absent[1])
    in_group = words[0] in GROUPS
    close = _commands_like(list(words[:2]))
    return errors.UsageError(
        f"there is no command '{' '.join(words[:2]) if in_group else words[0]}'",
        next_steps=[*ask_for(close), f"{program} {words[0]} --help" if in_group else f"{program} --help"],
    )


def _commands_like(words: list[str]) -> list[str]:
    by_last: dict[str, list[str]] = {}
    for command in COMMANDS:
        by_last.setdefault(command.words[-1], []).append(" ".join(command.words))
    if words[0] in GROUPS:
        if words[1] in by_last:  # the wrong group
            return by_last[words[1]]
        names = [" ".join(command.words) for command in COMMANDS if command.words[0] == words[0]]
        return similar(" ".join(words), names, most=1, cutoff=0.7) or _by_last_word(words[1], by_last)
    if words[0] in by_last:
        return by_last[words[0]]
    plain = [command.words[0] for command in COMMANDS if len(command.words) == 1]
    first = similar(words[0], [*plain, *GROUPS], most=1, cutoff=0.6)
    if first and first[0] in GROUPS:
        return _commands_like([first[0], *words[1:]]) if len(words) > 1 else first
    return first or _by_last_word(words[0], by_last)


def _by_last_word(word: str, by_last: Mapping[str, list[str]]) -> list[str]:
    return [name for last in similar(word, by_last, most=1, cutoff=0.6) for name in by_last[last]]


def overview(program: str, group: str | None) -> list[str]:
    """The lines of ``biopsy --help``, or of the help of one group."""
    chosen = [command for command in COMMANDS if group in (None, command.words[0])]
    width = max(len(" ".join(command.words)) for command in chosen)
    about = GROUPS[group] if group else "find the smallest piece of a failing ONNX model that still fails the same way"
    lines = [f"usage: {program} {group or ''}{' ' if group else ''}COMMAND ...", "", about, "", "commands:"]
    lines += [f"  {' '.join(command.words):<{width}}  {command.summary}" for command in chosen]
    lines += ["", f"{program} COMMAND -h shows what most people need, with examples."]
    lines += [f"{program} COMMAND --help shows all options, as {program} help COMMAND does."]
    lines += [f"{program} --version shows the version.", ""]
    if group is None:
        lines += ["begin with:", *(f"  {program} {words:<30}  {what}" for words, what in _BEGIN), ""]
    return [*lines, *STATUSES.split("\n")]


_BEGIN = (
    ("demo", "find a real bug"),
    ("doctor", "which engines work here?"),
    ("run model.onnx --onnxrt", "does it run?"),
    ("diagnose model.onnx --onnxrt", "why does it fail?"),
)


# The words of a check on a command line: where they begin, and which command of ours they run, if any.


def split_at(options: Sequence[str], words: list[str]) -> tuple[list[str], list[str] | None]:
    """The words before an option that takes the whole rest of the line, and that rest; None without such an option.

    argparse would look at the rest too, and take what looks like an option of ours for one.
    """
    at = next((place for place, word in enumerate(words) if word in options), None)
    return (words, None) if at is None else (words[:at], words[at + 1 :])


def own_command(check: Sequence[str]) -> tuple[Command, list[str]] | None:
    """The command of this installation that a check runs, and the words behind it; None if it runs anything else."""
    from biopsy.checks.command_line import OwnCommand, parse

    parsed = parse(check)
    if not (isinstance(parsed, OwnCommand) and parsed.is_this_installation):
        return None
    asked = read(parsed.arguments)
    return None if asked.command is None else (asked.command, asked.rest)
