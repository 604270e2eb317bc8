"""What may vary in models on which engines really fail; the check is our own ``run``, which is fed by us."""

from contextlib import closing
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from biopsy import errors
from biopsy.checks.warm import command_check
from biopsy.engines.runner import Inputs
from biopsy.model.index import index_file
from biopsy.questions.variation.result import Variation
from biopsy.questions.variation.vary import VariationJob, vary
from biopsy.session.checked_search import SearchOptions
from biopsy.session.trial import Budget
from support.real_failures import (
    normalization_of_columns,
    product_and_slopes_of_channels,
    relu_clip_of_integers,
    saturating_cast,
)
from support.varied_models import found_of, softmax

PAIR = ("--engine", "onnxrt:optimization=none,threads=1", "--engine", "onnxrt:threads=1")


def varied(model: onnx.ModelProto, folder: Path, *engines: str, checks: int = 400, **inputs: object) -> Variation:
    """What may vary in a model on which these engines fail; skips where they do not any more."""
    onnx.save(model, folder / "m.onnx")
    search = SearchOptions(candidate=folder / "candidate.onnx", budget=Budget(checks=checks))
    job = VariationJob(search=search, inputs=Inputs(**inputs), values_free=True)  # type: ignore[arg-type]
    with closing(command_check(["biopsy", "run", "{}", *engines], "candidate.onnx", jobs=2)) as check:
        try:
            return vary(index_file(folder / "m.onnx"), check, job)
        except errors.OriginalPasses as passes:
            pytest.skip(f"the engine that is installed does not have this bug any more: {passes}")


@pytest.mark.slow
def test_limits_that_are_integers_fail_whatever_else_there_is(tmp_path: Path):
    found = varied(relu_clip_of_integers(), tmp_path, "--onnxrt")
    assert found_of(found.fixed) == {"type of x = low = high": "not float32"}
    assert {"length of x", "values of high", "values of x"} <= found_of(found.free).keys()
    assert found.together == "always"
    assert found.complete


@pytest.mark.slow
def test_a_fusion_that_ignores_keepdims(tmp_path: Path):
    found = varied(normalization_of_columns(), tmp_path, *PAIR)
    fixed = found_of(found.fixed)
    assert fixed["keepdims of ReduceMean"] == "0"
    assert fixed["values of two"] == "2"
    assert fixed["number of rows and columns of x = length of gain"] == "at least 2"
    assert fixed["values of last"] == "-1 or 1"
    [x] = [one for one in found.fixed if one.name == "x" and one.what == "input"]
    assert "random in the same range" in x.still
    assert {"zeros", "all the same"} <= set(x.gone)


@pytest.mark.slow
def test_slopes_of_channels_behind_a_product(tmp_path: Path):
    pytest.importorskip("openvino")
    found = varied(product_and_slopes_of_channels(), tmp_path, "--openvino")
    assert found_of(found.fixed)["number of columns of w"] == "not 3 (the size of axis 1 of x)"
    assert found_of(found.fixed).get("number of dimensions of x") != "4"
    assert {"values of x", "values of slope", "type of x = w = slope"} <= found_of(found.free).keys()


@pytest.mark.slow
def test_a_change_with_which_the_other_engine_is_wrong_does_not_count_as_failing(tmp_path: Path):
    pytest.importorskip("openvino")
    feed = {"x": np.linspace(-700, 830, 128, dtype=np.float32).reshape(4, 32)}
    engines = ("--engine", "onnxrt:optimization=none", "--openvino")
    found = varied(saturating_cast(), tmp_path, *engines, given=[feed])
    assert found_of(found.fixed)["saturate of Cast"] == "1"
    assert found.plain is not None and found.plain.feeds is not None
    assert found.plain.feeds[0]["x"].shape == (2, 2)


@pytest.mark.slow
def test_a_layer_that_is_always_wrong_leaves_all_sizes_free(tmp_path: Path):
    found = varied(softmax(), tmp_path, "--onnxrt", "--engine", "fake:scale.Softmax=1.1")
    free = found_of(found.free)
    assert {"size of axis 1 of x", "axis of Softmax", "values of x", "alpha of LeakyRelu"} <= free.keys()
    [w] = [one for one in found.fixed if one.title == "values of w"]
    assert "zeros" in w.gone


@pytest.mark.slow
def test_given_inputs_are_resized_and_replaced(tmp_path: Path):
    """They are those that the whole model was given, in the sizes that the model had then."""
    model = softmax()
    feed = {"x": np.random.default_rng(0).normal(size=(2, 5, 4)).astype(np.float32)}
    found = varied(model, tmp_path, "--onnxrt", "--engine", "fake:scale.soft=1.1", given=[feed])
    assert "any of" in found_of(found.free)["values of x"]
    assert "any of" in found_of(found.free)["size of axis 1 of x"]


@pytest.mark.slow
def test_open_dimensions_get_other_sizes_by_what_is_fed(tmp_path: Path):
    model = softmax()
    for info in (model.graph.input[0], model.graph.output[0]):
        info.type.tensor_type.shape.dim[1].dim_param = "N"
    assert model.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT
    found = varied(model, tmp_path, "--onnxrt", "--engine", "fake:scale.soft=1.1", symbols={"N": 5})
    assert "any of" in found_of(found.free)["size of axis 1 of x"]
