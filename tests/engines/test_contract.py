"""Engines of plug-ins that break the contract: none changes what is told of another, and each fault is named."""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import biopsy
from biopsy import errors
from biopsy.engines.base import ModelInput
from biopsy.engines.registry import create
from biopsy.engines.worker import Worker
from biopsy.tensors.files import write_feeds
from biopsy.testing import check_engine, engine_faults
from support.command_line import typed
from support.models import chain, info, model, save
from support.plug_ins import install

BAD = """
import ctypes
import itertools
import os
import sys
import time
from biopsy import errors
from biopsy.engines.base import Engine, Option, Session
from biopsy.engines.registry import create
import numpy as np

COUNTS = itertools.count()

class Bad(Engine):
    name, summary, package = "bad", "breaks the contract", "bad"
    options_declared = (Option("does", "what", "nothing"),)

    @classmethod
    def version(cls):
        return "1"

    def build(self, model):
        does = self.options["does"]
        if does == "exits in build":
            os._exit(0)
        if does == "unmapped build":
            raise KeyError("oops")
        if b"NoSuchOperator" in model.data and does in ("vague", "another kind", "run stage"):
            if does == "vague":
                raise RuntimeError("who knows")
            kind, stage = ("K", "run") if does == "run stage" else (f"K{next(COUNTS)}", "build")
            raise errors.EngineFailure("no", engine=self.name, stage=stage, kind=kind)
        inner = create("reference").build(model)
        return {"no session": object(), "promises": Promises(inner, "reuses")}.get(does) or BadSession(inner, does)

class BadSession(Session):
    def __init__(self, inner, does):
        self.inner, self.does, self.buffers = inner, does, {}

    @property
    def inputs(self):
        return {"other": None} if self.does == "wrong inputs" else self.inner.inputs

    @property
    def outputs(self):
        return list(self.inner.outputs)[:-1] + ["other"] * 0 if self.does == "declares less" else self.inner.outputs

    @property
    def remarks(self):
        return [str(next(COUNTS))] if self.does == "other remarks" else ()

    def run(self, feed):
        given = self.inner.run(dict(feed))
        first = next(iter(given))
        if self.does == "writes":
            for value in feed.values():
                value[...] = 0
        if self.does == "writes natively":
            for value in feed.values():
                ctypes.memset(value.ctypes.data, 0, value.nbytes)
        if self.does == "changes the feed":
            feed.clear()
        if self.does == "reuses":
            for name, value in given.items():
                kept = self.buffers.setdefault(name, value.copy())
                kept[...] = value
            return dict(self.buffers)
        if self.does == "omits":
            given.pop(first)
        if self.does == "adds":
            given["more"] = given[first]
        if self.does == "lists":
            given[first] = given[first].tolist()
        if self.does == "objects":
            given[first] = np.array([object()])
        if self.does == "returns a list":
            return list(given.values())
        if self.does == "names by number":
            return dict(enumerate(given.values()))
        if self.does == "raises":
            raise IndexError("deep inside")
        if self.does == "exits":
            os._exit(0)
        if self.does == "exits with 3":
            os._exit(3)
        if self.does == "crashes":
            ctypes.string_at(0)
        if self.does == "hangs":
            time.sleep(1000)
        if self.does == "SystemExit":
            raise SystemExit(0)
        if self.does == "KeyboardInterrupt":
            raise KeyboardInterrupt
        if self.does == "widens":
            return {name: value.astype(np.float64) for name, value in given.items()}
        if self.does == "prints":
            print("hello")
        if self.does == "flattens":
            return {name: value.reshape(-1) for name, value in given.items()}
        if self.does == "varies":
            given[first] = given[first] + next(COUNTS)
        if self.does == "scalar":
            return {name: value[()] for name, value in given.items()}
        if self.does == "reversed":
            return dict(reversed(given.items()))
        return given

class Promises(BadSession):
    gives_new_arrays = True

class Numbered(Bad):
    name = "numbered"

    @classmethod
    def version(cls):
        return 1.0

class Restless(Bad):
    name = "restless"

    @classmethod
    def version(cls):
        return str(next(COUNTS))
"""

