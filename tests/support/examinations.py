"""Examinations of layers, as tests run them."""

from collections.abc import Callable

import onnx

from biopsy.questions.layers.findings import LayerFindings
from support.models import chain

REFERENCE = "onnxrt:optimization=none"

Examine = Callable[..., LayerFindings]


def labels(found: LayerFindings) -> list[str]:
    return [" ".join(one.labels) for one in found.suspects]


def verdicts(found: LayerFindings) -> dict[str, str]:
    return {layer.node.name or layer.node.label: layer.verdict for layer in found.layers}


def growing(length: int) -> onnx.ModelProto:
    """A chain in which nothing shrinks an error: Relu, Neg, Neg, again and again, on positive numbers."""
    return chain(length, ["Relu", "Neg", "Neg"])
