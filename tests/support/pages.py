"""Pages of documentation as a reader uses them: files are saved, commands are typed, what they print is compared.

What is shown to readers is the whole convention:

- A block that names a file in its first or second line, as ``# make_model.py``, is saved under that name.
- Other ``python`` blocks are run.
- In ``console`` blocks, lines after ``$ `` are typed. What is shown below a command must be what it prints; a line
  ``...`` stands for any lines. If nothing is shown, anything may be printed. A command that ends with another status
  than 0 must show why (``FAILED``, ``error:``, ``interrupted:``), or be followed by ``$ echo $?``.
- All other blocks (``text``, ``json``, ...) are for reading.
- Times, versions, places of the worst element and numbers of checks may vary, and so may decimals.
"""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NAMED = re.compile(r"^# ([\w-]+\.\w+)$")
_MARK = "\x1e"


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the line of the page that it begins in."""

    language: str
    text: str
    line: int

    @property
    def file(self) -> str | None:
        """The name that the block says it is to be saved under."""
        found = (_NAMED.match(line) for line in self.text.splitlines()[:2])
        return next((match[1] for match in found if match), None)

    @property
    def slow(self) -> bool:
        """Whether it takes longer than a few seconds."""
        return self.language == "console" and "$ biopsy demo" in self.text


@dataclass
class Typed:
    """A command of a console block, and what is shown below it."""

    command: str
    shown: list[str] = field(default_factory=list)


def pages() -> list[Path]:
    """README and everything below docs/."""
    return [ROOT / "README.md", ROOT / "alias" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page."""
    text = page.read_text(encoding="utf-8")
    return [Block(match[1], match[2], text.count("\n", 0, match.start()) + 1) for match in _FENCE.finditer(text)]


def follow(page: Path, folder: Path, *, slow: bool) -> None:
    """Do in ``folder`` what a page says, from its beginning to its end; only its slow blocks, or only the others."""
    for block in blocks(page):
        if block.slow is not slow:
            continue
        place = f"{page.relative_to(ROOT)}:{block.line}"
        if block.file is not None:
            saved = folder / block.file
            saved.write_text(block.text, encoding="utf-8")
            saved.chmod(0o755)
        elif block.language == "python":
            _run([sys.executable, "-c", block.text], folder, place)
        elif block.language == "console":
            _type(commands(block), folder, place)


def commands(block: Block) -> list[Typed]:
    """The commands of a console block."""
    found: list[Typed] = []
    continued = False
    for line in block.text.splitlines():
        if continued:
            found[-1].command += "\n" + line
        elif line.startswith("$ "):
            found.append(Typed(line[2:]))
        else:
            assert found, f"line {block.line}: a console block begins with a command"
            found[-1].shown.append(line)
            continue
        continued = line.endswith("\\")
    return found


def _environment() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "NO_COLOR": "1", "COLUMNS": "100"}


def _run(words: list[str], folder: Path, place: str) -> str:
    done = subprocess.run(
        words,
        cwd=folder,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
    )
    assert done.returncode == 0, f"{place}: status {done.returncode}\n{done.stdout}"
    return done.stdout


def _type(typed: list[Typed], folder: Path, place: str) -> None:
    """Type the commands into one shell, and hold what each prints against what is shown."""
    script = "".join(f"{one.command}\ns=$?; printf '{_MARK}%s{_MARK}' $s; (exit $s)\n" for one in typed)
    printed = _run(["bash", "-c", f"exec 2>&1\n{script}exit 0"], folder, place).split(_MARK)
    following = [*(one.command for one in typed[1:]), ""]
    for one, output, status, then in zip(typed, printed[::2], printed[1::2], following, strict=False):
        told = f"{place}: $ {one.command}"
        compare(one.shown, output.replace(str(folder), "FOLDER"), told)
        explained = any(line.startswith(("FAILED", "error:", "interrupted:")) for line in one.shown)
        assert status == "0" or explained or then == "echo $?", f"{told}\nends with status {status}\n{output}"


def compare(shown: list[str], printed: str, told: str) -> None:
    """Fail unless what a page shows is what was printed."""
    if not shown:
        return
    expected = [normalised(line) for line in shown]
    actual = [normalised(line) for line in printed.rstrip().splitlines()]
    pattern = "".join(r"(?:.*\n)*?" if line == "..." else re.escape(line) + r"\n" for line in expected)
    if re.fullmatch(pattern, "".join(f"{line}\n" for line in actual)) is None:
        difference = "\n".join(difflib.unified_diff(expected, actual, "the page", "the program", lineterm="", n=99))
        raise AssertionError(f"{told}\n{difference}")


_VARYING = (
    (r"\bRuntimeException\b", "Fail"),  # which is its name from ONNX Runtime 1.24 on
    (r"\d+\.\d+\.\d+", "VERSION"),
    (r"\d\d-\d\d-\d\d_\d\d-\d\d-\d\d", "DATE"),
    (r"\d\d/\d\d/\d\d-\d\d:\d\d:\d\d", "DATE"),
    (r"[\d.e+-]+ (m?s)\b", r"# \1"),
    (r"at \[[\d, ]*\]", "at [#]"),
    (r"\d+ of (\d+) elements", r"# of \1 elements"),
    (r"\d+ checks?\b", "# checks"),
    (r"[\d.e+]+ times (the|what)", r"# times \1"),
    (r"\d+ (reproduced|passed|cannot say|another failure|timed out)", r"# \1"),
    (r"[-+]?\d+\.\d+(e[-+]?\d+)?", "#"),
    (r"\d+e[-+]?\d+|\b\d+%", "#"),
)


def normalised(line: str) -> str:
    """A line without what varies from run to run and from machine to machine."""
    if re.match(r"[ |]*(absolute|relative|errors?|passes|actual|expected) ", line):
        line = re.sub(r"[-+]?\d+(\.\d+)?(e[-+]?\d+)?", "#", re.sub(r"\[[\d, ]*\]", "[#]", line))
    for pattern, instead in _VARYING:
        line = re.sub(pattern, instead, line)
    return re.sub(r" {2,}", "  ", line.rstrip())


_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


def links(page: Path) -> Iterator[str]:
    """The targets of a page's links, those in code left out."""
    text = re.sub(r"`[^`\n]*`", "", _FENCE.sub("", page.read_text(encoding="utf-8")))
    for match in _LINK.finditer(text):
        yield match[1]


def anchors(page: Path) -> Mapping[str, str]:
    """The anchors of a page's headings, as GitHub makes them, with the text of the heading."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    found = {}
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        plain = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower())
        found[plain.replace(" ", "-")] = heading
    return found
