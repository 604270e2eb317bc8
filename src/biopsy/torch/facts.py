"""The result of ``biopsy.torch.diagnose`` (the verdict, the lines to look at, the error, the files), and the lines of
exceptions, of a running operator, and of nodes that were captured or exported.

A line is in a file of the module's author or of a library of models. Where none is known, it is the part of the module
and its class, with the reason.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from traceback import walk_tb
from types import FrameType
from typing import Any, Literal, TypeAlias

import biopsy
from biopsy.comparison.mismatch import Mismatch, Rounding
from biopsy.comparison.noise import DEFAULT_RATIO
from biopsy.diagnosis.facts import StepReport
from biopsy.model.sources import NodeSource, innermost_of_model, source_of_stack
from biopsy.records import plain
from biopsy.text import html_table, printable
from biopsy.torch.arrays import imported

Blame: TypeAlias = Literal["passes", "varies", "capture", "exporter", "engine", "tolerance", "unknown"]
"""What is to blame: nothing ("passes"); the module, which gives another result in each run ("varies"); ``torch.export``
("capture"); ``torch.onnx`` ("exporter"); the engine; the tolerances, since only rounding differs; or it is unknown."""

ExporterPart: TypeAlias = Literal["decomposition", "translation", "optimizer"]
"""The part of the exporter to blame: the decomposition of operators, their translation, or onnxscript's optimizer."""


GOLDEN = "golden.safetensors"
"""The file of golden values in the folder of a diagnosis."""


@dataclass(frozen=True, kw_only=True)
class ModuleLine:
    """A place in the module's code; fields are None or empty if PyTorch has not noted them.

    ``file``, ``line``, ``function`` and ``code`` are those of the innermost frame of the author's own code, or of the
    library of models that it calls; ``unknown`` says why there is none. ``module`` is the name of the submodule in
    ``named_modules``, None for the module itself, and ``kind`` its class. ``operators`` are the operators that were
    translated there, in order, such as ``aten.gelu.default``.
    """

    file: str | None = None
    line: int | None = None
    function: str | None = None
    code: str | None = None
    module: str | None = None
    kind: str | None = None
    operators: tuple[str, ...] = ()
    unknown: str = ""

    @property
    def with_code(self) -> str:
        """The place in words, with the line of code if that is known."""
        return f"{self}: {self.code}" if self.code else str(self)

    def __str__(self) -> str:
        part = f"module {self.module}" if self.module else ""
        if not self.file and self.kind:
            part = f"{part or 'the module itself'} ({self.kind})"
        line = f"{self.file}:{self.line}" if self.file else ""
        unknown = f"its line is not known: {self.unknown}" if self.unknown else ""
        return " · ".join(filter(None, [line, part, " -> ".join(self.operators), unknown]))


@dataclass(frozen=True, kw_only=True)
class SmallestPiece:
    """The reduced model: its nodes, the number ``of`` nodes of the original, and its files.

    ``path`` and ``inputs`` are None if no files are kept. ``bundle`` is the folder to send, None if there is none.
    """

    nodes: tuple[str, ...]
    of: int
    path: Path | None = None
    inputs: Path | None = None
    bundle: Path | None = None


@dataclass(frozen=True, kw_only=True)
class GoldenCount:
    """How many of the ONNX model's tensors have a golden value from PyTorch."""

    matched: int
    of: int


@dataclass(frozen=True, kw_only=True)
class TorchVerdict:
    """What is to blame, in a sentence. ``reason`` says why it is unknown or not sure."""

    blame: Blame
    text: str
    part: ExporterPart | None = None
    reason: str = ""