ENGINES = ("Bad", "Numbered", "Restless")


@pytest.fixture
def bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The plug-in, installed for this process and its children; and a model that clips, of two outputs."""
    install(tmp_path / "site", "bad-engine", BAD, "\n".join(f"{name.lower()} = bad_engine:{name}" for name in ENGINES))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    return save(two_outputs(), tmp_path / "m.onnx")


def two_outputs():
    from onnx import helper

    nodes = [helper.make_node("Neg", ["x"], ["y"]), helper.make_node("Add", ["x", "x"], ["z"])]
    return model(nodes, [info("x", (4,))], [info("y", (4,)), info("z", (4,))])


RULES = {
    "writes": "leaves its inputs as they are",
    "writes natively": "leaves its inputs as they are",
    "changes the feed": "leaves its inputs as they are",
    "promises": "does not use the memory of outputs again",
    "omits": "gives every output",
    "declares less": "gives every output",
    "adds": "gives arrays by name",
    "lists": "gives arrays by name",
    "objects": "gives arrays by name",
    "returns a list": "gives arrays by name",
    "names by number": "gives arrays by name",
    "no session": "gives arrays by name",
    "raises": "raises only its own errors",
    "unmapped build": "raises only its own errors",
    "vague": "refuses what it does not know",
    "another kind": "refuses what it does not know",
    "run stage": "refuses what it does not know",
    "prints": "prints nothing",
    "exits in build": "ends its process",
    "KeyboardInterrupt": "raises only its own errors",
    "varies": "gives the same again",
    "other remarks": "says the same each time",
    "wrong inputs": "tells its inputs",
}


@pytest.mark.parametrize("does", RULES)
def test_each_fault_of_an_engine_is_found_and_named(bad: Path, does: str):
    with pytest.raises(AssertionError, match=RULES[does]):
        check_engine(f"bad:does={does}")


@pytest.mark.parametrize(
    ("does", "told"),
    [
        ("exits", ["ends its process: with status 0 (Identity)"]),
        ("exits with 3", ["ends its process: with status 3 (Identity)"]),
        ("crashes", ["ends its process: by SIGSEGV (Identity)"]),
        ("SystemExit", ["raises only its own errors: SystemExit: 0 (Identity)"]),
        ("widens", ["keeps types: output 'y' has type float64, expected float32 (Identity)"]),
        ("flattens", ["keeps shapes: output 'y' has shape [9], expected [3, 3] (Identity)"]),
    ],
)
def test_a_fault_is_told_as_a_sentence_with_the_model_that_showed_it(bad: Path, does: str, told: list[str]):
    assert [str(fault) for fault in engine_faults(f"bad:does={does}")] == told


def test_an_engine_that_hangs_is_ended_at_its_limit_and_nothing_is_tried_after_it(bad: Path):
    started = time.monotonic()
    faults = engine_faults("bad:does=hangs", timeout=0.5)
    assert [fault.rule for fault in faults] == ["does not end within 0.5 s"]
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("does", ["exits", "SystemExit"])
def test_an_engine_that_ends_its_process_fails_the_test_that_checks_it(bad: Path, does: str):
    script = f"from biopsy.testing import check_engine; check_engine('bad:does={does}')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "AssertionError" in done.stderr


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        ("numbered", r"tells its version: version\(\) gives 1.0, and no text"),
        ("restless", r"says the same each time: version\(\) gives '\d+', then '\d+'"),
    ],
)
def test_a_version_is_a_text_and_stays_the_same(bad: Path, engine: str, told: str):
    with pytest.raises(AssertionError, match=told):
        check_engine(engine)


def test_a_runtime_that_is_not_installed_is_told_as_that(bad: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(errors.EngineMissing):
        check_engine("onnxrt")


@pytest.mark.parametrize("does", ["nothing", "reuses", "scalar", "reversed"])
def test_an_engine_may_reuse_its_buffers_and_give_scalars_in_any_order(bad: Path, does: str):
    check_engine(f"bad:does={does}")


def test_an_engine_that_takes_none_of_the_models_has_proved_nothing(tmp_path: Path):
    golden = tmp_path / "golden.safetensors"
    write_feeds(golden, [{"t1": np.ones((2, 2), "f4")}])
    assert [fault.rule for fault in engine_faults(f"recorded:file={golden}")] == ["builds a model"]
    check_engine(f"recorded:file={golden}", [chain(1)])


@pytest.mark.parametrize("where", ["command", "python", "worker"])
def test_an_engine_that_writes_into_its_inputs_is_told_and_the_next_one_computes_from_them(bad: Path, where: str):
    x = np.array([1, 2, 3, 4], np.float32)
    engines = ["bad:does=writes", "onnxrt"]
    if where == "command":
        done = typed("run", bad, "--engine", engines[0], "--engine", engines[1])
        assert done.status == 4
        assert "its inputs are read-only" in done.told
        return
    with pytest.raises(errors.BiopsyError, match=r"'bad:does=writes' raised ValueError.*\n.*read-only"):
        if where == "python":
            biopsy.run(bad, engines, inputs={"x": x})
        else:
            write_feeds(bad.parent / "feeds.npz", [{"x": x}])
            with Worker(engines[0], bad.parent) as worker:
                worker.run(ModelInput(bad.read_bytes(), bad.parent, bad), bad.parent / "feeds.npz")
    assert x.tolist() == [1, 2, 3, 4]


def test_an_engine_whose_native_code_writes_into_its_inputs_is_told_too(bad: Path):
    done = typed("run", bad, "--engine", "bad:does=writes natively", "--engine", "onnxrt")
    assert done.status == 4
    assert "engine 'bad:does=writes natively' writes into its input 'x'" in done.told


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("does", ["omits", "declares less"])
def test_an_engine_that_omits_an_output_fails_wherever_it_stands(bad: Path, first: bool, does: str):
    engines = [f"bad:does={does}", "onnxrt"][:: 1 if first else -1]
    done = typed("run", bad, *(word for engine in engines for word in ("--engine", engine)))
    assert done.status == 1, done.told
    assert "missing output: it does not give output" in done.told


def test_outputs_of_a_run_stay_when_the_engine_uses_its_buffers_again(bad: Path):
    feeds = [{"x": np.full(4, value, np.float32)} for value in (1, 2, 3)]
    found = biopsy.run(bad, "bad:does=reuses", inputs=feeds)[0]
    assert [iteration.outputs["y"][0] for iteration in found.iterations] == [-1, -2, -3]


@pytest.mark.parametrize(
    ("does", "told"),
    [
        ("lists", r"gives a list as output 'y', and no array"),
        ("objects", r"gives an array of object as output 'y'"),
        ("adds", r"gives 'more', no output of the model"),
        ("returns a list", r"gives a list and no dictionary"),
        ("names by number", r"names an output 0, an int"),
        ("raises", r"raised IndexError and no EngineFailure .* deep inside"),
        ("no session", r"gives an object and no Session"),
    ],
)
def test_what_is_no_output_is_told_with_the_engine_and_its_name(bad: Path, does: str, told: str):
    with pytest.raises(errors.BiopsyError, match=f"engine 'bad:does={does}' {told}") as caught:
        biopsy.run(bad, ["onnxrt", f"bad:does={does}"])
    assert not isinstance(caught.value, errors.EngineFailure)


@pytest.mark.parametrize("engine", ["onnxrt", "reference", "reference:float64", "fake"])
def test_an_output_that_is_an_input_stays_when_its_owner_changes_that(engine: str):
    x = np.ones(2, np.float32)
    made = model([], [info("x", (2,))], [info("x", (2,))])
    from onnx import helper

    made.graph.node.append(helper.make_node("Neg", ["x"], ["y"]))
    made.graph.output.append(info("y", (2,)))
    found = create(engine).build(ModelInput(made.SerializeToString(), Path())).run({"x": x})
    x[:] = 7
    assert found["x"].tolist() == [1, 1]
    assert x.flags.writeable
