"""A task that another machine can run without our files: bytes, words, and the files it needs, by digest."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from threading import Lock
from typing import AnyStr, TypeVar

from biopsy import errors
from biopsy.checks.command import CommandCheck
from biopsy.checks.command_line import OwnCommand
from biopsy.checks.outcome import Check, Evidence
from biopsy.checks.task import NO_CANDIDATE, EngineFileCheck, Preparation, PreparedTask, Task
from biopsy.checks.words import imported_names, is_named, with_files
from biopsy.comparison.mismatch import Mismatch
from biopsy.model.external import files_referred_to
from biopsy.processes.reading import FileState, digest_of, read_plain, state_at

_BINARY = b"\x7fELF"
_LARGEST_MODEL = 1 << 31
_MOST_BYTES_OF_A_TASK = 32 << 20
"""A larger model in a file, asked about repeatedly, is sent once to each machine."""


@dataclass(frozen=True, kw_only=True)
class Content:
    """A file to put at a place: its SHA-256, its size in bytes, and whether it is executable."""

    place: str
    digest: str
    size: int
    is_program: bool


@dataclass(frozen=True, kw_only=True)
class PortableCheck:
    """The arguments of a CommandCheck, with paths of this machine.

    ``replaced`` maps files in the words to the files used in their place in this run. ``is_warm``: a warm process may
    serve it. With a ``builder``, the check looks at the file ``built`` that the builder makes of the candidate.
    """

    words: tuple[str, ...]
    default_name: str
    timeout: float | None
    memory: int | None
    environment: tuple[tuple[str, str | None], ...]
    replaced: tuple[tuple[str, str], ...]
    is_warm: bool
    builder: PortableCheck | None = None
    built: str = ""


@dataclass(frozen=True, kw_only=True)
class PortableTask:
    """A task: the check, the ``model`` to put at the place ``candidate``, and other files to put in places.

    Without a place, the check is a command without a candidate. ``places`` maps each path in the check to its place;
    ``python`` is the path of our interpreter. ``original`` is how the original's outputs differ.

    The ``model`` is None if it is sent like any other file, or made there. A task with a ``preparation`` may have no
    check. ``back`` are the paths, on this machine, of files to bring back.
    """

    check: PortableCheck | None
    candidate: str | None
    model: bytes | None
    places: tuple[tuple[str, str], ...]
    contents: tuple[Content, ...]
    original: tuple[Mismatch, ...]
    python: str
    preparation: Preparation | None = None
    back: tuple[str, ...] = ()


class TaskPacker:
    """Makes tasks portable. Remembers what it has read of each file until the file changes."""

    def __init__(self) -> None:
        self._folders: dict[Path, int] = {}
        self._digests: dict[Path, tuple[FileState, str]] = {}
        self._referred: dict[Path, tuple[FileState, dict[str, Path]]] = {}
        self._along: dict[Path, tuple[Mapping[Path, FileState | None], SentAlong]] = {}
        self._lock = Lock()

    def packed(self, task: Task) -> tuple[PortableTask, dict[str, Path]]:
        """The portable form of a task, and the file for each digest in it.

        Raises UsageError for a check that no other machine can run: one that is not a command, finds the candidate by
        itself, or reads what cannot be sent. Raises CheckError if a file cannot be read.
        """
        try:
            with self._lock:
                return self._packed(task)
        except OSError as error:
            raise errors.CheckError(f"cannot read {error.filename}: {error.strerror or error}") from error

    def _packed(self, task: Task) -> tuple[PortableTask, dict[str, Path]]:
        check, commands, replaced = (None, (), {}) if task.check is None else _parts_of(task.check)
        candidates = [] if task.candidate == NO_CANDIDATE else [task.candidate]
        is_prepared = isinstance(task, PreparedTask)
        if candidates and not is_prepared and not all(command.names_candidate for command in commands):
            raise errors.UsageError(
                "the check does not say where the candidate's path goes, which is another one on other machines",
                next_steps=["write {} in the check where it goes"],
            )
        models, sent = list[Path](), list[Path]()
        created = [Path(check.built)] if check is not None and check.built else []
        if isinstance(task, PreparedTask):
            models, sent, created = [*task.models], [*task.files], [*task.written, *task.back]
        besides = {*created, *replaced}
        named = [path for each in commands for path in _files_named(each, besides) if path not in models]
        files = {self._place(path): path for path in [*replaced.values(), *models, *sent]}
        for part in [*(self._files(each, named) for each in commands), *map(self._weights_of, models)]:
            files |= part
        model = None if task.parts is None else b"".join(task.parts)
        for candidate in [] if is_prepared else candidates:
            if model is not None:
                files |= self._weights(model, candidate.parent)
                continue
            files |= self._weights_of(candidate)
            if candidate.stat().st_size > _MOST_BYTES_OF_A_TASK:
                files |= {self._place(candidate): candidate}
            else:
                model = candidate.read_bytes()
        if check is not None:  # add the variables of this process that it may read
            names = {name for each in commands for path in named for name in self._sent_along(path, each).names}
            inherited = variables_of([word for each in commands for word in each.words], names)
            check = replace(check, environment=tuple({**dict(inherited), **dict(check.environment)}.items()))
            if check.builder is not None:
                check = replace(check, builder=replace(check.builder, environment=inherited))
        placed = dict.fromkeys([*named, *replaced, *replaced.values(), *models, *sent, *created, *candidates])
        portable = PortableTask(
            check=check,
            candidate=next(map(self._place, candidates), None),
            model=model,
            places=tuple((str(path), self._place(path)) for path in placed),
            contents=tuple(
                Content(
                    place=place,
                    digest=self._digest_of(path),
                    size=path.stat().st_size,
                    is_program=os.access(path, os.X_OK),
                )
                for place, path in files.items()
            ),
            original=task.original,
            python=sys.executable,
            preparation=task.preparation if isinstance(task, PreparedTask) else None,
            back=tuple(map(str, task.back)) if isinstance(task, PreparedTask) else (),
        )
        return portable, {self._digest_of(path): path for path in files.values()}

    def _files(self, check: CommandCheck, named: Sequence[Path]) -> dict[str, Path]:
        """The files to send for these, by place: themselves, weights of models, and modules that a script imports."""
        files = {self._place(path): path for path in named}
        for path in named:
            files |= self._weights_of(path) if path.suffix == ".onnx" else {}
            along, folder = self._sent_along(path, check), self._number(path.parent)
            files |= {f"{folder}/{name}": each for name, each in along.beside.items()} | dict(along.here)
        return files

    def _sent_along(self, path: Path, check: CommandCheck) -> SentAlong:
        """The files and names that go with a script, cached until a file changes; none for other files."""
        if path not in check.programs:
            return SentAlong(beside={}, here={}, names=frozenset())
        known = self._along.get(path)
        if known is not None and all(state_at(each) == state for each, state in known[0].items()):
            return known[1]
        along = SentAlong.of(path)
        read = [path, *along.beside.values(), *along.here.values()]
        self._along[path] = {each: state_at(each) for each in read}, along
        return along

    def _place(self, path: Path) -> str:
        return f"{self._number(path.parent)}/{path.name}"

    def _number(self, folder: Path) -> int:
        return self._folders.setdefault(folder.resolve(), len(self._folders))

    def _weights_of(self, path: Path) -> dict[str, Path]:
        """The files that a model file refers to, by place."""

        def weights() -> dict[str, Path]:
            return self._weights(path.read_bytes(), path.parent) if path.stat().st_size < _LARGEST_MODEL else {}

        return _cached_by_state(self._referred, path, weights)

    def _weights(self, model: bytes, folder: Path) -> dict[str, Path]:
        """The files that a model refers to, by place."""
        root, number = folder.resolve(), self._number(folder)
        return {f"{number}/{path.relative_to(root).as_posix()}": path for path in files_referred_to(model, folder)}

    def _digest_of(self, path: Path) -> str:
        return _cached_by_state(self._digests, path, lambda: digest_of(path))


_Read = TypeVar("_Read")


def _cached_by_state(known: dict[Path, tuple[FileState, _Read]], path: Path, read: Callable[[], _Read]) -> _Read:
    """The value in ``known`` if the file has not changed since; otherwise ``read()``, which is then stored."""
    state = state_at(path)
    before = known.get(path)
    if before is not None and before[0] == state:
        return before[1]
    content = read()
    if state is not None:
        known[path] = state, content
    return content


def _parts_of(check: Check) -> tuple[PortableCheck, Sequence[CommandCheck], Mapping[Path, Path]]:
    """A check with the user's own file names; the commands that it runs; and the files replaced in this run."""
    if isinstance(check, EngineFileCheck):
        builder, builders, _ = _parts_of(check.builder)
        portable, commands, replaced = _parts_of(check.check)
        return replace(portable, builder=builder, built=str(check.built)), [*builders, *commands], replaced
    if not isinstance(check, CommandCheck):
        raise errors.UsageError(
            "only a check that is a command can run on other machines", next_steps=["--check COMMAND ..."]
        )
    base, replaced = check.original_and_files
    words = base.words
    if isinstance(base.command, OwnCommand) and base.command.is_this_installation:
        words = (Path(words[0]).name, *words[1:])
    limits = check.limits
    portable = PortableCheck(
        words=words,
        default_name=base.default_name,
        timeout=limits.seconds,
        memory=limits.memory,
        environment=tuple(base.environment.items()),
        replaced=tuple((str(path), str(other)) for path, other in replaced.items()),
        is_warm=bool(base.starter.served_by),
    )
    return portable, [base], replaced


