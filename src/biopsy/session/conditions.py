"""What the answers of a check depend on besides the model: files, folders, and the packages that engines load."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
import stat
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, entry_points, requires, version
from itertools import islice
from pathlib import Path

_MOST_HASHED = 64 << 20  # bytes; of a larger file its size and time are taken
_MOST_HASHED_OF_A_FOLDER = 256 << 20
_MOST_FILES = 2_000
"""Of one folder; what comes after them is counted, in one."""

_MOST_WALKED = 20_000
_NOT_LOOKED_INTO = frozenset({"__pycache__", "node_modules"})

_ENGINES = "biopsy.engines"
_OF_ENGINES = re.compile(r"(?:biopsy|numpy|ml[_-]dtypes|onnx|openvino|tensorrt|nvidia[_-]).*", re.IGNORECASE)
"""Distributions that engines of ours load. Names as they stand in the names of folders: ``onnxruntime_gpu``."""

_INSTALLED = re.compile(r"(?P<name>[\w.]+?)-(?P<version>[^-]+)\.(?:dist|egg)-info")
_MOST_PACKAGES = 200


def states(path: Path) -> Iterator[tuple[str, str]]:
    """A name and what tells of a change, for a file, or for every file in a folder. Never raises OSError.

    A pipe or a device, which cannot be read twice, has none.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        yield str(path), "cannot be read"
        return
    if stat.S_ISREG(mode):
        yield str(path), state_of(path, _MOST_HASHED)
    elif stat.S_ISDIR(mode):
        yield from _states_within(path)


def _states_within(folder: Path) -> Iterator[tuple[str, str]]:
    left = _MOST_HASHED_OF_A_FOLDER
    files = sorted(islice(_files(folder), _MOST_WALKED))
    for path in files[:_MOST_FILES]:
        with contextlib.suppress(OSError):
            size = path.stat().st_size
            yield str(path), state_of(path, min(left, _MOST_HASHED))
            left = max(0, left - size)
    if len(files) > _MOST_FILES:
        rest = hashlib.blake2b(digest_size=16)
        for path in files[_MOST_FILES:]:
            rest.update(f"{path} {state_of(path, 0)}\n".encode("utf-8", "surrogateescape"))
        yield f"{folder}, {len(files) - _MOST_FILES} more files", rest.hexdigest()


def _files(folder: Path) -> Iterator[Path]:
    """The plain files in a folder and those below it, but for hidden ones and caches."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _NOT_LOOKED_INTO and not name.startswith("."))
        for name in sorted(names):
            path = Path(place, name)
            with contextlib.suppress(OSError):
                if not name.startswith(".") and stat.S_ISREG(path.stat().st_mode):
                    yield path


def state_of(path: Path, most: int) -> str:
    """What tells whether a file has changed: a digest, or its size and time if it is larger than ``most`` bytes."""
    try:
        status = path.stat()
        if status.st_size == 0:
            return "empty"  # or a file of the kernel, whose reader may wait for ever
        if status.st_size > most:
            return f"{status.st_size} bytes of {status.st_mtime_ns}"
        return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"


def versions() -> Iterator[tuple[str, str]]:
    """Python, and every package that an engine may load, each with its version; plug-ins with their own code."""
    yield "Python", ".".join(map(str, sys.version_info[:3]))
    found = dict(_installed())
    plug_ins = [entry for entry in entry_points(group=_ENGINES) if entry.dist is None or entry.dist.name != "biopsy"]
    for entry in plug_ins:
        found.update(_needed(entry.dist.name if entry.dist is not None else "", {}))
    yield from sorted(found.items())
    for package in sorted({entry.module.partition(".")[0] for entry in plug_ins}):
        yield from ((f"engine code {name}", state) for name, state in _code(package))


def _installed() -> Iterator[tuple[str, str]]:
    """Packages of the engines that we know, from the names of their folders: reading each one's metadata takes long."""
    for place in reversed(sys.path):  # the first one is the one that is loaded
        with contextlib.suppress(OSError):
            for name in os.listdir(place or "."):  # noqa: PTH208 -- names, not paths
                found = _INSTALLED.fullmatch(name)
                if found is not None and _OF_ENGINES.fullmatch(found["name"]):
                    yield _canonical(found["name"]), found["version"]


def _needed(name: str, known: dict[str, str]) -> dict[str, str]:
    """``known`` with a distribution and those that it requires, as far as they are installed."""
    canonical = _canonical(name)
    if canonical in known or len(known) >= _MOST_PACKAGES:
        return known
    try:
        known[canonical] = version(name)
        wanted = requires(name) or ()
    except (PackageNotFoundError, ValueError):
        return known
    for requirement in wanted:
        named = re.match(r"[A-Za-z0-9][\w.-]*", requirement)
        if named is not None and "extra ==" not in requirement:
            _needed(named[0], known)
    return known


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _code(package: str) -> Iterator[tuple[str, str]]:
    """The files of a plug-in, which may be changed without a new version while it is written."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return
    places = [] if spec is None else list(spec.submodule_search_locations or filter(None, [spec.origin]))
    for place in places:
        yield from states(Path(place))
