"""The question whether a tool breaks a model (the model, the tool, its interpreter, what decides), and its findings."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from biopsy import errors, events
from biopsy.checks.judge import UNKNOWN_RATE, MeasuredRate, Signature
from biopsy.checks.outcome import Judged
from biopsy.comparison.mismatch import worst_of
from biopsy.comparison.tolerance import MetricLimits, Stats, Tolerances
from biopsy.engines.registry import PLAIN
from biopsy.model.index import ModelIndex
from biopsy.model.sources import NodeSource
from biopsy.processes.environments.interpreter import interpreter_of
from biopsy.processes.environments.prepared import prepared
from biopsy.processes.watch import Limits
from biopsy.questions.transformations.tools import TOOLS, Omission, Rounds, Tool, WrongSettingError
from biopsy.records import plain, plain_of
from biopsy.reduction.result import Reduction
from biopsy.session.trial import Budget
from biopsy.tensors.results import Feed
from biopsy.text import ask_for, count, first_line, html_table, normalized, printable, series, shortened, similar

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


_LONGEST = 240
"""Characters of a message of a tool or an engine in a sentence."""

INTERRUPTION = "an interruption"
"""What stopped a search whose user interrupted the search for the passes."""

Fault = Literal["transformation", "control"]
"""What breaks the model: the passes of the tool, or already loading and saving it without any pass."""


SecondOpinion = Literal["", "right", "wrong"]
"""The verdict of the reference evaluator on the transformed piece; empty if there is none."""


def after_file(output: Path) -> Path:
    """The file beside a piece with the transformed piece."""
    return output.with_name(f"{output.stem}.after.onnx")


@dataclass(frozen=True, kw_only=True)
class Piece:
    """The model that the tool breaks, small if it was reduced, and the transformed model.

    ``path`` and ``after_path`` are their files, ``inputs`` that of the inputs; None if it was not written. ``before``
    and ``after`` are the models as lines of text; ``after`` is empty if the tool fails. ``nodes`` and ``nodes_after``
    are their nodes, by operator and name; ``nodes_before`` is how many the whole model has. ``sources`` say for each of
    ``nodes`` where it comes from, if the exporter noted that.
    """

    path: Path | None
    after_path: Path | None
    inputs: Path | None
    nodes_before: int
    nodes: tuple[str, ...]
    before: tuple[str, ...]
    after: tuple[str, ...]
    nodes_after: tuple[str, ...] = ()
    sources: tuple[NodeSource | None, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PassFindings:
    """The passes to blame; all fields are empty if the passes have no names, or the search did not begin.

    ``all`` may run on the piece. ``alone`` is the smallest set that breaks the piece with all others off. ``without``
    are the smallest sets without which the piece is right; ``complete``: there are no other sets of that size.
    ``verified``: fresh processes confirm both. ``whole_is_right``: whether the whole model is right without the first
    of ``without``, None if that was not tried; ``whole_failure`` says how it fails. ``omission`` is how a user of the
    tool omits the first of ``without``.
    """

    all: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()
    without: tuple[tuple[str, ...], ...] = ()
    complete: bool = True
    verified: bool = False
    whole_is_right: bool | None = None
    whole_failure: str = ""
    omission: Omission = field(default_factory=Omission)


@dataclass(frozen=True, kw_only=True)
class JudgedIn:
    """The ``engine`` that ran both models, with its settings, its ``version``, and the number of ``samples``.

    These are empty if a command decided. If the ``second_opinion`` of the reference evaluator is "right", the engine
    may be wrong. ``rate`` is how often the transformed model fails.
    """

    engine: str = ""
    version: str = ""
    samples: int = 0
    second_opinion: SecondOpinion = ""
    rate: MeasuredRate = UNKNOWN_RATE


@dataclass(frozen=True, kw_only=True)
class TransformationFindings:
    """How a tool breaks a model that is right without it.

    ``fault`` is what breaks it, ``judged`` and ``signature`` describe the failure. ``tool`` is as the user wrote it,
    ``release`` its version. ``checks`` counts transformations that were judged. ``stopped`` names the limit that ended
    the reduction, or is INTERRUPTION: then only a part is known of ``passes``.
    """

    tool: str
    release: str
    where: JudgedIn
    fault: Fault
    judged: Judged
    signature: Signature
    piece: Piece
    passes: PassFindings = field(default_factory=PassFindings)
    reduction: Reduction | None = None
    checks: int = 0
    seconds: float = 0.0
    stopped: str | None = None

    @property
    def failure(self) -> str:
        """The failure of the transformed model in a few words."""
        return failure_text(self.judged)

    @property
    def sentence(self) -> str:
        """The answer in one sentence."""
        title = f"{self.tool} {self.release}".strip()
        rate = self.where.rate
        often = f" in {rate.failed} of {rate.runs} runs" if rate.is_flaky else ""
        if self.fault == "control":
            return f"{title} breaks the model with no pass at all: it only loads and saves it ({self.failure})."
        if self.passes.alone:
            return f"{title} breaks the model by {series(self.passes.alone)}{often} ({self.failure})."
        return f"{title} breaks the model{often} ({self.failure})."

    def __repr__(self) -> str:
        return f"<TransformationFindings: {printable(self.sentence)} {count(self.checks, 'check')}>"

    def _repr_html_(self) -> str:
        rows = list(zip_longest(self.piece.before, self.piece.after, fillvalue=""))
        return html_table(self.sentence, ["before", "after"], rows, 60)

    def as_json(self) -> dict[str, Any]:
        """The part of the report with these findings."""
        piece, passes, where, verdict = self.piece, self.passes, self.where, self.judged.evidence.verdict
        worst = worst_of(verdict.mismatches)
        return {
            **plain_of(self, "tool release"),
            "engine": where.engine,
            "engine_version": where.version,
            **plain_of(where, "samples second_opinion"),
            "fault": self.fault,
            "text": self.sentence,
            "failure": {
                "text": self.failure,
                **plain_of(self.signature, "stage kind"),
                "message": str(verdict.message),
                "error": None if worst is None else plain(worst.error),
                **plain_of(verdict, "outputs"),
            },
            "piece": {
                **plain_of(piece, "nodes_before nodes nodes_after"),
                "sources": [None if source is None else source.as_tree() for source in piece.sources],
                "path": plain(piece.path),
                "after": plain(piece.after_path),
                "inputs": plain(piece.inputs),
                "text_before": plain(piece.before),
                "text_after": plain(piece.after),
            },
            "passes": {
                **plain_of(passes, "all alone without complete verified"),
                "whole_model_is_right_without": passes.whole_is_right,
                **plain_of(passes.omission, "command python"),
            },
            **plain_of(self, "checks stopped"),
        }


def failure_text(judged: Judged) -> str:
    """A failure in a few words, with the size of the worst mismatch."""
    verdict = judged.evidence.verdict
    worst = worst_of(verdict.mismatches)
    if verdict.stage == "compare" and worst is not None and worst.error is not None:
        return f"output {worst.output!r} differs by {worst.error:.3g}"
    if verdict.stage == "interface":
        return verdict.message
    message = shortened(first_line(verdict.message), _LONGEST)
    if verdict.stage == "transform":
        return f"it fails: {verdict.kind}: {message}" if message else f"it fails: {verdict.kind}"
    if verdict.stage in {"load", "build", "run"}:
        return f"{verdict.engine or 'onnx'} cannot {verdict.stage} it: {message}"
    return judged.reason
