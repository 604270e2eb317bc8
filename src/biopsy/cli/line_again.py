"""The command line that was typed, once more: to go on with what it began, to begin anew, or with one more option."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from biopsy import errors
from biopsy.shell_words import line_of


def resume_line(words: Sequence[str], rest: Collection[str], without: Collection[str] = ()) -> str:
    """The line that goes on with what the words began.

    Without ``--fresh``, which would begin anew, and without the options ``without``, which have one value each. What
    stands behind one of ``rest``, the options that take all that follows, is left alone.
    """
    return line_of(["biopsy", *_kept(words, rest, {"--fresh": 0, **dict.fromkeys(without, 1)})])


def fresh_line(words: Sequence[str], rest: Collection[str], command: str) -> str:
    """The line that begins anew what the words of a ``command``, the last word of its name, began."""
    return line_with(words, rest, command, ["--fresh"])


def line_with(
    words: Sequence[str], rest: Collection[str], command: str, added: Sequence[str], without: Collection[str] = ()
) -> str:
    """The line that does the same once more, with options ``added`` behind the last word of the command's name.

    Without those of ``without``, which have one value each.
    """
    kept = list(_kept(words, rest, {"--fresh": 0, **dict.fromkeys(without, 1)}))
    place = kept.index(command) + 1
    return line_of(["biopsy", *kept[:place], *added, *kept[place:]])


def begun_anew(error: errors.CheckChanged, line: str) -> errors.CheckChanged:
    """The same error with what is kept and the line to type next."""
    kept = error.kept or "nothing was written"
    return errors.CheckChanged(error.summary, details=error.details, kept=kept, next_steps=[line])


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
