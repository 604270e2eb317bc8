"""Engines by name: specs, options, plug-ins."""

import importlib.metadata
import subprocess
import sys
from collections.abc import Callable

import pytest

from biopsy import errors
from biopsy.engines import registry
from biopsy.engines.base import Engine, ModelInput, Session
from biopsy.engines.registry import create, installed, parse_spec


class Quiet(Engine):
    """A plug-in that works."""

    name = "quiet"
    summary = "an engine for tests"
    package = "quiet"

    @classmethod
    def version(cls) -> str:
        return "1.2"

    def build(self, model: ModelInput) -> Session:
        raise NotImplementedError


class EntryPoint:
    dist = None

    def __init__(self, name: str, load: Callable[[], object]) -> None:
        self.name = name
        self.value = f"somewhere:{name}"
        self.load = load


def declare(monkeypatch: pytest.MonkeyPatch, **plug_ins: Callable[[], object]) -> None:
    found = [EntryPoint(name, load) for name, load in plug_ins.items()]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: found if group == registry.GROUP else [])


def broken() -> object:
    raise ImportError("libfoo.so is missing")


def test_a_bare_name_is_a_spec():
    assert parse_spec("onnxrt").settings == {}


def test_settings_are_split_at_commas_and_at_the_first_equals_sign():
    assert parse_spec("e:a=1,b=x=y").settings == {"a": "1", "b": "x=y"}


def test_values_may_hold_colons():
    assert parse_spec("e:device=HETERO:GPU").settings == {"device": "HETERO:GPU"}


def test_a_spec_is_written_as_it_was_read():
    assert parse_spec("onnxrt:threads=1,optimization=none").text == "onnxrt:threads=1,optimization=none"


@pytest.mark.parametrize("text", ["", ":a=1", "e:a", "e:=1", "e:a=1,a=2"])
def test_a_malformed_spec_is_a_usage_error(text: str):
    with pytest.raises(errors.UsageError):
        parse_spec(text)


def test_options_get_their_defaults():
    assert create("onnxrt").options == {
        "providers": ("cpu",),
        "optimization": "all",
        "threads": 0,
        "disabled_optimizers": (),
        "execution": "sequential",
        "config": {},
    }


def test_options_are_parsed():
    options = create("onnxrt:providers=cuda+cpu,threads=2,config.session.disable_prepacking=1").options
    assert options["providers"] == ("cuda", "cpu")
    assert options["threads"] == 2
    assert options["config"] == {"session.disable_prepacking": "1"}


def test_an_unknown_option_names_the_nearest_and_all_others():
    with pytest.raises(errors.UsageError, match=r"no option 'optimisation'.*threads") as caught:
        create("onnxrt:optimisation=none")
    assert "did you mean 'optimization'?" in caught.value.next_steps


def test_a_value_outside_its_choices_names_them():
    with pytest.raises(errors.UsageError, match="none, basic, extended, layout, all"):
        create("onnxrt:optimization=max")


def test_a_value_that_cannot_be_parsed_says_what_is_wanted():
    with pytest.raises(errors.UsageError, match=r"threads=many: a whole number"):
        create("onnxrt:threads=many")


def test_an_unknown_engine_lists_those_that_are_known():
    with pytest.raises(errors.EngineMissing, match="onnxrt, reference, openvino") as caught:
        create("onnxrtt")
    assert "did you mean 'onnxrt'?" in caught.value.next_steps


def test_tensorrt_is_known_and_not_supported_yet():
    with pytest.raises(errors.EngineMissing, match=r"TensorRT .* is not supported by this version"):
        create("trt")


def test_a_plug_in_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch):
    declare(monkeypatch, quiet=lambda: Quiet)
    assert isinstance(create("quiet"), Quiet)


def test_a_broken_plug_in_is_named_with_its_reason(monkeypatch: pytest.MonkeyPatch):
    declare(monkeypatch, broken=broken)
    with pytest.raises(errors.EngineMissing, match=r"'broken' \(somewhere:broken\).*libfoo.so is missing"):
        create("broken")


def test_a_plug_in_that_is_no_engine_is_broken(monkeypatch: pytest.MonkeyPatch):
    declare(monkeypatch, odd=lambda: dict)
    with pytest.raises(errors.EngineMissing, match="no subclass of Engine"):
        create("odd")


def test_a_broken_plug_in_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch):
    declare(monkeypatch, broken=broken, quiet=lambda: Quiet)
    found = {engine.name: engine for engine in installed()}
    assert "libfoo.so" in (found["broken"].problem or "")
    assert found["quiet"].version == "1.2"
    assert found["onnxrt"].version is not None


def test_a_plug_in_cannot_take_the_place_of_a_built_in_engine(monkeypatch: pytest.MonkeyPatch):
    declare(monkeypatch, onnxrt=lambda: Quiet)
    assert not isinstance(create("onnxrt"), Quiet)


def test_built_in_engines_are_the_declared_entry_points():
    declared = {point.name: point.value for point in importlib.metadata.entry_points(group=registry.GROUP)}
    assert {name: declared.get(name) for name in ("onnxrt", "reference")} == {
        name: registry.BUILT_IN[name] for name in ("onnxrt", "reference")
    }


def test_naming_an_engine_imports_neither_its_package_nor_the_metadata_of_others():
    code = (
        "import sys; from biopsy.engines.registry import create; create('onnxrt'); create('openvino'); "
        "create('reference'); print({'onnxruntime', 'onnx', 'openvino', 'importlib.metadata'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
