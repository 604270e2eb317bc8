"""One file, one purpose: the rule for all commands, and the files that a command line reads and writes.

Options declare what happens to their files by their type (``file_kinds``); a command declares the files that it names
itself by ``derived_files``.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from biopsy import errors
from biopsy.cli.arguments.file_kinds import READ, Derived, FileKind


@dataclass(frozen=True)
class Purpose:
    """One file, and what a command does with it. ``option`` is what a person calls it; ``dest`` its name in args."""

    path: Path
    option: str
    dest: str
    kind: FileKind


def purposes_of(parser: argparse.ArgumentParser, args: argparse.Namespace) -> Iterator[Purpose]:
    """The files that the parsed arguments name by options of a file kind."""
    for action in parser._actions:
        if isinstance(action.type, FileKind):
            value = getattr(args, action.dest, None)
            for one in value if isinstance(value, list) else [value]:
                if one is not None:
                    yield Purpose(action.type.path_of(str(one)), _role_of(action), action.dest, action.type)


def sources(parser: argparse.ArgumentParser, args: argparse.Namespace) -> Iterator[Path]:
    """The files of data that a command or its check reads: what it writes holds something of them. Scripts are none."""
    for purpose in purposes_of(parser, args):
        if purpose.kind.task == "read" and not purpose.kind.textual:
            yield purpose.path
    check: Any = getattr(args, "check", None)
    for purpose in purposes_of_check(check or ()):
        if purpose.dest == CHECKS_DATA:
            yield purpose.path


def name_of(action: argparse.Action) -> str:
    """What a person calls an option: its longest common spelling, or what it stands for."""
    spellings = [spelling for spelling in action.option_strings if spelling.startswith("--")]
    if spellings or action.option_strings:
        return (spellings or list(action.option_strings))[0]
    return "the model" if action.dest == "model" else str(action.metavar)


def _role_of(action: argparse.Action) -> str:
    """What a file is to a command, in a sentence."""
    is_operand = not action.option_strings and action.dest != "model"
    return f"a {action.metavar} that is read" if is_operand else name_of(action)


def purposes_of_check(words: Sequence[str]) -> Iterator[Purpose]:
    """The files that a check's words name and that stand there: what it runs, and what it reads."""
    from biopsy.checks.command_line import parse

    for path, is_program in parse(words).files_named():
        yield Purpose(path, "the check", CHECKS_PROGRAM if is_program else CHECKS_DATA, READ)


CHECKS_PROGRAM, CHECKS_DATA, WEIGHTS = " program of the check", " file of the check", " weights"
"""In the place of ``dest``: no option is called so."""


def _weights_of_the_model(found: Sequence[Purpose], folder: Path | None) -> list[Purpose]:
    """The files that the weights of the model stand in, which no option names.

    They are looked for only where something that is a file already is to be replaced: only then can one be lost.
    """
    model = next((one.path for one in found if one.dest == "model"), None)
    replaced = [one.path for one in found if one.kind.task != "read" and one.path.is_file()]
    if model is None or all(_same(path, model) for path in replaced):
        return []
    from biopsy.model import external, load

    try:
        files = external.files_referred_to(load.read_bytes(model), folder or model.parent)
    except errors.BiopsyError:  # the command itself says what is wrong with the model
        return []
    return [Purpose(path, "the weights of the model", WEIGHTS, READ) for path in files]


def require_distinct(purposes: Sequence[Purpose]) -> None:
    """Raise UsageError if one file has two purposes, so that it would be lost."""
    for place, one in enumerate(purposes):
        for other in purposes[:place]:
            if _ruins(one, other) and (_same(one.path, other.path) or _inside(one, other) or _inside(other, one)):
                raise _twice(other, one)


def _ruins(one: Purpose, other: Purpose) -> bool:
    """Whether two purposes cannot be had with one file."""
    if one.option == other.option:  # the same again
        return False
    tasks = {one.kind.task, other.kind.task}
    if tasks == {"read"} or other.dest in one.kind.over or one.dest in other.kind.over:
        return False
    if one.kind.container and other.kind.container:
        return False  # names in it are our own
    if CHECKS_DATA in (one.dest, other.dest) and tasks & {"make anew", "move"}:
        return False  # the check reads or writes what is made anew for it
    return tasks != {"make anew", "move"}  # files of an iteration are what artifacts are for


def _same(one: Path, other: Path) -> bool:
    try:
        if one.resolve() != other.resolve() and not (one.exists() and other.exists() and one.samefile(other)):
            return False
        return one.is_dir() or one.is_file() or not one.exists()  # two streams may well go to one device
    except (OSError, RuntimeError, ValueError):
        return False


def _inside(one: Purpose, other: Purpose) -> bool:
    """Whether ``one`` would replace a file in a folder that is read as a whole, such as inputs in several files."""
    if one.kind.task == "read" or other.kind.task != "read" or other.kind.container or one.kind.container:
        return False
    return one.path.is_file() and other.path.is_dir() and other.path.resolve() in one.path.resolve().parents


def _twice(one: Purpose, other: Purpose) -> errors.UsageError:
    path = one.path if one.kind.task != "read" else other.path
    first, second = sorted((one, other), key=lambda purpose: purpose.kind.task != "read")
    end = "moved away" if "move" in (one.kind.task, other.kind.task) else "lost"
    return errors.UsageError(
        f"{path} is given twice, for {first.option} and for {second.option}: it would be {end}",
        next_steps=["give another name to what is written"],
    )


_LONGEST_NAME = 255  # bytes, as nearly all file systems have it
_ROOM = len("..4194304.part")  # what is written stands under a longer name until it is whole


def _require_short_name(one: Purpose) -> None:
    size, most = len(os.fsencode(one.path.name)), _LONGEST_NAME - (0 if one.kind.task == "read" else _ROOM)
    if size > most:
        raise errors.UsageError(
            f"the name of {one.path} ({one.option}) has {size} bytes: it may have {most}",
            next_steps=["give a shorter name"],
        )


def require_no_file_twice(parser: argparse.ArgumentParser, args: argparse.Namespace, derived: Derived) -> None:
    """Raise UsageError if one file of a command line has two purposes."""
    found = list(purposes_of(parser, args))
    found += [Purpose(path, name, name, kind) for name, (path, kind) in derived.items() if path is not None]
    for one in found:
        _require_short_name(one)
    found += _weights_of_the_model(found, getattr(args, "external_data_dir", None))
    check: Any = getattr(args, "check", None)
    require_distinct([*found, *purposes_of_check(check or ())])
