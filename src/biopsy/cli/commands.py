"""All commands, one line each, and how words are read as a command.

The module of a command has two functions: ``configure(parser)`` adds its options; ``execute(args, console)`` does the
work and returns the exit status. ``EPILOG`` is the end of its help. It may have three more functions:
``derived_files(args)`` names files that no option names (see ``parser``); ``warmed_up(args, console)`` is a context,
entered before anything slow is imported, that starts what takes a while; ``conclude_crash(args, console, crash)``
reports an engine that has crashed the command's process, and returns the exit status. To add a command, add its module
and a line in ``COMMANDS``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from biopsy import errors
from biopsy.checks.words import split_leading
from biopsy.text import ask_for, similar

REST_OPTIONS = ("--check", "--check-inference")
"""Options that take all words after them."""

STATUSES = """\
exit status:
  0  done, or the model passes      3  the original does not fail
  1  the thing checked fails        4  infrastructure error: nothing was concluded
  2  wrong usage                    5  interrupted, with the best result saved"""


class Command(NamedTuple):
    """One command: its words, its module, and its line in the help."""

    words: tuple[str, ...]
    module: str
    summary: str
    may_crash: bool = False
    """It runs engines or other native code that a model may crash, so another process supervises it. It has
    ``--timeout`` and ``--memory-limit``."""
    default_timeout: str = ""
    """Default of ``--timeout``, as it is typed; "" for no limit."""
    reports_looking: bool = False
    """It calls ``verdict.report_looking`` itself, after its imports and before it opens the model, so that an earlier
    failure is not taken for the model's. ``cli.app`` calls it for all other commands, before they begin."""


def _command(words: str, summary: str, module: str = "", **nature: Any) -> Command:
    module = module or words.replace(" ", ".").replace("-", "_")
    return Command(tuple(words.split()), f"biopsy.cli.{module}", summary, **nature)


_READS_A_FILE: dict[str, Any] = {"may_crash": True, "default_timeout": "24h"}
_RUNS_ENGINES: dict[str, Any] = {"may_crash": True, "reports_looking": True}
_READS_A_MODEL: dict[str, Any] = {**_READS_A_FILE, **_RUNS_ENGINES}

