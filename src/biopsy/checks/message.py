"""Messages of a failed program: the Python exception it died of, and a meaning that is equal across candidates."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

_LONGEST = 20_000
_LONGEST_MEANING = 400
_MOST_NESTED = 50
_LONGEST_EXACT = 4_000


@dataclass(frozen=True)
class Message:
    """A message in three forms: its ``meaning`` without its list, the ``items`` of that list, its ``exact`` words."""

    meaning: str = ""
    items: tuple[str, ...] = ()
    exact: str = ""

    def means(self, other: Message) -> bool:
        """Whether two messages are of the same failure: the same meaning, and a common list item if there are any."""
        return self.meaning == other.meaning and share_any(self.items, other.items)

    def __str__(self) -> str:
        """The meaning with the items; a prefix that items share is shown once."""
        before = ""
        items = []
        for item in self.items:
            what, colon, name = item.rpartition(": ")
            items.append(name if colon and what == before else item)
            before = what
        return " ".join(filter(None, (self.meaning, ", ".join(items))))


def share_any(some: Sequence[object], others: Sequence[object]) -> bool:
    """Whether two lists have an element in common, or are both empty."""
    return not (some or others) or not set(some).isdisjoint(others)


def message_of(text: str, candidate: str = "") -> Message:
    """The forms of a text that a check printed or reported about the model at the path ``candidate``."""
    text, name = text[:_LONGEST], candidate.rpartition("/")[2]
    if name:  # leave out the model's location: its path as given, and its file name
        text = re.sub(rf"(?<![\w./~+-])(?:[\w.~+-]*/)*{re.escape(name)}(?![\w-])", "{}", text)
    head: list[str] = []
    items: list[str] = []  # of a list: lines that begin with a dash or a star, or operator names
    for line in text.splitlines():
        bullet = _BULLET.fullmatch(line)
        line_text = bullet["item"] if bullet else line
        names = _OPERATORS.fullmatch(line_text.strip())
        if names is not None:
            what = normalised(names["what"])
            items += [f"{what}: {name}" for name in re.split(r",\s*", names["names"])]
        elif bullet is not None:
            items.append(normalised(line_text))
        elif not items:
            head.append(line)
    return Message(normalised("\n".join(head)), tuple(dict.fromkeys(items)), _exactly(text))


_OPERATORS = re.compile(
    r"(?P<what>.*\b(?:[Oo]perations?|[Oo]perators?|[Oo]ps|[Oo]p types?))\s*:\s*(?P<names>[\w.:-]+(?:,\s*[\w.:-]+)*)"
)
_BULLET = re.compile(r"\s*(?:--|[-*•])\s+(?P<item>\S.*)")


_SHIFT = 0xE000  # into a private range of Unicode, where no pattern below matches
_KEPT = {code: code + _SHIFT for code in range(0x21, 0x7F)}
_BACK = {code + _SHIFT: code for code in range(0x21, 0x7F)}

_NO_CODE_AFTER = re.compile(
    r"(?:abs(?:olute)?|average|greatest|largest|max(?:imum)?|mean|min(?:imum)?|quantization|rel(?:ative)?|rms|rounding"
    r"|squared|total|worst)\s+",
    re.IGNORECASE,
)
_CODE = re.compile(
    r"(?P<before>\b\w+\s+)?"
    r"(?P<name>\b(?i:(?:\w*error|err|errno|status|code|hresult|exit|signal|exception|fault|cuda\w*|cudnn\w*|cublas\w*)"
    r"(?:\(\))?(?:\s+(?:code|no\.?|number|status|value|error|failure|returned|failed with)){0,3}))"
    r"(?P<between>\s*(?:[=:#]|\()?\s*)"
    r"(?P<code>-?(?:0[xX][0-9a-fA-F]+|[A-Z]{0,3}\d{1,10}))"
    r"(?!\w|\.\d|[%*/x,]\d|%|\s*(?:[/<>]|of \d|is |exceeds)|\s*(?:ulps?|elements?|outputs?|values?|tensors?|nodes?)\b)"
)
_HRESULT = re.compile(r"(?<!at )(?<!address )\b0[xX][89a-fA-FC][0-9a-fA-F]{7}\b")
_KIND = re.compile(
    r"\b[A-Z]\w*(?:Error|Exception|Failure|Fault)\b"
    r"|\b[A-Z][A-Z0-9]*_(?:\w+_)?(?:ERROR|ERR|FAIL|FAILED|FAILURE|EXCEPTION|INVALID|ILLEGAL|UNSUPPORTED|NOT|OUT|OOM"
    r"|STATUS)(?:_[A-Z0-9_]+)?\b"
)
_TYPE = re.compile(
    r"(?:tensor|seq|optional|sequence)?\(?(?:b?float\d*|double|half|bool(?:ean)?|u?int\d*|string|complex\d+"
    r"|(?:bf|fp|[fiu])(?:8|16|32|64)|float\d+e\dm\d\w*)\)?",
    re.IGNORECASE,
)
_PHRASE = re.compile(r"\b[a-z]{2,} (?:_,? )*(?:an? )?[a-z]{2,}\b")
_NAMED_THING = re.compile(r"(?:node|input|output|tensor|layer|operator|op|initializer|name|attribute):? \S+")
_QUOTED_PHRASE = re.compile(r"[A-Za-z]{2,}(?: [a-z]+)+[.!]?")

_GROUPS = re.compile(
    r"(?<!\w)'(?P<quoted>[^'\n]*)'(?!\w)|\"(?P<double>[^\"\n]*)\"|`(?P<ticked>[^`\n]*)`"
    r"|\((?P<round>[^()]*)\)|\[(?P<square>[^\[\]]*)\]|\{(?P<curly>[^{}]*)\}"
)
_WORDS = re.compile(
    r"0[xX][0-9a-fA-F]+"  # addresses
    r"|(?<![\w.~+-])[\w.~+-]+\.onnx\b"
    r"|/[\w./+-]+"  # paths, and names with slashes
    r"|(?<![\w.])(?<!::)[A-Za-z_][\w.]*\d[\w.]*(?![\w.]|::)"  # names with numbers in them
    r"|[-+]?\d[\d.,x*e+-]*"  # numbers and shapes
)
_SEVERAL = re.compile(r"_(?:[\s,;x*]*_(?!\w))+")


def normalised(text: str) -> str:
    """A text without what differs between candidates: names, shapes, values, addresses, paths.

    What identifies an error stays: numbers after such a word (``CUDA error 700``, ``errno 12``), Windows codes
    (``0x80070005``), names of errors, element types, and words in brackets or quotes (``[ShapeInferenceError]``, ``(out
    of memory)``).
    """
    text = _CODE.sub(_with_code, text[:_LONGEST])
    text = _KIND.sub(_keep, _HRESULT.sub(_keep, text))
    for _ in range(_MOST_NESTED):  # brackets nest: a matrix is a list of rows
        before, text = text, _GROUPS.sub(_group, text)
        if text == before:
            break
    text = _SEVERAL.sub("_", _WORDS.sub(_word, text))
    return " ".join(text.translate(_BACK).split())[:_LONGEST_MEANING]


def _keep(match: re.Match[str]) -> str:
    return match[0].translate(_KEPT)


def _with_code(match: re.Match[str]) -> str:
    before = match["before"] or ""
    if _NO_CODE_AFTER.fullmatch(before):
        return match[0]
    return f"{before}{match['name']}{match['between']}{match['code'].translate(_KEPT)}"


def _group(match: re.Match[str]) -> str:
    """The replacement for quoted or bracketed text: a blank, unless it is words that identify an error."""
    inside = match[match.lastgroup or 0]
    opening, closing = match[0][0].translate(_KEPT), match[0][-1].translate(_KEPT)
    if any(ord(letter) in _BACK for letter in inside) or _TYPE.fullmatch(inside):
        kept = inside.translate(_KEPT) if _TYPE.fullmatch(inside) else _WORDS.sub(_word, inside)
        return f"{opening}{kept}{closing}"
    if match.lastgroup in {"quoted", "double", "ticked"}:
        return _keep(match) if _QUOTED_PHRASE.fullmatch(inside) else "_"
    if not _PHRASE.search(inside) or _NAMED_THING.fullmatch(inside):
        return "_"
    return f"{opening}{_WORDS.sub(_word, inside)}{closing}"


def _word(match: re.Match[str]) -> str:
    return match[0] if _TYPE.fullmatch(match[0]) else "_"


_TIMES = re.compile(
    r"\d{1,4}[-/]\d{1,2}[-/]\d{1,4}[ T-]\d{1,2}:\d{2}:\d{2}(?:[.,]\d+)?Z?"  # dates with times
    r"|\b\d{1,2}:\d{2}:\d{2}(?:[.,]\d+)?\b"
    r"|\b\d+(?:\.\d+)?(?:e[-+]?\d+)?\s?(?:ns|us|µs|μs|ms|s|secs?|seconds?|mins?|minutes?|h|hours?)\b"
)
_ADDRESS = re.compile(r"0[xX][0-9a-fA-F]{6,}")
_PROCESS = re.compile(
    r"(?P<name>\b(?i:pid|process|tid|thread)(?:[ _](?:id|number))?[\s=:#]*)\d+|(?<===)\d+(?===)|(?<=\w\[)\d+(?=\]:)"
)
_OUR_FOLDERS = re.compile(r"\bbiopsy-(?:check-)?[0-9a-f]{16}\b")


def _exactly(text: str) -> str:
    """A text without addresses, times, process numbers, and white space at line ends."""
    text = _HRESULT.sub(_keep, _CODE.sub(_with_code, text))
    text = _PROCESS.sub(lambda match: f"{match['name'] or ''}_", _TIMES.sub("_", _ADDRESS.sub("_", text)))
    text = _OUR_FOLDERS.sub("_", text).translate(_BACK)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())[:_LONGEST_EXACT]


@dataclass(frozen=True)
class Raised:
    """An exception: its type, and the function and source line in the user's own code.

    ``function`` and ``line`` are empty if no frame of the traceback is the user's.
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
    """The exceptions that ended a program, in the order in which they were raised, each the cause of the next.

    ``parts`` are the members of an exception group. ``message`` is the message of the last exception in ``chain``, and
    everything printed after it. ``certain``: nothing was printed after it.
    """

    chain: tuple[Raised, ...]
    parts: tuple[Raised, ...]
    message: str
    certain: bool


