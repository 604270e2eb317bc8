"""The question whether a tool breaks a model: the model, the tool, its interpreter, and what decides."""

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
from biopsy.processes.environments.interpreter import interpreter_of
from biopsy.processes.environments.prepared import prepared
from biopsy.processes.watch import Limits
from biopsy.questions.transformations.tools import TOOLS, Rounds, Tool, WrongSettingError
from biopsy.session.trial import Budget
from biopsy.tensors.results import Feed
from biopsy.text import ask_for, normalized, similar

STAGE = "transform"
"""The stage of the events of a search."""

CONTROL = "only load and save"
"""The description of the check of what the tool writes with no pass."""


@dataclass(frozen=True, kw_only=True)
class SameEngine:
    """A comparison decides: of the model and the transformed model, in the same engine, with the same inputs.

    ``feeds`` returns the samples. ``wider`` returns one more, of larger numbers than random samples have, which is
    tried before a model counts as right; None if there is none. If ``tolerances_decide``, because the user gave them,
    only they count; otherwise a difference is not a failure if the rounding of the model's types, or of the type that
    the tool converts to, explains it.
    """

    feeds: Callable[[], Sequence[Feed]]
    wider: Callable[[], Feed | None] = lambda: None
    engine: str = PLAIN[0]
    tolerances: Tolerances = field(default_factory=Tolerances)
    stats: Stats = field(default_factory=Stats)
    limits: MetricLimits = field(default_factory=MetricLimits)
    tolerances_decide: bool = False
    timeout: float | None = None


@dataclass(frozen=True, kw_only=True)
class CommandQuestion:
    """A command decides. In its ``words``, ``{}`` is the transformed model and ``{original}`` the model itself.

    Without ``{original}``, the model itself must pass. ``timeout`` is in seconds, ``memory`` in bytes.
    """

    words: tuple[str, ...]
    timeout: float | None = None
    memory: int | None = None


@dataclass(frozen=True, kw_only=True)
class TransformationQuestion:
    """Whether a tool breaks a model, and how.

    ``python`` is the interpreter that has the tool. ``passes`` may run; None: the default ones. ``control`` is the
    command that only loads and saves, if the tool is a command. ``output`` is where the piece is written; None: it is
    not written. ``reduces``: the model is reduced; ``finds_passes``: the passes to blame are searched for.
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


SOURCE, TARGET, PASSES = "{}", "{out}", "{passes}"
"""Placeholders in a command: the model, the file to write, and the passes that may run, joined by commas."""


@dataclass(frozen=True, kw_only=True)
class ToolSpec:
    """A known tool by ``name`` and ``settings``, or a command by its ``words``; ``text`` is as the user wrote it."""

    text: str
    name: str
    settings: Mapping[str, str] = field(default_factory=dict)
    words: tuple[str, ...] = ()

    @property
    def known(self) -> type[Tool] | None:
        """The class of a known tool; None for a command."""
        return None if self.words else TOOLS[self.name]

    @property
    def rounds_to(self) -> Rounds:
        """The type that a correct tool may round values to."""
        return "float32" if self.known is None else self.known.rounds_to


def parse_tool(text: str) -> ToolSpec:
    """The tool that a text names: ``NAME[:key=value,...]``, or a command with ``{}`` and ``{out}``.

    A command is split into words as a shell does it, but run without a shell. Raises UsageError for an unknown name, a
    wrong setting, or a command without ``{}`` or ``{out}``.
    """
    if SOURCE in text or TARGET in text or " " in text.strip():
        try:
            words = tuple(shlex.split(text))
        except ValueError as error:
            raise errors.UsageError(f"--by {text!r}: it cannot be split into words: {error}") from error
        for place, meaning in ((SOURCE, "the model"), (TARGET, "the file to write")):
            if not any(place in word for word in words):
                raise errors.UsageError(
                    f"--by {text!r}: it does not say where {meaning} goes", next_steps=["--by 'mytool {} -o {out}'"]
                )
        return ToolSpec(text=text, name=words[0], words=words)
    name, _, listed = text.partition(":")
    if name not in TOOLS:
        raise errors.UsageError(
            f"--by {text}: there is no tool {name!r}; known are {', '.join(TOOLS)}",
            next_steps=[*ask_for(similar(name, TOOLS, most=1)), "--by 'COMMAND {} {out}'    takes any command"],
        )
    settings: dict[str, str] = {}
    for part in filter(None, listed.split(",")):
        key, equals, value = part.partition("=")
        if not key or not equals:
            raise errors.UsageError(f"--by {text}: the setting {part!r} is not key=value")
        settings[key] = value
    try:
        TOOLS[name](settings)
    except WrongSettingError as error:
        raise errors.UsageError(f"--by {text}: {error}") from error
    return ToolSpec(text=text, name=name, settings=settings)


@dataclass(frozen=True, kw_only=True)
class ToolPackages:
    """What the user wants in the environment of a tool: ``onnxslim==0.1.50``, others ``beside`` it, a ``python``."""

    packages: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    python: str | None = None

    @property
    def need_environment(self) -> bool:
        """Whether the user wants an environment for the tool."""
        return bool(self.packages or self.beside or self.python)


@contextmanager
def tool_python(spec: ToolSpec, packages: ToolPackages, listener: events.Listener = events.ignore) -> Iterator[Path]:
    """The interpreter with the tool: this one if it has it and no packages are wanted, else that of an environment.

    Raises CannotInstall if the environment cannot be made, UsageError if packages are wanted for a command.
    """
    if spec.known is None:
        if packages.need_environment:
            raise errors.UsageError("--package, --with and --python are for known tools: a command brings its own")
        yield Path(sys.executable)
        return
    is_installed = False
    with suppress(ImportError, ValueError):
        is_installed = find_spec(spec.known.module.partition(".")[0]) is not None
    if is_installed and not packages.need_environment:
        yield Path(sys.executable)
        return
    python = interpreter_of(packages.python)
    with prepared(requirements(spec, packages), python=python, listener=listener) as environment:
        yield environment.python


def requirements(spec: ToolSpec, packages: ToolPackages) -> Sequence[str]:
    """The requirements of the environment of a known tool: those wanted, and else the tool and what it needs."""
    assert spec.known is not None
    listed = [*packages.packages, *packages.beside]
    names = set(map(_distribution, listed))
    missing = [name for name in (spec.known.package, *spec.known.needs) if _distribution(name) not in names]
    return [*listed, *missing]


def _distribution(requirement: str) -> str:
    name = re.match(r"[A-Za-z0-9._-]*[A-Za-z0-9]", requirement.strip())
    return normalized(name.group() if name else requirement)
