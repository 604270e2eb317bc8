"""Recording by hooks: what parts of a module return, where that is certain, and why not where it is not."""

from pathlib import Path

import numpy as np
import onnx
import pytest

torch = pytest.importorskip("torch")

from onnx.reference import ReferenceEvaluator  # noqa: E402

import biopsy.torch  # noqa: E402
from biopsy import errors  # noqa: E402
from biopsy.cli.app import main  # noqa: E402
from biopsy.tensors.files import read_feeds  # noqa: E402
from support.pytorch_modules import PartInBranch, Parts, exported  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)


@pytest.fixture(params=["torchscript", "pytorch", "unoptimized"])
def parts(request):
    """A module that is in model.onnx, by either exporter."""
    module, x = Parts().eval(), torch.randn(2, 4, 4)
    if request.param == "torchscript":
        torch.onnx.export(module, (x,), "model.onnx", dynamo=False)
    else:
        exported(module, (x,), optimize=request.param == "pytorch").save("model.onnx")
    return module


def recorded(module, *args):
    """The recording, and the values in the file that a node of the model computes."""
    recording = biopsy.torch.record_hooks(module, "model.onnx", args, "golden.safetensors")
    inputs = {value.name for value in onnx.load("model.onnx").graph.input}
    (found,) = read_feeds("golden.safetensors")
    return recording, {name: value for name, value in found.items() if name not in inputs}, found


def test_every_value_is_the_one_of_the_model(parts):
    recording, values, found = recorded(parts, torch.randn(2, 4, 4))
    assert recording.tensors == len(values) >= 8
    assert recording.of == len(values) + len(recording.refused)
    model = onnx.load("model.onnx")
    feed = {value.name: found[value.name] for value in model.graph.input}
    outputs = {value.name for value in model.graph.output}
    assert outputs <= values.keys()
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in values)
    for name, value in zip(values, ReferenceEvaluator(model).run(None, feed), strict=True):
        np.testing.assert_allclose(values[name], value, 1e-4, 1e-5, err_msg=name)


def test_what_is_not_certain_is_refused_with_the_reason(parts):
    reasons = set(recorded(parts, torch.randn(2, 4, 4))[0].refused.values())
    assert "the module twice is called 2 times" in reasons or "2 tensors leave the module twice" in reasons
    assert any("states" in reason for reason in reasons)


def test_a_convolution_that_was_fused_with_what_follows_is_refused():
    module, x = Parts().eval(), torch.randn(2, 4, 4)
    torch.onnx.export(module, (x,), "model.onnx", dynamo=False)
    recording, values, _ = recorded(module, x)
    assert "fused it with what follows" in recording.refused["/conv/Conv_output_0"]
    assert "/blocks.0/act/Relu_output_0" in values


def test_a_part_inside_of_cond_is_refused_and_said():
    module, x = PartInBranch().eval(), torch.ones(1, 2)
    exported(module, (x,)).save("model.onnx")
    recording, values, _ = recorded(module, x)
    assert "linear" in values
    assert len(values) == 2, "the part before, and the output"
    assert "inside" not in str(recording.refused)


class Noisy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.steady, self.shaken, self.after = torch.nn.Linear(2, 2), torch.nn.Tanh(), torch.nn.ReLU()

    def forward(self, x):
        return self.after(torch.nn.functional.dropout(self.shaken(self.steady(x)))) * 2


def test_what_depends_on_random_numbers_is_refused():
    module, x = Noisy().eval(), torch.ones(64, 2)
    exported(module, (x,), optimize=False).save("model.onnx")
    recording, values, _ = recorded(module, x)
    assert set(values) == {"linear", "tanh"}
    assert "depends on random numbers" in recording.refused["relu"]
    assert "depends on random numbers" in recording.refused["mul"]


