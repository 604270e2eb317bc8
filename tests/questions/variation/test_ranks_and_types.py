"""Other numbers of dimensions and other types, where a failure needs some elements, or what is broadcast with them."""

from contextlib import closing
from pathlib import Path

import numpy as np
import onnx
import pytest

from biopsy.questions.variation.elements import TypedPlace, with_dtype
from biopsy.questions.variation.features import FedModel
from biopsy.questions.variation.shapes import rank_features
from biopsy.questions.variation.validity import Validity
from questions.variation.test_planted_conditions import Planted, normal, varied

LEAST = np.iinfo(np.int32).min


def with_one(place: tuple[int, ...], shape: tuple[int, ...]) -> np.ndarray:
    values = np.ones(shape, np.float32)
    values[place] = -3
    return values


@pytest.mark.parametrize("place", [(0, 0), (11, 5), (10, 3)])
def test_an_element_that_fails_is_kept_when_a_dimension_is_removed(place: tuple[int, int], tmp_path: Path):
    rules = [{"op": "Relu", "does": "add", "negative": True}]
    graph = "g (float[12,6] x) => (float[12,6] y) { y = Relu(x) }"
    found = varied(Planted(graph, rules, {"x": with_one(place, (12, 6))}), tmp_path)
    assert "number of dimensions of x" in {finding.title for finding in found.free}


@pytest.mark.parametrize("dtype", ["int64", "int8"])
def test_the_least_and_the_greatest_integer_stay_so_in_another_type(dtype: str):
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18]> g (int32[3] x) => (int32[3] y) '
        f"<int32[3] w = {{{LEAST}, 5, {-LEAST - 1}}}> {{ y = Add(x, w) }}"
    )
    fed = FedModel(model, [{"x": np.array([LEAST, -7, -LEAST - 1], np.int32)}])
    changed = with_dtype([TypedPlace("x"), TypedPlace("w", 0)], dtype)(fed)
    assert changed is not None and changed.feeds is not None
    limits = np.iinfo(dtype)
    assert changed.feeds[0]["x"].tolist() == [limits.min, -7, limits.max]
    assert onnx.numpy_helper.to_array(changed.model.graph.initializer[0]).tolist() == [limits.min, 5, limits.max]


def test_what_is_broadcast_stays_in_line_when_the_number_of_dimensions_changes():
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18]> g (float[2,3,4,5] x) => (float[2,3,4,5] y) '
        "<float[3,1,1] slope = {0.5, 0.25, 2.0}> { y = PRelu(x, slope) }"
    )
    fed = FedModel(model, [{"x": normal(2, 3, 4, 5)}])
    with closing(Validity(model)) as validity:
        [feature] = rank_features(fed, validity)
    made = [edit(fed) for change in feature.alternatives for edit in (change.edit, *change.variants)]
    pairs = {
        (each.feeds[0]["x"].shape, tuple(each.model.graph.initializer[0].dims))
        for each in made
        if each is not None and each.feeds is not None
    }
    assert {((2, 3, 4, 1, 5), (3, 1, 1, 1)), ((2, 3, 2, 4, 5), (3, 1, 1, 1)), ((2, 3, 5), (3, 1))} <= pairs
    assert {((2, 2, 3, 4, 5), (3, 1, 1)), ((3, 4, 5), (3, 1, 1))} <= pairs
