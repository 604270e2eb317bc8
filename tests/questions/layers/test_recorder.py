"""The reference engine records what layers are judged by."""

import pytest

from biopsy import errors
from support.examinations import growing, labels


@pytest.mark.slow
def test_a_reference_that_is_more_precise_than_the_model_is_fed_in_the_types_of_the_model(examine) -> None:
    found = examine(growing(20), "fake:scale.n7=1.001", reference="reference:float64")
    assert labels(found) == ["Neg 'n7'"]
    assert {layer.failure for layer in found.layers} == {None}


def test_a_reference_that_cannot_run_the_model_ends_it_without_a_verdict(examine) -> None:
    with pytest.raises(errors.CannotCompare, match="reference engine fake:crash"):
        examine(growing(3), "onnxrt", reference="fake:crash.n1=run")
