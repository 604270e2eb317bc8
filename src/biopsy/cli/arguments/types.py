"""Values of options: argparse types for numbers, times, sizes and files, and parsers of ``NAME:VALUE`` words."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

from biopsy import errors
from biopsy.processes.reading import read_plain
from biopsy.text import bytes_of

if TYPE_CHECKING:
    from biopsy.model.tensor_type import Dim, Shape

SAVED_FORMATS = ".json (as Polygraphy), .npz, .safetensors, or a folder"
"""The formats for inputs and outputs, for help texts."""

_LARGEST_COUNT = 1_000_000
_LONGEST_TIME = 1e8  # seconds: three years


def count(text: str) -> int:
    """A whole number, 0 or more."""
    if not text.isdecimal():
        raise errors.UsageError("must be a whole number, 0 or more")
    return int(text)


def model_type(*known: str) -> Callable[[str], str]:
    """The ``type`` of --model-type, for a command that takes these types."""

    def parse(text: str) -> str:
        if text not in known:
            raise errors.UsageError(f"must be {' or '.join(known)}: convert other models to ONNX first")
        return text

    return parse


def positive(text: str) -> int:
    """A whole number from 1 to 1000000."""
    if not text.isdecimal() or not 1 <= int(text) <= _LARGEST_COUNT:
        raise errors.UsageError(f"must be a whole number from 1 to {_LARGEST_COUNT}")
    return int(text)


def status(text: str) -> int:
    """An exit status, or a signal as a negative number."""
    if re.fullmatch(r"-?\d{1,3}", text) is None or not -128 <= int(text) <= 255:
        raise errors.UsageError("must be an exit status from 0 to 255, or a signal such as -11")
    return int(text)


def count_or_all(text: str) -> int:
    """A whole number, 0 or more; or -1 for no limit."""
    if text == "-1":
        return -1
    try:
        return count(text)
    except errors.UsageError as error:
        raise errors.UsageError(f"{error.message}, or -1 for all") from error


def until(text: str) -> int | Literal["good", "bad"]:
    """When to stop repeating a command: after a number of runs, or after a ``good`` or ``bad`` one."""
    if text in ("good", "bad"):
        return text  # type: ignore[return-value]
    try:
        return positive(text)
    except errors.UsageError as error:
        raise errors.UsageError(f"{error.message}, or good or bad") from error


def probability(text: str) -> float:
    """A number between 0 and 1, both excluded."""
    value = _number(text)
    if not 0 < value < 1:
        raise errors.UsageError("must be a number between 0 and 1, such as 0.99")
    return value


def tolerance(text: str) -> float:
    """A number, 0 or more."""
    value = _number(text)
    if not 0 <= value < math.inf:
        raise errors.UsageError("must be a number, 0 or more, such as 1e-3")
    return value


def ratio(text: str) -> float:
    """A number above 1, such as 1.3."""
    value = _number(text)
    if not 1 < value < math.inf:
        raise errors.UsageError("must be a number above 1, such as 1.3")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def byte_size(text: str) -> int:
    """``500MB``, ``2GB``, ``1.5GiB`` or a number of bytes -> bytes."""
    number = bytes_of(text)
    if number is None:
        raise errors.UsageError("not a valid size: write 500MB, 2GB or 1.5GiB")
    return number


def duration(text: str) -> float:
    """``90``, ``90s``, ``10m`` or ``1.5h`` -> seconds."""
    match = re.fullmatch(r"(\d*\.?\d+)\s*([smh]?)", text)
    seconds = 0.0 if match is None else float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]
    if not 0 < seconds <= _LONGEST_TIME:
        raise errors.UsageError("not a valid time: write 90s, 10m or 1.5h")
    return seconds


def regex(option: str, text: str) -> re.Pattern[str]:
    """The regular expression given to ``option``. Raises UsageError, which names the option."""
    try:
        return re.compile(text)
    except re.error as error:
        raise errors.UsageError(f"{option} {text}: not a valid regular expression: {error}") from error


def binary_size(text: str) -> int:
    """A number of bytes, or of KiB, MiB or GiB as in ``16K``, ``16M`` or ``1G``, as Polygraphy writes thresholds."""
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,15})?)([kKmMgG]?)", text)
    if match is None:
        raise errors.UsageError("not a valid size: write a number of bytes, or 16K, 16M or 1G for KiB, MiB or GiB")
    return int(float(match[1]) * 1024 ** " KMG".index(match[2].upper() or " "))


# Parsers of ``NAME:VALUE`` words. Each takes the words of one option, or None, and raises a UsageError that names the
# option and shows an example. A name ends at the last colon that can end it, so names may contain ``:`` and ``/``.

Value = TypeVar("Value")


def by_name(words: Sequence[str] | None, option: str, example: str, parse: Callable[[str], Value]) -> dict[str, Value]:
    """``[NAME:]VALUE`` words -> values by name; "" is the name of the value for all others."""
    values = {}
    for word in words or ():
        name, colon, text = word.rpartition(":")
        try:
            if colon and not name:
                raise ValueError("there is no name before the colon")
            values[name] = parse(text)
        except ValueError as error:
            why = f"{text!r} is not a number" if "could not convert" in str(error) else str(error)
            raise _wrong(option, word, why, example) from error
    return values


def _wrong(option: str, word: str, why: str, example: str) -> errors.UsageError:
    return errors.UsageError(f"{option} {word}: {why}", next_steps=[f"{option} {example}"])


def number(text: str, least: float, most: float = math.inf, wrong: str = "") -> float:
    """A number within limits. Raises ValueError with the text ``wrong`` for one outside of them."""
    value = float(text)
    if not least <= value <= most:
        raise ValueError(f"{text!r} {wrong or f'is too small: it must be {least:g} or more'}")
    return value


def _range(text: str) -> tuple[float, float]:
    ends = [float(end) for end in text[1:-1].split(",")] if text[:1] + text[-1:] == "[]" else []
    if len(ends) != 2 or not all(map(math.isfinite, ends)) or ends[0] > ends[1]:
        raise ValueError(f"{text!r} is not a range: it needs two numbers, the smaller one first")
    return ends[0], ends[1]


def parse_ranges(words: Sequence[str] | None, option: str = "--val-range") -> dict[str, tuple[float, float]]:
    """``[0,1] x:[2,5]`` -> (least, greatest) by name, "" for all other inputs."""
    return by_name(words, option, "[0,1] x:[2,5]", _range)


_SHAPES = "x:[1,3,224,224] y:[2]"


def parse_symbolic_shapes(words: Sequence[str] | None, option: str = "--input-shapes") -> dict[str, Shape]:
    """``x:[N,3,-1] y:[2]`` -> shapes by name; a dimension is a size, a symbol (``N``, ``'N'``), or None for -1."""
    shapes: dict[str, Shape] = {}
    for word in words or ():
        name, bracket, text = word.rpartition(":[")
        if not bracket or not name or not text.endswith("]"):
            raise _wrong(option, word, "a name and a shape are needed", _SHAPES)
        dims = [dim.strip() for dim in text[:-1].split(",")] if text[:-1].strip() else []
        shapes[name] = tuple(_dim(option, word, dim) for dim in dims)
    return shapes


def _dim(option: str, word: str, text: str) -> Dim:
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    if quoted and text[1:-1]:
        return text[1:-1]
    if text.isdecimal():
        return int(text)
    if text != "-1" and not text.isidentifier():
        raise _wrong(option, word, f"{text!r} is not a dimension", _SHAPES)
    return None if text == "-1" else text


def parse_open_shapes(words: Sequence[str] | None, option: str = "--input-shapes") -> dict[str, tuple[int | None, ...]]:
    """Shapes by name, without symbols; None stands for -1: the size in the model, or 1 if that is open."""
    shapes: dict[str, tuple[int | None, ...]] = {}
    for name, shape in parse_symbolic_shapes(words, option).items():
        shapes[name] = tuple(dim for dim in shape if not isinstance(dim, str))
        if len(shapes[name]) < len(shape):
            raise _wrong(option, f"{name}:[...]", "every dimension must be a number", _SHAPES)
    return shapes


def parse_shapes(words: Sequence[str] | None, option: str = "--input-shapes") -> dict[str, tuple[int, ...]]:
    """``x:[1,3,224,224] y:[2]`` -> shapes by name, all dimensions known; ``x:[]`` is a scalar."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in parse_open_shapes(words, option).items():
        shapes[name] = tuple(dim for dim in shape if dim is not None)
        if len(shapes[name]) < len(shape):
            raise _wrong(option, f"{name}:[...]", "every dimension must be a number", _SHAPES)
    return shapes


