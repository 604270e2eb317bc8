"""The result of ``biopsy.torch.diagnose``: the verdict, the lines to look at, the error, and the files to look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from biopsy.comparison.mismatch import Mismatch, Rounding
from biopsy.comparison.noise import DEFAULT_RATIO
from biopsy.diagnosis.facts import StepReport
from biopsy.records import plain
from biopsy.text import html_table, printable

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
