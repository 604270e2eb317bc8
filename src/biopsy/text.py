"""Text to show to a person: escaped names and messages of untrusted files, numbers in words, command lines to paste,
and suggestions for misspelled names.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


def printable(text: str) -> str:
    r"""The text as one line that is safe for a terminal: characters that are not printable are escaped, as in ``\x1b``.

    These are controls, newlines, marks that change the direction or have no width, lone surrogates, and characters that
    this Python does not know. ``repr`` escapes the same ones, so a name looks the same everywhere.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def first_line(text: str) -> str:
    """The first line that is not blank, stripped and without the colours of a terminal; "" if there is none."""
    return next((line.strip() for line in _COLOURS.sub("", text).splitlines() if line.strip()), "")


def shortened(text: str, most: int, hint: str = "") -> str:
    """The text; if it is longer than ``most`` characters, its middle is replaced by how much is missing and ``hint``.

    Not for command lines: without a quote from the middle, a shell would read the end differently.
    """
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} [... {len(text) - 2 * half} characters{hint} ...] {text[-half:]}"


def series(texts: Sequence[str], last: str = "and") -> str:
    """Texts joined for a sentence: ``a``, ``a and b``, ``a, b and c``."""
    return f" {last} ".join(filter(None, [", ".join(texts[:-1]), *texts[-1:]]))


def first_of(texts: Sequence[str], most: int, between: str = ", ") -> str:
    """The first texts, and how many more there are: ``a, b and 3 more``."""
    return between.join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")


def some_of(texts: Iterable[str], most: int = 3) -> str:
    """``first_of`` for a ``repr``: each text is escaped and shortened."""
    listed = list(texts)
    return first_of([printable(shortened(text, 60)) for text in listed[:most]] + listed[most:], most)


def html_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[object]], most: int = 20) -> str:
    """An HTML table for a notebook, with at most ``most`` rows and the number of further ones; all text is escaped."""
    from html import escape

    def cells(kind: str, values: Iterable[object]) -> str:
        shown = (escape(printable(shortened(str(value), 300))) for value in values)
        return "<tr>" + "".join(f"<{kind}>{text}</{kind}>" for text in shown) + "</tr>"

    all_rows = list(rows)
    lines = [cells("td", row) for row in all_rows[:most]]
    if len(all_rows) > most:
        lines.append(cells("td", [f"and {len(all_rows) - most} more"]))
    title = escape(printable(caption))
    return f"<table><caption>{title}</caption><thead>{cells('th', head)}</thead><tbody>{''.join(lines)}</tbody></table>"


