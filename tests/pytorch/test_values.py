"""The values of a program under their ONNX names, against the reference evaluator of the model."""

import numpy as np
import onnx
import pytest

torch = pytest.importorskip("torch")

from onnx.reference import ReferenceEvaluator  # noqa: E402

from biopsy import errors  # noqa: E402
from biopsy.torch.recording import (  # noqa: E402
    input_values,
    intermediate_values,
    named_values,
)
from support.pytorch_modules import Branches, Counting, Encoder, ManyTypes, Mlp, Nested, exported  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


def of_reference(program, inputs, names):
    """What the reference evaluator gives for tensors of the model, by name."""
    model = program.model_proto
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return dict(zip(names, map(np.asarray, ReferenceEvaluator(model).run(None, inputs)), strict=True))


def require_equal(program, args, kwargs=None):
    """The names of the values, each of which is what the reference evaluator gives."""
    values = dict(intermediate_values(program, args, kwargs))
    expected = of_reference(program, input_values(program, args, kwargs), list(values))
    for name, value in values.items():
        assert (value.dtype, value.shape) == (expected[name].dtype, expected[name].shape), name
        loose = 1e-2 if value.dtype.itemsize < 4 else 1e-4
        np.testing.assert_allclose(value.astype(float), expected[name].astype(float), loose, 1e-5, err_msg=name)
    return list(values)


def ids():
    return torch.arange(6).reshape(1, 6)


@pytest.mark.parametrize("optimize", [False, True])
def test_every_value_of_in_place_operators_is_the_one_that_they_gave(optimize):
    torch.manual_seed(0)
    program = exported(Mlp(), (torch.randn(3, 4),), optimize=optimize)
    names = require_equal(program, (torch.randn(3, 4),))
    assert {"linear", "relu", "add", "linear_1", "linear_2", "relu_1", "linear_3"} <= set(names)
    assert not named_values(program).refused


@pytest.mark.parametrize("optimize", [False, True])
def test_a_fused_node_keeps_the_last_value(optimize):
    torch.manual_seed(0)
    program = exported(Encoder(), (ids(),), optimize=optimize)
    names = require_equal(program, (ids(),))
    assert ("conv1d" in names) is not optimize, "the optimizer makes one node of the convolution and what follows it"
    assert {"layer_norm", "gelu"} <= set(names)


@pytest.mark.parametrize("optimize", [False, True])
def test_nested_and_renamed_inputs_and_outputs_are_found(optimize):
    args = (torch.ones(2, 4), {"left": torch.randn(2, 3), "right": (torch.randn(3, 4), torch.zeros(1))})
    rows = {0: torch.export.Dim.DYNAMIC}
    program = exported(
        Nested(),
        (*args, None),
        optimize=optimize,
        dynamic_shapes=(rows, {"left": rows, "right": ({}, {})}, None),
        input_names=["relu", "l", "r"],
        output_names=["total", "given"],
    )
    inputs = list(input_values(program, (*args, None)))
    assert inputs == ["relu", "l" if optimize else "given", "r", "more_right_1"], "one is an output at the same time"
    assert "total" in require_equal(program, (*args, None))
    taller = (torch.ones(5, 4), {"left": torch.randn(5, 3), "right": args[1]["right"]}, None)
    assert dict(intermediate_values(program, taller))["total"].shape == (10, 2)


def test_keywords_are_taken_in_any_order():
    rows = {0: torch.export.Dim.DYNAMIC}
    shapes = {"x": rows, "scale": {}, "more": {"left": rows, "right": ({}, {})}}
    more = {"left": torch.ones(2, 3), "right": (torch.ones(3, 4), torch.zeros(1))}
    program = exported(Nested(), (torch.ones(2, 4),), {"scale": torch.ones(4), "more": more}, dynamic_shapes=shapes)
    assert require_equal(program, torch.ones(2, 4), {"more": more, "scale": torch.ones(4) * 2})


def test_types_that_numpy_does_not_have_stay_what_they_are():
    program = exported(ManyTypes(), (torch.randn(3, 8),), optimize=False)
    values = dict(intermediate_values(program, torch.randn(3, 8)))
    found = {str(value.dtype) for value in values.values()}
    assert {"bfloat16", "float8_e4m3fn", "float32", "int64", "bool"} <= found
    assert values["_fft_r2c"].shape == (3, 5, 2), "a complex number is two real ones"
    assert require_equal(program, torch.randn(3, 8))


