"""What the answers of a check depend on besides the model: files, packages, hardware, and the check itself."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import platform
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from biopsy import errors
from biopsy.processes.reading import FileState, state_at
from biopsy.text import first_of, normalized

_MOST_HASHED = 64 << 20  # bytes; of a larger file its size and time are taken
_MOST_HASHED_OF_A_FOLDER = 256 << 20
_MOST_FILES = 2_000
"""Files of one folder with a state of their own; the others share one."""

_MOST_WALKED = 20_000
_NOT_LOOKED_INTO = frozenset({"__pycache__", "node_modules"})

_ENGINES = "biopsy.engines"
_OF_ENGINES = re.compile(r"(?:biopsy|numpy|ml[_-]dtypes|onnx|openvino|tensorrt|nvidia[_-]).*", re.IGNORECASE)
"""Distributions that our engines load, as spelled in folder names: ``onnxruntime_gpu``."""

_INSTALLED = re.compile(r"(?P<name>[\w.]+?)-(?P<version>[^-]+)\.(?:dist|egg)-info")
_MOST_PACKAGES = 200


def states(path: Path) -> Iterator[tuple[str, str]]:
    """A file's path and its state, which changes when the file does; for a folder, those of its files.

    Nothing for a pipe or a device, which cannot be read twice. Never raises OSError.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        yield str(path), "cannot be read"
        return
    if stat.S_ISREG(mode):
        yield str(path), state_of(path, _MOST_HASHED)
    elif stat.S_ISDIR(mode):
        left = _MOST_HASHED_OF_A_FOLDER
        files = sorted(islice(_files(path), _MOST_WALKED))
        for file in files[:_MOST_FILES]:
            with contextlib.suppress(OSError):
                size = file.stat().st_size
                yield str(file), state_of(file, min(left, _MOST_HASHED))
                left = max(0, left - size)
        if len(files) > _MOST_FILES:
            others = hashlib.blake2b(digest_size=16)
            for file in files[_MOST_FILES:]:
                others.update(f"{file} {state_of(file, 0)}\n".encode("utf-8", "surrogateescape"))
            yield f"{path}, {len(files) - _MOST_FILES} more files", others.hexdigest()


