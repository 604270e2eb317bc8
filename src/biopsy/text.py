"""Text from others, made fit to be shown: names, types, messages and paths come from files that anybody may have made.

One rule: what stands in a line of ours is one line itself, and nothing in it acts on a terminal. The console holds to
it for all that it writes; what is joined with newlines before, or is written elsewhere, holds to it by ``printable``.
"""

from __future__ import annotations


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
