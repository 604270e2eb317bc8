"""What an examination finds: errors per tensor and per layer, groups that fail together, non-finite origins; also as
JSON and CSV.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from biopsy import errors
from biopsy.checks.words import as_word
from biopsy.model.sources import NodeSource
from biopsy.processes.reading import digest_of, read_whole
from biopsy.records import plain
from biopsy.text import count, first_line, html_table, line_of, printable, some_of

if TYPE_CHECKING:
    from biopsy.comparison.metrics import Element

Verdict: TypeAlias = Literal["introduces", "fails", "propagates", "right", "unknown"]
"""What a layer does: it is wrong in isolation; the suspect cannot run it; it passes on an error; it is right."""

_MOST_LABELS = 2
"""Layers of a group that are named one by one."""


@dataclass(frozen=True, kw_only=True)
class TensorError:
    """How far a tensor is from its recorded value, in the input sample where it is farthest (counted from 0).

    ``absolute`` and ``relative`` are the greatest errors of any element, inf where only one side is finite or nothing
    can be subtracted. ``tolerance_ratio`` is the greatest error by what the tolerances allow there,
    |error| / (atol + rtol * |expected|). ``passed`` is the verdict by all that was asked, ``reason`` says why not.
    """

    tensor: str
    sample: int
    passed: bool
    reason: str | None
    absolute: float
    relative: float
    tolerance_ratio: float
    worst: Element | None

    @property
    def rank(self) -> tuple[bool, float, float]:
        """Greater for what is worse."""
        return (not self.passed, self.tolerance_ratio, self.absolute)


@dataclass(frozen=True)
class Failure:
    """How an engine failed: in which stage, its own name of the error, and its message."""

    stage: errors.Stage
    kind: str
    message: str

    @property
    def text(self) -> str:
        """In one line."""
        return f"cannot {self.stage}: {self.kind}: {first_line(self.message)}"


def failure_of(error: errors.BiopsyError) -> Failure:
    """A failure as a finding; what is no failure of an engine counts as one of loading."""
    if isinstance(error, errors.EngineFailure):
        return Failure(error.stage, error.kind, error.message)
    return Failure("load", type(error).__name__, error.message)


@dataclass(frozen=True)
class Rate:
    """In how many of several equal runs something was wrong: in some, but not in all."""

    wrong: int
    runs: int

    @property
    def text(self) -> str:
        """In words."""
        return f"in {self.wrong} of {self.runs} runs"


@dataclass(frozen=True, kw_only=True)
class LayerNode:
    """One node of the model's graph; a node with bodies or a call of a function is one layer.

    ``number`` is its place in the graph, from 0. ``inputs`` are the tensors that it reads, those that bodies capture
    too, except weights and Constants. ``source``: where an exporter says that it comes from.
    """

    number: int
    name: str
    op_type: str
    label: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    source: NodeSource | None = None


@dataclass(frozen=True, kw_only=True)
class LayerOrigins:
    """Where some layers come from, as far as an exporter says.

    ``name`` is what they are together: the module that all are in, and the operators that were translated into them.
    ``places`` are the lines of code, in words, each once.
    """

    name: str = ""
    places: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LayerPiece:
    """Layers that were run as one: what lies between tensors that have a recorded value, and the layer at its end.

    ``inputs`` are the tensors that it was fed with; ``nodes`` and ``labels`` in the order of the graph.
    """

    nodes: tuple[int, ...]
    labels: tuple[str, ...]
    inputs: tuple[str, ...]
    origins: LayerOrigins = LayerOrigins()


@dataclass(frozen=True, kw_only=True)
class LayerFinding:
    """What was found about one layer.

    ``introduced`` is the error of its worst output when the suspect runs the layer in isolation, fed with recorded
    values; ``propagated`` that in the whole model. None: not measured, and ``note`` says why. ``failure``: the suspect
    cannot run it in isolation, which counts against the layer unless the whole model runs (``is_accused``).
    ``flaky``: it is wrong, or fails, now and then; both errors are then those of the worst run. ``rounding_ratio``: the
    introduced error by that of plain float32 on the same values; None where that was not asked.

    ``piece``: what was run as one with it, because nobody has values of the tensors between, and ``introduced`` is then
    the error of the whole piece; None where it was run by itself. ``within``: the layers at the ends of the pieces that
    measure it, if it has no value itself. ``is_of_model``: the suspect gives what the model says, and the golden values
    are of something else.
    """

    node: LayerNode
    introduced: TensorError | None = None
    propagated: TensorError | None = None
    failure: Failure | None = None
    is_accused: bool = True
    note: str = ""
    flaky: Rate | None = None
    rounding_ratio: float | None = None
    piece: LayerPiece | None = None
    within: tuple[int, ...] = ()
    is_of_model: bool = False

    @property
    def verdict(self) -> Verdict:
        """What the layer does, or the piece that ends with it."""
        if self.failure is not None and self.is_accused:
            return "fails"
        if self.introduced is not None and not self.introduced.passed:
            return "introduces"
        if self.propagated is not None and not self.propagated.passed:
            return "propagates" if self.introduced is not None else "unknown"
        return "right" if self.introduced is not None or self.propagated is not None else "unknown"

    @property
    def nodes(self) -> tuple[int, ...]:
        """The layer, or all of the piece that ends with it."""
        return (self.node.number,) if self.piece is None else self.piece.nodes

    @property
    def is_suspect(self) -> bool:
        """Whether it makes errors, or fails, by itself."""
        return self.verdict in ("introduces", "fails")


@dataclass(frozen=True, kw_only=True)
class LayerGroup:
    """Layers that are right one by one and wrong together: what an engine has fused, or rounding that adds up.

    ``hides``: whether the failure goes away when the tensors inside the group are marked as outputs, as it does if the
    engine fuses across them. None where there is nothing to mark. ``rounding_ratio``: its error by that of plain
    float32 on the same values; None where that cannot be told. ``flaky``: it is wrong now and then. ``is_of_model``: as
    of a layer.
    """

    nodes: tuple[int, ...]
    labels: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    error: TensorError | None
    failure: Failure | None
    hides: bool | None
    rounding_ratio: float | None = None
    flaky: Rate | None = None
    is_of_model: bool = False
    origins: LayerOrigins = LayerOrigins()


@dataclass(frozen=True)
class MarkingEffect:
    """That marking tensors as outputs changed what the suspect gives for ``output``.

    "gone": it is wrong, and right when ``tensors`` are marked; "appears" the other way round; "differs": wrong both
    times in other ways, or right both times and far apart.
    """

    change: Literal["gone", "appears", "differs"]
    output: str
    tensors: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class NonFiniteOrigin:
    """A layer whose inputs are finite and whose output is not: where NaN or infinities begin in a run of ``engine``.

    ``number`` and ``label`` are the layer's; ``nan`` and ``inf`` count elements of ``tensor``.
    """

    engine: str
    number: int
    label: str
    tensor: str
    nan: int
    inf: int


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """What to look at: a layer, or a group of them; what goes in and comes out; how wrong it is; whose line it is."""

    nodes: tuple[int, ...]
    labels: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    error: TensorError | None
    failure: Failure | None
    origins: LayerOrigins = LayerOrigins()

    @property
    def name(self) -> str:
        """In a few words: its label; of several layers what they are together, or else the first and the last."""
        layers = count(len(self.labels), "layer")
        if len(self.labels) > 1 and self.origins.name:
            return f"{self.origins.name} ({layers})"
        if len(self.labels) <= _MOST_LABELS:
            return " -> ".join(self.labels)
        return f"{self.labels[0]} -> ... -> {self.labels[-1]} ({layers})"

    @property
    def rank(self) -> tuple[bool, float, float]:
        """Greater for what is worse: failures first, then by the error in units of what is allowed."""
        return (
            self.failure is not None,
            self.error.tolerance_ratio if self.error else 0.0,
            self.error.absolute if self.error else 0,
        )


@dataclass(frozen=True, kw_only=True)
class GoldenCoverage:
    """Of how many of the tensors that layers compute there are golden values.

    ``misfits`` are tensors whose golden value has another type or shape than the model computes, and both in words:
    they are as if nobody had them.
    """

    tensors: int
    of: int
    misfits: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class LayerFindings:
    """All that an examination found. ``outputs`` are the errors of the model's own outputs, nothing marked.

    ``layers`` are in the order of the graph. ``failure``: the suspect cannot run the whole model. ``complete`` is False
    where the examination was interrupted. ``unmeasured`` are layers that no recorded value judges. ``golden``: what is
    known of golden values; None where an engine has computed the values.
    """

    layers: Sequence[LayerFinding]
    outputs: Sequence[TensorError] = ()
    failure: Failure | None = None
    groups: Sequence[LayerGroup] = ()
    marking_effects: Sequence[MarkingEffect] = ()
    non_finite_origins: Sequence[NonFiniteOrigin] = ()
    remarks: Sequence[str] = ()
    complete: bool = True
    unmeasured: Sequence[int] = ()
    golden: GoldenCoverage | None = None

    @cached_property
    def first_wrong(self) -> tuple[LayerNode, TensorError] | None:
        """The first tensor out of tolerance in the order of the graph, in the whole model if that was measured."""
        for layer in self.layers:
            error = layer.propagated or layer.introduced
            if error is not None and not error.passed:
                return layer.node, error
        return None

    @cached_property
    def suspects(self) -> list[Suspect]:
        """Layers and groups that make errors, the worst first."""
        suspects = [_suspected(layer) for layer in self.layers if layer.is_suspect]
        names = [field.name for field in fields(Suspect)]
        suspects += [Suspect(**{name: getattr(group, name) for name in names}) for group in self.groups]
        return sorted(suspects, key=lambda suspect: suspect.rank, reverse=True)

    @property
    def is_masked(self) -> bool:
        """Whether layers are wrong although all outputs of the model are right."""
        return bool(self.suspects) and self.failure is None and all(output.passed for output in self.outputs)

    @property
    def passed(self) -> bool:
        """Whether all was measured, and nothing at all is out of tolerance."""
        return self.complete and self.nothing_wrong and not self.unmeasured and not self.misfits

    @property
    def misfits(self) -> Sequence[str]:
        """Tensors whose golden value is of something else than the model's tensor: of what, nobody knows."""
        return () if self.golden is None else tuple(self.golden.misfits)

    @property
    def nothing_wrong(self) -> bool:
        """Whether nothing of what was measured is out of tolerance."""
        return (
            self.failure is None
            and not self.suspects
            and self.first_wrong is None
            and all(output.passed for output in self.outputs)
        )

    def __repr__(self) -> str:
        return f"<LayerFindings: {self._summary}>"

    def _repr_html_(self) -> str:
        rows = [
            (", ".join(suspect.labels), *_figures(suspect.error, 3)[::2],
             suspect.failure.text if suspect.failure is not None else "")
            for suspect in self.suspects
        ]  # fmt: skip
        return html_table(self._summary, ["suspect", "error", "times the tolerance", "failure"], rows)

    @property
    def _summary(self) -> str:
        """In one line."""
        ended = "" if self.complete else ", interrupted"
        if self.nothing_wrong:
            return f"nothing wrong in {count(len(self.layers), 'layer')}{ended}"
        whole = "" if self.failure is None else f", the model: {printable(self.failure.text)}"
        names = some_of(", ".join(suspect.labels) for suspect in self.suspects)
        worst = f", the worst first: {names}" if names else ""
        return f"{count(len(self.suspects), 'suspect')} in {count(len(self.layers), 'layer')}{worst}{whole}{ended}"


