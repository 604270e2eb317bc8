"""The Python API: what its functions take, and what they refuse."""

from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from biopsy import (
    Rules,
    compare,
    errors,
    events,
    precision,
    reduce,
    run,
)
from biopsy.checks.outcome import Form
from biopsy.tensors.files import write_feeds
from support.models import chain, info, save, seeds_example


def test_a_model_runs_from_a_path_its_bytes_or_its_object(tmp_path: Path):
    made = seeds_example()
    for model in (save(made, tmp_path / "m.onnx"), str(tmp_path / "m.onnx"), made.SerializeToString(), made):
        (result,) = run(model)
        assert result.runner == "onnxrt"
        assert result.iterations[0].outputs["out"].shape == (1, 3, 8, 8)
        assert (result.iterations[0].runtime or 0) > 0


def test_every_engine_gets_the_same_inputs():
    first, second = run(seeds_example(), ["reference", "onnxrt:optimization=none"], iterations=3)
    assert (first.runner, second.runner) == ("reference", "onnxrt:optimization=none")
    assert len(first.iterations) == 3
    assert compare(second, first).passed


def test_random_inputs_follow_seed_and_range():
    values = [run(chain(1), seed=seed)[0].iterations[0].outputs["t1"] for seed in (1, 1, 2)]
    assert np.array_equal(values[0], values[1])
    assert not np.array_equal(values[0], values[2])
    assert run(chain(1), val_range=(5, 6))[0].iterations[0].outputs["t1"].min() >= 5


def test_inputs_may_be_one_feed_several_or_a_file(tmp_path: Path):
    feeds = [{"t0": np.full((2, 2), value, np.float32)} for value in (1, 2)]
    write_feeds(tmp_path / "feeds.npz", feeds)
    assert len(run(chain(1), inputs=feeds[0])[0].iterations) == 1
    for inputs in (feeds, tmp_path / "feeds.npz"):
        (result,) = run(chain(1), inputs=inputs)
        assert [one.outputs["t1"][0, 0] for one in result.iterations] == [1, 2]


def test_inputs_of_another_type_are_cast_with_a_warning_that_names_both():
    with pytest.warns(UserWarning, match=r"'t0' from float64 to float32") as caught:
        first, _ = run(chain(1), ["onnxrt", "reference"], inputs=[{"t0": np.full((2, 2), 0.1)}] * 2)
    assert len(caught) == 1
    assert first.iterations[0].outputs["t1"].dtype == np.float32


def test_a_reduction_records_with_samples_in_the_types_of_the_model(tmp_path: Path):
    told: list[events.Event] = []
    feeds = [{"t0": np.full((2, 2), 0.1), "t1": np.full((2, 2), 0.1)}]

    def has_neg(model: onnx.ModelProto) -> bool:
        return any(node.op_type == "Neg" for node in model.graph.node)

    made = chain(3, ops=["Relu", "Neg", "Abs"])
    made.graph.value_info.append(info("t1"))
    out = tmp_path / "reduced.onnx"
    reduce(made, has_neg, out, takes="model", inputs=feeds, cut="constant", listener=told.append)
    assert [weight.data_type for weight in onnx.load(out).graph.initializer] == [onnx.TensorProto.FLOAT]
    remarks = [one for one in told if isinstance(one, events.Remark) and "cast" in one.text]
    assert len(remarks) == 1
    assert remarks[0].warning


def test_inputs_that_lack_one_cannot_be_compared():
    with pytest.raises(errors.CannotCompare, match="'Y0'"):
        run(seeds_example(), inputs={"X0": np.zeros((1, 3, 8, 8), np.float32)})


def test_other_outputs_are_returned_when_asked_for():
    assert list(run(chain(3), outputs=["t1"])[0].iterations[0].outputs) == ["t1"]
    assert list(run(chain(3), outputs="all")[0].iterations[0].outputs) == ["t3", "t1", "t2"]


def test_dictionaries_of_tensors_are_compared_by_name():
    compared = compare({"a": np.array([1.0, 2.5])}, {"a": np.array([1.0, 2.0]), "b": np.zeros(1)})
    ((iteration, output),) = compared.failures
    assert (iteration, output.name) == (0, "a")
    assert compare({"a": np.array([1.0, 2.5])}, {"a": np.array([1.0, 2.0])}, atol=0.5).passed
    assert compare({"a": np.array([1.0, 2.5])}, {"a": np.array([1.0, 2.0])}, rtol={"a": 0.3}).passed
    assert compare({"a": np.array([1.0, 2.5])}, {"a": np.array([1.0, 2.0])}, atol=0.3, check_error_stat="mean").passed


def test_nothing_in_common_cannot_be_compared():
    with pytest.raises(errors.CannotCompare):
        compare({"a": np.zeros(1)}, {"b": np.zeros(1)})


