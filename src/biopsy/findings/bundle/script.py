"""The text of ``reproduce.py``, and that of a failure that a command shows: it runs the command on the model, with
copies of the files it names.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from biopsy.checks.command_line import PLACEHOLDER, CommandLine, OwnCommand, interpreter_of
from biopsy.checks.judge import Rules, signature_of
from biopsy.checks.outcome import Evidence
from biopsy.checks.words import NAME, names_path
from biopsy.findings.bundle import script_parts
from biopsy.findings.bundle.literals import Literal, docstring, literal
from biopsy.processes.reading import read_plain
from biopsy.text import printable

_STATUSES = """\
Exit status: 1 it fails as it did when this script was made; 0 it does not fail any more; 125 this script cannot say:
something is missing, or fails in another way. These are also what `git bisect run` expects."""


@dataclass(frozen=True, kw_only=True)
class Script:
    """What a script holds.

    ``title`` is its first line, ``needs`` a sentence on what must be installed, and ``modules`` what it imports of
    that. ``parts`` are modules of ``script_parts``, ``constants`` the values that ``work`` speaks of by their names.
    ``work`` are lines of Python of our own: the body of a function that returns the exit status.
    """

    title: str
    needs: str
    parts: Sequence[str]
    constants: Mapping[str, Literal]
    work: Sequence[str]
    modules: Sequence[str] = ()

    def text(self) -> str:
        """The script."""
        sources = [_source_of(part) for part in ("statuses", *self.parts)]
        imports = sorted({line for lines, _ in sources for line in lines} | {"import sys", "from pathlib import Path"})
        constants = [f"{name} = {literal(value)}" for name, value in self.constants.items()]
        blocks = [
            docstring(f"{self.title}\n\n{self.needs}\n{_STATUSES}\n"),
            "\n".join(sorted(imports, key=lambda line: line.startswith("from"))),
            "\n".join(["HERE = Path(__file__).resolve().parent", *constants]),
        ]
        work = "\n".join(f"    {line}" if line else "" for line in self.work)
        functions = [block for _, blocks in sources for block in blocks]
        main = f"def main():\n{work}"
        end = 'if __name__ == "__main__":\n    sys.exit(exit_status(main))'
        return "\n\n".join(blocks) + "\n\n\n" + "\n\n\n".join([*functions, main, end]) + "\n"


def _source_of(part: str) -> tuple[list[str], list[str]]:
    """The lines of a part that import from the standard library, and the blocks after the imports."""
    text = resources.files(script_parts).joinpath(f"{part}.py").read_text(encoding="utf-8")
    body = ast.parse(text).body
    last = max(place for place, node in enumerate(body) if not place or isinstance(node, ast.Import | ast.ImportFrom))
    imports = []
    for node in body[: last + 1]:
        ours = isinstance(node, ast.ImportFrom) and str(node.module).startswith("biopsy")  # it stands in the script
        if isinstance(node, ast.Import | ast.ImportFrom) and not ours:
            names = [ast.unparse(alias) for alias in node.names]
            before = "" if isinstance(node, ast.Import) else f"from {node.module} "
            imports += [f"{before}import {name}" for name in names]
    rest = "".join(text.splitlines(keepends=True)[body[last].end_lineno or 0 :])
    return imports, [block.strip("\n") for block in rest.split("\n\n\n") if block.strip("\n")]


# The script of a failure that a command shows: it runs the command on the model, with copies of the files it names.

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
        free, number = path.name, 1
        while free in contents or free in OWN_MEMBERS:
            number += 1
            free = f"{number}-{path.name}"
        name = free
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
            rules = self.rules
            found: dict[str, Literal] = {
                "fail_codes": sorted(rules.fail_codes),
                "ignored_codes": sorted(rules.ignored_codes),
                "patterns": [regex.pattern for regex in rules.fail_regexes],
            }
            constants["RULES"] = {key: value for key, value in found.items() if value}
            work.append("return status_by_rules(ended, **RULES)")
        else:
            evidence = self.evidence
            signature = signature_of(evidence)
            said = {"stage": signature.stage, "kind": signature.kind}
            constants["FAILURE"] = {
                "status": _TIMEOUT if evidence.timed_out else evidence.status,
                "raised": signature.raised[-1].kind.rpartition(".")[2] if signature.raised else "",
                "verdict": {key: value for key, value in said.items() if value},
            }
            work.append("return command_status(ended, **FAILURE)")
        needs = "It runs a command on the model: it needs what that command needs, and the files beside it."
        if self.why:
            needs = "It needs biopsy, the engine, and the files beside it: without biopsy there is no way to ask for\n"
            needs += f"{self.why}."
        return Script(title=f"{self.title}.", needs=needs, parts=parts, constants=constants, work=work)
