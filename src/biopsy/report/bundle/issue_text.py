"""The text of ``ISSUE.md``: what a maintainer is told, under the headings of the form of that engine's tracker.

Sentences of ours are prose; what comes from the model, the engine or the check stands in code there, with fences longer
than any in it, in headings too: no name makes a heading, a link or a mention.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from biopsy.quantities import size_text
from biopsy.report.bundle.failure import ObservedFailure
from biopsy.report.bundle.issue_forms import FORMS
from biopsy.report.bundle.job import EarlierFindings
from biopsy.report.bundle.reproduction import Reproduction
from biopsy.text import printable, shortened

_MOST_OF_MODEL = 6000  # characters
_MOST_OF_SCRIPT = 7000
_MOST_PLACES = 8
_MOST_OF_OUTPUT = 4000


@dataclass(frozen=True, kw_only=True)
class IssueFacts:
    """All that the text is made of. ``model`` is the model as text, ``versions`` what it was seen on.

    ``sizes`` are bytes by the name of each member; ``remarks`` are sentences on what the bundle lacks; ``found`` is
    what is known of the failure from before. ``places`` are the lines of their author's code that the nodes come from.
    ``settings`` is what settings files gave to the check, in words.
    """

    failure: ObservedFailure
    reproduction: Reproduction
    model: str
    script: str
    versions: Mapping[str, Any]
    excluded: Sequence[str] = ()
    found: EarlierFindings = field(default_factory=EarlierFindings)
    remarks: Sequence[str] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    places: Sequence[str] = ()
    settings: str = ""


def issue_text(facts: IssueFacts) -> str:
    """The text, in Markdown."""
    engine = facts.failure.engine
    form = FORMS.get("" if engine is None else engine.name, FORMS[""])
    parts = [f"# {_prose(facts.failure.title)}", *_warning(facts)]
    for heading, content in form.sections:
        lines = list(_CONTENTS[content](facts))
        if lines:
            parts += [f"## {heading}", *lines]
    return "\n\n".join(parts) + "\n"


def _warning(facts: IssueFacts) -> Iterator[str]:
    done = facts.reproduction
    if done.standing == "not":
        yield (
            f"**NOT REPRODUCED: `reproduce.py` ended with status {done.status} where it was tried, and not with 1. "
            "This text describes what biopsy saw; do not send it as it is.**"
        )
    elif done.standing == "with biopsy":
        yield "**`reproduce.py` needs more than the engine: it was seen to fail only where biopsy is installed.**"


def _description(facts: IssueFacts) -> Iterator[str]:
    failure = facts.failure
    if facts.found.verdict:
        yield _prose(facts.found.verdict, facts.found.links)
    if failure.message:
        yield _fenced(failure.message)
    if failure.against:
        yield f"The expected values are those of {_inline(failure.against)}."
    yield f"`reproduce.py` prints (exit status {facts.reproduction.status}):"
    yield _fenced(shortened(facts.reproduction.output.strip(), _MOST_OF_OUTPUT))
    excluded = "\n".join(f"- {_prose(text)}" for text in facts.excluded)
    if facts.settings:
        yield f"The check was run with options that a settings file gave: {_inline(facts.settings)}"
    if facts.found.variation:
        yield f"What may vary, as far as it was tried: {_prose(facts.found.variation)}"
    if facts.found.known:
        yield f"How it compares with a known failure: {_prose(facts.found.known, facts.found.links)}"
    for text, line in facts.found.workarounds:
        yield f"A workaround that was tried: {_prose(text)}"
        if line:
            yield _fenced(printable(line))
    yield f"What was excluded:\n\n{excluded}" if excluded else "Nothing else was excluded yet."


def _steps(facts: IssueFacts) -> Iterator[str]:
    names = "\n".join(f"- {_inline(name)}, {size_text(size)}" for name, size in facts.sizes.items())
    yield f"Unpack the attached files and run `python reproduce.py`:\n\n{names}"
    yield "The model (`model.onnx`):"
    yield _fenced(shortened(facts.model, _MOST_OF_MODEL))
    if facts.places:
        more = len(facts.places) - _MOST_PLACES
        lines = [*facts.places[:_MOST_PLACES], *([f"and {more} more"] if more > 0 else [])]
        yield "Its nodes come from these lines of code, by the notes of its exporter:"
        yield _fenced("\n".join(map(printable, lines)))
    if len(facts.script) <= _MOST_OF_SCRIPT:
        yield "`reproduce.py`:"
        yield _fenced(facts.script.strip(), "python")
    if facts.remarks:
        yield "\n".join(f"- {_prose(text)}" for text in facts.remarks)


def _log(facts: IssueFacts) -> Iterator[str]:
    yield _fenced(shortened(facts.reproduction.output.strip(), _MOST_OF_OUTPUT))


def _environment(facts: IssueFacts) -> Iterator[str]:
    yield "\n".join(f"- {_prose(name)}: {_inline(value)}" for name, value in _facts(facts) if value)


def _facts(facts: IssueFacts) -> Iterator[tuple[str, str]]:
    versions = facts.versions
    for name, version in versions["packages"].items():
        yield str(name), str(version)
    yield "Python", str(versions["python"])
    yield "operating system", str(versions["os"])
    yield "processor", str(versions["cpu"])
    yield "its features", ", ".join(versions["cpu_features"])
    yield "graphics card", str(versions["gpu"] or "")
    yield "its driver", str(versions["driver"] or "")


def _version(facts: IssueFacts) -> Iterator[str]:
    engine = facts.failure.engine
    for one in facts.versions["engines"]:
        if engine is not None and one["name"] == engine.name and one["version"]:
            yield _inline(str(one["version"]))
            return


def _device(facts: IssueFacts) -> Iterator[str]:
    engine = facts.failure.engine
    options: Mapping[str, Any] = {} if engine is None else engine.options
    wanted = options.get("providers") or options.get("device") or "CPU"
    yield _inline(wanted if isinstance(wanted, str) else ", ".join(wanted))


def _operating_system(facts: IssueFacts) -> Iterator[str]:
    yield _inline(str(facts.versions["os"]))


_Content: TypeAlias = Callable[[IssueFacts], Iterator[str]]


def _fixed(text: str) -> _Content:
    return lambda facts: iter([text])


_CONTENTS: Mapping[str, _Content] = {
    "description": _description,
    "steps": _steps,
    "log": _log,
    "environment": _environment,
    "version": _version,
    "device": _device,
    "os": _operating_system,
    "python": _fixed("Python"),
    "onnx": _fixed("ONNX"),
    "released": _fixed("Released Package"),
    "no conversion": _fixed("No: the model is loaded as it is."),
}


def _prose(text: str, links: Mapping[str, str] = MappingProxyType({})) -> str:
    """One line of ours, which may hold a stranger's words: each that could be Markdown stands in code, names too.

    A name loses the quotes of ``repr`` there. No line of ours holds what cannot be printed: from there on, all is code.
    ``links`` are references of ours, each with its address: such a word is a link.
    """
    strange = next((at for at, char in enumerate(text) if not char.isprintable()), None)
    ours = text if strange is None else text[: text.rfind(" ", 0, strange) + 1]
    if ours.startswith(" "):
        return _inline(text)
    made: list[str] = []
    for is_plain, pieces in groupby(filter(None, _PIECES.split(ours)), _is_plain):
        words = "".join(pieces)
        name = words.rstrip(",.:;")
        if is_plain and not (not made and _BLOCK.match(words)):
            made.append(words)
        elif name in links:
            made.append(f"[{name}]({links[name]}){words[len(name) :]}")
        else:
            made.append(_inline(words[1:-1] if len(words) > 2 and _QUOTED.fullmatch(words) else words))
    return "".join([*made, *([] if ours == text else [_inline(text[len(ours) :])])])


def _is_plain(piece: str) -> bool:
    is_name = _QUOTED.fullmatch(piece) is not None
    return not is_name and _PLAIN.fullmatch(piece) is not None and _LIVE.search(piece) is None


_QUOTED = re.compile(r"""(?<!\w)(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")(?!\w)""")
"""A name as ``repr`` writes it."""
_PIECES = re.compile(rf"({_QUOTED.pattern}|\[[^\[\]]*\]| +)")
"""What is kept whole, spaces in it too: a name, and a list in brackets; and what stands between words."""
_PLAIN = re.compile(r"""[\w,.:;'"/()+=%?·×-]*|->| +""")
"""A word that means nothing in Markdown, wherever it stands in a paragraph or a heading, but for its beginning."""
_BLOCK = re.compile(r"[-+=]|\d+[.)]")
"""What makes a list or a line of what it begins."""
_LIVE = re.compile(r"://|www\.|mailto:|xmpp:|\bGH-\d|\b[0-9a-f]{7,}\b|(?<!\w)_|_(?!\w)|:[\w+-]+:", re.IGNORECASE)
"""What GitHub makes a link of, a stress or a picture, though none of its characters means anything by itself."""


def _inline(text: str) -> str:
    """One line of a stranger's as code."""
    plain = printable(text)
    ticks = "`" * (max((len(run) for run in re.findall("`+", plain)), default=0) + 1)
    pad = " " if not plain.strip(" ") or plain[0] in "` " or plain[-1] in "` " else ""
    return f"{ticks}{pad}{plain}{pad}{ticks}"


def _fenced(text: str, language: str = "text") -> str:
    """Lines of a stranger's as code."""
    lines = [printable(line) for line in text.splitlines()]
    longest = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([f"{fence}{language}", *lines, fence])


def model_text(path: Path) -> str:
    """A model as text of the standard, which its parser reads; a description of it where there is too much."""
    from biopsy.model.describe import describe

    if path.stat().st_size > _MOST_OF_MODEL:
        return describe(path, ("layers", "attrs"))
    import onnx

    try:
        return onnx.printer.to_text(onnx.load(str(path), load_external_data=False))
    except UnicodeDecodeError:
        return describe(path, ("layers", "attrs"))
