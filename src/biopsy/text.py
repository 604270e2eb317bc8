"""Text fit to be shown to a person: names and messages from untrusted files, numbers in words, command lines to
paste, and names that may have been meant.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


def printable(text: str) -> str:
    r"""The text as one line, safe for a terminal: what is not printable is escaped, visibly, as in ``\x1b``.

    So are controls and newlines, marks that change the direction or have no width, lone surrogates, and characters that
    this Python does not know. It is what ``repr`` escapes too, so that a name looks the same wherever it is shown.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def first_line(text: str) -> str:
    """The first line that says something; "" if there is none, as in the message of an exception without one."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def shortened(text: str, most: int, hint: str = "") -> str:
    """The text without its middle if it is longer than ``most`` characters.

    How much is missing is said in its place, and ``hint`` after it.

    Not for command lines: a quote may be among what is cut, and what follows then means something else to a shell.
    """
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} [... {len(text) - 2 * half} characters{hint} ...] {text[-half:]}"


def series(texts: Sequence[str], last: str = "and") -> str:
    """Texts as a sentence names them: ``a``, ``a and b``, ``a, b and c``."""
    return f" {last} ".join(filter(None, [", ".join(texts[:-1]), *texts[-1:]]))


def first_of(texts: Sequence[str], most: int, between: str = ", ") -> str:
    """The first few of some texts, and how many more there are: ``a, b and 3 more``."""
    return between.join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")


def some_of(texts: Iterable[str], most: int = 3) -> str:
    """The first few of some texts as one short line, and how many more there are: for a ``repr``."""
    every = list(texts)
    return first_of([printable(shortened(text, 60)) for text in every[:most]] + every[most:], most)


def html_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[object]], most: int = 20) -> str:
    """A table for a notebook. Everything in it is escaped: names come from files that anybody may have made.

    At most so many rows are shown; how many more there are is said below them.
    """
    from html import escape

    def cells(kind: str, values: Iterable[object]) -> str:
        shown = (escape(printable(shortened(str(value), 300))) for value in values)
        return "<tr>" + "".join(f"<{kind}>{text}</{kind}>" for text in shown) + "</tr>"

    every = list(rows)
    left = [f"and {len(every) - most} more"] if len(every) > most else []
    lines = [cells("td", row) for row in every[:most]] + [cells("td", left)] * len(left)
    title = escape(printable(caption))
    return f"<table><caption>{title}</caption><thead>{cells('th', head)}</thead><tbody>{''.join(lines)}</tbody></table>"


# Numbers in words, as every message, help text and report writes them.


def count(number: int, noun: str, plural: str = "") -> str:
    """Text such as ``1 node`` or ``3 nodes``; ``plural`` where it is not the noun with an s."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def size_text(number: int) -> str:
    """A number of bytes for people, in decimal units: ``12 bytes``, ``3.4 kB``, ``2.1 MB``."""
    if number < 1000:
        return count(number, "byte")
    for unit in ("kB", "MB", "GB"):
        number_in_unit = number / 1000 ** ("kB", "MB", "GB").index(unit) / 1000
        if number_in_unit < 999.95 or unit == "GB":
            return f"{number_in_unit:.1f} {unit}"
    raise AssertionError("the last unit always fits")


def bytes_of(text: str) -> int | None:
    """The bytes that a person means by ``500MB``, ``2GB``, ``1.5GiB`` or a number of them; None for anything else."""
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,15})?)\s*([kKMGT]?)(i?)B?", text, re.ASCII)
    if match is None or float(match[1]) == 0:
        return None
    return int(float(match[1]) * (1024 if match[3] else 1000) ** " KMGT".index(match[2].upper() or " "))


# Names that a person may have meant: the one place that knows what is near, and how it is asked.

QUESTION = "did you mean "
"""How a line begins that asks whether something similar was meant."""


_OTHER_NAMES = {
    "ort": "onnxrt",
    "onnxruntime": "onnxrt",
    "onnx-runtime": "onnxrt",
    "ov": "openvino",
    "tensorrt": "trt",
}
"""What people call the engines elsewhere, in no letters that are like those of the names here."""


