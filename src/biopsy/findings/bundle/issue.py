"""``ISSUE.md``: the failure in the form of the engine's tracker, at most 60 lines; and a regression test.

Whoever maintains an engine reads two sentences, runs a script of some ten lines, and looks for a version. All further
evidence is in the report beside it.
"""

from __future__ import annotations

import ast
import contextlib
import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from types import MappingProxyType
from typing import Any, NamedTuple

from biopsy import errors
from biopsy.checks.judge import status_text
from biopsy.engines.registry import create
from biopsy.findings.bundle.failure import GOLDEN, ObservedFailure
from biopsy.findings.bundle.job import EarlierFindings
from biopsy.findings.bundle.reproduction import Reproduction
from biopsy.findings.bundle.script import docstring
from biopsy.findings.document import Bullets, Cell, DocumentBlock, Facts, Listing, Passage
from biopsy.text import printable, shortened

MOST_LINES = 60
_MOST_REMARKS = 2
_TELLING = 100
"""Characters at the beginning of a message by which it is known."""

_LONGEST_LINE = 240


class Allowance(NamedTuple):
    """The most lines of each part that the text shows; all of them are in the attached files."""

    script: int = 40
    output: int = 7
    reasons: int = 6
    message: int = 4


_ALLOWANCES = (
    Allowance(),
    Allowance(output=5, reasons=5),
    Allowance(output=4, reasons=4, message=2),
    Allowance(output=3, reasons=4, message=1),
    Allowance(output=3, reasons=3, message=1),
    Allowance(output=2, reasons=2, message=1),
    Allowance(script=0, output=4, reasons=4, message=2),
)
"""From the fullest text to the shortest, which always fits."""


@dataclass(frozen=True, kw_only=True)
class IssueFacts:
    """The facts for ``ISSUE.md``.

    ``versions`` are those of the packages and the machine that the model failed with. ``excluded`` are possible causes,
    each with whether it is still open; ``earlier`` is what was found out before. ``remarks`` say what the bundle lacks,
    ``members`` are the attached files. ``settings`` are the options that settings files gave to the check, in words.
    """

    failure: ObservedFailure
    reproduction: Reproduction
    script: str
    versions: Mapping[str, Any]
    excluded: Sequence[tuple[str, bool]] = ()
    earlier: EarlierFindings = field(default_factory=EarlierFindings)
    remarks: Sequence[str] = ()
    members: Sequence[str] = ()
    settings: str = ""


def issue_text(facts: IssueFacts) -> str:
    """The text of ``ISSUE.md``, in Markdown: the fullest that has at most 60 lines."""
    texts = (_text_within(facts, allowance) for allowance in _ALLOWANCES)
    return next(text for text in texts if len(text.splitlines()) <= MOST_LINES)


def _text_within(facts: IssueFacts, allowance: Allowance) -> str:
    engine, reproduction = facts.failure.engine, facts.reproduction
    parts = [f"# {_prose(facts.failure.title)}"]
    if reproduction.reproduced == "not":
        parts.append(
            f"**NOT REPRODUCED: `reproduce.py` ended with status {reproduction.status}, not as the failure does. "
            "This text describes what biopsy saw; do not send it as it is.**"
        )
    elif reproduction.reproduced == "with biopsy":
        parts.append(
            "**`reproduce.py` needs more than the engine: it was seen to fail only where biopsy is installed.**"
        )
    form = FORMS.get("" if engine is None else engine.name, FORMS[""])
    rows = [(name, value if isinstance(value, str) else value(facts)) for name, value in form.fields]
    sections = {
        form.description: _description(facts, allowance),
        form.reproduction: _steps(facts, allowance),
        form.environment: [Facts(rows=[(name, value) for name, value in rows if value])],
    }
    for heading, blocks in sections.items():
        parts += [f"## {heading}", *(markdown(block, facts.earlier.links) for block in blocks)]
    return "\n\n".join(parts) + "\n"


# The functions below give the blocks under a heading. They quote names from a model with ``repr``.