def rounding_text(engine: str, rounding: Rounding) -> str:
    """Whether rounding explains an error, in the only sentence that says so."""
    if rounding.reason:
        beyond = "" if rounding.verdict == "unknown" else ", but it is beyond any sum of roundings"
        return f"Whether that is rounding cannot be measured{beyond}: {rounding.reason}."
    if rounding.times == 0:
        return f"{engine} differs from float64 only where rounding changes what PyTorch gives, too."
    far = "far from float64 where rounding changes nothing"
    if rounding.times is not None:
        far = f"{rounding.times:.3g} times as far from float64 as rounding takes PyTorch"
    return f"{engine} is {far} (up to {DEFAULT_RATIO:g} times is rounding)."


@dataclass(frozen=True, kw_only=True)
class FurtherFault:
    """A fault that shows once the values at the faults before it are right, or outputs that the exporter raises for.

    Fields are as in TorchDiagnosis.
    """

    verdict: TorchVerdict
    places: tuple[ModuleLine, ...] = ()
    error: str = ""
    mismatches: tuple[Mismatch, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TorchDiagnosis:
    """What was found out about a module.

    ``places`` are the lines to look at, the most important one first. ``error`` is the error in words, ``mismatches``
    in numbers; both also where only rounding differs. ``rounding`` says whether rounding explains it (``times`` it is
    as large as the noise of PyTorch); None if nothing differs in numbers. ``further`` are faults behind the first.
    ``versions`` are those of packages and of the suspect. ``folder`` holds the model, its inputs and golden values;
    None if no files are kept.
    """

    verdict: TorchVerdict
    suspect: str
    steps: tuple[StepReport, ...] = ()
    places: tuple[ModuleLine, ...] = ()
    error: str = ""
    mismatches: tuple[Mismatch, ...] = ()
    rounding: Rounding | None = None
    further: tuple[FurtherFault, ...] = ()
    values: GoldenCount | None = None
    piece: SmallestPiece | None = None
    remarks: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None
    seconds: float = 0.0

    @property
    def failed(self) -> bool | None:
        """Whether anything fails; None if that is unknown."""
        if self.verdict.blame == "unknown" and not self.mismatches and not self.error:
            return None
        return self.verdict.blame != "passes"

    def as_json(self) -> dict[str, Any]:
        """The diagnosis as plain values, for a report."""
        verdict = self.verdict
        tree: dict[str, Any] = plain(
            {"blame": verdict.blame, "part": verdict.part, "text": verdict.text, "reason": verdict.reason or None}
            | {"failed": self.failed}
            | vars(self)
            | {"error": self.error or None, "seconds": round(self.seconds, 3)}
        )
        del tree["verdict"]
        return tree

    def __repr__(self) -> str:
        where = f" at {self.places[0]}" if self.places else ""
        return f"<TorchDiagnosis: {self.verdict.blame}: {printable(self.verdict.text + where)}>"

    def _repr_html_(self) -> str:
        rows = [("at", str(place), place.code or "") for place in self.places]
        rows += [("error", self.error, "")] if self.error else []
        rows += [(step.question, step.answer or step.outcome, f"{step.seconds:.1f} s") for step in self.steps]
        return html_table(f"{self.verdict.blame}: {self.verdict.text}", ["", "", ""], rows)


NO_LINE = "PyTorch knows no line of a file of the model that leads there"
"""Why a line is not known: the code is in no file (``exec``), or PyTorch notes none."""


def causes_of(error: BaseException) -> list[BaseException]:
    """An exception, what it was raised from, and so on."""
    causes = [error]
    while True:
        last = causes[-1]
        cause = last.__cause__ or (None if last.__suppress_context__ else last.__context__)
        if cause is None or cause in causes:
            return causes
        causes.append(cause)


def place_of_exception(error: BaseException, module: Any) -> ModuleLine:
    """Where in the code of a module an exception was raised, also if PyTorch wraps it into others.

    Without a line, the part of the module that was called last.
    """
    names = {id(part): (name, type(part).__name__) for name, part in module.named_modules()}
    place = ModuleLine(kind=type(module).__name__, unknown=NO_LINE)
    for cause in causes_of(error):
        frames = [_of_frame(frame, line) for frame, line in walk_tb(cause.__traceback__)]
        # torch.compile reads code instead of running it, and tells the stack of what it has read.
        read = getattr(cause, "real_stack", None) or ()
        frames += [_Frame(file=each.filename, line=each.lineno or 0, function=each.name) for each in read]
        parts = [names[each.owner] for each in frames if each.owner in names]
        if parts and place.module is None:
            place = replace(place, module=parts[-1][0] or None, kind=parts[-1][1])
        line = place_of_frames(frames)
        if line is not None:
            return replace(line, module=place.module, kind=place.kind)
    return place


def node_of_exception(error: BaseException) -> Any:
    """The FX node that PyTorch was working on when it raised an exception, the innermost one; None if there is none."""
    kind = imported("torch.fx").Node
    frames = [frame for cause in causes_of(error) for frame, _ in walk_tb(cause.__traceback__)]
    nodes = (frame.f_locals.get(name) for frame in reversed(frames) for name in ("node", "n"))
    return next((node for node in nodes if isinstance(node, kind)), None)


@dataclass(frozen=True, kw_only=True)
class _Frame:
    """A frame of a stack; ``owner`` is the ``id`` of its ``self``."""

    file: str
    line: int
    function: str
    owner: int | None = None


def _of_frame(frame: FrameType, line: int) -> _Frame:
    code = frame.f_code
    owner = frame.f_locals.get("self")
    return _Frame(file=code.co_filename, line=line, function=code.co_qualname, owner=id(owner))


def place_of_stack(stack: Iterable[tuple[FrameType, int]]) -> ModuleLine | None:
    """The place of a stack of frames and lines, the innermost first, as ``traceback.walk_stack`` gives it."""
    return place_of_frames([_of_frame(frame, line) for frame, line in stack][::-1])


def place_of_frames(frames: Sequence[_Frame]) -> ModuleLine | None:
    """The place of frames, the outermost first, within what biopsy calls; None if no line of a model is among them."""
    within = frames[first_within([frame.file for frame in frames]) :]
    number = innermost_of_model([(frame.file, frame.function) for frame in within])
    if number is None:
        return None
    frame = within[number]
    code = linecache.getline(frame.file, frame.line).strip()
    return ModuleLine(file=frame.file, line=frame.line, function=frame.function, code=code or None)


def first_within(files: Sequence[str]) -> int:
    """The number of the first frame of what biopsy calls, of frames in these files, the outermost first."""
    folder = Path(biopsy.__file__).parent
    return max((number + 1 for number, file in enumerate(files) if Path(file).is_relative_to(folder)), default=0)


def lines_of(sources: Iterable[NodeSource | None]) -> tuple[ModuleLine, ...]:
    """The lines that some nodes come from, each with the operators that were translated there, in order.

    An operator that has become several nodes is named once.
    """
    groups: dict[tuple[object, ...], list[NodeSource]] = {}
    for source in sources:
        if source is not None and (source.file is not None or source.operator is not None or source.scopes):
            groups.setdefault((source.file, source.line, source.scopes[-1:]), []).append(source)
    return tuple(map(_line, groups.values()))


def place_of_node(node: Any) -> ModuleLine:
    """The line of a node of a captured program; without one, its operator and the part of the module."""
    modules = [(str(name), str(kind)) for name, kind in (node.meta.get("nn_module_stack") or {}).values()]
    return _line([source_of_stack(node.meta.get("stack_trace") or "", str(node.target), modules)])


def _line(group: Sequence[NodeSource]) -> ModuleLine:
    first = group[0]
    operators = (source.operator for source in group if source.operator is not None)
    return ModuleLine(
        file=first.file,
        line=first.line,
        function=f"{first.owner}.{first.function}" if first.owner else first.function,
        code=first.code,
        module=first.scopes[-1] if first.scopes else None,
        kind=first.classes[-1].rpartition(".")[2] if first.classes else None,
        operators=tuple(dict.fromkeys(operators)),
        unknown="" if first.file else NO_LINE,
    )