def normalized(name: str) -> str:
    """The name of a distribution as an index has it: small letters, and single dashes between its words (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def similar(name: str, known: Iterable[str], *, most: int = 3, cutoff: float = 0.5) -> list[str]:
    """The known names that are like this one, most alike first; letters of another case count as the same.

    What an engine is called elsewhere is like its name here, also as an option: ``--ort`` is like ``--onnxrt``.

    ``cutoff``: how alike they must be, from 0 to 1, by the ratio of ``difflib``.
    """
    from difflib import get_close_matches

    spellings: dict[str, list[str]] = {}
    for one in known:
        spellings.setdefault(one.casefold(), []).append(one)
    folded_name = name.casefold()
    bare = folded_name.lstrip("-")
    meant = folded_name.removesuffix(bare) + _OTHER_NAMES.get(bare, "")
    if meant in spellings:
        return spellings[meant][:most]
    close = get_close_matches(folded_name, spellings, n=most, cutoff=cutoff)
    return [one for folded in close for one in spellings[folded]][:most]


def did_you_mean(name: str, known: Iterable[str], *, most: int = 3, cutoff: float = 0.5) -> list[str]:
    """A line that asks whether one of the known names was meant; nothing if none is near."""
    return ask_for(similar(name, known, most=most, cutoff=cutoff))


def ask_for(names: Sequence[str]) -> list[str]:
    """A line that asks whether one of these was meant; nothing if there are none."""
    return [f"{QUESTION}{' or '.join(map(repr, names))}?"] if names else []


# Command lines as a person can paste them into a shell, whatever the names in them hold.

_MOST_SHOWN = 200


@dataclass(frozen=True)
class ListOption:
    """An option with all its values, which come from anywhere: none of them may become an option itself."""

    name: str
    values: Sequence[str]

    @property
    def words(self) -> list[str]:
        """The words that argparse reads this option from, even if its only value begins with a dash."""
        alone = len(self.values) == 1 and _has_dash(self.values)
        return [f"{self.name}={self.values[0]}"] if alone else [self.name, *self.values]


def line_of(words: Iterable[str | ListOption]) -> str:
    """The words as one line of bash or zsh; a comment that says why where no line can hold them.

    What no quotes can hold, controls, marks and names that are no Unicode, stands in ``$'...'``: it reads back as what
    was meant, and neither the terminal nor who pastes it takes it for something else. A NUL cannot be typed at all, nor
    can half a surrogate pair: such a thing must be renamed first. So must a value that begins with a dash, unless it is
    the only one of its option: argparse takes it for an option, and options read, write and run files.
    """
    typed: list[str] = []
    for word in words:
        if isinstance(word, str):
            typed.append(word)
            continue
        if (wrong := _misread(word.values)) is not None:
            return f"# {word.name} cannot be given {_shown(wrong)}, which would be taken for an option: rename it first"
        typed += word.words
    for wrong in typed:
        if not can_be_typed(wrong):
            return f"# no shell can be given {_shown(wrong)}: rename it first"
    return " ".join(map(_quoted, typed))


def more_values(option: str, values: Sequence[str]) -> str:
    """Values to type behind those that an option has already; a comment that says why where that is impossible."""
    if _has_dash(values):
        return line_of([ListOption(option, ["", *values])])
    return line_of(values)


def is_refused(line: str) -> bool:
    """Whether a line is only the comment that says why there is none."""
    return line.startswith("# ")


def _has_dash(values: Iterable[str]) -> bool:
    return any(value.startswith("-") for value in values)


def _misread(values: Sequence[str]) -> str | None:
    """The first value that no form gives an option: ``--option=-x`` has one value, and ``--`` is dropped even there."""
    return next((value for value in values if value.startswith("-") and (len(values) > 1 or value == "--")), None)


def _shown(word: str) -> str:
    """In quotes: zsh looks for what to run in comments too, when it is typed into."""
    text = printable(word)
    return shlex.quote(text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}...")


def option_line(name: str, value: str) -> str:
    """An option with one value, such as ``--atol y:0.1``, which reads back as what was meant."""
    return line_of([ListOption(name, [value])])


def can_be_typed(word: str) -> bool:
    """Whether a program can be given a word at all."""
    try:
        return b"\0" not in word.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False


def _quoted(word: str) -> str:
    if word == "{}":  # which means nothing to a shell
        return word
    if word.isprintable():
        return shlex.quote(word)
    return f"$'{''.join(map(_escaped, word.encode('utf-8', 'surrogateescape')))}'"


def _escaped(byte: int) -> str:
    if byte in b"\\'":
        return f"\\{chr(byte)}"
    plain = 32 <= byte < 127 and byte not in b"!"  # which some shells look for in any quotes
    return chr(byte) if plain else f"\\x{byte:02x}"  # bash reads two digits at most