def _description(facts: IssueFacts, allowance: Allowance) -> Iterator[DocumentBlock]:
    failure, earlier = facts.failure, facts.earlier
    yield from (Passage(text=note.text) for note in earlier.notes if note.label == "found")
    told = [facts.reproduction.output, *(note.text for note in earlier.notes)]
    if failure.message and not any(failure.message[:_TELLING] in text for text in told):
        yield _listing(failure.message.splitlines(), allowance.message)
    causes = [note.text for note in earlier.notes if note.label == "cause"]
    reasons = causes[:1]
    for heading, is_open in (("Excluded:", False), ("Not excluded:", True)):
        if excluded := [text for text, open_still in facts.excluded if open_still is is_open]:
            reasons.append(f"{heading} {'; '.join(excluded)}.")
    reasons += causes[1:]
    if failure.against == GOLDEN:
        reasons.append("The expected values are recorded ones (golden values).")
    elif failure.against and not earlier.doubt:
        confirmed = ", and float64 confirms them" if earlier.is_confirmed else ""
        reasons.append(f"The expected values are those of {failure.against_title}{confirmed}.")
    if facts.settings:
        reasons.append(f"The check was run with options that a settings file gave: {facts.settings!r}")
    if reasons:
        yield Bullets(items=reasons[: allowance.reasons])
    for note in [note for note in earlier.notes if note.label == "workaround"][:1]:
        code = "; ".join(note.code) or note.line
        yield Facts(rows=[(f"Workaround: {note.text.rstrip('.')}", code)]) if code else Bullets(items=[note.text])


def _steps(facts: IssueFacts, allowance: Allowance) -> Iterator[DocumentBlock]:
    lines = _without_docstring(facts.script).strip().splitlines()
    printed = telling_lines(facts.reproduction.output, allowance.output)
    ends = "It prints:" if printed else f"It prints nothing, and ends with {status_text(facts.reproduction.status)}."
    if len(lines) <= allowance.script:
        yield Listing(lines=lines, language="python")
        yield Passage(text=ends)
    else:
        yield Passage(text=f"Unpack the attached files and run 'python reproduce.py'. {ends}")
    if printed:
        yield _listing(printed, allowance.output)
    if facts.members:
        yield Passage(text=f"Attached: {', '.join(map(repr, facts.members))}.")
    if facts.remarks:
        yield Bullets(items=facts.remarks[:_MOST_REMARKS])


def _without_docstring(script: str) -> str:
    """A script without its first statement if that is a docstring, which the title of the issue says, too."""
    try:
        first = ast.parse(script).body[0]
    except (SyntaxError, ValueError, IndexError):
        return script
    is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and first.end_lineno
    return "\n".join(script.splitlines()[first.end_lineno :]) if is_docstring else script


def telling_lines(output: str, most: int) -> Sequence[str]:
    """The lines of what a script has printed, without empty ones, colours, and a traceback before its exception.

    If there are more than ``most``, only those of NumPy that say what differs are left, if there are any.
    """
    lines = [line for line in _COLOUR.sub("", output).splitlines() if line.strip()]
    frames = [at for at, line in enumerate(lines) if line.startswith('  File "')]
    if frames and any(line.startswith("Traceback") for line in lines):
        after = next((at for at in range(frames[-1], len(lines)) if not lines[at].startswith("  ")), None)
        lines = lines if after is None else lines[after:]
    differing = [line for line in lines if _SAYS_WHAT_DIFFERS.search(line)]
    if not any("(ACTUAL)" in line for line in differing):
        differing += [line for line in lines if line.lstrip().startswith("ACTUAL:")]
    return differing[:most] if len(lines) > most and differing else lines


