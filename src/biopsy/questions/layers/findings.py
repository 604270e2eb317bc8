"""The findings of an examination: errors of tensors, layers and groups, origins of NaN; also as JSON and CSV."""

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
from biopsy.records import plain, plain_of
from biopsy.text import count, first_line, html_table, line_of, printable, some_of

if TYPE_CHECKING:
    from biopsy.comparison.metrics import Element

Verdict: TypeAlias = Literal["introduces", "fails", "propagates", "right", "unknown"]
"""A layer is wrong in isolation, fails in isolation, passes on an error, is right, or was not measured."""

_MOST_LABELS = 2
"""Layers of a group that are all named."""


@dataclass(frozen=True, kw_only=True)
class TensorError:
    """The error of a tensor against its recorded value, in its worst input ``sample``, counted from 0.

    ``absolute`` and ``relative`` are the greatest errors of any element; inf if only one side is finite or the values
    cannot be subtracted. ``tolerance_ratio`` is the greatest |error| / (atol + rtol * |expected|). ``passed`` is the
    verdict by all limits, ``reason`` says why it failed, ``worst`` is the worst element. ``kind`` is the gravest kind
    of its mismatches (``comparison.mismatch``), "" if it passed; ``form`` says what its wrong type or shape is.
    """

    tensor: str
    sample: int
    passed: bool
    reason: str | None
    absolute: float
    relative: float
    tolerance_ratio: float
    worst: Element | None
    kind: str = ""
    form: str = ""

    @property
    def rank(self) -> tuple[bool, float, float]:
        """Greater for what is worse."""
        return (not self.passed, self.tolerance_ratio, self.absolute)


@dataclass(frozen=True)
class Failure:
    """How an engine failed: the stage, the engine's name for the error (``kind``), and its message."""

    stage: errors.Stage
    kind: str
    message: str

    @property
    def text(self) -> str:
        """The failure in one line."""
        return f"cannot {self.stage}: {self.kind}: {first_line(self.message)}"


def failure_of(error: errors.BiopsyError) -> Failure:
    """The failure that an exception describes; one that is not an EngineFailure counts as a failure to load."""
    if isinstance(error, errors.EngineFailure):
        return Failure(error.stage, error.kind, error.message)
    return Failure("load", type(error).__name__, error.message)


@dataclass(frozen=True)
class Rate:
    """How many of several equal runs were ``wrong``: some, but not all."""

    wrong: int
    runs: int

    @property
    def text(self) -> str:
        """The rate in words."""
        return f"in {self.wrong} of {self.runs} runs"


@dataclass(frozen=True, kw_only=True)
class LayerNode:
    """One node of the model's graph, also if it has bodies or calls a function.

    ``number`` is its place in the graph, from 0. ``inputs`` are the tensors that it or its bodies read, without weights
    and Constants. ``source`` is its origin as an exporter noted it.
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
    """The origins of some layers, as far as an exporter noted them.

    ``name`` is their common module with the operators that were translated into them; ``places`` are the distinct lines
    of code, in words.
    """

    name: str = ""
    places: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LayerPiece:
    """Layers that were run together, as the tensors between them have no recorded value; in graph order.

    ``inputs`` are the tensors that were fed.
    """

    nodes: tuple[int, ...]
    labels: tuple[str, ...]
    inputs: tuple[str, ...]
    origins: LayerOrigins = LayerOrigins()


@dataclass(frozen=True, kw_only=True)
class LayerFinding:
    """The findings about one layer.

    ``introduced`` is the error of its worst output when the suspect runs the layer in isolation on recorded values,
    ``propagated`` the one in the whole model. None: not measured, and ``note`` says why. ``failure``: the suspect
    cannot run the layer in isolation, which counts only if the whole model fails too (``is_accused``). ``flaky``: some
    runs are wrong or fail; both errors are those of the worst run. ``rounding_ratio``: the introduced error divided by
    plain float32's on the same values; None if not measured.

    ``piece``: the layers that were run together with it, whose common error is ``introduced``; None if it ran alone.
    ``within``: the layers whose pieces measure it, if it has no recorded output. ``is_of_model``: the suspect computes
    what the model says, by float64, and the reference, or the golden values, something else.
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
        """The verdict on the layer, or on the piece that ends with it."""
        if self.failure is not None and self.is_accused:
            return "fails"
        if self.introduced is not None and not self.introduced.passed:
            return "introduces"
        if self.propagated is not None and not self.propagated.passed:
            return "propagates" if self.introduced is not None else "unknown"
        return "right" if self.introduced is not None or self.propagated is not None else "unknown"

    @property
    def nodes(self) -> tuple[int, ...]:
        """The number of the layer, or those of the piece that ends with it."""
        return (self.node.number,) if self.piece is None else self.piece.nodes

    @property
    def is_suspect(self) -> bool:
        """Whether it is wrong, or fails, in isolation."""
        return self.verdict in ("introduces", "fails")

    @property
    def as_suspect(self) -> Suspect:
        """The layer, or the piece that ends with it, as a suspect."""
        piece, source = self.piece, self.node.source
        own = LayerOrigins(places=() if source is None else (source.with_code,))
        return Suspect(
            nodes=self.nodes,
            labels=(self.node.label,) if piece is None else piece.labels,
            inputs=self.node.inputs if piece is None else piece.inputs,
            outputs=self.node.outputs,
            error=self.introduced,
            failure=self.failure,
            origins=own if piece is None else piece.origins,
        )


