"""Finding workarounds of real failures of ONNX Runtime: what is told is right, and what only looks so is not told."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from biopsy import errors, events
from biopsy.questions.workarounds import changes, trusted_values
from biopsy.questions.workarounds.question import Patch
from biopsy.session.trial import Budget
from support.models import info, model
from support.real_failures import normalization_of_columns, relu_clip_of_integers
from support.workarounds import found, question


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}", prepend=":")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def patch_of(change, *, kind="spelling", nodes=(0,)) -> Patch:
    """A change of a model that somebody claims to be equal."""
    return Patch(kind=kind, name="claimed", text="claimed to be equal", cost="", exact=True, nodes=nodes, change=change)


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Patch]]:
    """The spellings that there are: those that a test claims."""
    claimed: list[Patch] = []
    monkeypatch.setitem(changes._MAKERS, "spelling", lambda model, nodes: list(claimed))
    return claimed


@pytest.mark.slow
def test_a_model_that_cannot_be_built_is_mended_by_a_mark_and_by_a_spelling(here: Path):
    result = found(question(relu_clip_of_integers(), here, kinds=("mark", "spelling")))
    assert {one.kind for one in result.best} == {"mark", "spelling"}
    assert result.trust.reference == "onnxrt:optimization=none"
    assert result.trust.confirmed_by == "reference"
    for one in result.found:
        assert one.difference and one.nodes and one.latency is not None and one.latency.ratio is None
        assert one.model is not None
        onnx.checker.check_model(onnx.ModelProto.FromString(one.model))


@pytest.mark.slow
def test_a_silent_failure_is_mended_by_a_mark_and_its_latency_stands_beside_the_original(here: Path):
    result = found(question(normalization_of_columns(), here, nodes=("m",)))
    [one] = result.found
    assert one.nodes == ("ReduceMean #1",)
    assert one.latency is not None and one.latency.ratio is not None
    assert one.latency.low <= one.latency.ratio <= one.latency.high
    model = onnx.ModelProto.FromString(one.model)
    assert [output.name for output in model.graph.output] == ["y", "m"]


def test_a_change_that_returns_what_is_right_for_the_inputs_of_the_check_is_not_right(here: Path, claims):
    asked = question(normalization_of_columns(), here, kinds=("spelling",))
    x = np.asarray(asked.right.samples[0]["x"]).astype(np.float64)
    right = x / np.sqrt((x**2).mean(-1) + 1e-5) * np.linspace(0.5, 1.5, 8)

    def by_heart(model: onnx.ModelProto) -> onnx.ModelProto:
        made = onnx.ModelProto.FromString(model.SerializeToString())
        del made.graph.node[:]
        made.graph.initializer.append(numpy_helper.from_array(right.astype(np.float32), "learnt"))
        zero = numpy_helper.from_array(np.float32(0), "zero")
        made.graph.initializer.append(zero)
        made.graph.node.append(helper.make_node("Mul", ["x", "zero"], ["nothing"]))
        made.graph.node.append(helper.make_node("Add", ["learnt", "nothing"], ["y"]))
        return made

    claims.append(patch_of(by_heart))
    result = found(asked)
    assert not result.found
    assert "on a fresh input" in result.tried[0].reason


def test_a_check_that_looks_at_no_values_cannot_tell_what_is_a_workaround(here: Path):
    code = "import sys; sys.exit(b'ReduceMean' in open(sys.argv[1], 'rb').read())"
    asked = question(
        normalization_of_columns(), here, engine="onnxrt:optimization=none", words=(sys.executable, "-c", code, "{}")
    )
    with pytest.raises(errors.CannotCompare, match="cannot tell what is right: the check fails, but"):
        found(asked)


def test_float64_decides_between_engines_that_contradict_each_other(here: Path, monkeypatch):
    asked = question(normalization_of_columns(), here, engine="onnxrt:threads=1", references=("onnxrt",))
    assert found(asked).trust.reference == "reference"
    wrong = onnxruntime.InferenceSession(asked.model, providers=["CPUExecutionProvider"])
    golden = [{"y": wrong.run(["y"], dict(sample))[0]} for sample in asked.right.samples]
    with pytest.raises(errors.CannotCompare, match="reference does not agree with onnxrt"):
        found(replace(asked, right=replace(asked.right, golden=golden)))  # nobody trusts what contradicts the check
    monkeypatch.setattr(trusted_values, "EXACT", "fake:refuse.ReduceMean=run")
    with pytest.raises(errors.CannotCompare, match="reference does not agree with onnxrt"):
        found(asked)


def test_outputs_without_a_finite_number_tell_nothing(here: Path):
    model = normalization_of_columns()
    model.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.float32(np.nan), "eps"))
    words = (sys.executable, "-c", "raise SystemExit(1)", "{}")
    with pytest.raises(errors.CannotCompare, match="no finite number"):
        found(question(model, here, words=words))


def test_an_engine_without_a_finite_number_leaves_it_to_the_next_one(here: Path):
    node = helper.make_node("MeanVarianceNormalization", ["x"], ["y"], axes=[2, 3])
    shape = (1, 2, 2, 2)
    mvn = model([node], [info("x", shape)], [info("y", shape)], opset=13)
    asked = question(mvn, here, engine="onnxrt:threads=1", references=("onnxrt:optimization=none", "reference"))
    ones = replace(asked, right=replace(asked.right, samples=[{"x": np.ones(shape, np.float32)}]))
    trusted = trusted_values.trusted_values(ones, here, events.ignore)
    assert trusted.engine == "reference" and np.isfinite(trusted.expected[0]["y"]).all()


@pytest.mark.slow
def test_a_model_that_does_not_fail_has_nothing_to_mend(here: Path):
    with pytest.raises(errors.OriginalPasses, match="nothing to mend"):
        found(question(normalization_of_columns(), here, engine="onnxrt:optimization=basic"))


def test_a_node_that_there_is_not_is_told_before_anything_runs(here: Path):
    heard: list[events.Event] = []
    with pytest.raises(errors.DoesNotFit, match="no node 'nonsense'"):
        found(question(normalization_of_columns(), here, nodes=("nonsense",)), heard.append)
    assert not any(isinstance(event, events.Checking) for event in heard)


@pytest.mark.slow
def test_a_limit_and_an_interruption_leave_what_was_found(here: Path):
    def interrupting(event: events.Event) -> None:
        if isinstance(event, events.ChangeTried) and event.right:
            raise KeyboardInterrupt

    asked = question(relu_clip_of_integers(), here, kinds=("mark", "spelling"))
    result = found(asked, interrupting)
    assert result.interrupted and [one.kind for one in result.found] == ["mark"]
    limited = found(replace(asked, budget=Budget(checks=3)))
    assert limited.stopped == "--max-checks 3" and not limited.found and not limited.interrupted
    assert [path.name for path in here.iterdir()] == ["model.onnx"]


def test_without_the_package_that_reads_an_index_other_kinds_of_changes_are_tried(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pypi_simple", None)
    result = found(question(normalization_of_columns(), here, kinds=("release", "mark"), nodes=("m",)))
    assert [each.kind for each in result.found] == ["mark"]
