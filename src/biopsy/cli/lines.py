"""The line that goes on with what a command line began."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from biopsy.shell_words import line_of


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