def _files(folder: Path) -> Iterator[Path]:
    """The plain files in a folder and below, except hidden ones and caches."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _NOT_LOOKED_INTO and not name.startswith("."))
        for name in sorted(names):
            path = Path(place, name)
            with contextlib.suppress(OSError):
                if not name.startswith(".") and stat.S_ISREG(path.stat().st_mode):
                    yield path


def state_of(path: Path, most: int) -> str:
    """The state of a file: a digest, or its size and time if it is larger than ``most`` bytes."""
    try:
        status = path.stat()
        if status.st_size == 0:
            return "empty"  # or a file of the kernel that may block its reader for ever
        if status.st_size > most:
            return f"{status.st_size} bytes of {status.st_mtime_ns}"
        return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"


def versions() -> Iterator[tuple[str, str]]:
    """The versions of Python and of every package that an engine may load; of plug-ins, also the code."""
    from importlib.metadata import entry_points

    yield "Python", ".".join(map(str, sys.version_info[:3]))
    packages: dict[str, str] = {}
    for place in reversed(sys.path):  # the first one is the one that is loaded
        with contextlib.suppress(OSError):
            for name in os.listdir(place or "."):  # noqa: PTH208 -- names; reading each one's metadata takes long
                folder = _INSTALLED.fullmatch(name)
                if folder is not None and _OF_ENGINES.fullmatch(folder["name"]):
                    packages[normalized(folder["name"])] = folder["version"]
    plug_ins = [entry for entry in entry_points(group=_ENGINES) if entry.dist is None or entry.dist.name != "biopsy"]
    for entry in plug_ins:
        packages.update(_needed(entry.dist.name if entry.dist is not None else "", {}))
    yield from sorted(packages.items())
    for package in sorted({entry.module.partition(".")[0] for entry in plug_ins}):
        # The files may change without a new version while the plug-in is being written.
        spec = None
        with contextlib.suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(package)
        for place in [] if spec is None else spec.submodule_search_locations or filter(None, [spec.origin]):
            yield from ((f"engine code {name}", state) for name, state in states(Path(place)))


def _needed(name: str, known: dict[str, str]) -> dict[str, str]:
    """Add a distribution and the installed ones that it requires to ``known``."""
    from importlib.metadata import PackageNotFoundError, requires, version

    canonical = normalized(name)
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


_FEATURES = frozenset(
    {
        *("sse4_2", "avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni"),
        *("avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "amx_fp16"),
        *("asimd", "asimdhp", "asimddp", "fphp", "bf16", "i8mm", "sve", "sve2", "svebf16"),
    }
)
"""Processor features by which engines choose kernels or round differently."""

_CPU, _NVIDIA = Path("/proc/cpuinfo"), Path("/proc/driver/nvidia")
_MOST_READ = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """The hardware of a machine as engines see it, as far as the system tells.

    ``features`` are the processor features that change results. ``graphics`` are the model names of NVIDIA cards,
    ``driver`` is the version of their driver.
    """

    processor: str
    features: tuple[str, ...]
    graphics: tuple[str, ...]
    driver: str | None


def hardware() -> Hardware:
    """The hardware of this machine."""
    cpu = dict(_facts(_CPU))
    flags = cpu.get("flags") or cpu.get("Features") or ""
    cards = [dict(_facts(path)).get("Model") for path in sorted(_NVIDIA.glob("gpus/*/information"))]
    return Hardware(
        processor=cpu.get("model name") or platform.processor() or platform.machine(),
        features=tuple(sorted(_FEATURES & set(flags.split()))),
        graphics=tuple(filter(None, cards)),
        driver=dict(_facts(_NVIDIA / "version")).get("NVRM version"),
    )


def _facts(path: Path) -> Iterator[tuple[str, str]]:
    """The lines ``key : value`` at the beginning of a file, the first per key; none if it cannot be read."""
    try:
        with path.open(encoding="utf-8", errors="replace") as stream:
            lines = stream.read(_MOST_READ).splitlines()
    except OSError:
        return
    met = set()
    for line in lines:
        key, colon, value = line.partition(":")
        if colon and (key := key.strip()) not in met:
            met.add(key)
            yield key, value.strip()


_MOST_TOLD = 4
_LONGEST_TOLD = 80
_NONE = "none"


@dataclass(frozen=True, kw_only=True)
class MachineKind:
    """A kind of machine: another processor, graphics card, driver or package makes another engine.

    ``facts`` are what answers of a check depend on there besides the model and its files, by name; the name of the
    ``machine`` does not count.
    """

    machine: str
    facts: Mapping[str, str]

    def __str__(self) -> str:
        parts = [self.facts.get(name, _NONE) for name in (_PROCESSOR, _GRAPHICS)]
        return f"{self.machine} ({', '.join(part for part in parts if part != _NONE)})"

    def differences(self, other: MachineKind) -> str:
        """How another kind differs, in words; "" if it does not."""
        names = [name for name in sorted({*self.facts, *other.facts}) if self.facts.get(name) != other.facts.get(name)]
        texts = [f"{name}: {_difference(self.facts.get(name), other.facts.get(name))}" for name in names]
        return first_of(texts, _MOST_TOLD, "; ")


_PROCESSOR, _PROCESSOR_FEATURES, _GRAPHICS, _DRIVER = "processor", "processor features", "GPU", "GPU driver"
_HARDWARE = (_PROCESSOR, _PROCESSOR_FEATURES, _GRAPHICS, _DRIVER)


def this_machine() -> MachineKind:
    """The kind of this machine, with the Python and the packages of this process."""
    here = hardware()
    facts = {
        _PROCESSOR: here.processor,
        _PROCESSOR_FEATURES: " ".join(here.features) or _NONE,
        _GRAPHICS: ", ".join(sorted(set(here.graphics))) or _NONE,
        _DRIVER: here.driver or _NONE,
        **dict(versions()),
    }
    return MachineKind(machine=platform.node() or "this machine", facts=facts)


def differing(kinds: Sequence[MachineKind]) -> str:
    """How machines differ from the first of them, in words; "" if they do not."""
    for kind in kinds[1:]:
        words = kinds[0].differences(kind)
        if words:
            return f"machines differ, so they are different engines: {kinds[0].machine} and {kind.machine} ({words})"
    return ""


def unlike_this_one(kinds: Sequence[MachineKind]) -> str:
    """How machines that run checks differ from this one, which steers the search, in words; "" if they do not."""
    here = this_machine()
    for kind in kinds:
        words = here.differences(kind)
        if words:
            return f"checks run on another kind of machine than this one: {kind.machine} ({words})"
    return ""


def conditions(kinds: Sequence[MachineKind]) -> Iterator[tuple[str, str]]:
    """What the answers of a search depend on; ``kinds`` are those of the machines that run checks, none for this one.

    Candidates are made here, by our packages; the hardware is that of the machines that run checks. If machines differ,
    a fact has all their values.
    """
    here = this_machine()
    yield from ((name, value) for name, value in here.facts.items() if not (kinds and name in _HARDWARE))
    for name in sorted({*here.facts, *(name for kind in kinds for name in kind.facts)} if kinds else ()):
        value = " or ".join(sorted({kind.facts.get(name, _NONE) for kind in kinds}))
        if name in _HARDWARE:
            yield name, value
        elif value != here.facts.get(name):
            yield f"{name} of other machines", value


def _difference(one: str | None, other: str | None) -> str:
    """Two different values; of long ones, only the words that the other does not have."""
    values = [one or _NONE, other or _NONE]
    if any(len(value) > _LONGEST_TOLD for value in values):
        words = [value.split() for value in values]
        values = [" ".join(word for word in words[at] if word not in words[1 - at]) or _NONE for at in (0, 1)]
    return ", ".join(value[:_LONGEST_TOLD] for value in values)


_MOST_HASHED_OF_A_PROGRAM = 1 << 20  # bytes; of a larger file the size and time tell


class SteadyProgram:
    """The files that a check runs, as they were when this was made: somebody may edit its script meanwhile.

    A file that has changed by the end of the first run is changed by every run, and is not watched any more.
    """

    def __init__(self, files: Iterable[Path]) -> None:
        self._seen: dict[Path, tuple[FileState | None, str]] = {
            path.absolute(): (state_at(path), state_of(path, _MOST_HASHED_OF_A_PROGRAM)) for path in files
        }
        self._has_run = False

    def after_run(self) -> list[Path]:
        """The files that every run of the check changes; empty after the first call.

        Raises CheckChanged if another file has a new content after a later run; rewriting the same content is allowed.
        """
        changed = []
        for path, (state, content) in self._seen.items():
            now = state_at(path)
            if now == state:
                continue
            if state_of(path, _MOST_HASHED_OF_A_PROGRAM) != content:
                changed.append(path)
            else:
                self._seen[path] = now, content
        if changed and self._has_run:
            raise errors.CheckChanged(
                f"the check changed while it ran: {str(changed[0])!r} is not what it was when this began",
                next_steps=["start over: what the check said before may not be what it says now"],
            )
        self._has_run = True
        for path in changed:
            del self._seen[path]
        return changed