def test_no_hook_stays_and_the_module_is_as_it_was(parts):
    state = {name: value.clone() for name, value in parts.state_dict().items()}
    recorded(parts, torch.randn(2, 4, 4))
    assert not any(part._forward_hooks for part in parts.modules())
    assert all(torch.equal(value, state[name]) for name, value in parts.state_dict().items())


def test_the_layers_are_judged_by_them(capsys):
    module, x = Parts().eval(), torch.randn(2, 4, 4)
    torch.onnx.export(module, (x,), "model.onnx", dynamo=False)
    recorded(module, x)
    words = ["debug", "layers", "model.onnx", "--load-outputs", "golden.safetensors", "--atol", "1e-4"]
    assert main([*words, "--suspect", "fake:offset./blocks.1/act/Relu=0.5"]) == 1
    assert "first      '/blocks.1/act/Relu_output_0'" in capsys.readouterr().out


def test_what_cannot_be_used_is_refused_and_nothing_is_written():
    module, x = Parts().eval(), torch.randn(2, 4, 4)
    exported(module, (x,)).save("model.onnx")
    for given, said in [((x, x), "has 1 inputs, and the arguments are 2 tensors"), ((), "are 0 tensors")]:
        with pytest.raises(errors.UsageError, match=said):
            biopsy.torch.record_hooks(module, "model.onnx", given, "golden.safetensors")
    with pytest.raises(errors.EngineFailure, match="the module raises"):
        biopsy.torch.record_hooks(module, "model.onnx", torch.ones(7), "golden.safetensors")
    with pytest.raises(errors.UsageError, match="in training mode"):
        biopsy.torch.record_hooks(Parts(), "model.onnx", x, "golden.safetensors")
    with pytest.raises(errors.CannotCompare, match="none of"):
        biopsy.torch.record_hooks(torch.nn.Tanh().eval(), _unknown(), torch.ones(2), "golden.safetensors")
    assert not Path("golden.safetensors").exists()
    assert not list(Path().glob(".*"))


def _unknown():
    """A model with two outputs that says of no node where it comes from."""
    nodes = [onnx.helper.make_node(op, ["x"], [op]) for op in ("Tanh", "Relu")]
    value = onnx.helper.make_tensor_value_info
    outputs = [value(op, 1, [2]) for op in ("Tanh", "Relu")]
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [value("x", 1, [2])], outputs)), "unknown.onnx")
    return "unknown.onnx"


class Turning(torch.nn.Module):
    """Returns its values transposed; its caller transposes them back, and exporters leave out both."""

    def forward(self, x):
        return torch.tanh(x).permute(1, 0)


class Aside(torch.nn.Module):
    """Returns what it is given, and gives something else by an attribute."""

    def forward(self, x):
        self.aside = torch.tanh(x)
        return x


class Whole(torch.nn.Module):
    def __init__(self, part):
        super().__init__()
        self.part = part
        self.rectified = torch.nn.ReLU(inplace=True)

    def forward(self, x):
        found = self.part(x)
        found = self.part.aside + 1 if hasattr(self.part, "aside") else found.permute(1, 0) * 2
        return self.rectified(found) - 1


@pytest.mark.parametrize("dynamo", [True, False])
@pytest.mark.parametrize("part", [Turning, Aside])
@pytest.mark.filterwarnings("ignore")
def test_a_part_whose_tensor_is_another_than_it_returns_is_refused(part, dynamo):
    module, x = Whole(part()).eval(), torch.linspace(-2, 2, 16).reshape(4, 4)
    if dynamo:
        torch.onnx.export(module, (x,), dynamo=True, verbose=False).save("whole.onnx")
    else:
        torch.onnx.export(module, (x,), "whole.onnx", dynamo=False)
    found = biopsy.torch.record_hooks(module, "whole.onnx", (x,), "golden.safetensors")
    assert any("part returns" in reason for reason in found.refused.values())
    assert found.tensors == 2, "an operator in place is no reason to refuse its part"
    assert any("anh" in name for name in found.refused)