def _files_named(check: CommandCheck, besides: Collection[Path] = ()) -> Iterator[Path]:
    """The files in the words of a check to be sent, except ``besides``; binaries are not, each machine has its own.

    Raises UsageError for a file that is read and cannot be sent.
    """
    own = isinstance(check.command, OwnCommand)
    words = check.words[1:] if own else check.words
    for path in check.command.files(check.default_name):
        if path in besides:
            continue
        if with_files(words, {path: Path("other")}) == tuple(words):
            if not os.access(path, os.X_OK) or path.is_dir():
                raise _cannot_send(path, "no word of the check is its path")
        elif path.is_dir():
            raise _cannot_send(path, "it is a folder")
        elif path.is_file():
            is_program = os.access(path, os.X_OK) and ".so" not in path.suffixes
            with path.open("rb") as stream:
                if is_program and stream.read(len(_BINARY)) == _BINARY:
                    continue  # each machine has interpreters of its own
            if not is_named(path, words):
                raise _cannot_send(path, "the check names it in more than one way")
            yield path


def _cannot_send(path: Path, why: str) -> errors.UsageError:
    return errors.UsageError(
        f"the check reads {path}, which cannot be sent to other machines: {why}",
        next_steps=["name each file that the check reads as a word of its own"],
    )


def our_paths(task: PortableTask, root: str) -> dict[str, str]:
    """Our path for each path of a task on a machine whose places are below ``root``."""
    return {f"{root}/{place}": path for path, place in task.places}