def test_an_engine_that_fails_raises():
    made = chain(1, ops=["Foo"])
    with pytest.raises(errors.EngineFailure):
        run(made)
    with pytest.raises(errors.EngineMissing):
        run(made, "no-such-engine")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"check": None}, "check=None: it is a function, or a command as a list of words"),
        ({"check": "biopsy run {} --onnxrt"}, "a command as a list of words"),
        ({"check": []}, "a command as a list of words"),
        ({"check": ["biopsy", 3]}, "a command as a list of words"),
        ({"mode": "fastest"}, "mode='fastest': it is one of 'minimal', 'bisect', 'linear'"),
        ({"mode": None}, "mode=None"),
        ({"rules": Rules(match="all")}, "match='all': it is one of 'any', 'status', 'auto', 'message', 'exact'"),
        ({"takes": "proto"}, "takes='proto': it is one of 'path', 'model'"),
        ({"cut": "feed"}, "cut='feed'"),
        ({"values": "free!"}, "values='free!'"),
        ({"jobs": 0}, "jobs=0: it is a whole number above 0"),
        ({"repeat": 0}, "repeat=0"),
        ({"max_checks": 1.5}, "max_checks=1.5"),
        ({"max_time": -1}, "max_time=-1: it is a time above 0"),
        ({"rules": "any"}, "rules='any': it is a biopsy.Rules(...)"),
        (
            {"no_reduce_inputs": True, "no_reduce_outputs": True},
            "no_reduce_inputs=True contradicts no_reduce_outputs=True",
        ),
        ({"check_timeout": 5}, "check_timeout has no effect on a function"),
        ({"skip_pass": "forms"}, "skip_pass='forms': it is a tuple of names"),
        ({"rules": Rules(fail_codes=1)}, "fail_codes=1: it is a set of exit statuses"),
        ({"rules": Rules(fail_regexes=("Op",))}, "a tuple of compiled regular expressions"),
        ({"confidence": 1}, "confidence=1: it is above 0 and below 1"),
        ({"inputs": [{"X0": [1.0]}]}, "inputs: the value of 'X0' is a list"),
        ({"inputs": "nowhere.npz"}, "nowhere.npz"),
        ({"input_shapes": {"X0": (-1, 4)}}, "input_shapes={'X0': (-1, 4)}: sizes are whole numbers"),
    ],
)
def test_an_argument_that_cannot_be_used_is_named_with_its_choices(
    tmp_path: Path, arguments: dict[str, object], told: str
):
    given = {"check": lambda path: True, **arguments}
    with pytest.raises(errors.UsageError) as raised:
        reduce(chain(3), output=tmp_path / "r.onnx", **given)  # type: ignore[arg-type]
    assert told in raised.value.message
    assert not (tmp_path / "r.onnx").exists()


def test_a_near_miss_and_a_string_of_words_come_with_what_was_meant(tmp_path: Path):
    with pytest.raises(errors.UsageError) as raised:
        reduce(chain(3), lambda path: True, tmp_path / "r.onnx", mode="minimum")  # type: ignore[arg-type]
    assert raised.value.next_steps == ("did you mean mode='minimal'?",)
    with pytest.raises(errors.UsageError) as raised:
        reduce(chain(3), "biopsy run {}", tmp_path / "r.onnx")
    assert raised.value.next_steps == ("check=['biopsy', 'run', '{}']",)


@pytest.mark.parametrize("answer", ["fails", "", 1, None, [True]])
def test_a_check_that_answers_with_something_else_than_a_truth_is_an_error(tmp_path: Path, answer: object):
    with pytest.raises(errors.CheckError, match="True means that the model fails"):
        reduce(chain(3), lambda path: answer, tmp_path / "r.onnx")


def test_names_of_outputs_and_statistics_that_do_not_exist_are_errors():
    with pytest.raises(errors.UsageError, match="outputs='y': it is 'all', or a list of names"):
        run(chain(1), outputs="y")  # type: ignore[arg-type]
    with pytest.raises(errors.UsageError, match="stat='maximum': it is one of 'elemwise', 'max'"):
        compare({"a": np.zeros(1)}, {"a": np.zeros(1)}, check_error_stat="maximum")  # type: ignore[arg-type]