def _suspected(layer: LayerFinding) -> Suspect:
    piece, source = layer.piece, layer.node.source
    own = LayerOrigins(places=() if source is None else (source.with_code,))
    return Suspect(
        nodes=layer.nodes,
        labels=(layer.node.label,) if piece is None else piece.labels,
        inputs=layer.node.inputs if piece is None else piece.inputs,
        outputs=layer.node.outputs,
        error=layer.introduced,
        failure=layer.failure,
        origins=own if piece is None else piece.origins,
    )


# Findings as JSON and as CSV, and the ranking read back. The schema: docs/reference/file-formats.md.

VERSION = 1
"""Of the schema: it grows when a key changes its meaning or goes, not when one is added."""


@dataclass(frozen=True)
class Engines:
    """Who was compared: label and version of the reference and of the suspect."""

    reference: tuple[str, str]
    suspect: tuple[str, str]


def layers_tree(findings: LayerFindings, model: Path, engines: Engines, samples: int) -> dict[str, Any]:
    """All that was found, as plain values."""
    first = findings.first_wrong
    sides = {"reference": engines.reference, "suspect": engines.suspect}
    return {
        "biopsy_layers": VERSION,
        "verdict": "right" if findings.passed else "unknown" if findings.nothing_wrong else "wrong",
        "complete": findings.complete,
        "model": {"path": str(model), "sha256": digest_of(model)},
        **{side: {"label": label, "version": version} for side, (label, version) in sides.items()},
        "samples": samples,
        "unmeasured": list(findings.unmeasured),
        "golden": plain(findings.golden),
        "failure": plain(findings.failure),
        "outputs": plain(list(findings.outputs)),
        "masked": findings.is_masked,
        "first_wrong": None if first is None else {"layer": first[0].number, "tensor": first[1].tensor},
        "ranking": plain(findings.suspects),
        "groups": plain(list(findings.groups)),
        "observed": plain(list(findings.marking_effects)),
        "non_finite_origins": plain(list(findings.non_finite_origins)),
        "remarks": list(findings.remarks),
        "layers": [_layer_tree(layer) for layer in findings.layers],
    }


