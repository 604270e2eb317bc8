"""Where it goes wrong: lines, operators and the smallest part, of an exported model whose fault is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from biopsy import errors, events
from biopsy.diagnosis.context import TimeUpError
from biopsy.layerwise.findings import LayerFindings
from biopsy.model.index import ModelIndex
from biopsy.quantities import count
from biopsy.reduction.result import Reduction
from biopsy.report.bundle.job import EarlierFindings
from biopsy.tensors.files import read_feeds
from biopsy.text import first_of
from biopsy.torch.accusation import Accusation
from biopsy.torch.calls import Arguments
from biopsy.torch.differences import Closeness, ModuleDifference, difference
from biopsy.torch.evaluation import OnnxModel
from biopsy.torch.facts import GoldenCount, ModuleLine, SmallestPiece
from biopsy.torch.guilty_part import BUNDLE, FailingExport, are_only_ties, packed, smallest_part, wrong_layers
from biopsy.torch.module_lines import lines_of, lines_of_layers
from biopsy.torch.recording import TorchRecording, record
from biopsy.torch.steps import Steps

_Found = TypeVar("_Found")

GOLDEN = "golden.safetensors"

LOCATING = {
    "golden": "which tensors has the program a value of?",
    "layers": "which layers are wrong?",
    "piece": "which is the smallest part that still fails?",
    "bundle": "does it fail without PyTorch and without biopsy?",
}
"""The questions, by name."""

_MOST_NAMED = 3


@dataclass(frozen=True, kw_only=True)
class Located:
    """What is known of the place. ``accusation`` may know more than before, or less."""

    accusation: Accusation
    places: tuple[ModuleLine, ...] = ()
    values: GoldenCount | None = None
    piece: SmallestPiece | None = None


class Location:
    """Finds the place. ``folder`` is where files go, ``scratch`` where transient ones do.

    ``given`` are the arguments for which the model is wrong, ``timeout`` seconds for each run of an engine.
    """

    def __init__(
        self,
        given: Arguments,
        asked: Closeness,
        timeout: float | None,
        *,
        folder: Path,
        scratch: Path,
        steps: Steps,
        listener: events.Listener,
    ) -> None:
        self._given = given
        self._asked = asked
        self._timeout = timeout
        self._folder = folder
        self._scratch = scratch
        self._steps = steps
        self._listener = listener

    def located(self, accusation: Accusation, *, bundled: bool) -> Located:
        """The place of what somebody is accused of; ``bundled``: the smallest part is packed, too.

        A question that nobody can answer leaves the others as they are.
        """
        model = accusation.model
        if model is None:
            return Located(accusation=accusation, places=accusation.places)
        recording = self._answer("golden", lambda: self._recorded(model))
        if recording is None:
            return Located(accusation=accusation)
        values = GoldenCount(matched=recording.tensors, of=recording.of)
        accusation = self._with_decomposition(accusation, model, recording)
        if accusation.part == "decomposition":
            return Located(accusation=accusation, values=values)
        failing = FailingExport(
            model=model.path, engine=accusation.engine, golden=recording.path, asked=self._asked, timeout=self._timeout
        )
        found = self._answer("layers", lambda: self._wrong(failing))
        if found is not None:
            accusation = self._excused(_resolved(accusation, found[0]), failing, found[0])
        places = () if found is None else lines_of_layers(*found)
        if accusation.blame == "tolerance":
            return Located(accusation=accusation, places=places, values=values)
        part = self._answer("piece", lambda: self._smallest(failing))
        if part is None:
            return Located(accusation=accusation, places=places, values=values)
        places = places or lines_of(part.sources)
        piece = SmallestPiece(nodes=part.nodes, of=part.nodes_before)
        if bundled:
            piece = replace(piece, path=part.output, inputs=part.inputs)
            told = EarlierFindings(title=_title(accusation, places), verdict=_told(accusation, places))
            made = self._answer("bundle", lambda: self._packed(failing, part, told))
            piece = piece if made is None else replace(piece, bundle=made)
        return Located(accusation=accusation, places=places, values=values, piece=piece)

    def _answer(self, name: str, answer: Callable[[], tuple[_Found, str]]) -> _Found | None:
        try:
            return self._steps.ask(name, answer)
        except errors.EngineMissing:
            raise
        except (errors.BiopsyError, TimeUpError):
            return None

    def _recorded(self, model: OnnxModel) -> tuple[TorchRecording, str]:
        given = self._given.copied()
        found = record(model.program, given.args, self._folder / GOLDEN, given.kwargs)
        return found, f"{found.tensors} of {found.of}"

    def _with_decomposition(self, accusation: Accusation, model: OnnxModel, recording: TorchRecording) -> Accusation:
        """The accusation, or that of the program which the exporter makes of the captured one, if that is wrong."""
        golden = read_feeds(recording.path)[0]
        wanted = {name: value for name, value in model.expected.items() if name in golden}
        if accusation.blame not in ("exporter", "unknown") or not wanted:
            return accusation
        found = difference({name: golden[name] for name in wanted}, wanted, self._asked)
        if found is None or not (found.is_of_values and _is_as_great(found, accusation)):
            return accusation
        text = "The exporter makes operators of others that give something else, before it translates them."
        return replace(accusation, blame="exporter", part="decomposition", text=text, difference=found, reason="")

    def _excused(self, accusation: Accusation, failing: FailingExport, found: LayerFindings) -> Accusation:
        """The accusation; or that nobody is at fault: equal values stand in another order, as nobody promises."""
        wrong = [layer for layer in found.layers if layer.is_suspect]
        orders = [layer.node for layer in wrong if layer.node.op_type == "TopK" and layer.piece is None]
        if not wrong or len(orders) < len(wrong) or found.groups or not are_only_ties(failing, orders, self._scratch):
            return accusation
        text = "Equal values stand in another order: PyTorch does not say which of them comes first, and ONNX does."
        return replace(accusation, blame="tolerance", part=None, text=text, reason="")

    def _wrong(self, failing: FailingExport) -> tuple[tuple[LayerFindings, ModelIndex], str]:
        left = self._steps.left
        within = replace(failing, timeout=left.for_run(failing.timeout))
        found = wrong_layers(within, self._scratch, left.bounding(self._listener))
        left.require()  # a layer that took longer than that is not slow by itself
        named = first_of([suspect.name for suspect in found[0].suspects], _MOST_NAMED, "; ")
        return found, named or "none by itself"

    def _smallest(self, failing: FailingExport) -> tuple[Reduction, str]:
        found = smallest_part(failing, self._folder, self._scratch, self._steps.left.seconds, self._listener)
        return found, f"{len(found.nodes)} of {count(found.nodes_before, 'node')}"

    def _packed(self, failing: FailingExport, part: Reduction, told: EarlierFindings) -> tuple[Path, str]:
        made = packed(failing, part, self._folder, told)
        if made.standing == "not":
            raise errors.CheckError(f"no: {BUNDLE}/reproduce.py ended with status {made.status}, and says so")
        return made.path, "yes" if made.standing == "alone" else "only where biopsy is installed"


def _is_as_great(found: ModuleDifference, accusation: Accusation) -> bool:
    """Whether the program itself differs from the module by about as much as the exported model does."""
    before = accusation.difference
    if before is None or before.worst.error is None or found.worst.error is None:
        return before is not None
    return found.worst.error >= 0.1 * before.worst.error


def _resolved(accusation: Accusation, found: LayerFindings) -> Accusation:
    """The accusation that single layers leave no doubt about, where the whole model left some."""
    if accusation.blame != "unknown" or accusation.model is None or not accusation.difference:
        return accusation
    wrong = [layer for layer in found.layers if layer.is_suspect]
    if not wrong or found.groups:
        return accusation
    if all(layer.is_of_model for layer in wrong):
        text = "The exported model computes something else than the module: in float64, the reference evaluator agrees "
        return replace(accusation, blame="exporter", part="translation", text=f"{text}with it.", reason="")
    return accusation


def _title(accusation: Accusation, places: tuple[ModuleLine, ...]) -> str:
    """What the bundle is called where a run of it would accuse the engine that is only the witness."""
    if accusation.blame != "exporter":
        return ""
    part = {"optimizer": "onnxscript's optimizer breaks", "decomposition": "torch.onnx decomposes wrongly:"}
    operators = " -> ".join(places[0].operators) if places else ""
    return f"{part.get(accusation.part or '', 'torch.onnx translates wrongly:')} {operators or 'an operator'}"


def _told(accusation: Accusation, places: tuple[ModuleLine, ...]) -> str:
    """The verdict for who gets the bundle. Folders of the author's are nobody else's business."""
    where = "".join(f" {Path(place.file).name}:{place.line}: {place.code}." for place in places[:1] if place.file)
    return f"{accusation.text}{where}"