@dataclass(kw_only=True)
class _Block:
    """One exception of a traceback while it is read. ``frames`` are (file, line number, function, source text)."""

    is_part: bool = False
    follows: bool = False
    frames: list[tuple[str, str, str, str]] = field(default_factory=list)
    kind: str = ""
    message: list[str] = field(default_factory=list)


_LONGEST_LINE = 2_000
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\]8;[^\x1b\x07]*(?:\x1b\\|\x07)")
_HEADER = re.compile(r".*Traceback \(most recent call last\):\s*")
_FRAME = re.compile(r'\s+File "(?P<file>.*)", line (?P<number>\d+)(?:, in (?P<function>.*\S))?\s*')
_OF_SYNTAX = re.compile(r'\s+File ".*", line \d+\s*')
"""A syntax error has no traceback, only a place in its file."""
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
"""The outermost functions in the traceback of an uncaught exception."""


def death_in(text: str, status: int, scripts: Sequence[str]) -> Death | None:
    """The exception that a program ended with; None if the text does not end with a traceback.

    ``scripts`` are the user's own files: whole paths, or their ends. If none of them is in a traceback, the user's code
    is what is neither installed nor in the standard library.

    Text after a traceback is taken as part of the message if the exception cannot have been caught, or if the text
    looks so. Otherwise the program has gone on after printing the traceback.
    """
    lines = [line[:_LONGEST_LINE] for line in _COLOUR.sub("", text).splitlines()]
    blocks = list(_blocks(lines))
    starts = [number for number, block in enumerate(blocks) if not (block.is_part or block.follows)]
    blocks = blocks[starts[-1] :] if starts else []  # the last exception, its causes, and the parts of each
    main = [block for block in blocks if not block.is_part]
    if not main:
        return None
    last = main[-1]
    more = [line for line in last.message[1:] if line.strip()]
    if more and not (
        (status == 1 and (not last.frames or last.frames[0][2] in _WHOLE_PROGRAM | {""})) or _goes_on(last.message)
    ):
        return None
    chain = tuple(_raised(block, scripts) for block in main)
    parts = tuple(_raised(block, scripts) for block in blocks if block.is_part)
    certain = not more or _goes_on(last.message)
    return Death(chain, parts, "\n".join(last.message).strip(), certain)