def as_if_here(evidence: Evidence, paths: Mapping[str, str]) -> Evidence:
    """Evidence from another machine, with our paths in it."""
    return replace(
        evidence,
        output=renamed(evidence.output, paths),
        verdict=replace(evidence.verdict, message=renamed(evidence.verdict.message, paths)),
        candidate=renamed(evidence.candidate, paths),
        scripts=tuple(os.path.abspath(paths[name]) if name in paths else name for name in evidence.scripts),  # noqa: PTH100 -- links stay, as in tracebacks
        remark=renamed(evidence.remark, paths),
    )


def renamed(text: AnyStr, paths: Mapping[str, str]) -> AnyStr:
    """A text, or printed bytes, with paths replaced."""
    for other in sorted(paths, key=len, reverse=True):
        if isinstance(text, str):
            text = text.replace(other, paths[other])
        else:
            text = text.replace(os.fsencode(other), os.fsencode(paths[other]))
    return text


_LARGEST_TEXT = 1 << 20  # bytes of a script
_MOST = 1000
_LONGEST = 255  # characters of a path in a text
_PATH = re.compile(r"(?:\$\w+/|[)}\"']/|(?<![\w./+$-]))([\w.+-]+(?:/[\w.+-]+)*)")
"""A relative path, even after a computed folder, as in "$folder"/rule.py."""
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_OF_A_MACHINE = re.compile(
    "_|PATH|HOME|USER|LOGNAME|SHELL|PWD|OLDPWD|SHLVL|HOSTNAME|TERM|TMPDIR|TMP|TEMP|DISPLAY|VIRTUAL_ENV|CUDA_HOME"
    "|LD_LIBRARY_PATH|LD_PRELOAD|PYTHONPATH|PYTHONHOME|CUDA_VISIBLE_DEVICES|BIOPSY_CACHE_DIR|BIOPSY_VERDICT|RAY_.*"
)
"""Variables that each machine sets for itself: paths and devices."""
_OF_ENGINES = re.compile(
    r"(OMP|KMP|MKL|OPENBLAS|ORT|OV|CUBLAS|CUDNN|TORCH|TF|XLA)_\w+|NVIDIA_TF32_OVERRIDE|PYTHONHASHSEED"
)
"""Variables that libraries read, whether or not the check mentions them."""


