"""Engines by name: specs, options, plug-ins."""

import importlib.metadata
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from biopsy import errors
from biopsy.engines import registry
from biopsy.engines.base import Capabilities, Engine, ModelInput, Option, Session, count, switch, words
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


def test_a_comma_in_a_value_is_written_with_a_backslash():
    assert parse_spec(r"e:device=MULTI:GPU\,CPU,threads=1").settings == {"device": "MULTI:GPU,CPU", "threads": "1"}


def test_a_backslash_before_anything_else_is_a_backslash():
    assert parse_spec(r"e:path=C:\models,nodes=a\d+").settings == {"path": r"C:\models", "nodes": r"a\d+"}


def test_a_key_may_stand_alone():
    assert parse_spec("e:a,b=1").settings == {"a": None, "b": "1"}


@pytest.mark.parametrize("text", ["onnxrt:threads=1,optimization=none", r"e:device=MULTI:GPU\,CPU,a=1", "e:a,b=,c=x=y"])
def test_a_spec_is_written_as_it_was_read(text: str):
    assert parse_spec(text).text == text


@pytest.mark.parametrize("text", ["", ":a=1", "e:=1", "e:a=1,a=2", "e:a,a=2"])
def test_a_malformed_spec_is_a_usage_error(text: str):
    with pytest.raises(errors.UsageError):
        parse_spec(text)


def test_options_get_their_defaults():
    assert create("onnxrt").options == {
        "providers": ("cpu",),
        "provider": {},
        "optimization": "all",
        "disabled_optimizers": (),
        "threads": 0,
        "inter_threads": 0,
        "execution": "sequential",
        "profile": False,
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


def test_an_option_that_is_no_switch_needs_a_value():
    with pytest.raises(errors.UsageError, match=r"threads: it needs a value \(whole number\)"):
        create("onnxrt:threads")


@pytest.mark.parametrize(
    ("text", "value"),
    [("loud", True), ("loud=true", True), ("loud=On", True), ("loud=no", False), ("", False), ("plain=0", False)],
)
def test_a_switch_is_on_when_it_is_named(monkeypatch: pytest.MonkeyPatch, text: str, value: bool):
    class Switched(Quiet):
        options_declared = (Option("loud", "", False, parse=switch), Option("plain", "", False, parse=bool))

    declare(monkeypatch, switched=lambda: Switched)
    options = create(f"switched:{text}").options
    assert options["plain" if "plain" in text else "loud"] is value


def test_a_switch_is_on_or_off_and_nothing_else():
    with pytest.raises(ValueError, match="true or false is wanted"):
        switch("maybe")


@pytest.mark.parametrize(
    ("option", "kind", "default"),
    [
        (Option("a", ""), "text", ""),
        (Option("a", "", 0, parse=count), "whole number", "0"),
        (Option("a", "", 0.5, parse=float), "number", "0.5"),
        (Option("a", "", ("x", "y"), parse=words), "words joined by +", "x+y"),
        (Option("a", "", "x", ("x", "y")), "choice", "x"),
        (Option("a", "", False, parse=switch), "switch", "false"),
        (Option("a", "", parse=len, takes="something of its own"), "something of its own", ""),
    ],
)
def test_an_option_tells_what_it_takes_and_its_default(option: Option, kind: str, default: str):
    assert (option.kind, option.default_text) == (kind, default)


def test_an_unknown_engine_lists_those_that_are_known():
    with pytest.raises(errors.UnknownEngine, match="onnxrt, reference, openvino") as caught:
        create("onnxrtt")
    assert "did you mean 'onnxrt'?" in caught.value.next_steps


def test_a_plug_in_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch):
    declare(monkeypatch, quiet=lambda: Quiet)
    assert isinstance(create("quiet"), Quiet)


def test_a_broken_plug_in_is_named_with_its_reason(monkeypatch: pytest.MonkeyPatch):
    declare(monkeypatch, broken=broken)
    with pytest.raises(errors.EngineMissing, match=r"'broken' \(somewhere:broken\).*libfoo.so is missing"):
        create("broken")


def test_a_plug_in_that_is_no_engine_is_broken(monkeypatch: pytest.MonkeyPatch):
    declare(monkeypatch, odd=lambda: dict)
    with pytest.raises(errors.EngineMissing, match="not a subclass of Engine"):
        create("odd")


@pytest.mark.parametrize(
    ("attributes", "fault"),
    [
        ({"summary": None}, "it lacks summary"),
        ({"build": None}, "it lacks build"),
        ({"options_declared": ({"name": "speed"},)}, "options_declared is not a tuple of Option"),
        ({"options_declared": (Option("a", ""), Option("a.KEY", ""))}, "it declares the option a twice"),
        ({"capabilities": {"layers": True}}, "capabilities is not a Capabilities"),
    ],
)
def test_a_plug_in_with_wrong_declarations_is_broken(
    monkeypatch: pytest.MonkeyPatch, attributes: dict[str, object], fault: str
):
    whole = {"name": "odd", "summary": "", "package": "odd", "version": Quiet.version, "build": Quiet.build}
    kept = {name: value for name, value in (whole | attributes).items() if value is not None}
    declare(monkeypatch, odd=lambda: type("Odd", (Engine,), kept))
    with pytest.raises(errors.EngineMissing, match=rf"'odd' \(somewhere:odd\) is broken: {fault}"):
        create("odd")


def test_a_plug_in_that_ends_the_process_while_it_is_imported_is_survived(monkeypatch: pytest.MonkeyPatch):
    def leave() -> object:
        raise SystemExit("no licence")

    declare(monkeypatch, rude=leave)
    with pytest.raises(errors.EngineMissing, match="no licence"):
        create("rude")


def test_a_plug_in_that_declares_nothing_but_what_it_must_still_works(monkeypatch: pytest.MonkeyPatch):
    declare(monkeypatch, quiet=lambda: Quiet)
    engine = create("quiet")
    assert engine.capabilities == Capabilities(marks_any_tensor=True)
    assert not engine.forks_warm
    with pytest.raises(errors.UsageError, match="cannot load what it has built"):
        engine.load(Path("x.engine"))


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
        "import sys; from biopsy.engines.registry import create; create('onnxrt'); create('openvino'); create('fake'); "
        "create('reference'); print({'onnxruntime', 'onnx', 'openvino', 'importlib.metadata'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
