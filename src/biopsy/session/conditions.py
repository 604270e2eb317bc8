"""What the answers of a check depend on besides the model: files, packages, the hardware, and whether the check is
still the program that it was.
"""

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
    """The path of a file with its state, which changes when the file does; for a folder, those of the files in it.

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
            rest = hashlib.blake2b(digest_size=16)
            for file in files[_MOST_FILES:]:
                rest.update(f"{file} {state_of(file, 0)}\n".encode("utf-8", "surrogateescape"))
            yield f"{path}, {len(files) - _MOST_FILES} more files", rest.hexdigest()


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
    from importlib.metadata import entry_points

    yield "Python", ".".join(map(str, sys.version_info[:3]))
    packages: dict[str, str] = {}
    for place in reversed(sys.path):  # the first one is the one that is loaded
        with contextlib.suppress(OSError):
            for name in os.listdir(place or "."):  # noqa: PTH208 -- names; reading each one's metadata takes long
                folder = _INSTALLED.fullmatch(name)
                if folder is not None and _OF_ENGINES.fullmatch(folder["name"]):
                    packages[_canonical(folder["name"])] = folder["version"]
    plug_ins = [entry for entry in entry_points(group=_ENGINES) if entry.dist is None or entry.dist.name != "biopsy"]
    for entry in plug_ins:
        packages.update(_needed(entry.dist.name if entry.dist is not None else "", {}))
    yield from sorted(packages.items())
    for package in sorted({entry.module.partition(".")[0] for entry in plug_ins}):
        # Its files may be changed without a new version while it is written.
        spec = None
        with contextlib.suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(package)
        for place in [] if spec is None else spec.submodule_search_locations or filter(None, [spec.origin]):
            yield from ((f"engine code {name}", state) for name, state in states(Path(place)))


def _needed(name: str, known: dict[str, str]) -> dict[str, str]:
    """``known`` with a distribution and those that it requires, as far as they are installed."""
    from importlib.metadata import PackageNotFoundError, requires, version

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


# The hardware of this machine as engines see it, as far as the system tells: processor, graphics cards, driver.

_FEATURES = frozenset(
    {
        *("sse4_2", "avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni"),
        *("avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "amx_fp16"),
        *("asimd", "asimdhp", "asimddp", "fphp", "bf16", "i8mm", "sve", "sve2", "svebf16"),
    }
)
"""Features of a processor by which engines choose their kernels, or round otherwise."""

_CPU, _NVIDIA = Path("/proc/cpuinfo"), Path("/proc/driver/nvidia")
_MOST_READ = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """``features`` are those of the processor that change how engines compute.

    ``graphics`` are the cards of NVIDIA, by the names of their models, ``driver`` is the version of their driver.
    """

    processor: str
    features: tuple[str, ...]
    graphics: tuple[str, ...]
    driver: str | None


def hardware() -> Hardware:
    """That of this machine."""
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
    """The lines ``key : value`` at the beginning of a file, the first of each key; none where it cannot be read."""
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


# What kind of machine runs checks: another processor, graphics card, driver or package makes another engine.

_MOST_TOLD = 4
_LONGEST_TOLD = 80
_NONE = "none"


@dataclass(frozen=True, kw_only=True)
class MachineKind:
    """``facts`` are what answers of a check depend on there besides the model and its files, by name.

    ``machine`` is the name of the machine, which is none of them.
    """

    machine: str
    facts: Mapping[str, str]

    def __str__(self) -> str:
        parts = [self.facts.get(name, _NONE) for name in (_PROCESSOR, _GRAPHICS)]
        return f"{self.machine} ({', '.join(part for part in parts if part != _NONE)})"

    def differences(self, other: MachineKind) -> str:
        """How another one differs, in words; "" if it is of the same kind."""
        names = [name for name in sorted({*self.facts, *other.facts}) if self.facts.get(name) != other.facts.get(name)]
        told = [f"{name}: {_told(self.facts.get(name), other.facts.get(name))}" for name in names[:_MOST_TOLD]]
        more = [f"and {len(names) - _MOST_TOLD} more"] if len(names) > _MOST_TOLD else []
        return "; ".join([*told, *more])


_PROCESSOR, _PROCESSOR_FEATURES, _GRAPHICS, _DRIVER = "processor", "processor features", "GPU", "GPU driver"
_HARDWARE = (_PROCESSOR, _PROCESSOR_FEATURES, _GRAPHICS, _DRIVER)


def this_machine() -> MachineKind:
    """The kind of this machine, with the Python and the packages of this process."""
    found = hardware()
    facts = {
        _PROCESSOR: found.processor,
        _PROCESSOR_FEATURES: " ".join(found.features) or _NONE,
        _GRAPHICS: ", ".join(sorted(set(found.graphics))) or _NONE,
        _DRIVER: found.driver or _NONE,
        **dict(versions()),
    }
    return MachineKind(machine=platform.node() or "this machine", facts=facts)


def differing(kinds: Sequence[MachineKind]) -> str:
    """How machines differ from the first of them, in words; "" if all are of one kind."""
    for kind in kinds[1:]:
        words = kinds[0].differences(kind)
        if words:
            return f"machines differ, so they are different engines: {kinds[0].machine} and {kind.machine} ({words})"
    return ""


def unlike_this_one(kinds: Sequence[MachineKind]) -> str:
    """How the machines that run checks differ from the one that a search is steered from, in words; "" if none does."""
    here = this_machine()
    for kind in kinds:
        words = here.differences(kind)
        if words:
            return f"checks run on another kind of machine than this one: {kind.machine} ({words})"
    return ""


def conditions(kinds: Sequence[MachineKind]) -> Iterator[tuple[str, str]]:
    """What the answers of a search depend on that runs checks on machines of these kinds; none: on this machine.

    Candidates are made here, by packages of ours. The hardware is that which runs the checks. Of machines that differ,
    a fact has each of their values.
    """
    here = this_machine()
    yield from ((name, value) for name, value in here.facts.items() if not (kinds and name in _HARDWARE))
    for name in sorted({*here.facts, *(name for kind in kinds for name in kind.facts)} if kinds else ()):
        told = " or ".join(sorted({kind.facts.get(name, _NONE) for kind in kinds}))
        if name in _HARDWARE:
            yield name, told
        elif told != here.facts.get(name):
            yield f"{name} of other machines", told


def _told(one: str | None, other: str | None) -> str:
    """Two values that differ; of long ones, the words that only one of them has."""
    values = [one or _NONE, other or _NONE]
    if any(len(value) > _LONGEST_TOLD for value in values):
        words = [value.split() for value in values]
        values = [" ".join(word for word in words[at] if word not in words[1 - at]) or _NONE for at in (0, 1)]
    return ", ".join(value[:_LONGEST_TOLD] for value in values)


# Whether a check is still what it was when a search began: somebody may edit its script meanwhile.

_MOST_HASHED_OF_A_PROGRAM = 1 << 20  # bytes; of a larger file the size and time tell


class SteadyProgram:
    """The files that a check runs, as they were when this was made.

    One that has changed by the end of the first run changes whenever the check runs, and is not watched any more.
    """

    def __init__(self, files: Iterable[Path]) -> None:
        self._seen: dict[Path, tuple[FileState | None, str]] = {
            path.absolute(): (state_at(path), state_of(path, _MOST_HASHED_OF_A_PROGRAM)) for path in files
        }
        self._has_run = False

    def after_run(self) -> list[Path]:
        """The files that change whenever the check runs: found once, when its first run has ended.

        Raises CheckChanged if one of them holds something else after a later run. One that was written anew with the
        same may.
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