@dataclass(frozen=True, kw_only=True)
class SentAlong:
    """What is sent with a script although no word of the check names it.

    ``beside`` are files in the script's folder that it may read, by relative path; ``here`` are such files in the
    current folder; ``names`` are all identifiers in the texts. For a linked script, the folder is that of the link's
    target, as in Python.
    """

    beside: Mapping[str, Path]
    here: Mapping[str, Path]
    names: frozenset[str]

    @classmethod
    def of(cls, script: Path) -> SentAlong:
        """Collect modules and whole packages that the script or its modules import from its folder, and files whose
        paths are in these texts. At most 1,000 files per folder. Never raises.
        """
        script, current = script.resolve(), Path.cwd()
        beside, here, names, waiting = dict[str, Path](), dict[str, Path](), set[str](), [script]
        while waiting:
            source = waiting.pop()
            text = _text_of(source)
            names.update(_NAME.findall(text))
            for files, folder, paths in (
                (beside, script.parent, [*_imported(source, script.parent), *_named_in(text, script.parent)]),
                (here, current, _named_in(text, current)),
            ):
                for path in paths:
                    name = path.relative_to(folder).as_posix()
                    if path != script and name not in files and len(files) < _MOST:
                        files[name] = path
                        waiting += [path] if path.suffix in {".py", ".sh"} else []
        return cls(beside=beside, here=here, names=frozenset(names))


def variables_of(words: Iterable[str], names: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """The environment variables that ``words`` or ``names`` mention, or that libraries read; not the machine's own."""
    named = {*names, *(name for word in words for name in _NAME.findall(word))}
    return tuple(
        (name, value)
        for name, value in sorted(os.environ.items())
        if not _OF_A_MACHINE.fullmatch(name) and (name in named or _OF_ENGINES.fullmatch(name))
    )


def _imported(script: Path, folder: Path) -> Iterator[Path]:
    """The files of the modules that a Python script imports from a folder."""
    for name in dict.fromkeys(imported_names(script) if script.suffix == ".py" else ()):
        yield from filter(Path.is_file, [folder / f"{name}{suffix}" for suffix in (".py", *EXTENSION_SUFFIXES)])
        package = folder / name  # everything in it, data too
        if package.is_dir() and any(package.glob("*.py")):
            yield from sorted(path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def _named_in(text: str, folder: Path) -> Iterator[Path]:
    """The files below a folder whose relative paths are in a text."""
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
