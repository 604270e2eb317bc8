"""What may vary in a model, where it is known why it fails."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from biopsy import errors
from biopsy.checks.outcome import InteractiveCheck
from biopsy.model.index import index_file
from biopsy.questions.variation.vary import VariationJob, vary
from biopsy.session.files import Resume
from biopsy.session.pool import Parallelism
from support.varied_models import Varier, attribute, found_of, sizes_of, softmax, weight_of

AXIS, CHANNELS, ALPHA = "axis of Softmax", "size of axis 1 of x", "alpha of LeakyRelu"


def is_odd_at_axis_one(model: onnx.ModelProto) -> bool:
    return attribute(model, "Softmax", "axis", -1) == 1 and len(sizes_of(model)) == 3 and sizes_of(model)[1] % 2 == 1


def test_the_conditions_are_found_and_all_else_is_free(varier: Varier):
    found = varier(softmax(channels=5), is_odd_at_axis_one)
    assert found_of(found.fixed) == {AXIS: "1", CHANNELS: "odd", "number of dimensions of x": "3"}
    assert {"values of w", ALPHA, "size of axis 0 of x", "number of columns of w"} <= found_of(found.free).keys()
    assert found.complete
    assert found.together == "always"
    assert "only if" in found.sentence
    assert "axis of Softmax = 1" in found.sentence
    assert f"the {CHANNELS} is odd" in found.sentence


def test_what_is_said_of_the_plain_model_was_asked_of_it(varier: Varier):
    """In a small batch, it fails whatever alpha is."""

    def fails(model: onnx.ModelProto) -> bool:
        is_quarter = attribute(model, "LeakyRelu", "alpha", 0.01) == 0.25
        return attribute(model, "Softmax", "axis", -1) == 1 and (sizes_of(model)[0] <= 2 or is_quarter)

    found = varier(softmax(rows=8), fails, asks_of_plain=True)
    assert "alpha of LeakyRelu = 0.25" in found.brief and found.plain is not None
    assert sizes_of(found.plain.model)[0] == 2
    assert "axis of Softmax = 1" in found.of_plain and "alpha" not in found.of_plain.partition("only if")[2]
    assert varier(softmax(rows=8), fails).of_plain == ""


def test_every_candidate_is_as_valid_as_the_model(varier: Varier):
    varier(softmax(), is_odd_at_axis_one)
    assert len(varier.seen) > 20
    for candidate in varier.seen:
        onnx.checker.check_model(candidate, full_check=True)


def test_axes_that_a_product_sums_over_are_changed_together(varier: Varier):
    found = varier(softmax(), lambda model: True, allow_vacuous_check=True)
    assert "size of axis 2 of x = number of rows of w" in found_of(found.free)
    assert {sizes_of(model)[-1] for model in varier.seen} == {weight_of(model, "w").shape[0] for model in varier.seen}


CONDITIONS = {
    AXIS: lambda model: attribute(model, "Softmax", "axis", -1) == 1,
    CHANNELS: lambda model: len(sizes_of(model)) < 2 or sizes_of(model)[-2] % 2 == 1,
    ALPHA: lambda model: attribute(model, "LeakyRelu", "alpha", 0.01) == 0.25,
    "size of axis 0 of x": lambda model: len(sizes_of(model)) < 3 or sizes_of(model)[-3] >= 2,
    "values of w": lambda model: bool(weight_of(model, "w").any()),
    "type of x = w": lambda model: model.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT,
}


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(planted=st.sets(st.sampled_from(sorted(CONDITIONS)), max_size=4))
def test_exactly_what_the_failure_depends_on_is_fixed(varier: Varier, planted: set[str]):
    found = varier(softmax(), lambda model: all(CONDITIONS[one](model) for one in planted), allow_vacuous_check=True)
    assert planted <= found_of(found.fixed).keys()
    assert found_of(found.fixed).keys() <= planted | {"number of dimensions of x"}
    assert all(one.gone for one in found.fixed)
    assert all(len(one.still) > 1 and not one.gone for one in found.free)


def test_sizes_that_nobody_can_tell_to_be_tied_are_changed_together_at_last(varier: Varier):
    """Neither the checker of onnx nor its inference knows that PRelu has as many slopes as there are channels."""
    slope = numpy_helper.from_array(np.full((3, 1, 1), 0.1, np.float32), "slope")
    graph = helper.make_graph(
        [helper.make_node("PRelu", ["x", "slope"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3, 4, 4])],
        [slope],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    def fails(candidate: onnx.ModelProto) -> bool:
        if weight_of(candidate, "slope").shape[0] not in {sizes_of(candidate)[-3:][0], 1}:
            raise errors.EngineFailure("fails to build", engine="e", stage="build", kind="Unfit")
        return True

    found = varier(model, fails, allow_vacuous_check=True)
    assert "size of axis 1 of x = size of axis 0 of slope" in found_of(found.free)


# What is not asked, and what is not claimed


def test_nothing_is_varied_where_values_may_be_compared_with_recorded_ones(varier: Varier):
    found = varier(softmax(), is_odd_at_axis_one, values_free=None)
    assert (found.free, found.fixed, found.unknown) == ((), (), ())
    assert "compares with recorded values" in found.sentence
    assert {model.SerializeToString(deterministic=True) for model in varier.seen} == {
        softmax().SerializeToString(deterministic=True)
    }


def test_a_failure_that_is_no_comparison_leaves_values_free(varier: Varier):
    def fails(model: onnx.ModelProto) -> bool:
        if is_odd_at_axis_one(model):
            raise errors.EngineFailure("cannot build it", engine="e", stage="build", kind="Fail")
        return False

    found = varier(softmax(), fails, values_free=None)
    assert found_of(found.fixed)[AXIS] == "1"
    assert found_of(found.free)["type of x = w"] == "any of 2 tried (float64, float16)"


def test_no_coarser_type_is_tried_where_rounding_alone_may_fail(varier: Varier):
    found = varier(softmax(), is_odd_at_axis_one)
    assert found_of(found.unknown)["type of x = w"] == "not known: only float64 still failed"


def test_another_failure_counts_as_neither(varier: Varier):
    def fails(model: onnx.ModelProto) -> bool:
        if sizes_of(model)[1:2] != [5]:
            raise errors.EngineFailure("cannot build it", engine="e", stage="build", kind="Fail")
        return is_odd_at_axis_one(model)

    found = varier(softmax(), fails)
    assert CHANNELS in found_of(found.unknown)
    assert CHANNELS not in found_of(found.free) | found_of(found.fixed)


def test_what_holds_for_each_by_itself_need_not_hold_for_all_at_once(varier: Varier):
    def fails(model: onnx.ModelProto) -> bool:
        changed = [attribute(model, "LeakyRelu", "alpha", 0.01) != 0.25, weight_of(model, "w").shape != (4, 3)]
        return not all(changed)

    found = varier(softmax(), fails)
    assert found.together == "never"
    assert "each by itself but not all at once" in found.sentence


def test_a_check_that_fails_on_anything_says_nothing(varier: Varier):
    with pytest.raises(errors.CheckError, match="fails on anything"):
        varier(softmax(), lambda model: True)


def test_a_model_that_passes_has_nothing_to_vary(varier: Varier):
    with pytest.raises(errors.OriginalPasses, match="does not fail"):
        varier(softmax(), lambda model: False)


def test_a_person_is_not_asked(tmp_path: Path):
    onnx.save(softmax(), tmp_path / "m.onnx")
    with pytest.raises(errors.UsageError, match="not of a person"):
        vary(index_file(tmp_path / "m.onnx"), InteractiveCheck(lambda *_: "n"), VariationJob())


# Budgets, luck, interruption, and several at once


@pytest.mark.parametrize("checks", [3, 10, 25])
def test_a_small_budget_tells_something_of_everything_and_claims_no_more(varier: Varier, checks: int):
    found = varier(softmax(), is_odd_at_axis_one, checks=checks)
    assert not found.complete
    assert found.checks <= checks + 1  # the last one: whether the model still fails
    assert all(len(one.still) > 1 and not one.gone for one in found.free)
    assert all(one.gone for one in found.fixed)


def test_a_failure_that_does_not_always_show_is_asked_for_again(varier: Varier):
    calls = 0

    def fails(model: onnx.ModelProto) -> bool:
        nonlocal calls
        calls += 1
        return calls % 3 != 0 and is_odd_at_axis_one(model)

    found = varier(softmax(), fails, checks=2000)
    assert found_of(found.fixed) == {AXIS: "1", CHANNELS: "odd", "number of dimensions of x": "3"}


def test_an_interrupted_search_goes_on_from_its_journal(varier: Varier, tmp_path: Path):
    resume = {"search": {"resume": Resume(journal=tmp_path / "j", search="explanation")}}
    undisturbed = varier(softmax(), is_odd_at_axis_one)
    before = len(varier.seen)

    def interrupted(model: onnx.ModelProto) -> bool:
        if len(varier.seen) == before + 20:
            raise KeyboardInterrupt
        return is_odd_at_axis_one(model)

    with pytest.raises(errors.Interrupted, match="changes tried"):
        varier(softmax(), interrupted, **resume)
    assert (tmp_path / "j").exists()
    varier.seen.clear()
    found = varier(softmax(), is_odd_at_axis_one, **resume)
    assert (found.free, found.fixed, found.unknown) == (undisturbed.free, undisturbed.fixed, undisturbed.unknown)
    assert len(varier.seen) < before - 10
    assert not (tmp_path / "j").exists()


def test_several_checks_at_once_change_nothing(varier: Varier):
    one = varier(softmax(), is_odd_at_axis_one)
    several = varier(softmax(), is_odd_at_axis_one, search={"parallelism": Parallelism(jobs=3)})
    assert (one.free, one.fixed, one.unknown) == (several.free, several.fixed, several.unknown)
