"""The sections of an examination of layers: verdict, the layers themselves, and the model as a map of their errors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from biopsy.layerwise.findings import LayerFinding, LayerFindings, Suspect, TensorError
from biopsy.layerwise.report import Engines, layers_tree
from biopsy.model.index import ModelIndex
from biopsy.quantities import count
from biopsy.report.model_map import MeasuredErrors, map_tree
from biopsy.report.tree import Tree
from biopsy.report.verdict import verdict_tree

_MOST_NAMED = 5


def layers_sections(
    found: LayerFindings, index: ModelIndex, path: Path, engines: Engines, samples: int
) -> dict[str, Any]:
    """What was found about the layers of the model in a file."""
    wrong = [node for suspect in found.suspects for node in suspect.nodes]
    return {
        "verdict": verdict_of(found),
        "whole": map_tree(index, sorted(set(wrong)), measured(found)),
        "layers": layers_tree(found, path, engines, samples),
    }


def verdict_of(found: LayerFindings) -> Tree:
    """What was found in words."""
    rest = [] if found.complete else ["layers that were not measured before it was interrupted"]
    if found.unmeasured:
        rest.append(f"{count(len(found.unmeasured), 'layer')} that no golden value judges")
    if found.misfits:
        rest.append(f"{count(len(found.misfits), 'golden value')} not of the type or shape that the model computes")
    if found.suspects:
        named = "; ".join(map(_named, found.suspects[:_MOST_NAMED]))
        masked = " The outputs are right all the same: what follows hides the error." if found.is_masked else ""
        text = f"{count(len(found.suspects), 'layer or group', 'layers or groups')} make errors: {named}.{masked}"
        return verdict_tree("wrong-layers", text, not_tried=rest)
    if found.failure is not None:
        return verdict_tree("fails", f"the engine {found.failure.text}", not_tried=rest)
    if found.nothing_wrong:
        return verdict_tree("passes" if found.passed else "unknown", "No tensor is out of tolerance.", not_tried=rest)
    text = "Tensors are out of tolerance, and no isolated layer makes them so."
    return verdict_tree("unknown", text, not_tried=rest)


def _named(suspect: Suspect) -> str:
    """What a suspect is, and the first line of code that it comes from."""
    return f"{suspect.name} ({suspect.origins.places[0]})" if suspect.origins.places else suspect.name


def measured(found: LayerFindings) -> MeasuredErrors:
    """The errors of each layer by its number."""
    return MeasuredErrors(introduced=dict(_ratios(found, "introduced")), propagated=dict(_ratios(found, "propagated")))


def _ratios(found: LayerFindings, which: str) -> Iterator[tuple[int, float]]:
    for layer in found.layers:
        error = _error(layer, which)
        if error is not None and not math.isnan(error.tolerance_ratio):
            yield layer.node.number, error.tolerance_ratio


def _error(layer: LayerFinding, which: str) -> TensorError | None:
    return layer.introduced if which == "introduced" else layer.propagated