def count(number: int, noun: str, plural: str = "") -> str:
    """Text such as ``1 node`` or ``3 nodes``; ``plural`` is for nouns that do not just take an s."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def size_text(number: int) -> str:
    """A number of bytes in decimal units: ``12 bytes``, ``3.4 kB``, ``2.1 MB``."""
    if number < 1000:
        return count(number, "byte")
    size, unit = number / 1000, "kB"
    for larger in ("MB", "GB"):
        if size >= 999.95:
            size, unit = size / 1000, larger
    return f"{size:.1f} {unit}"


def bytes_of(text: str) -> int | None:
    """The number of bytes in a text such as ``500MB``, ``2GB``, ``1.5GiB`` or ``1024``; None for any other text."""
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,15})?)\s*([kKMGT]?)(i?)B?", text, re.ASCII)
    if match is None or float(match[1]) == 0:
        return None
    return int(float(match[1]) * (1024 if match[3] else 1000) ** " KMGT".index(match[2].upper() or " "))


QUESTION = "did you mean "
"""The beginning of a line that suggests other names."""

_OTHER_NAMES = {
    "ort": "onnxrt",
    "onnxruntime": "onnxrt",
    "onnx-runtime": "onnxrt",
    "ov": "openvino",
    "tensorrt": "trt",
}
"""Other tools' names for the engines -> biopsy's, where the letters are too different to be found as similar."""


def normalized(name: str) -> str:
    """The name of a distribution as an index has it: small letters, and single dashes between its words (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def similar(name: str, known: Iterable[str], *, most: int = 3, cutoff: float = 0.5) -> list[str]:
    """The known names that are similar to this one, the most similar first; upper and lower case count as the same.

    Another tool's name for an engine is similar to biopsy's, also as an option: ``--ort`` to ``--onnxrt``.

    ``cutoff``: the least similarity, from 0 to 1, as the ratio of ``difflib``.
    """
    from difflib import get_close_matches

    spellings: dict[str, list[str]] = {}
    for spelling in known:
        spellings.setdefault(spelling.casefold(), []).append(spelling)
    folded_name = name.casefold()
    bare = folded_name.lstrip("-")
    name_here = folded_name.removesuffix(bare) + _OTHER_NAMES.get(bare, "")
    if name_here in spellings:
        return spellings[name_here][:most]
    close = get_close_matches(folded_name, spellings, n=most, cutoff=cutoff)
    return [spelling for folded in close for spelling in spellings[folded]][:most]


def did_you_mean(name: str, known: Iterable[str], *, most: int = 3, cutoff: float = 0.5) -> list[str]:
    """A line that asks whether one of the known names was meant; no line if none is similar."""
    return ask_for(similar(name, known, most=most, cutoff=cutoff))


def ask_for(names: Sequence[str]) -> list[str]:
    """A line that asks whether one of these names was meant; no line if there are none."""
    return [f"{QUESTION}{' or '.join(map(repr, names))}?"] if names else []


_MOST_SHOWN = 200


@dataclass(frozen=True)
class ListOption:
    """An option with all its values. They may come from strangers, so none of them may be read as an option."""

    name: str
    values: Sequence[str]

    @property
    def words(self) -> list[str]:
        """The option as words for argparse, also if its only value begins with a dash."""
        is_joined = len(self.values) == 1 and _has_dash(self.values)
        return [f"{self.name}={self.values[0]}"] if is_joined else [self.name, *self.values]


def line_of(words: Iterable[str | ListOption]) -> str:
    """The words as one line of bash or zsh; if no line can express them, a comment that says why.

    Words that are not printable or not Unicode are written as ``$'...'``. A NUL or a lone surrogate cannot be typed at
    all. Nor can a value that begins with a dash, unless it is its option's only one: argparse would take it for an
    option, and options read, write and run files.
    """
    typed: list[str] = []
    for word in words:
        if isinstance(word, str):
            typed.append(word)
            continue
        # Even ``--option=--`` drops its value.
        misread = [each for each in word.values if each.startswith("-") and (len(word.values) > 1 or each == "--")]
        if misread:
            value = _in_comment(misread[0])
            return f"# {word.name} cannot be given {value}, which would be taken for an option: rename it first"
        typed += word.words
    for each in typed:
        if not can_be_typed(each):
            return f"# no shell can be given {_in_comment(each)}: rename it first"
    return " ".join(map(_quoted, typed))


def more_values(option: str, values: Sequence[str]) -> str:
    """More values of an option, to type after those that it has; a comment that says why if that is impossible."""
    if _has_dash(values):
        return line_of([ListOption(option, ["", *values])])
    return line_of(values)


def is_refused(line: str) -> bool:
    """Whether ``line_of`` returned a comment instead of a line to type."""
    return line.startswith("# ")


def _has_dash(values: Iterable[str]) -> bool:
    return any(value.startswith("-") for value in values)


def _in_comment(word: str) -> str:
    """A word quoted for a comment: an interactive zsh expands comments, too."""
    text = printable(word)
    return shlex.quote(text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}...")


def option_line(name: str, value: str) -> str:
    """An option with one value, such as ``--atol y:0.1``, as a line to type."""
    return line_of([ListOption(name, [value])])


def can_be_typed(word: str) -> bool:
    """Whether a word can be an argument of a program at all."""
    try:
        return b"\0" not in word.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False


def _quoted(word: str) -> str:
    if word == "{}":  # to a shell, plain text
        return word
    if word.isprintable():
        return shlex.quote(word)

    def escaped(byte: int) -> str:
        if byte in b"\\'":
            return f"\\{chr(byte)}"
        is_plain = 32 <= byte < 127 and byte not in b"!"  # some shells expand "!" in any quotes
        return chr(byte) if is_plain else f"\\x{byte:02x}"  # bash reads two digits at most

    return f"$'{''.join(map(escaped, word.encode('utf-8', 'surrogateescape')))}'"
