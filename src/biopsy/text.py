"""Text from others, made fit to be shown: names, types, messages and paths come from files that anybody may have made.

One rule: what stands in a line of ours is one line itself, and nothing in it acts on a terminal. The console holds to
it for all that it writes; what is joined with newlines before, or is written elsewhere, holds to it by ``printable``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


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