def _goes_on(message: Sequence[str]) -> bool:
    """Whether a message visibly has several lines: the first ends early, or the next is indented or empty."""
    return message[0].rstrip().endswith((":", "(", "[", "{")) or not message[0].strip() or message[1][:1] in {"", " "}


def _raised(block: _Block, scripts: Sequence[str]) -> Raised:
    scripts = ["/" + script.lstrip("/") for script in scripts]
    own = [frame for frame in block.frames if any(("/" + frame[0]).endswith(script) for script in scripts)]
    own = own or [frame for frame in block.frames if not _NOT_THE_USERS.search(frame[0])]
    if not own:
        return Raised(block.kind)
    _, number, function, text = own[-1]
    return Raised(block.kind, function, text or f"line {number}")


def _blocks(lines: Sequence[str]) -> Iterator[_Block]:
    """Yield every exception printed with a traceback, or as part of a group, in order."""
    block: _Block | None = None
    depth, follows, part_begins, ignored = 0, False, False, False
    for printed in lines:
        edge = _EDGE_OF_PART.fullmatch(printed)
        if edge is not None and (depth or edge["opens"]):
            yield from _if_complete(block)
            block, part_begins = None, edge["part"] is not None
            depth += bool(edge["opens"]) - (edge["part"] is None)
            continue
        line = _MARGIN.sub("", printed, count=1)
        if _IGNORED.fullmatch(line):  # printed at the end of the program, after what it died of
            yield from _if_complete(block)
            block, ignored = None, True
        elif ignored:
            continue
        elif _CONNECTION.fullmatch(line):
            yield from _if_complete(block)
            block, follows = None, True
        elif (
            _HEADER.fullmatch(line) or (part_begins and line.strip()) or (block is None and _OF_SYNTAX.fullmatch(line))
        ):
            yield from _if_complete(block)
            block = _Block(is_part=depth > 0, follows=follows)
            follows = part_begins = False
            if not _HEADER.fullmatch(line):
                block = _read(block, line)
        elif block is not None:
            block = _read(block, line)
        elif line.strip():
            follows = False
    yield from _if_complete(block)


def _if_complete(block: _Block | None) -> Iterator[_Block]:
    if block is not None and block.kind:
        yield block


def _read(block: _Block, line: str) -> _Block | None:
    """The block with one more line; None if it turns out to be no exception."""
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
        match = _EXCEPTION.fullmatch(line)
        if match is None:
            return None
        block.kind = match["kind"]
        block.message.append((match["says"] or "").removeprefix(":").removeprefix(" "))
    return block
