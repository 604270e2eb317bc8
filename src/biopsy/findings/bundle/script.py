"""The text of ``reproduce.py``, with values as Python literals; and the script of a failure that only a command shows:
it runs the command on the model, with copies of the files that it names.
"""

from __future__ import annotations

import ast
import math
import os
import pprint
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TypeAlias

from biopsy.checks.command_line import PLACEHOLDER, CommandLine, OwnCommand, interpreter_of
from biopsy.checks.judge import Rules, signature_of, status_text
from biopsy.checks.outcome import Evidence
from biopsy.checks.words import NAME, names_path
from biopsy.findings.bundle import script_parts
from biopsy.findings.bundle.script_parts.failures import TIMEOUT
from biopsy.processes.reading import read_plain
from biopsy.processes.watch import Ended
from biopsy.text import printable

Literal: TypeAlias = "bool | int | float | str | Sequence[Literal] | Mapping[str, Literal] | None"
"""A value that a script can hold. Names and numbers from a model go into a script only as these."""


def literal(value: Literal) -> str:
    """The value as a Python expression, over several lines if it is long. Sequences become lists.

    Characters that are not printable are escaped. Raises TypeError for any other value.
    """
    return pprint.pformat(_plain(value), width=110, sort_dicts=False, compact=True)


def docstring(text: str) -> str:
    """The text as a docstring; it may quote names from a model, which are escaped."""
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    escaped = (
        char if char == "\n" or char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in quoted
    )
    return '"""' + "".join(escaped) + '"""'


class _Expression(str):
    """Python source that a literal holds unquoted."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _plain(value: object) -> object:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else _Expression(f'float("{value}")')
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise TypeError("the key of a literal is text")
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [_plain(each) for each in value]
    raise TypeError(f"{type(value).__name__} is not a literal")


FAILS = 1
"""The exit status of a script while the failure is there."""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a script ends while the failure is there: its exit status, or minus a signal, and a text that it prints.

    ``status`` is None if it does not end by itself.
    """

    status: int | None = FAILS
    text: str = ""

    def is_that_of(self, ended: Ended) -> bool:
        """Whether a run of the script ended so."""
        if self.status is None:
            return ended.cause == "time"
        return ended.status == self.status and self.text.encode() in ended.output


_STATUSES = """\
Exit status: 1 it fails as it did when this script was made; 0 it does not fail any more; 125 this script cannot say:
something is missing, or fails in another way. These are also what `git bisect run` expects."""


@dataclass(frozen=True, kw_only=True)
class Script:
    """A script to reproduce a failure.

    ``title`` is its first line, ``needs`` a sentence on what must be installed, ``modules`` the packages that it
    imports. ``engine`` is the module of ``script_parts`` that calls the engine, "" for none. ``work`` are lines of
    Python, the body of a function that returns the exit status; ``constants`` are the values that it names.
    """

    title: str
    needs: str
    constants: Mapping[str, Literal]
    work: Sequence[str]
    engine: str = ""
    modules: Sequence[str] = ()

    def text(self) -> str:
        """The text of the script, with all functions of ``script_parts`` that its work needs."""
        main = "def main():\n" + "\n".join(f"    {line}" if line else "" for line in self.work)
        end = 'if __name__ == "__main__":\n    sys.exit(exit_status(main))'
        texts = [_text_of(name) for name in ("failures", self.engine) if name]
        nodes = [(text, node) for text in texts for node in ast.parse(text).body]
        blocks = {name: (text, node) for text, node in nodes for name in _names_defined(node)}
        needed, wanted = set[str](), _names_used(ast.parse(f"{main}\n{end}"))
        while wanted := {name for name in wanted if name in blocks} - needed:
            needed |= wanted
            wanted = set.union(*(_names_used(blocks[name][1]) for name in wanted))
        functions = [ast.get_source_segment(*blocks[name]) or "" for name in blocks if name in needed]
        used = _names_used(ast.parse("\n".join([*functions, end, "HERE = Path(__file__)"])))
        constants = [f"{name} = {literal(value)}" for name, value in self.constants.items()]
        head = [
            docstring(f"{self.title}\n\n{self.needs}\n{_STATUSES}\n"),
            "\n".join(_imports(nodes, used)),
            "\n".join(["HERE = Path(__file__).resolve().parent", *constants]),
        ]
        return "\n\n".join(head) + "\n\n\n" + "\n\n\n".join([*functions, main, end]) + "\n"


def _text_of(part: str) -> str:
    return resources.files(script_parts).joinpath(f"{part}.py").read_text(encoding="utf-8")