@dataclass(frozen=True)
class MarkingEffect:
    """Marking ``tensors`` as outputs changed the suspect's value of ``output``.

    "gone": it was wrong, and is right when they are marked; "appears": the other way round; "differs": it is wrong, or
    right, in both cases, with values that are out of tolerance against each other.
    """

    change: Literal["gone", "appears", "differs"]
    output: str
    tensors: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class NonFiniteOrigin:
    """A layer that makes NaN or infinity in its output ``tensor`` in a run of ``engine``: it reads none.

    ``nan`` and ``inf`` count the tensor's elements. If it ``reads_inf``, only NaN begins there, and ``inf`` is 0.
    """

    engine: str
    number: int
    label: str
    tensor: str
    nan: int
    inf: int
    reads_inf: bool = False


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """A layer or a group that is wrong, with its inputs and outputs, its error or failure, and its origins."""

    nodes: tuple[int, ...]
    labels: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    error: TensorError | None
    failure: Failure | None
    origins: LayerOrigins = LayerOrigins()

    @property
    def name(self) -> str:
        """A short name: the label of a layer; of several, their common origin, or the first and the last label."""
        layers = count(len(self.labels), "layer")
        if len(self.labels) > 1 and self.origins.name:
            return f"{self.origins.name} ({layers})"
        if len(self.labels) <= _MOST_LABELS:
            return " -> ".join(self.labels)
        return f"{self.labels[0]} -> ... -> {self.labels[-1]} ({layers})"

    @property
    def rank(self) -> tuple[bool, float, float]:
        """Greater for what is worse: failures first, then by tolerance ratio."""
        return (
            self.failure is not None,
            self.error.tolerance_ratio if self.error else 0.0,
            self.error.absolute if self.error else 0,
        )


@dataclass(frozen=True, kw_only=True)
class LayerGroup(Suspect):
    """Layers that are right in isolation and wrong together: fused by the engine, or accumulated rounding.

    ``hides``: the failure goes away if the group's inner tensors are marked as outputs, as it does for a fusion; None
    if there are none. ``rounding_ratio``: its error divided by plain float32's on the same values; None if unknown.
    ``flaky``: only some runs are wrong. ``is_of_model``: see ``LayerFinding``.
    """

    hides: bool | None
    rounding_ratio: float | None = None
    flaky: Rate | None = None
    is_of_model: bool = False