_SAYS_WHAT_DIFFERS = re.compile(r"^Mismatched elements|\(ACTUAL\)| mismatch[:)]")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def _listing(lines: Sequence[str], most: int) -> Listing:
    """The first and the last lines, ``most`` in all."""
    kept = (
        lines if len(lines) <= most else [*lines[: most // 2], "[...]", *lines[len(lines) - (most - most // 2) + 1 :]]
    )
    return Listing(lines=[shortened(line, _LONGEST_LINE) for line in kept])


def _version(facts: IssueFacts) -> str:
    name = facts.failure.engine and facts.failure.engine.name
    return next((str(each["version"]) for each in facts.versions["engines"] if each["name"] == name), "")


def _device(facts: IssueFacts) -> str:
    options: Mapping[str, Any] = {} if facts.failure.engine is None else facts.failure.engine.options
    wanted = options.get("providers") or options.get("device") or "CPU"
    return wanted if isinstance(wanted, str) else ", ".join(wanted)


def _fact(name: str) -> Callable[[IssueFacts], str]:
    return lambda facts: str(facts.versions[name] or "")


def _packages(facts: IssueFacts) -> str:
    engine, against = facts.failure.engine, facts.failure.against
    engines = [] if engine is None else [engine]
    if against and against != GOLDEN:  # what gives the expected values
        with contextlib.suppress(errors.BiopsyError):
            engines.append(create(against))
    needed = {"numpy", "onnx", *(name for each in engines for name in each.distributions)}
    packages: Mapping[str, str] = facts.versions["packages"]
    return ", ".join(f"{name} {version}" for name, version in packages.items() if engine is None or name in needed)


def markdown(block: DocumentBlock, links: Mapping[str, str] = MappingProxyType({})) -> str:
    """A block as Markdown: a listing, bullets, facts or a passage. ``links`` are those of ``EarlierFindings``."""
    if isinstance(block, Listing):
        lines = [printable(line) for line in block.lines]
        longest = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
        fence = "`" * max(3, longest + 1)
        return "\n".join([f"{fence}{block.language}", *lines, fence])
    if isinstance(block, Bullets):
        return "\n".join(f"- {_prose(_text(item), links)}" for item in block.items)
    if isinstance(block, Facts):
        return "\n".join(f"- {_prose(term)}: {_inline(_text(value))}" for term, value in block.rows)
    assert isinstance(block, Passage)
    return _prose(block.text, links)


def _text(cell: Cell | str) -> str:
    return cell if isinstance(cell, str) else cell.text


def _prose(text: str, links: Mapping[str, str] = MappingProxyType({})) -> str:
    """One line of text as Markdown. It may quote a model, so each word that could be markup becomes code.

    Names in the quotes of ``repr`` become code without the quotes; from the word with the first unprintable character,
    all is code. ``links`` maps references of biopsy's own to their addresses: these words become links.
    """
    unprintable = next((at for at, char in enumerate(text) if not char.isprintable()), None)
    prose = text if unprintable is None else text[: text.rfind(" ", 0, unprintable) + 1]
    if prose.startswith(" "):
        return _inline(text)
    parts: list[str] = []
    for is_plain, pieces in groupby(filter(None, _PIECES.split(prose)), _is_plain):
        words = "".join(pieces)
        before, name, after = _BETWEEN.fullmatch(words).groups()  # type: ignore[union-attr]  # which matches anything
        while after.startswith(")") and name.count("(") > name.count(")"):
            name, after = f"{name})", after[1:]
        if is_plain and (parts or not _BLOCK.match(words)):
            parts.append(words)
        elif name in links:
            parts.append(f"{before}[{name}]({links[name]}){after}")
        elif _QUOTED.fullmatch(words) and len(words) > 2:
            parts.append(_inline(words[1:-1]))
        else:
            parts.append(f"{before}{_inline(name)}{after}" if name else words)
    return "".join(parts) + ("" if prose == text else _inline(text[len(prose) :]))


def _is_plain(piece: str) -> bool:
    return not _QUOTED.fullmatch(piece) and bool(_PLAIN.fullmatch(piece)) and not _LIVE.search(piece)


_QUOTED = re.compile(r"""(?<!\w)(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")(?!\w)""")
"""A name as ``repr`` writes it."""
_PIECES = re.compile(rf"({_QUOTED.pattern}|\[[^\[\]]*\]| +)")
"""What separates words: spaces, and names and lists in brackets, which may hold spaces themselves."""
_BETWEEN = re.compile(r"(\(*)(.*?)([),.:;]*)", re.DOTALL)
"""Parentheses and stops around a word, which are not part of it."""
_PLAIN = re.compile(r"""[\w,.:;'"/()+=%?·×-]*|->| +""")
"""A word that is not markup anywhere in a paragraph or a heading, except perhaps at its beginning."""
_BLOCK = re.compile(r"[-+=]|\d+[.)]")
"""What begins a list or a rule at the beginning of a paragraph."""
_LIVE = re.compile(r"://|www\.|mailto:|xmpp:|\bGH-\d|\b[0-9a-f]{7,}\b|(?<!\w)_|_(?!\w)|:[\w+-]+:", re.IGNORECASE)
"""What GitHub makes a link, emphasis or a picture without any markup character."""


def _inline(text: str) -> str:
    """One line of text as code."""
    plain = printable(text)
    ticks = "`" * (max((len(run) for run in re.findall("`+", plain)), default=0) + 1)
    pad = " " if not plain.strip(" ") or plain[0] in "` " or plain[-1] in "` " else ""
    return f"{ticks}{pad}{plain}{pad}{ticks}"


_MACHINE = (("Processor", _fact("cpu")), ("Graphics card", _fact("gpu")), ("Driver", _fact("driver")))


@dataclass(frozen=True, kw_only=True)
class IssueForm:
    """The form of a tracker: its headings, and the fields under the last one with what belongs there."""

    description: str
    reproduction: str
    environment: str
    fields: Sequence[tuple[str, str | Callable[[IssueFacts], str]]]


FORMS: Mapping[str, IssueForm] = {
    "onnxrt": IssueForm(
        description="Describe the issue",
        reproduction="To reproduce",
        environment="System information",
        fields=(
            ("Urgency", "none stated"),
            ("Platform", lambda facts: platform.system()),
            ("OS Version", _fact("os")),
            ("ONNX Runtime Installation", "Released Package"),
            ("ONNX Runtime Version or Commit ID", _version),
            ("ONNX Runtime API", "Python"),
            (
                "Architecture",
                lambda facts: {"x86_64": "X64", "aarch64": "ARM64"}.get(platform.machine(), platform.machine()),
            ),
            ("Execution Provider", _device),
            *_MACHINE,
            ("Packages", _packages),
        ),
    ),
    "openvino": IssueForm(
        description="Issue description",
        reproduction="Step-by-step reproduction",
        environment="System information",
        fields=(
            ("OpenVINO Version", _version),
            ("Operating System", _fact("os")),
            ("Device used for inference", _device),
            ("Framework", "ONNX"),
            *_MACHINE,
            ("Packages", _packages),
        ),
    ),
    "trt": IssueForm(
        description="Description",
        reproduction="Steps To Reproduce",
        environment="Environment",
        fields=(
            ("TensorRT Version", _version),
            ("NVIDIA GPU", _fact("gpu")),
            ("NVIDIA Driver Version", _fact("driver")),
            ("Operating System", _fact("os")),
            ("Python Version", _fact("python")),
            ("Packages", _packages),
        ),
    ),
    "reference": IssueForm(
        description="Describe the bug",
        reproduction="Reproduction instructions",
        environment="System information",
        fields=(
            ("Is the issue related to model conversion?", "No: the model is loaded as it is."),
            ("OS Platform", _fact("os")),
            ("ONNX version", _version),
            ("Python version", _fact("python")),
            ("Packages", _packages),
        ),
    ),
    "": IssueForm(
        description="What happens",
        reproduction="How to reproduce it",
        environment="Environment",
        fields=(
            ("Operating system", _fact("os")),
            ("Python", _fact("python")),
            *_MACHINE,
            ("Packages", _packages),
        ),
    ),
}
"""The form of each engine's tracker in 2026; "" is for any other engine."""


_TEST = """\
{docstring}

import subprocess
import sys
from pathlib import Path
{imports}

def test_the_model_does_not_fail() -> None:
    folder = Path(__file__).parent
    words = [sys.executable, "{script}"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
"""


def regression_test(title: str, modules: Sequence[str], script: str = "reproduce.py") -> str:
    """The text of a test for pytest that fails as long as ``script`` does.

    The test is skipped if one of ``modules``, which the script imports, is missing.
    """
    needed = "".join(f'pytest.importorskip("{module}")\n' for module in modules)
    imports = f"\nimport pytest\n\n{needed}" if needed else ""
    return _TEST.format(
        docstring=docstring(f"{title}: reproduce.py beside this file shows it."), imports=imports, script=script
    )