def _names_defined(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    return [node.name] if isinstance(node, ast.FunctionDef | ast.ClassDef) else []


def _names_used(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _imports(nodes: Sequence[tuple[str, ast.stmt]], used: set[str]) -> list[str]:
    """The lines that import the names used, but for those of biopsy, which the script defines itself."""
    lines = {"import sys", "from pathlib import Path"}
    for _, node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            before = "" if isinstance(node, ast.Import) else f"from {node.module} "
            names = [alias for alias in node.names if (alias.asname or alias.name) in used]
            lines |= {f"{before}import {ast.unparse(alias)}" for alias in names if not before.startswith("from biopsy")}
    return sorted(lines, key=lambda line: (line.startswith("from"), line))


MOST_OF_A_FILE = 16 << 20
"""The most bytes of a file of the check that is copied into a bundle."""

SCRIPT = "reproduce.py"
IN_A_CHILD = "git_bisect.py"
"""The script that shows the failure; and one that runs it in a child, for a failure that ends the process."""

NOT_REPRODUCED = "NOT-REPRODUCED.txt"
"""The file that says that the script does not show the failure, so that the bundle is not fit to be sent."""

TENSOR_FILES = ("model.onnx", "model.onnx.data", "inputs.npz", "expected.npz")

CAST_FILES = ("cast_model.onnx", "cast_inputs.npz", "cast_expected.npz")
"""The same in types of NumPy, if the model has others at its ends; only those that the script reads."""

OWN_MEMBERS = frozenset(
    {
        *(*TENSOR_FILES, *CAST_FILES, SCRIPT, IN_A_CHILD, "test_regression.py"),
        *("versions.json", "report.html", "report.json", "ISSUE.md", NOT_REPRODUCED),
    }
)
"""The names of the members of a bundle, but for copies of files of the check."""


@dataclass(frozen=True, kw_only=True)
class CopiedFiles:
    """Copies of the files that a command names.

    ``names`` maps the path of each to its name in the bundle, ``contents`` that name to its bytes. ``left_out`` says of
    each file that was not copied why not.
    """

    names: Mapping[Path, Path] = field(default_factory=dict)
    contents: Mapping[str, bytes] = field(default_factory=dict)
    left_out: Sequence[str] = ()

    def words_of(self, command: CommandLine, default_name: str) -> list[str]:
        """The words of the command for the bundle's folder: with the names of the copies, and ``{}`` for the model."""
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
    """Copies of the files that the words name, and of the modules that scripts among them import from their folder.

    Only plain files of a bounded size are copied, below the current folder or named by an absolute path; never ELF
    binaries.
    """
    names: dict[Path, Path] = {}
    contents: dict[str, bytes] = {}
    left_out: list[str] = []
    for path in _files_of(command, default_name):
        try:
            if Path.cwd() not in path.absolute().resolve().parents and not path.is_absolute():
                raise OSError(0, "it stands outside of the current folder, and is not named in full", str(path))
            data = read_plain(path, MOST_OF_A_FILE)
        except OSError as error:
            left_out.append(f"{printable(str(path))}: {error.strerror}")
            continue
        if data[:4] != b"\x7fELF":
            name, number = path.name, 1
            while name in contents or name in OWN_MEMBERS:
                number += 1
                name = f"{number}-{path.name}"
            names[path], contents[name] = Path(name), data
    return CopiedFiles(names=names, contents=contents, left_out=left_out)


def _files_of(command: CommandLine, default_name: str) -> Iterator[Path]:
    own = Path(command.program) if isinstance(command, OwnCommand) else None
    for path in dict.fromkeys([*(path for path, _ in command.files_named()), *command.programs(default_name)]):
        if path != own and not names_path(str(path), default_name) and interpreter_of(str(path)) is None:
            yield path


def command_script(
    title: str, words: Sequence[str], evidence: Evidence, rules: Rules, seconds: float, why: str = ""
) -> Script:
    """The script that runs a command with these words for at most ``seconds``.

    ``why`` says what no script can do without biopsy; "" if the check is not a command of biopsy.
    """
    constants: dict[str, Literal] = {"COMMAND": words, "SECONDS": seconds}
    if rules.decide_alone:
        rule_values: dict[str, Literal] = {
            "fail_codes": sorted(rules.fail_codes),
            "ignored_codes": sorted(rules.ignored_codes),
            "patterns": [regex.pattern for regex in rules.fail_regexes],
        }
        constants["RULES"] = {key: value for key, value in rule_values.items() if value}
        status = "status_by_rules(ended, **RULES)"
    else:
        signature = signature_of(evidence)
        # A check that was ended has written no verdict: biopsy knows where from another file.
        ending = status_text(evidence.status).removeprefix("signal ")
        was_ended = evidence.timed_out or evidence.out_of_memory or signature.kind == ending
        verdict = {} if was_ended else {"stage": signature.stage, "kind": signature.kind}
        constants["FAILURE"] = {
            "status": TIMEOUT if evidence.timed_out else evidence.status,
            "raised": signature.raised[-1].kind.rpartition(".")[2] if signature.raised else "",
            "verdict": {key: value for key, value in verdict.items() if value},
        }
        status = "command_status(ended, **FAILURE)"
    needs = "It runs a command on the model: it needs what that command needs, and the files beside it."
    if why:
        needs = "It needs biopsy, the engine, and the files beside it: without biopsy there is no way to ask for\n"
        needs += f"{why}."
    work = ["ended = run_command(COMMAND, HERE, SECONDS)", f"return {status}"]
    return Script(title=f"{title}.", needs=needs, constants=constants, work=work)
