"""What is written is valid wherever the original was."""

from pathlib import Path

import onnx
import pytest
from onnx import helper

from biopsy import errors
from biopsy.questions.precision.task import objection, require_valid
from support.models import chain, info, model

VALID = [chain(2).SerializeToString()]
BROKEN = [model([helper.make_node("Relu", ["nobody"], ["y"])], [info("x")], [info("y")]).SerializeToString()]


def test_a_valid_model_has_no_objection_even_in_pieces() -> None:
    whole = VALID[0]
    assert objection([whole[:7], whole[7:]]) is None


def test_an_objection_is_one_line_that_names_the_tensor() -> None:
    why = objection(BROKEN)
    assert why is not None and "nobody" in why and "\n" not in why


def test_weights_in_files_that_are_not_there_are_no_objection() -> None:
    made = chain(1)
    weight = made.graph.initializer.add(name="w", data_type=1, dims=[4], data_location=onnx.TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value="gone.bin")
    assert objection([made.SerializeToString()]) is None


def test_an_invalid_result_of_a_valid_model_is_an_error_that_says_where_it_stands() -> None:
    with pytest.raises(errors.CheckError, match=r"onnx\.checker refuses it") as caught:
        require_valid(BROKEN, VALID, Path("out.onnx"))
    assert caught.value.kept == "out.onnx, which is not verified"


@pytest.mark.parametrize(("result", "original"), [(VALID, VALID), (VALID, BROKEN), (BROKEN, BROKEN)])
def test_a_result_need_not_be_better_than_the_original(result: list[bytes], original: list[bytes]) -> None:
    require_valid(result, original, None)
