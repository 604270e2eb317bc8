"""The findings about a tool that breaks a model."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from biopsy.checks.judge import UNKNOWN_RATE, MeasuredRate, Signature
from biopsy.checks.outcome import Judged
from biopsy.comparison.mismatch import worst_of
from biopsy.model.sources import NodeSource
from biopsy.questions.transformations.tools import Omission
from biopsy.records import plain, plain_of
from biopsy.reduction.result import Reduction
from biopsy.text import count, first_line, html_table, printable, series, shortened

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