@dataclass(frozen=True, kw_only=True)
class GoldenCoverage:
    """How many of the tensors that layers compute have golden values: ``tensors`` of ``of``.

    ``misfits`` are tensors whose golden value has another type or shape, with the reason; these values are not used.
    """

    tensors: int
    of: int
    misfits: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class LayerFindings:
    """All findings of an examination. ``layers`` are in graph order, ``outputs`` the errors with nothing marked.

    ``failure``: the suspect cannot run the whole model. ``complete`` is False if the examination was interrupted.
    ``unmeasured`` are the numbers of layers that no recorded value judges. ``golden`` is None if an engine computed the
    reference values. If all outputs are right, ``hidden`` has the nodes of each suspect whose error the rest of the
    model hides, and ``unread`` those of each whose wrong value the rest never gets.
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
    hidden: Sequence[tuple[int, ...]] = ()
    unread: Sequence[tuple[int, ...]] = ()

    @cached_property
    def first_wrong(self) -> tuple[LayerNode, TensorError] | None:
        """The first tensor out of tolerance in graph order, in the whole model if that was measured."""
        for layer in self.layers:
            error = layer.propagated or layer.introduced
            if error is not None and not error.passed:
                return layer.node, error
        return None

    @cached_property
    def suspects(self) -> list[Suspect]:
        """Layers and groups that are wrong by themselves, the worst first."""
        suspects = [layer.as_suspect for layer in self.layers if layer.is_suspect]
        names = [field.name for field in fields(Suspect)]
        suspects += [Suspect(**{name: getattr(group, name) for name in names}) for group in self.groups]
        return sorted(suspects, key=lambda suspect: suspect.rank, reverse=True)

    @property
    def is_of_model(self) -> bool:
        """Whether the suspect computes what the model says, by float64, in every layer and group that is wrong."""
        wrong: list[LayerFinding | LayerGroup] = [layer for layer in self.layers if layer.is_suspect]
        wrong += self.groups
        return bool(wrong) and all(part.is_of_model for part in wrong)

    @property
    def is_masked(self) -> bool:
        """Whether layers are wrong in the model although all its outputs are right."""
        marked = {suspect.nodes for suspect in self.wrong_if_marked}
        return self.has_right_outputs and any(nodes not in marked for nodes in self.hidden)

    @property
    def has_right_outputs(self) -> bool:
        """Whether the suspect runs the model, and all its outputs are right."""
        return self.failure is None and all(output.passed for output in self.outputs)

    @cached_property
    def wrong_if_marked(self) -> list[Suspect]:
        """The suspects that are wrong only if their own tensors are outputs of the model.

        Either other outputs, which are right, become wrong by that: marking changes what the engine does. Or the rest
        of the model never gets the wrong value: only the copy that the engine returns is wrong.
        """
        changing = {name for effect in self.marking_effects if effect.change == "appears" for name in effect.tensors}
        return [
            suspect
            for suspect in self.suspects
            if suspect.nodes in self.unread or not changing.isdisjoint(suspect.outputs)
        ]

    @property
    def passed(self) -> bool:
        """Whether everything was measured and nothing is out of tolerance."""
        return self.complete and self.nothing_wrong and not self.unmeasured and not self.misfits

    @property
    def misfits(self) -> Sequence[str]:
        """Tensors whose golden value has another type or shape."""
        return () if self.golden is None else tuple(self.golden.misfits)

    @property
    def nothing_wrong(self) -> bool:
        """Whether nothing that was measured is out of tolerance."""
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
        """The findings in one line."""
        ended = "" if self.complete else ", interrupted"
        if self.nothing_wrong:
            return f"nothing wrong in {count(len(self.layers), 'layer')}{ended}"
        whole = "" if self.failure is None else f", the model: {printable(self.failure.text)}"
        names = some_of(", ".join(suspect.labels) for suspect in self.suspects)
        worst = f", the worst first: {names}" if names else ""
        return f"{count(len(self.suspects), 'suspect')} in {count(len(self.layers), 'layer')}{worst}{whole}{ended}"


VERSION = 1
"""The version of the schema in docs/reference/file-formats.md. Raise it when a key changes its meaning or goes."""


@dataclass(frozen=True)
class Engines:
    """Label and version of the reference and of the suspect."""

    reference: tuple[str, str]
    suspect: tuple[str, str]


def layers_tree(findings: LayerFindings, model: Path, engines: Engines, samples: int) -> dict[str, Any]:
    """The findings as plain values for a report."""
    first = findings.first_wrong
    sides = {"reference": engines.reference, "suspect": engines.suspect}
    return {
        "biopsy_layers": VERSION,
        "verdict": "right" if findings.passed else "unknown" if findings.nothing_wrong else "wrong",
        "complete": findings.complete,
        "model": {"path": str(model), "sha256": digest_of(model)},
        **{side: {"label": label, "version": version} for side, (label, version) in sides.items()},
        "samples": samples,
        **plain_of(findings, "unmeasured golden failure outputs"),
        "masked": findings.is_masked,
        "first_wrong": None if first is None else {"layer": first[0].number, "tensor": first[1].tensor},
        "ranking": plain(findings.suspects),
        "groups": plain(list(findings.groups)),
        "observed": plain(list(findings.marking_effects)),
        **plain_of(findings, "non_finite_origins remarks"),
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
    """One line per layer in graph order; errors that were not measured are empty.

    Unprintable characters in names are escaped, so that each layer has one line.
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
        if "biopsy_report" in tree:  # older reports are this object alone
            tree = tree["layers"]
        ranking = tuple(tuple(int(node) for node in suspect["nodes"]) for suspect in tree["ranking"])
        digest = tree["model"]["sha256"]
    except OSError as error:
        raise errors.UsageError(f"cannot read {report}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise errors.UsageError(
            f"{report} is not a report of biopsy debug layers",
            next_steps=["biopsy debug layers MODEL --report FILE.json"],
        ) from error
    if digest != digest_of(model):
        raise errors.UsageError(
            f"{report} was made of another model than {model}, or the model has changed since",
            next_steps=[line_of(["biopsy", "debug", "layers", as_word(model), "--report", as_word(report)])],
        )
    return ranking
