"""What the original and the result say at their end: a person must see it where only a status makes them alike."""

from __future__ import annotations

import re

from biopsy.checks.judge import Rules
from biopsy.checks.signature import Signature, same_failure
from biopsy.shell_words import line_of

_SHORTEST_HINT = 8
_LONGEST_SHOWN = 300


def last_words(original: Signature, result: Signature, rules: Rules) -> tuple[str, str] | None:
    """The ends of both if they mean different failures and the rules did not ask; None otherwise.

    What a signal, a limit or the check's own report says is stronger than any last line.
    """
    stronger = original.status < 0 or original.timed_out or original.out_of_memory or original.reported
    if stronger or rules.decide_alone or rules.match not in {"status", "auto"}:
        return None
    if same_failure(result, original, "message"):
        return None
    return shown_words(original), shown_words(result)


def shown_words(signature: Signature) -> str:
    """The end of what was printed, as one line of a message."""
    text = " ".join(signature.words.exact.split())
    return text[:_LONGEST_SHOWN] or "(nothing)"


def doubt(original: Signature, result: Signature) -> list[str]:
    """What a person should know of such a result, and the options that tell the two failures apart; lines."""
    return [
        "the result has the status of the original, but what they print at their end differs. It may be another"
        " failure:",
        f"  original   {shown_words(original)}",
        f"  result     {shown_words(result)}",
        f"  {telling_apart(original, result)}",
    ]


def telling_apart(original: Signature, other: Signature) -> str:
    """The options that tell two failures apart that have the same status."""
    match = "message" if same_failure(other, original, "auto") else "auto"
    regex = _particular(original, other)
    named = f"; --fail-regex {line_of([regex])} names the one you are after" if regex else ""
    return f"--match {match} tells them apart{named}"


def _particular(original: Signature, result: Signature) -> str:
    """The longest piece of what the original says that the result does not say, as a regular expression; "" if none."""
    pieces = [piece.strip(" :;,.") for piece in re.split(r"(?<!\w)_(?!\w)", original.words.meaning)]
    usable = [
        piece
        for piece in pieces
        if len(piece) >= _SHORTEST_HINT and piece in original.words.exact and piece not in result.words.exact
    ]
    return re.escape(max(usable, key=len)).replace("\\ ", " ") if usable else ""
