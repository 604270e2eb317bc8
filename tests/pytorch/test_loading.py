"""What a command line names: a factory of the user's, and files of arguments that run no code."""

import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from biopsy import errors  # noqa: E402
from biopsy.tensors.files import write_feeds  # noqa: E402
from biopsy.torch.calls import arguments_in, named_module  # noqa: E402

pytestmark = pytest.mark.torch

MODELS = """
import torch
class Scale(torch.nn.Module):
    def forward(self, x, by):
        return x * by
def make():
    return Scale().eval()
def make_with_arguments():
    return make(), (torch.ones(2),), {"by": torch.ones(1)}
ready = make()
training = Scale
number = 3
def make_with_tensor():
    return make(), torch.ones(2)
def broken():
    return 1 / 0
def leaving():
    raise SystemExit(0)
def other():
    return "a module"
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "own_models.py").write_text(MODELS)
    yield
    for name in ("package", "package.own_models"):
        sys.modules.pop(name, None)


def scale():
    return named_module("package.own_models:make")[0]


@pytest.mark.parametrize("name", ["make", "ready"])
def test_a_factory_or_a_module_is_imported_from_the_current_folder(name):
    before = list(sys.path)
    module, given = named_module(f"package.own_models:{name}")
    assert (type(module).__name__, given) == ("Scale", None)
    assert sys.path == before


def test_a_factory_may_give_arguments_too():
    _, given = named_module("package.own_models:make_with_arguments")
    assert given is not None
    assert (len(given.args), list(given.kwargs)) == (1, ["by"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("package.own_models", "is not PKG.MOD:FACTORY"),
        ("package/own_models.py:make", "is not PKG.MOD:FACTORY"),
        ("package.own_models:absent", "has no 'absent'"),
        ("package.own_models:number", "is not a function, but a int"),
        ("package.own_models:other", "gives no torch.nn.Module, but a str"),
        ("package.own_models:broken", "failed in own_models.py:16: ZeroDivisionError: division by zero"),
        ("package.own_models:leaving", "sys.exit(0)"),
        ("package.own_models:training", "is in training mode"),
        ("package.absent:make", "ModuleNotFoundError: No module named 'package.absent'"),
        ("no_such_package:make", "there is no Python module 'no_such_package' in "),
        ("own_models.py:make", "is not PKG.MOD:FACTORY"),
        ("program.pt2", "is not loaded: reading a saved program or module executes code"),
    ],
)
def test_whatever_else_is_named_is_refused_in_one_line(text, said):
    with pytest.raises(errors.UsageError) as raised:
        named_module(text)
    assert said in raised.value.message
    assert "\n" not in raised.value.message


def test_what_was_meant_is_told():
    for text, meant in (("package.own_models:mak", "'make'"), ("own_models.py:make", "own_models:make")):
        with pytest.raises(errors.UsageError) as raised:
            named_module(text)
        assert meant in "".join(raised.value.next_steps)


def test_a_factory_may_give_one_tensor_as_it_is():
    _, given = named_module("package.own_models:make_with_tensor")
    assert given is not None and len(given.args) == 1


@pytest.mark.parametrize(
    ("held", "args", "kwargs"),
    [
        ((1.0, None), 2, []),
        ([1.0], 1, []),
        ({"by": 2}, 0, ["by"]),
        (3.0, 1, []),
    ],
)
def test_a_file_of_torch_save_holds_arguments_or_keywords(held, args, kwargs):
    def tensors(value):
        return torch.full((2,), value) if isinstance(value, float) else value

    built = {k: tensors(v) for k, v in held.items()} if isinstance(held, dict) else held
    if isinstance(held, tuple | list):
        built = type(held)(map(tensors, held))
    torch.save(tensors(built), "inputs.pt")
    found = arguments_in(Path("inputs.pt"), scale())
    assert (len(found.args), list(found.kwargs)) == (args, kwargs)


class Evil:
    def __reduce__(self):
        return (Path("ran").touch, ())


def test_a_file_that_would_run_code_is_refused():
    torch.save((Evil(),), "inputs.pt")
    with pytest.raises(errors.DataError, match="which is not loaded because that can run code"):
        arguments_in(Path("inputs.pt"), scale())
    assert not Path("ran").exists()


def test_an_exported_program_is_refused():
    with pytest.raises(errors.UsageError, match="executes code that the file holds"):
        arguments_in(Path("program.pt2"), scale())


def test_tensors_are_named_by_parameters_or_by_places():
    import ml_dtypes

    by, x = np.arange(2, dtype=ml_dtypes.bfloat16), np.ones((2, 2), np.float32)
    for names in (("by", "x"), ("1", "0")):
        write_feeds("inputs.safetensors", [dict(zip(names, (by, x), strict=True))])
        found = arguments_in(Path("inputs.safetensors"), scale())
        assert [value.dtype for value in found.args] == [torch.float32, torch.bfloat16], "in the order of forward"
        assert found.args[1].tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("feeds", "said"),
    [
        ([{"x": np.zeros(2), "scale": np.zeros(2)}], "does not fit Scale.forward"),
        ([{"x": np.zeros(2)}], "missing a required argument: 'by'"),
        ([{"x": np.zeros(2)}] * 2, "holds 2 samples"),
        ([{"x": np.array(["a"]), "by": np.zeros(2)}], "PyTorch has no tensor of str"),
    ],
)
def test_tensors_that_fit_no_parameter_are_refused(feeds, said):
    write_feeds("inputs.npz", feeds)
    with pytest.raises(errors.BiopsyError, match=r".") as raised:
        arguments_in(Path("inputs.npz"), scale())
    assert said in raised.value.message
