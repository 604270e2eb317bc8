"""The Python exception that a program died of, from what it printed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Raised:
    """An exception: its type, and the function and the text of the line where the user's own code stood.

    ``function`` and ``line`` are empty where no frame of the traceback is the user's.
    """

    kind: str
    function: str = ""
    line: str = ""

    def __str__(self) -> str:
        """``ValueError in main: check(path)``."""
        place = "" if self.function in {"", "<module>"} else f" in {self.function}"
        return f"{self.kind}{place}{f': {self.line}' if self.line else ''}"


@dataclass(frozen=True)
class Death:
    """What ended a program: its exceptions in the order in which they were raised, each the cause of the next.

    ``parts`` are the exceptions of a group of exceptions. ``message`` is what the last one of ``chain`` says, and
    whatever was printed after it. ``certain``: nothing was printed after it.
    """

    chain: tuple[Raised, ...]
    parts: tuple[Raised, ...]
    message: str
    certain: bool


@dataclass(kw_only=True)
class _Block:
    """One exception of a traceback while it is read. ``frames`` are (file, number of the line, function, text)."""

    is_part: bool = False
    follows: bool = False
    frames: list[tuple[str, str, str, str]] = field(default_factory=list)
    kind: str = ""
    message: list[str] = field(default_factory=list)


_LONGEST_LINE = 2_000
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\]8;[^\x1b\x07]*(?:\x1b\\|\x07)")
_HEADER = re.compile(r".*Traceback \(most recent call last\):\s*")
_FRAME = re.compile(r'\s+File "(?P<file>.*)", line (?P<number>\d+)(?:, in (?P<function>.*\S))?\s*')
_EXCEPTION = re.compile(r"(?P<kind>[^\W\d][\w.<>]*)(?P<says>:.*)?")
_IGNORED = re.compile(r"Exception ignored (?:in|while|on)\b.*")
_CARETS = re.compile(r"[\s~^]*")
_CONNECTION = re.compile(
    r"\s*(?:During handling of the above exception, another exception occurred"
    r"|The above exception was the direct cause of the following exception):\s*"
)
_EDGE_OF_PART = re.compile(r"\s*(?P<opens>\+-)?\+-{4,}(?: (?P<part>\d+|\.\.\.) -{4,})?\s*")
_MARGIN = re.compile(r"^\s*(?:\|(?: |$)|\+ (?=Exception Group Traceback))")
_NOT_THE_USERS = re.compile(
    r"[/\\](?:site|dist)-packages[/\\]|[/\\]lib(?:64)?[/\\]python\d|python\d+\.zip|^<(?!string>)"
)
_WHOLE_PROGRAM = frozenset({"<module>", "_run_module_as_main", "_run_code"})
"""Functions that a traceback begins with where nobody caught the exception."""


def death_in(text: str, status: int, scripts: Sequence[str]) -> Death | None:
    """The exception that a program ended with; None if the text does not end with a traceback.

    ``scripts`` are the user's own: whole paths, or their ends. Where none of them is in a traceback, the user's code is
    what is neither installed nor of the standard library.

    What follows a traceback is taken for lines of its message where nobody can have caught the exception, or where it
    looks like them. Otherwise the program has gone on after it had printed it.
    """
    lines = [line[:_LONGEST_LINE] for line in _COLOUR.sub("", text).splitlines()]
    blocks = _last_chain(list(_blocks(lines)))
    main = [block for block in blocks if not block.is_part]
    if not main:
        return None
    last = main[-1]
    more = [line for line in last.message[1:] if line.strip()]
    if more and not (_may_be_uncaught(last, status) or _goes_on(last.message)):
        return None
    chain = tuple(_raised(block, scripts) for block in main)
    parts = tuple(_raised(block, scripts) for block in blocks if block.is_part)
    certain = not more or _goes_on(last.message)
    return Death(chain, parts, "\n".join(last.message).strip(), certain)


def _may_be_uncaught(block: _Block, status: int) -> bool:
    return status == 1 and (not block.frames or block.frames[0][2] in _WHOLE_PROGRAM | {""})


def _goes_on(message: Sequence[str]) -> bool:
    """Whether a message of several lines shows it: its first line ends early, or the next one is no sentence."""
    return message[0].rstrip().endswith((":", "(", "[", "{")) or not message[0].strip() or message[1][:1] in {"", " "}


def _raised(block: _Block, scripts: Sequence[str]) -> Raised:
    def is_script(file: str) -> bool:
        return any(file == script or file.endswith(f"/{script.lstrip('/')}") for script in scripts)

    own = [frame for frame in block.frames if is_script(frame[0])]
    own = own or [frame for frame in block.frames if not _NOT_THE_USERS.search(frame[0])]
    if not own:
        return Raised(block.kind)
    _, number, function, text = own[-1]
    return Raised(block.kind, function, text or f"line {number}")


def _last_chain(blocks: Sequence[_Block]) -> Sequence[_Block]:
    """The last exception, those that led to it, and the parts of each."""
    starts = [number for number, block in enumerate(blocks) if not (block.is_part or block.follows)]
    return blocks[starts[-1] :] if starts else ()


def _blocks(lines: Sequence[str]) -> Iterator[_Block]:
    """Every exception that was printed with its traceback, or as a part of a group, in order."""
    block: _Block | None = None
    depth, follows, part_begins, ignored = 0, False, False, False
    for printed in lines:
        edge = _EDGE_OF_PART.fullmatch(printed)
        if edge is not None and (depth or edge["opens"]):
            yield from _complete(block)
            block, part_begins = None, edge["part"] is not None
            depth += bool(edge["opens"]) - (edge["part"] is None)
            continue
        line = _MARGIN.sub("", printed, count=1)
        if _IGNORED.fullmatch(line):  # at the end of the program, after what it died of
            yield from _complete(block)
            block, ignored = None, True
        elif ignored:
            continue
        elif _CONNECTION.fullmatch(line):
            yield from _complete(block)
            block, follows = None, True
        elif _HEADER.fullmatch(line) or (part_begins and line.strip()) or _opens_syntax_error(block, line):
            yield from _complete(block)
            block = _Block(is_part=depth > 0, follows=follows)
            follows = part_begins = False
            if not _HEADER.fullmatch(line):
                block = _read(block, line)
        elif block is not None:
            block = _read(block, line)
        elif line.strip():
            follows = False
    yield from _complete(block)


def _complete(block: _Block | None) -> Iterator[_Block]:
    if block is not None and block.kind:
        yield block


def _opens_syntax_error(block: _Block | None, line: str) -> bool:
    """A script that is no Python has no traceback, only the place in its file."""
    frame = _FRAME.fullmatch(line)
    return block is None and frame is not None and frame["function"] is None


def _read(block: _Block, line: str) -> _Block | None:
    """A block with one more line; None if it turns out to be none."""
    if block.kind:
        block.message.append(line)
        return block
    frame = _FRAME.fullmatch(line)
    if frame is not None:
        block.frames.append((frame["file"], frame["number"], frame["function"] or "", ""))
    elif not line.strip() or line[0] == " ":
        if block.frames and not block.frames[-1][3] and not _CARETS.fullmatch(line) and "[Previous line" not in line:
            block.frames[-1] = (*block.frames[-1][:3], " ".join(line.split()))
    else:
        found = _EXCEPTION.fullmatch(line)
        if found is None:
            return None
        block.kind = found["kind"]
        block.message.append((found["says"] or "").removeprefix(":").removeprefix(" "))
    return block
