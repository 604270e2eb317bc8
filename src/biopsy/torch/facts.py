"""What a diagnosis of a module has found out: the verdict first, then where, how much, and what is left to look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from biopsy.comparison.mismatch import Mismatch
from biopsy.diagnosis.facts import StepReport
from biopsy.records import plain
from biopsy.text import html_table, printable

Blame: TypeAlias = Literal["passes", "varies", "capture", "exporter", "engine", "tolerance", "unknown"]
"""Who is to blame: nobody, for nothing fails; the module, which gives another answer each time; ``torch.export``;
``torch.onnx``; the engine; the tolerances, for it is rounding; or nobody can tell."""

ExporterPart: TypeAlias = Literal["decomposition", "translation", "optimizer"]
"""What of the exporter: operators of the program made of others, their translation, or onnxscript's optimizer."""


GOLDEN = "golden.safetensors"
"""The file of golden values in the folder of a diagnosis."""


@dataclass(frozen=True, kw_only=True)
class ModuleLine:
    """Where in the module's code something comes from. None, or nothing, where nobody wrote that down.

    ``file``, ``line``, ``function`` and ``code`` are of the innermost frame of the author's own code; ``module`` is the
    path of the part of the module, as ``named_modules`` has it. ``operators`` are the operators that were translated
    there, in order, such as ``aten.gelu.default``.
    """

    file: str | None = None
    line: int | None = None
    function: str | None = None
    code: str | None = None
    module: str | None = None
    operators: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [f"{self.file}:{self.line}" if self.file else "", f"module {self.module}" if self.module else ""]
        return " · ".join([*filter(None, parts), *([" -> ".join(self.operators)] if self.operators else [])])


@dataclass(frozen=True, kw_only=True)
class SmallestPiece:
    """The reduced model: its nodes, of how many, and its files, which are None if nothing was to be kept.

    ``bundle`` is the folder to send, None without one.
    """

    nodes: tuple[str, ...]
    of: int
    path: Path | None = None
    inputs: Path | None = None
    bundle: Path | None = None


@dataclass(frozen=True, kw_only=True)
class GoldenCount:
    """How many of the ONNX model's tensors the program has a value of."""

    matched: int
    of: int


@dataclass(frozen=True, kw_only=True)
class TorchVerdict:
    """The verdict: who is to blame, in a sentence. ``reason`` says why nobody can tell, or how sure it is."""

    blame: Blame
    text: str
    part: ExporterPart | None = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class TorchDiagnosis:
    """What was found. ``places`` are the lines to look at, the first one first; ``error`` is how far values are off.

    ``mismatches`` are the same in numbers. ``versions`` are those of packages and of the suspect. ``folder`` holds the
    model, its inputs and golden values; None if nothing was to be kept.
    """

    verdict: TorchVerdict
    suspect: str
    steps: tuple[StepReport, ...] = ()
    places: tuple[ModuleLine, ...] = ()
    error: str = ""
    mismatches: tuple[Mismatch, ...] = ()
    values: GoldenCount | None = None
    piece: SmallestPiece | None = None
    remarks: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None
    seconds: float = 0.0

    @property
    def failed(self) -> bool | None:
        """Whether anything fails, whoever is to blame; None if even that is not known."""
        if self.verdict.blame == "unknown" and not self.mismatches and not self.error:
            return None
        return self.verdict.blame != "passes"

    def as_json(self) -> dict[str, Any]:
        """As plain values, for a report."""
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
