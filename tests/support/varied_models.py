"""Small models whose features are varied, and a Python function as their check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from biopsy.checks.outcome import FunctionCheck
from biopsy.model.index import index_file
from biopsy.questions.variation.result import Finding, Variation
from biopsy.questions.variation.vary import VariationJob, vary
from biopsy.session.checked_search import SearchOptions
from biopsy.session.trial import Budget

Fails = Callable[[onnx.ModelProto], bool]


def softmax(rows: int = 2, channels: int = 5, axis: int = 1) -> onnx.ModelProto:
    """Softmax of ``x`` [rows, channels, 4], then LeakyRelu, then a product with ``w`` [4, 3]."""
    weight = numpy_helper.from_array(np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3), "w")
    nodes = [
        helper.make_node("Softmax", ["x"], ["s"], "soft", axis=axis),
        helper.make_node("LeakyRelu", ["s"], ["l"], "leaky", alpha=0.25),
        helper.make_node("MatMul", ["l", "w"], ["y"], "product"),
    ]
    shape = [rows, channels, 4]
    graph = helper.make_graph(
        nodes,
        "softmax",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [*shape[:2], 3])],
        [weight],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def sizes_of(model: onnx.ModelProto) -> list[int]:
    """The sizes of the first input."""
    return [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]


def attribute(model: onnx.ModelProto, op_type: str, name: str, default: Any) -> Any:
    """The value of an attribute of the first node of a type."""
    node = next(node for node in model.graph.node if node.op_type == op_type)
    found = [entry for entry in node.attribute if entry.name == name]
    return helper.get_attribute_value(found[0]) if found else default


def weight_of(model: onnx.ModelProto, name: str) -> Any:
    """The values of a weight."""
    return numpy_helper.to_array(next(one for one in model.graph.initializer if one.name == name))


@dataclass
class Varier:
    """Varies models in a folder; remembers every candidate that was checked."""

    folder: Path
    seen: list[onnx.ModelProto] = field(default_factory=list, init=False, repr=False)

    def __call__(
        self, model: onnx.ModelProto, fails: Fails, *, checks: int = 200, search: Any = None, **job: Any
    ) -> Variation:
        def check(candidate: onnx.ModelProto) -> bool:
            self.seen.append(candidate)
            return fails(candidate)

        path = self.folder / "model.onnx"
        onnx.save(model, path)
        options = SearchOptions(
            candidate=self.folder / "candidate.onnx", budget=Budget(checks=checks), **(search or {})
        )
        asked = VariationJob(**{"search": options, "values_free": True, **job})
        return vary(index_file(path), FunctionCheck(check, takes="model"), asked)


def found_of(findings: tuple[Finding, ...]) -> dict[str, str]:
    """What is said of each feature, by its title."""
    return {one.title: one.short or one.text for one in findings}


@pytest.fixture
def varier(tmp_path: Path) -> Varier:
    return Varier(tmp_path)