def parse_symbols(words: Sequence[str] | None, option: str = "--input-symbols") -> dict[str, int]:
    """``N=8 length=128`` -> sizes by name; commas may stand for spaces."""
    sizes: dict[str, int] = {}
    for word in ",".join(words or ()).split(",") if words else ():
        name, equals, text = word.rpartition("=")
        if not equals or not name or not text.isdecimal():
            raise _wrong(option, word, "a name and a size are needed", "N=8 length=128")
        sizes[name] = int(text)
    return sizes


def parse_script(word: str, default: str = "load_data") -> tuple[Path, str]:
    """``FILE.py[:function]`` -> (path, name of the function); the drive letter of a path is not taken for a name."""
    path, colon, function = word.rpartition(":")
    if colon and function.isidentifier() and path:
        return Path(path), function
    return Path(word), default


def text_in(path: Path, most: int, option: str = "") -> str:
    """The text of a file of at most ``most`` bytes. Raises UsageError, which names the ``option``, if it has none."""
    named = f"{option} {path}".lstrip()
    try:
        return read_plain(path, most, follow=True).decode()
    except OSError as error:
        raise errors.UsageError(f"{named}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise errors.UsageError(f"{named}: it is not UTF-8 text") from error


# The type of every option that names a file is a ``FileKind``. So ``parser.require_distinct`` knows all files.

Task = Literal["read", "write", "make anew", "move"]
"""What happens to a file: it is read, replaced, written before each check (which may read it), or moved away after it.
"""


@dataclass(frozen=True)
class FileKind:
    """The ``type`` of an option that names a file or folder. The value is a Path, or a str if it is ``textual``.

    ``over``: options (by ``dest``) whose file it may replace, because that is read whole before. ``container``: it
    names a folder of files whose names biopsy chooses.
    """

    task: Task
    over: frozenset[str] = frozenset()
    container: bool = False
    textual: bool = False
    path_of: Callable[[str], Path] = Path

    def __call__(self, text: str) -> Path | str:
        """The value of the option."""
        return text if self.textual else Path(text)


_METAVARS: Mapping[object, str] = {
    count: "N", positive: "N", status: "STATUS", duration: "TIME", byte_size: "SIZE", binary_size: "SIZE",
}  # fmt: skip


def metavar_of(kind: object) -> str | None:
    """The metavar of options of this type, or None."""
    if isinstance(kind, FileKind):
        return "DIR" if kind.container else "FILE"
    return _METAVARS.get(kind)


READ = FileKind("read")
WRITTEN = FileKind("write")
ITERATION = FileKind("make anew")
ARTIFACT = FileKind("move")
FOLDER_READ = FileKind("read", container=True)
FOLDER_WRITTEN = FileKind("write", container=True)
READ_TEXT = FileKind("read", textual=True)


def written_over(*dests: str, textual: bool = False) -> FileKind:
    """A file that is written, and may be the one that another option reads."""
    return replace(WRITTEN, over=frozenset(dests), textual=textual)


def script_with_function(text: str) -> Path:
    """The path in ``FILE.py[:function]``."""
    return Path(text if text.endswith(".py") else text.rpartition(":")[0] or text)


READ_SCRIPT = FileKind("read", textual=True, path_of=script_with_function)


Derived: TypeAlias = Mapping[str, tuple[Path | None, FileKind]]
"""Files that no option names, such as a default output: name for messages -> path, or None, and kind."""