@pytest.mark.parametrize("model", ["m.onnx", "hard.onnx"])
def test_no_file_of_a_caller_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    monkeypatch.chdir(tmp_path)
    save(chain(3), tmp_path / "m.onnx")
    (tmp_path / "hard.onnx").hardlink_to("m.onnx")
    before = (tmp_path / "m.onnx").read_bytes()
    for files in ({"output": "./m.onnx"}, {"min_good": "m.onnx"}, {"journal": "m.onnx"}, {"min_good": "reduced.onnx"}):
        with pytest.raises(errors.UsageError, match="it would be lost"):
            reduce(model, lambda path: True, **files)  # type: ignore[arg-type]
    with pytest.raises(errors.UsageError, match="it would be lost"):
        precision(model, lambda path: True, "m.onnx")
    with pytest.raises(errors.UsageError, match="output=None: it is a path"):
        reduce(model, lambda path: True, None)  # type: ignore[arg-type]
    assert (tmp_path / "m.onnx").read_bytes() == before


@pytest.mark.parametrize("wrong", [float("nan"), -1, float("inf"), "1", None, {"a": float("nan")}])
@pytest.mark.parametrize("name", ["atol", "rtol"])
def test_a_tolerance_that_is_none_is_refused(name: str, wrong: object) -> None:
    with pytest.raises(errors.UsageError, match=f"{name}=.*: it is a number, 0 or more"):
        compare({"a": np.zeros(1)}, {"a": np.ones(1)}, **{name: wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [[1.0], 1.0, None, np.ma.array([1.0], mask=True)])
def test_what_is_no_array_is_refused(wrong: object) -> None:
    for sides in [({"a": wrong}, {"a": np.zeros(1)}), ({"a": np.zeros(1)}, {"a": wrong})]:
        with pytest.raises(errors.UsageError, match=r"the value of 'a' is a .*, and no array"):
            compare(*sides)  # type: ignore[arg-type]
    with pytest.raises(errors.UsageError, match="inputs: the value of 'X0'"):
        run(chain(1), inputs={"X0": wrong})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"iterations": 0}, "iterations=0: it is a whole number above 0"),
        ({"iterations": 1.5}, "iterations=1.5"),
        ({"engines": ()}, "engines=()"),
        ({"engines": [1]}, "engines=[1]"),
        ({"inputs": []}, "nothing would be run"),
        ({"inputs": [1]}, "inputs: int is not a dictionary"),
        ({"val_range": 1}, "val_range=1: it is a pair of numbers"),
        ({"input_shapes": {"X0": ("n", 1)}}, "sizes are whole numbers"),
    ],
)
def test_a_run_of_nothing_is_no_run(arguments: dict[str, object], told: str) -> None:
    with pytest.raises(errors.UsageError) as raised:
        run(chain(1), **arguments)  # type: ignore[arg-type]
    assert told in raised.value.message


@pytest.mark.parametrize("seconds", [-1, 0, float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused(seconds: float) -> None:
    with pytest.raises(errors.UsageError, match="seconds"):
        reduce(b"", lambda path: True, max_time=seconds)


@pytest.mark.parametrize(
    ("annotation", "takes", "given"),
    [
        (None, None, Path),
        (Path, None, Path),
        ("pathlib.Path", None, Path),
        (str | PathLike[str], None, Path),
        (Any, "model", onnx.ModelProto),
        (onnx.ModelProto, None, onnx.ModelProto),
        ("onnx.ModelProto", None, onnx.ModelProto),
        (bytes, None, bytes),
        (str, None, str),
        (None, "bytes", bytes),
        (int, "path", Path),
    ],
)
def test_a_check_is_given_what_its_annotation_says(
    tmp_path: Path, annotation: object, takes: Form | None, given: type
) -> None:
    seen = []

    def fails(candidate) -> bool:
        seen.append(candidate)
        return True

    if annotation is not None:
        fails.__annotations__["candidate"] = annotation
    reduce(chain(1), fails, tmp_path / "r.onnx", takes=takes, allow_vacuous_check=True)
    assert seen
    assert all(isinstance(candidate, given) for candidate in seen)


def _of_an_integer(candidate: int) -> bool:
    return True


def _of_a_model(candidate: onnx.ModelProto) -> bool:
    return True


@pytest.mark.parametrize(
    ("check", "takes", "told"),
    [
        (_of_an_integer, None, "'candidate' is annotated as int, which a check is never given"),
        (_of_a_model, "path", "takes='path' contradicts the annotation of 'candidate', which is ModelProto"),
        (lambda: True, None, "it is called with one argument, the candidate"),
        (lambda model, engine: True, None, "it is called with one argument, the candidate"),
        (["false", "{}"], "model", "check is a command, given a path"),
    ],
)
def test_a_wrong_guess_of_what_a_check_takes_is_told(tmp_path: Path, check: Any, takes: Form | None, told: str) -> None:
    with pytest.raises(errors.UsageError) as raised:
        reduce(chain(1), check, tmp_path / "r.onnx", takes=takes)
    assert told in raised.value.message


def test_an_argument_of_another_name_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="job"):
        reduce(chain(1), _of_a_model, job=3)  # type: ignore[call-arg]