def test_branches_have_no_values_and_what_stands_around_them_has():
    program = exported(Branches(), (torch.ones(3),))
    for given in (torch.ones(3), -torch.ones(3)):
        assert {"mul", "gt", "getitem", "mul_1"} <= set(require_equal(program, given))


class Looping(torch.nn.Module):
    def forward(self, x):
        def goes_on(count, x):
            return count < 3

        def once(count, x):
            return count + 1, x * 2

        count, x = torch.while_loop(goes_on, once, (torch.zeros((), dtype=torch.int64), x + 1))
        return x + count


@pytest.mark.parametrize("optimize", [False, True])
def test_a_loop_has_a_value_and_its_steps_have_none(optimize):
    program = exported(Looping(), (torch.ones(2),), optimize=optimize)
    assert {"add", "getitem", "getitem_1", "add_1"} <= set(require_equal(program, torch.ones(2)))
    assert set(named_values(program).refused.values()) <= {"it is a step within a subgraph"}


class TwoNames(torch.nn.Module):
    def forward(self, x):
        y = torch.sin(x)
        return y, y


def test_a_tensor_that_is_two_outputs_has_its_value_under_both_names():
    program = exported(TwoNames(), (torch.ones(2),))
    outputs = [value.name for value in program.model.graph.outputs]
    assert len(set(outputs)) == 2
    assert set(require_equal(program, torch.ones(2))) == set(outputs)


class Noise(torch.nn.Module):
    def forward(self, x):
        attended = torch.nn.functional.scaled_dot_product_attention(x, x, x)
        kept = torch.sin(torch.nn.functional.dropout(x * 2, training=False))
        return kept + attended, torch.nn.functional.dropout(x) * 3, x + torch.rand(2, 2)


def test_what_depends_on_random_numbers_has_no_value():
    program = exported(Noise(), (torch.ones(1, 1, 2, 2),))
    names = require_equal(program, torch.ones(1, 1, 2, 2))
    assert {"sin", "add"} <= set(names)
    refused = named_values(program).refused
    random = {name: why for name, why in refused.items() if "depends on random numbers" in why}
    outputs = [value.name for value in program.model.graph.outputs]
    assert set(outputs[1:]) <= random.keys()
    assert {why.rpartition(" ")[2] for why in random.values()} == {"aten.native_dropout.default", "aten.rand.default"}


def test_a_buffer_that_is_changed_is_left_as_it_was():
    module = Counting()
    program = exported(module, (torch.ones(3),))
    assert require_equal(program, torch.ones(3)) == require_equal(program, torch.ones(3))
    assert float(module.calls) == 0


def test_arguments_and_gradients_are_left_alone():
    module, given = Mlp(), torch.randn(3, 4, requires_grad=True)
    program = exported(module, (torch.randn(3, 4),))
    before = given.detach().clone()
    for _, value in intermediate_values(program, given):
        assert torch.is_grad_enabled()
        value[...] = 7  # a copy
    assert torch.equal(given, before)
    assert all(parameter.grad is None for parameter in module.parameters())


def test_names_of_another_program_are_refused():
    module = Encoder()
    program = exported(module, (ids(),), optimize=False)
    other = torch.export.export(module, (ids(),))
    shared = {node.name for node in other.graph.nodes} & set(named_values(program).names)
    assert shared
    program.exported_program = other
    found = named_values(program)
    for name in shared & set(found.refused):
        assert "another program" in found.refused[name]
    assert shared & set(found.refused), "names are shared that are of other values"
    require_equal(program, (ids(),))


def test_what_has_no_value_is_told_with_the_reason():
    refused = named_values(exported(Encoder(), (ids(),), optimize=False)).refused
    assert any("a step within aten.linear.default" in why for why in refused.values())


def test_arguments_of_another_form_are_refused_in_one_line():
    program = exported(Mlp(), (torch.randn(3, 4),))
    for given in [(torch.ones(3, 4), torch.ones(1)), (torch.ones(3, 5),)]:
        with pytest.raises(errors.UsageError, match="not of the form that was exported") as raised:
            intermediate_values(program, given)
        assert "\n" not in raised.value.message


def test_a_module_is_no_exported_program():
    with pytest.raises(errors.UsageError, match="but a Mlp"):
        named_values(Mlp())
