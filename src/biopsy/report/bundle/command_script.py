"""The script of a failure that a command shows: it runs the command on the model, with copies of the files it names."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from biopsy.checks.command_line import PLACEHOLDER, CommandLine, OwnCommand
from biopsy.checks.judge import Rules
from biopsy.checks.outcome import Evidence
from biopsy.checks.own_program import NAME
from biopsy.checks.python_script import interpreter_of
from biopsy.checks.signature import signature_of
from biopsy.checks.words import names_path
from biopsy.filesystem.plain_file import read_plain
from biopsy.report.bundle.literals import Literal
from biopsy.report.bundle.script import Script
from biopsy.text import printable

MOST_OF_A_FILE = 16 << 20
"""Bytes of a file of the check that goes into a bundle."""

OWN_MEMBERS = frozenset(
    {
        *("model.onnx", "model.onnx.data", "inputs.npz", "expected.npz", "reproduce.py", "test_regression.py"),
        *("versions.json", "report.html", "report.json", "ISSUE.md", "NOT-REPRODUCED.txt"),
    }
)
"""Names of what a bundle holds besides files of the check."""

_TIMEOUT = -1000  # as in script_parts/ends.py


@dataclass(frozen=True, kw_only=True)
class CopiedFiles:
    """The files that a command names: where each stands now -> its name in the bundle; their bytes by that name.

    ``left_out`` says of each other one why it is not there.
    """

    names: Mapping[Path, Path] = field(default_factory=dict)
    contents: Mapping[str, bytes] = field(default_factory=dict)
    left_out: Sequence[str] = ()

    def words_of(self, command: CommandLine, default_name: str) -> list[str]:
        """The words of the command in the bundle's folder: with the copies, and the model as ``{}``."""
        words = command.with_files(self.names).words
        typed = [PLACEHOLDER if names_path(word, default_name) else word for word in words]
        if isinstance(command, OwnCommand):
            typed[0] = NAME
        elif interpreter_of(words[0]) is not None:
            typed[0] = "{python}"
        elif Path(words[0]) in self.names.values():
            typed[0] = os.path.join(".", words[0])  # noqa: PTH118 -- Path drops the dot
        return typed


def copied_files(command: CommandLine, default_name: str) -> CopiedFiles:
    """Copies of the files that the words name, and of the modules that their scripts import from beside them.

    Only plain files of a bounded size that stand below the current folder, or are named in full; never a program that
    the system has.
    """
    names: dict[Path, Path] = {}
    contents: dict[str, bytes] = {}
    left_out: list[str] = []
    for path in _files_of(command, default_name):
        try:
            data = _content(path)
        except OSError as error:
            left_out.append(f"{printable(str(path))}: {error.strerror}")
            continue
        if data is None:
            continue
        name = _free_name(path.name, contents)
        names[path] = Path(name)
        contents[name] = data
    return CopiedFiles(names=names, contents=contents, left_out=left_out)


def _files_of(command: CommandLine, default_name: str) -> Iterator[Path]:
    named = [path for path, _ in command.files_named()]
    beside = [path for path in command.programs(default_name) if path not in named]
    own = Path(command.program) if isinstance(command, OwnCommand) else None
    for path in dict.fromkeys([*named, *beside]):
        if path != own and not names_path(str(path), default_name) and interpreter_of(str(path)) is None:
            yield path


def _content(path: Path) -> bytes | None:
    """The bytes of a file, None for a program of the machine. Raises OSError for what is not to be copied."""
    inside = Path.cwd() in path.absolute().resolve().parents
    if not inside and not path.is_absolute():
        raise OSError(0, "it stands outside of the current folder, and is not named in full", str(path))
    data = read_plain(path, MOST_OF_A_FILE)
    return None if data[:4] == b"\x7fELF" else data


def _free_name(name: str, taken: Mapping[str, bytes]) -> str:
    free, number = name, 1
    while free in taken or free in OWN_MEMBERS:
        number += 1
        free = f"{number}-{name}"
    return free


@dataclass(frozen=True, kw_only=True)
class CommandScript:
    """What such a script is made of. ``why`` says why there is no shorter one; "" where the check is no run of ours."""

    title: str
    words: Sequence[str]
    evidence: Evidence
    rules: Rules
    seconds: float
    why: str = ""

    def script(self) -> Script:
        """The script."""
        constants: dict[str, Literal] = {"COMMAND": self.words, "SECONDS": self.seconds}
        work = ["ended = run_command(COMMAND, HERE, SECONDS)"]
        parts = ["ends", "command"]
        if self.rules.decide_alone:
            parts.append("command_rules")
            constants["RULES"] = self._rules()
            work.append("return status_by_rules(ended, **RULES)")
        else:
            constants["FAILURE"] = self._failure()
            work.append("return command_status(ended, **FAILURE)")
        return Script(title=f"{self.title}.", needs=self._needs(), parts=parts, constants=constants, work=work)

    def _needs(self) -> str:
        if self.why:
            return (
                f"It needs biopsy, the engine, and the files beside it: without biopsy there is no way to ask for\n"
                f"{self.why}."
            )
        return "It runs a command on the model: it needs what that command needs, and the files beside it."

    def _failure(self) -> dict[str, Literal]:
        evidence = self.evidence
        signature = signature_of(evidence)
        said = {"stage": signature.stage, "kind": signature.kind}
        return {
            "status": _TIMEOUT if evidence.timed_out else evidence.status,
            "raised": signature.raised[-1].kind.rpartition(".")[2] if signature.raised else "",
            "verdict": {key: value for key, value in said.items() if value},
        }

    def _rules(self) -> dict[str, Literal]:
        rules = self.rules
        found: dict[str, Literal] = {
            "fail_codes": sorted(rules.fail_codes),
            "ignored_codes": sorted(rules.ignored_codes),
            "patterns": [regex.pattern for regex in rules.fail_regexes],
        }
        return {key: value for key, value in found.items() if value}
