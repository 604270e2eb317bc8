"""What goes to another machine with a script, though no word of the check names it: files beside it, and variables."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from biopsy.checks.modules_beside import imported_names
from biopsy.filesystem.plain_file import read_plain

_LARGEST_TEXT = 1 << 20  # bytes of a script
_MOST = 1000
_LONGEST = 255  # characters of a path in a text
_PATH = re.compile(r"(?:\$\w+/|[)}\"']/|(?<![\w./+$-]))([\w.+-]+(?:/[\w.+-]+)*)")
"""A path from a folder, also behind one that is computed, as in "$folder"/rule.py."""
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_OF_A_MACHINE = re.compile(
    "_|PATH|HOME|USER|LOGNAME|SHELL|PWD|OLDPWD|SHLVL|HOSTNAME|TERM|TMPDIR|TMP|TEMP|DISPLAY|VIRTUAL_ENV|CUDA_HOME"
    "|LD_LIBRARY_PATH|LD_PRELOAD|PYTHONPATH|PYTHONHOME|CUDA_VISIBLE_DEVICES|BIOPSY_CACHE_DIR|BIOPSY_VERDICT|RAY_.*"
)
"""Variables that each machine has for itself: paths that stand there, devices that it lends."""
_OF_ENGINES = re.compile(
    r"(OMP|KMP|MKL|OPENBLAS|ORT|OV|CUBLAS|CUDNN|TORCH|TF|XLA)_\w+|NVIDIA_TF32_OVERRIDE|PYTHONHASHSEED"
)
"""Variables that libraries look at, whatever the text of a check says."""


@dataclass(frozen=True, kw_only=True)
class SentAlong:
    """What goes with a script: the files ``beside`` it that it may read, by their paths from its folder; those of the
    current folder, ``here``, by their paths from there; and the ``names`` that stand in the texts.

    A link to a script stands for the folder that it leads to, as for Python.
    """

    beside: Mapping[str, Path]
    here: Mapping[str, Path]
    names: frozenset[str]

    @classmethod
    def of(cls, script: Path) -> SentAlong:
        """What goes with a script: the modules and whole packages of its folder that it or they import, and files
        whose paths stand in the text of the script or of these. At most 1,000 of each folder. Never raises.
        """
        script, current = script.resolve(), Path.cwd()
        beside, here, names, waiting = dict[str, Path](), dict[str, Path](), set[str](), [script]
        while waiting:
            read = waiting.pop()
            text = _text_of(read)
            names.update(_NAME.findall(text))
            for found, folder, paths in (
                (beside, script.parent, [*_imported(read, script.parent), *_named_in(text, script.parent)]),
                (here, current, _named_in(text, current)),
            ):
                for path in paths:
                    name = path.relative_to(folder).as_posix()
                    if path != script and name not in found and len(found) < _MOST:
                        found[name] = path
                        waiting += [path] if path.suffix in {".py", ".sh"} else []
        return cls(beside=beside, here=here, names=frozenset(names))


def variables_of(words: Iterable[str], names: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """The variables of this process that ``words`` or ``names`` speak of, or libraries look at; none of the machine's.

    Engines, and libraries below them, look at some whatever the check says.
    """
    named = {*names, *(name for word in words for name in _NAME.findall(word))}
    return tuple(
        (name, value)
        for name, value in sorted(os.environ.items())
        if not _OF_A_MACHINE.fullmatch(name) and (name in named or _OF_ENGINES.fullmatch(name))
    )


def _imported(script: Path, folder: Path) -> Iterator[Path]:
    """The files of the modules that a Python script imports from a folder."""
    for name in dict.fromkeys(imported_names(script) if script.suffix == ".py" else ()):
        yield from _module(folder, name)


def _module(folder: Path, name: str) -> Iterator[Path]:
    """The files of a module in a folder: of a package all that stands in it, data too."""
    files = [folder / f"{name}{suffix}" for suffix in (".py", *EXTENSION_SUFFIXES)]
    yield from filter(Path.is_file, files)
    package = folder / name
    if package.is_dir() and any(package.glob("*.py")):
        yield from sorted(path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def _named_in(text: str, folder: Path) -> Iterator[Path]:
    """The files whose paths from a folder stand in a text, as far as they stay inside."""
    for name in dict.fromkeys(_PATH.findall(text)):
        parts = name.split("/")
        if ".." in parts or len(name) > _LONGEST or parts[0].isdigit():
            continue
        with suppress(OSError):
            if (folder / name).is_file():
                yield folder / name


def _text_of(script: Path) -> str:
    try:
        data = read_plain(script, _LARGEST_TEXT, follow=True)
    except (OSError, ValueError):
        return ""
    return "" if b"\0" in data else data.decode("utf-8", "replace")