COMMANDS: tuple[Command, ...] = (
    _command("run", "run a model in one or more engines and compare the outputs", **_RUNS_ENGINES),
    _command("diagnose", "find out why a model fails, and what avoids it"),
    _command("hunt", "find the distinct bugs of engines in many models"),
    _command("torch", "find the line of a PyTorch module that its ONNX model is wrong for"),
    _command("debug reduce", "find the smallest part of a model that still fails"),
    _command("debug precision", "find the layers that need high precision"),
    _command("debug repeat", "repeat a command to see how often it fails, and how"),
    _command("debug build", "build a model repeatedly, and sort the builds by a check"),
    _command("debug diff-tactics", "show which engine choices go with bad builds", module="inspect.diff_tactics"),
    _command("debug flags", "find the engine setting that makes a failure go away"),
    _command("debug version", "find the release of a package that broke or mended a model"),
    _command("debug workaround", "find the smallest change with which the model is right"),
    _command("debug transform", "find what a simplifier, an optimizer or a converter breaks"),
    _command("debug known", "look up which known bugs a small failing model looks like"),
    _command("debug layers", "find the layers that an engine computes wrongly"),
    _command("convert", "write a model in the form of an engine, or in fp16", **_RUNS_ENGINES),
    _command("data to-input", "merge inputs and outputs into one file of inputs"),
    _command("data merge", "the same as 'data to-input'", module="data.to_input"),
    _command("data concat", "join the iterations of several files"),
    _command("data from-torch", "record golden values of a PyTorch module"),
    _command("inspect model", "show the nodes, attributes and weights of a model", **_READS_A_MODEL),
    _command("inspect data", "show statistics of saved inputs or outputs", **_READS_A_FILE),
    _command("inspect capability", "show which nodes an engine refuses, and why", **_RUNS_ENGINES),
    _command("inspect sparsity", "show which weights follow the 2:4 pattern of sparsity", **_READS_A_MODEL),
    _command("inspect tactics", "show what an engine chose for each layer", **_READS_A_FILE),
    _command("inspect diff-tactics", "show which engine choices go with bad builds", **_READS_A_FILE),
    _command(
        "check lint",
        "find the nodes of a model that are invalid or fail, and what else is wrong",
        module="lint",
        **_READS_A_MODEL,
    ),
    _command("surgeon sanitize", "fix shapes, fold constants, clean up", **_READS_A_MODEL),
    _command("surgeon extract", "cut a subgraph out of a model", **_READS_A_MODEL),
    _command("surgeon insert", "insert a node between tensors of a model", **_READS_A_MODEL),
    _command("surgeon prune", "make weights 2:4 sparse, whatever that does to accuracy", **_READS_A_MODEL),
    _command("surgeon weight-strip", "leave out the weights that an engine can be refitted with", **_READS_A_MODEL),
    _command("surgeon weight-reconstruct", "make up values for a stripped model", **_READS_A_MODEL),
    _command("doctor", "show which engines work here, and how to get the others", may_crash=True),
    _command("cache list", "list the environments that hold other releases of packages", module="cache"),
    _command("cache clear", "remove environments that hold other releases of packages", module="cache"),
    _command("report", "make a page of a report"),
    _command("completion", "write a script that lets a shell complete commands and options"),
    _command("demo", "find a real engine bug in a model of 458 nodes"),
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
"""Commands that only Polygraphy has: why, and what to use instead."""

GROUPS = {
    "debug": "find what makes a model fail",
    "data": "files of inputs and outputs",
    "inspect": "show what a file holds",
    "surgeon": "change a model",
    "check": "examine a model",
    "cache": "environments with other releases of packages",
}


def find(words: Sequence[str]) -> Command | None:
    """The command whose words a command line begins with, or None."""
    return next((each for each in COMMANDS if tuple(words[: len(each.words)]) == each.words), None)


def why_absent(words: Sequence[str]) -> tuple[str, tuple[str, ...]] | None:
    """Why a command of Polygraphy is missing here, and what to use instead; None for other words."""
    for absent, (why, instead) in ABSENT.items():
        if tuple(words[: len(absent)]) == absent:
            return f"Polygraphy's command '{' '.join(absent)}' is not here: {why}", instead
    return None


class SplitLine(NamedTuple):
    """The words of a command line, split at the command."""

    command: Command | None
    leading: list[str]
    """The options that stand before the command or between its words; all commands have them."""
    rest: list[str]
    """The words after the command; without a command, all words but the leading options."""


def read(words: Sequence[str]) -> SplitLine:
    """Split a command line at its command."""
    leading, rest = split_leading(words)
    if rest and rest[0] in GROUPS:
        more, following = split_leading(rest[1:])
        leading, rest = leading + more, [rest[0], *following]
    command = find(rest)
    return SplitLine(command, leading, rest[len(command.words) :] if command else rest)


def unknown(program: str, words: Sequence[str]) -> errors.UsageError:
    """The error for words that are not a command; it suggests commands with a similar name or in another group."""
    absent = why_absent(words)
    if absent is not None:
        return errors.UsageError(absent[0], next_steps=absent[1])
    in_group = words[0] in GROUPS
    return errors.UsageError(
        f"there is no command '{' '.join(words[:2]) if in_group else words[0]}'",
        next_steps=[
            *ask_for(_commands_like(list(words[:2]))),
            f"{program} {words[0]} --help" if in_group else f"{program} --help",
        ],
    )


def _commands_like(words: list[str]) -> list[str]:
    by_last: dict[str, list[str]] = {}
    for command in COMMANDS:
        by_last.setdefault(command.words[-1], []).append(" ".join(command.words))
    in_group = words[0] in GROUPS
    word = words[1] if in_group else words[0]
    if word in by_last:  # the wrong group, or none
        return by_last[word]
    if in_group:
        names = [name for like in by_last.values() for name in like if name.startswith(f"{words[0]} ")]
        near = similar(" ".join(words), names, most=1, cutoff=0.7)
    else:
        near = similar(word, [*(name for name in by_last if [name] == by_last[name]), *GROUPS], most=1, cutoff=0.6)
        if near and near[0] in GROUPS and len(words) > 1:
            return _commands_like([near[0], *words[1:]])
    return near or [name for last in similar(word, by_last, most=1, cutoff=0.6) for name in by_last[last]]


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


def split_at(options: Sequence[str], words: list[str]) -> tuple[list[str], list[str] | None]:
    """The words before the first of ``options``, and those after it; None if there is no such option.

    argparse cannot do this: it would read options among the words after ``--check`` too.
    """
    at = next((place for place, word in enumerate(words) if word in options), None)
    return (words, None) if at is None else (words[:at], words[at + 1 :])


def own_command(check: Sequence[str]) -> tuple[Command, list[str]] | None:
    """The biopsy command that a check runs from this installation, and the words after it; None for other checks."""
    from biopsy.checks.command_line import OwnCommand, parse

    parsed = parse(check)
    if not (isinstance(parsed, OwnCommand) and parsed.is_this_installation):
        return None
    line = read(parsed.arguments)
    return None if line.command is None else (line.command, line.rest)
