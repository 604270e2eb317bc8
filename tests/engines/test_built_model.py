"""What every built model of ours tells, and how its file is named."""

from pathlib import Path

import pytest

from biopsy import errors
from biopsy.engines import registry
from biopsy.engines.base import BuiltModel, ModelInput, Session, indexed, require_ending
from support.models import chain

MODEL = chain(2).SerializeToString()


@pytest.mark.parametrize("engine", ["onnxrt", "reference", "reference:float64", "fake:scale.Relu=2"])
def test_inputs_outputs_and_remarks_are_known_once_it_is_built(engine: str) -> None:
    built = registry.create(engine).build(ModelInput(MODEL, Path()))
    assert isinstance(built, BuiltModel)
    assert list(built.inputs) == ["t0"]
    assert list(built.outputs) == ["t2"]
    assert all(isinstance(remark, str) for remark in built.remarks)


def test_a_plug_in_may_tell_them_in_its_own_way() -> None:
    assert issubclass(BuiltModel, Session)
    assert Session.__abstractmethods__ == {"inputs", "outputs", "run"}


@pytest.mark.parametrize(
    ("engine", "endings"),
    [("onnxrt", ".onnx and .ort"), ("openvino", ".blob and .xml"), ("trt", ".engine, .plan, .trt")],
)
def test_another_ending_is_refused_with_those_that_fit(engine: str, endings: str) -> None:
    with pytest.raises(errors.UsageError, match=f"m.txt: {engine} saves and loads {endings} files"):
        require_ending(registry.find_class(engine), Path("m.txt"))


def test_a_damaged_model_is_refused_with_its_name() -> None:
    model = ModelInput(MODEL, Path(), Path("m.onnx"))
    assert indexed(model).nodes
    object.__setattr__(model, "data", MODEL[:-5])
    with pytest.raises(errors.ModelError, match=r"m\.onnx"):
        indexed(model)
