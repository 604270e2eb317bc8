"""What was found of a transformation that breaks a model."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from biopsy.checks.judge import Signature
from biopsy.checks.outcome import Judged
from biopsy.comparison.mismatch import worst_of
from biopsy.model.sources import NodeSource
from biopsy.questions.transformations.tools import Omission
from biopsy.records import plain
from biopsy.reduction.result import Reduction
from biopsy.text import count, first_line, html_table, printable, series, shortened

_LONGEST = 240
"""Characters of a message of a tool or an engine in a sentence."""

Fault = Literal["transformation", "control"]
"""What is wrong: what the tool makes of the model, or already what comes of loading and saving it with no pass."""


SecondOpinion = Literal["", "right", "wrong"]
"""What the reference evaluator says of the transformed piece; empty where it was not asked, or cannot say."""


def after_file(output: Path) -> Path:
    """The file beside a piece that holds what becomes of it."""
    return output.with_name(f"{output.stem}.after.onnx")


@dataclass(frozen=True, kw_only=True)
class Piece:
    """The model whose transformation is wrong, small if it was reduced, and what became of it.

    ``path`` is None where nothing was written; ``before`` and ``after`` are both models as lines of text, ``after``
    being empty if the tool fails. ``inputs`` is the file of what it was fed. ``nodes`` are its nodes, by operator and
    name, of ``nodes_before`` that the whole model has; ``made`` are those that become of them. ``sources`` are, for
    each of ``nodes``, where an exporter says that it comes from.
    """

    path: Path | None
    after_path: Path | None
    inputs: Path | None
    nodes_before: int
    nodes: tuple[str, ...]
    before: tuple[str, ...]
    after: tuple[str, ...]
    made: tuple[str, ...] = ()
    sources: tuple[NodeSource | None, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PassFindings:
    """Which passes do it. All are empty where the tool gives its passes no names, or the search came to no end.

    ``all`` may run on the piece. ``alone`` are the fewest that do it with all others off. ``without`` are the smallest
    sets with which, left out, the piece is right; ``complete`` says whether there are no other sets of that size.
    ``verified``: fresh processes say the same. ``whole_is_right``: whether the whole model is right without the first
    of ``without``, None if that was not asked; ``whole`` says how it is wrong then. ``omission`` is how the tool is
    told to leave them out.
    """

    all: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()
    without: tuple[tuple[str, ...], ...] = ()
    complete: bool = True
    verified: bool = False
    whole_is_right: bool | None = None
    whole: str = ""
    omission: Omission = field(default_factory=Omission)


@dataclass(frozen=True, kw_only=True)
class JudgedIn:
    """Where both models ran: the ``engine`` with its settings, its ``version``, with how many ``samples``.

    All are empty where a command decided. ``second_opinion`` is that of the reference evaluator: where that is "right",
    the engine may be what is wrong.
    """

    engine: str = ""
    version: str = ""
    samples: int = 0
    second_opinion: SecondOpinion = ""


@dataclass(frozen=True, kw_only=True)
class TransformationFindings:
    """What a tool does to a model that is right before it.

    ``fault`` says what is wrong, ``judged`` in which way, ``signature`` what counts as the same. ``tool`` is as it was
    asked for, ``release`` its version. ``checks`` counts transformations that were looked at. ``stopped`` names the
    limit that ended the search.
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
        """In which way the model is wrong, in a few words."""
        return failure_text(self.judged)

    @property
    def sentence(self) -> str:
        """The answer in one sentence."""
        title = f"{self.tool} {self.release}".strip()
        if self.fault == "control":
            return f"{title} breaks the model with no pass at all: it only loads and saves it ({self.failure})."
        if self.passes.alone:
            return f"{title} breaks the model by {series(self.passes.alone)} ({self.failure})."
        return f"{title} breaks the model ({self.failure})."

    def __repr__(self) -> str:
        return f"<TransformationFindings: {printable(self.sentence)} {count(self.checks, 'check')}>"

    def _repr_html_(self) -> str:
        rows = list(zip_longest(self.piece.before, self.piece.after, fillvalue=""))
        return html_table(self.sentence, ["before", "after"], rows, 60)

    def as_json(self) -> dict[str, Any]:
        """The part of the report that tells what was found."""
        piece, passes, where, verdict = self.piece, self.passes, self.where, self.judged.evidence.verdict
        worst = worst_of(verdict.mismatches)
        tree: dict[str, Any] = plain(
            {
                "tool": self.tool,
                "release": self.release,
                "engine": where.engine,
                "engine_version": where.version,
                "samples": where.samples,
                "second_opinion": where.second_opinion,
                "fault": self.fault,
                "text": self.sentence,
                "failure": {
                    "text": self.failure,
                    "stage": self.signature.stage,
                    "kind": self.signature.kind,
                    "message": str(verdict.message),
                    "error": None if worst is None else worst.error,
                    "outputs": verdict.outputs,
                },
                "piece": {
                    "nodes_before": piece.nodes_before,
                    "nodes": piece.nodes,
                    "nodes_after": piece.made,
                    "sources": [None if source is None else source.as_tree() for source in piece.sources],
                    "path": piece.path,
                    "after": piece.after_path,
                    "inputs": piece.inputs,
                    "text_before": piece.before,
                    "text_after": piece.after,
                },
                "passes": {
                    **{name: getattr(passes, name) for name in ("all", "alone", "without", "complete", "verified")},
                    "whole_model_is_right_without": passes.whole_is_right,
                    "command": passes.omission.command,
                    "python": passes.omission.python,
                },
                "checks": self.checks,
                "stopped": self.stopped,
            }
        )
        return tree


def failure_text(judged: Judged) -> str:
    """A failure in a few words, with the size of the worst mismatch."""
    verdict = judged.evidence.verdict
    worst = worst_of(verdict.mismatches)
    if verdict.stage == "compare" and worst is not None and worst.error is not None:
        return f"output {worst.output!r} differs by {worst.error:.3g}"
    if verdict.stage == "interface":
        return verdict.message
    said = shortened(first_line(verdict.message), _LONGEST)
    if verdict.stage == "transform":
        return f"it fails: {verdict.kind}: {said}" if said else f"it fails: {verdict.kind}"
    if verdict.stage in {"load", "build", "run"}:
        return f"{verdict.engine or 'onnx'} cannot {verdict.stage} it: {said}"
    return judged.reason