def _layer_tree(layer: LayerFinding) -> dict[str, Any]:
    tree: dict[str, Any] = plain(layer)
    del tree["is_accused"]
    source = layer.node.source
    node = {**tree.pop("node"), "source": None if source is None else source.as_tree()}
    return {**node, **tree, "verdict": layer.verdict}


_COLUMNS = (
    "number", "name", "operator", "outputs", "verdict", "rank",
    "introduced_absolute", "introduced_relative", "introduced_tolerance_ratio",
    "propagated_absolute", "propagated_relative", "propagated_tolerance_ratio",
    "failure", "note",
)  # fmt: skip


def as_csv(findings: LayerFindings) -> bytes:
    """One line per layer in the order of the graph; errors that were not measured are empty.

    Names are escaped where they are not printable, as on a terminal: a line is one line. The JSON report has them as
    they are.
    """
    ranked = reversed(list(enumerate(findings.suspects, 1)))
    ranks = {node: place for place, suspect in ranked for node in suspect.nodes}
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(_COLUMNS)
    for layer in findings.layers:
        node = layer.node
        writer.writerow(
            [
                node.number, *map(printable, (node.name, node.op_type, " ".join(node.outputs))), layer.verdict,
                ranks.get(node.number, ""), *_figures(layer.introduced), *_figures(layer.propagated),
                printable(layer.failure.text) if layer.failure is not None else "", printable(layer.note),
            ]
        )  # fmt: skip
    return text.getvalue().encode("utf-8", "backslashreplace")


def _figures(error: TensorError | None, digits: int = 9) -> list[str]:
    if error is None:
        return ["", "", ""]
    return [f"{value:.{digits}g}" for value in (error.absolute, error.relative, error.tolerance_ratio)]


def ranking_in(report: Path, model: Path) -> tuple[tuple[int, ...], ...]:
    """The suspects in a JSON report as numbers of nodes, the worst first.

    Raises UsageError if there is no such report, or if it was made of another model.
    """
    try:
        tree = json.loads(read_whole(report))
        if "biopsy_report" in tree:  # before, the object of the layers was the whole report
            tree = tree["layers"]
        ranking = tuple(tuple(int(node) for node in suspect["nodes"]) for suspect in tree["ranking"])
        digest = tree["model"]["sha256"]
    except OSError as error:
        raise errors.UsageError(f"cannot read {report}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise errors.UsageError(
            f"{report} is no report of biopsy debug layers", next_steps=["biopsy debug layers MODEL --report FILE.json"]
        ) from error
    if digest != digest_of(model):
        raise errors.UsageError(
            f"{report} was made of another model than {model}, or the model has changed since",
            next_steps=[line_of(["biopsy", "debug", "layers", as_word(model), "--report", as_word(report)])],
        )
    return ranking
