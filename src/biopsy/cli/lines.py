"""Command lines as a person can paste them into a shell."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Sequence


def line_of(words: Sequence[str]) -> str:
    """The words as one line of bash: what no quotes can hold, such as names that are no Unicode, is in ``$'...'``."""
    return " ".join(map(_quoted, words))


def _quoted(word: str) -> str:
    if word == "{}":  # which means nothing to a shell
        return word
    data = word.encode("utf-8", "surrogateescape")
    if word.isprintable() and data == word.encode("utf-8", "replace"):
        return shlex.quote(word)
    return f"$'{''.join(map(_escaped, data))}'"


def _escaped(byte: int) -> str:
    if byte in b"\\'":
        return f"\\{chr(byte)}"
    return chr(byte) if 32 <= byte < 127 else f"\\x{byte:02x}"  # bash reads two digits at most


def resume_line(words: Sequence[str], rest: Collection[str], without: Collection[str] = ()) -> str:
    """The line that goes on with what the words began.

    Without ``--fresh``, which would begin anew, and without the options ``without``, which have one value each. What
    stands behind one of ``rest``, the options that take all that follows, is left alone.
    """
    return line_of(["biopsy", *_kept(words, rest, {"--fresh": 0, **dict.fromkeys(without, 1)})])


def _kept(words: Sequence[str], rest: Collection[str], dropped: dict[str, int]) -> Iterator[str]:
    skip = 0
    for place, word in enumerate(words):
        if word in rest:
            yield from words[place:]
            return
        if skip:
            skip -= 1
        elif word in dropped:
            skip = dropped[word]
        elif word.partition("=")[0] not in dropped:
            yield word
