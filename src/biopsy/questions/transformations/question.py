"""What is asked of a transformation: which tool with which settings or command, in which interpreter, on which
model.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from biopsy import errors, events
from biopsy.comparison.tolerance import MetricLimits, Stats, Tolerances
from biopsy.engines.registry import PLAIN
from biopsy.model.index import ModelIndex
from biopsy.processes.watch import Limits
from biopsy.questions.transformations.tools import TOOLS, Rounds, Tool, WrongSettingError
from biopsy.session.trial import Budget
from biopsy.tensors.results import Feed
from biopsy.text import ask_for, normalized, similar


@dataclass(frozen=True, kw_only=True)
class SameEngine:
    """The comparison that decides: the model and what became of it, in the same engine, with the same inputs.

    ``feeds`` gives the samples. ``wider`` gives one more, of numbers that made-up samples do not reach, which is asked
    before a model counts as right; None if there is none. ``tolerances`` that a person gave decide alone (``is_told``);
    otherwise what rounding explains is no failure: that of the types of the model, or of those that the tool converts
    to.
    """

    feeds: Callable[[], Sequence[Feed]]
    wider: Callable[[], Feed | None] = lambda: None
    engine: str = PLAIN[0]
    tolerances: Tolerances = field(default_factory=Tolerances)
    stats: Stats = field(default_factory=Stats)
    limits: MetricLimits = field(default_factory=MetricLimits)
    is_told: bool = False
    timeout: float | None = None


@dataclass(frozen=True, kw_only=True)
class CommandQuestion:
    """A command that decides: in its ``words``, ``{}`` is the transformed model and ``{original}`` the model itself.

    Where ``{original}`` does not stand in them, the model itself must pass. ``timeout`` in seconds, ``memory`` in
    bytes.
    """

    words: tuple[str, ...]
    timeout: float | None = None
    memory: int | None = None


@dataclass(frozen=True, kw_only=True)
class TransformationQuestion:
    """Whether a tool breaks a model, and by what.

    ``python`` is the interpreter that has the tool. ``passes`` may run; None for those that run by themselves.
    ``control`` is the command that only loads and saves, where the tool is a command. ``output`` is where the piece
    goes; nothing is written without it. ``reduces``: whether the smallest piece is sought, ``finds_passes``: whether
    the passes that do it are.
    """

    index: ModelIndex
    tool: ToolSpec
    python: Path
    decides: SameEngine | CommandQuestion
    passes: tuple[str, ...] | None = None
    control: ToolSpec | None = None
    output: Path | None = None
    reduces: bool = True
    finds_passes: bool = True
    budget: Budget = field(default_factory=Budget)
    limits: Limits = field(default_factory=lambda: Limits(seconds=600.0))


# A tool as a person names it: a known one with settings, or the words of a command.

SOURCE, TARGET, PASSES = "{}", "{out}", "{passes}"
"""What stands in a command for the model, for the file to write, and for the passes that may run, commas between."""


@dataclass(frozen=True, kw_only=True)
class ToolSpec:
    """What transforms: a known tool by ``name``, or a command by its ``words``. ``text`` is how it was asked for."""

    text: str
    name: str
    settings: Mapping[str, str] = field(default_factory=dict)
    words: tuple[str, ...] = ()

    @property
    def known(self) -> type[Tool] | None:
        """The class of a known tool; None of a command."""
        return None if self.words else TOOLS[self.name]

    @property
    def rounds_to(self) -> Rounds:
        """To what it may round values and be right."""
        return "float32" if self.known is None else self.known.rounds_to


def parse_tool(text: str) -> ToolSpec:
    """The tool that a text names: ``NAME[:key=value,...]``, or a command with ``{}`` and ``{out}``, as a shell splits
    it; no shell ever sees it.

    Raises UsageError for a name that there is not, a wrong setting, and a command that names no file to write.
    """
    if SOURCE in text or TARGET in text or " " in text.strip():
        try:
            words = tuple(shlex.split(text))
        except ValueError as error:
            raise errors.UsageError(f"--by {text!r}: it cannot be split into words: {error}") from error
        for place, what in ((SOURCE, "the model"), (TARGET, "the file to write")):
            if not any(place in word for word in words):
                raise errors.UsageError(
                    f"--by {text!r}: it does not say where {what} goes", next_steps=["--by 'mytool {} -o {out}'"]
                )
        return ToolSpec(text=text, name=words[0], words=words)
    name, _, rest = text.partition(":")
    if name not in TOOLS:
        raise errors.UsageError(
            f"--by {text}: there is no tool {name!r}; known are {', '.join(TOOLS)}",
            next_steps=[*ask_for(similar(name, TOOLS, most=1)), "--by 'COMMAND {} {out}'    takes any command"],
        )
    settings: dict[str, str] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not key or not equals:
            raise errors.UsageError(f"--by {text}: the setting {part!r} is not key=value")
        settings[key] = value
    try:
        TOOLS[name](settings)
    except WrongSettingError as error:
        raise errors.UsageError(f"--by {text}: {error}") from error
    return ToolSpec(text=text, name=name, settings=settings)


# The interpreter that has a tool: this one, or that of an environment which is made for it.


@dataclass(frozen=True, kw_only=True)
class ToolPackages:
    """What was asked for: requirements such as ``onnxslim==0.1.50``, others ``beside`` them, and a ``python``."""

    packages: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    python: str | None = None

    @property
    def are_asked_for(self) -> bool:
        """Whether an environment was asked for."""
        return bool(self.packages or self.beside or self.python)


@contextmanager
def tool_python(spec: ToolSpec, wanted: ToolPackages, listener: events.Listener = events.ignore) -> Iterator[Path]:
    """The interpreter, as long as it is used. One that has the tool is this one, unless packages are asked for.

    Raises CannotInstall if the environment cannot be made, UsageError if packages are asked for a command.
    """
    if spec.known is None:
        if wanted.are_asked_for:
            raise errors.UsageError("--package, --with and --python are for known tools: a command brings its own")
        yield Path(sys.executable)
        return
    is_here = False
    with suppress(ImportError, ValueError):
        is_here = find_spec(spec.known.module.partition(".")[0]) is not None
    if is_here and not wanted.are_asked_for:
        yield Path(sys.executable)
        return
    from biopsy.processes.environments.interpreter import interpreter_of
    from biopsy.processes.environments.prepared import prepared

    python = interpreter_of(wanted.python)
    with prepared(requirements(spec, wanted), python=python, listener=listener) as environment:
        yield environment.python


def requirements(spec: ToolSpec, wanted: ToolPackages) -> Sequence[str]:
    """What the environment of a known tool holds: the tool, in the release asked for, and what it needs besides."""
    assert spec.known is not None
    asked = [*wanted.packages, *wanted.beside]
    named = {_distribution(one) for one in asked}
    more = [one for one in (spec.known.package, *spec.known.needs) if _distribution(one) not in named]
    return [*asked, *more]


def _distribution(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]*[A-Za-z0-9]", requirement.strip())
    return normalized(found.group() if found else requirement)
