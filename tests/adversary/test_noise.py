"""What would make ``--compare-with noise`` call a bug rounding, or say that all is well without having looked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from biopsy.cli.app import main
from biopsy.cli.console import Console
from biopsy.cli.demo import demonstration_model
from biopsy.cli.run.noise import judge_noise as judge_noise_of
from biopsy.comparison.noise import closest, is_doubtful, judge_noise
from biopsy.engines.base import Engine, ModelInput
from biopsy.tensors.files import read_feeds, write_feeds
from biopsy.tensors.generate import differ, roundings_off
from biopsy.tensors.results import Array, Iteration, RunnerResult
from support.bug import skip_without_it
from support.models import info, model, save

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def in_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def noise(*words: str) -> int:
    return main(["run", "model.onnx", *words, "--compare-with", "noise", "--report", "report.json"])


def verdict() -> str:
    found: str = json.loads(Path("report.json").read_text())["verdict"]["kind"]
    return found


# Where nothing can be judged


def test_where_float32_overflows_everywhere_nobody_can_say(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIOPSY_VERDICT", "verdict.json")
    save(model([helper.make_node("Exp", ["x"], ["y"])], [info("x")], [info("y")]), Path("model.onnx"))
    assert noise("--onnxrt", "--val-range", "[200,300]") == 4
    told = capsys.readouterr()
    assert "no output of onnxrt can be judged: 'y': a plain run is NaN or infinite in all its elements" in told.err
    assert "PASSED" not in told.out
    assert (verdict(), json.loads(Path("verdict.json").read_text())["outcome"]) == ("unknown", "invalid")


def test_where_there_are_no_elements_nobody_can_say(capsys: Captured) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    save(model([node], [info("x", shape=["N"])], [info("y", shape=["N"])]), Path("model.onnx"))
    assert noise("--onnxrt", "--input-shapes", "x:[0]") == 4
    assert "can be judged: 'y': it has no elements" in capsys.readouterr().err
    assert verdict() == "unknown"


def test_what_cannot_be_judged_beside_what_can_is_named(capsys: Captured) -> None:
    nodes = [helper.make_node("Exp", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["z"])]
    save(model(nodes, [info("x")], [info("y"), info("z")]), Path("model.onnx"))
    assert noise("--onnxrt", "--val-range", "[200,300]") == 0
    told = capsys.readouterr()
    assert "1 output judged, no error is more than rounding; 1 output could not be judged" in told.out
    assert "cannot say: a plain run is NaN or infinite" in told.err


def test_a_finite_value_where_float32_and_float64_are_both_infinite_is_a_bug() -> None:
    exact = np.array([1.0, -np.inf, np.nan])
    plain = exact.astype(np.float32)
    assert judge_noise("y", 0, plain, plain, exact).passed
    assert not judge_noise("y", 0, np.float32([1, 5, np.nan]), plain, exact).passed
    assert not judge_noise("y", 0, np.float32([1, -np.inf, 5]), plain, exact).passed


# Small values beside large ones


def product(seed: int, scales: Array) -> tuple[Array, Array, Array]:
    """A matrix product with rows of these scales: by columns, by NumPy, and in float64."""
    random = np.random.default_rng(seed)
    left = (random.normal(size=(len(scales), 64)) * scales[:, None]).astype(np.float32)
    right = random.normal(size=(64, 16)).astype(np.float32)
    by_columns = np.zeros((len(scales), 16), np.float32)
    for column in range(64):
        by_columns += np.outer(left[:, column], right[column])
    return by_columns, left @ right, left.astype(np.float64) @ right.astype(np.float64)


SCALES = np.array([1e6, 1e6, 1e-3, 1e6])


def test_a_wrong_small_row_does_not_hide_beside_huge_rows() -> None:
    suspect, plain, exact = product(0, SCALES)
    suspect[2] *= np.float32(1.001)
    found = judge_noise("y", 0, suspect, plain, exact)
    assert found.verdict == "bug"
    assert found.part == "in the slice [2, :]"
    assert "in the slice [2, :]" in str(found.reason)


def test_a_wrong_small_row_of_one_of_many_matrices_is_seen() -> None:
    suspect, plain, exact = (side.reshape(2, 2, 16) for side in product(0, SCALES))
    suspect = suspect.copy()
    suspect[1, 0] *= np.float32(1.001)
    assert judge_noise("y", 0, suspect, plain, exact).part == "in the slice [1, 0, :]"


def test_small_values_that_are_scattered_are_seen_by_their_magnitude() -> None:
    random = np.random.default_rng(0)
    exact = random.normal(size=(16, 16)) + 3
    small = random.permutation(256)[:32]
    exact.reshape(-1)[small] *= 1e-7
    plain = exact.astype(np.float32)
    suspect = plain.copy()
    suspect.reshape(-1)[small] *= np.float32(1.001)
    found = judge_noise("y", 0, suspect, plain, exact)
    assert found.verdict == "bug"
    assert str(found.part).startswith("among the 31 values of 1.1e-08 to")


@settings(deadline=None)
@given(st.integers(0, 2**32), st.lists(st.integers(-30, 30), min_size=2, max_size=12))
def test_another_order_of_summing_is_rounding_in_every_part(seed: int, powers: list[int]) -> None:
    suspect, plain, exact = product(seed, 10.0 ** np.array(powers))
    assert judge_noise("y", 0, suspect, plain, exact).passed


def normalized(x: Array, *, one_by_one: bool) -> Array:
    """Rows less their mean, divided by their deviation: all elements of a row share the errors of both."""
    count = np.array(x.shape[-1], x.dtype)
    total = np.cumsum(x, axis=-1)[..., -1:] if one_by_one else x.sum(axis=-1, keepdims=True)
    centred = x - total / count
    squares = centred * centred
    spread = np.cumsum(squares, axis=-1)[..., -1:] if one_by_one else squares.sum(axis=-1, keepdims=True)
    return np.asarray(centred / np.sqrt(spread / count + x.dtype.type(1e-5)))


@settings(deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([16, 64, 256]), st.integers(-3, 2), st.integers(2, 60))
def test_errors_that_the_elements_of_a_row_share_make_no_part_wrong(
    seed: int, length: int, power: int, rows: int
) -> None:
    random = np.random.default_rng(seed)
    scales = 10.0 ** random.uniform(power, power + 3, (rows, 1))
    x = (random.normal(3, 1, (rows, length)) * scales).astype(np.float32)
    gain = (10.0 ** random.uniform(-4, 4, (rows, 1))).astype(np.float32)
    suspect, plain = (normalized(x, one_by_one=way) * gain for way in (True, False))
    exact = normalized(x.astype(np.float64), one_by_one=False) * gain
    assert judge_noise("y", 0, suspect, plain, exact).part is None


def test_a_tail_that_is_approximated_to_an_absolute_error_is_rounding() -> None:
    exact = np.concatenate([np.linspace(1, 10, 200), np.linspace(1e-4, 2e-4, 50)])
    plain = exact.astype(np.float32)
    suspect = (plain + np.random.default_rng(0).normal(0, 3e-8, 250)).astype(np.float32)
    assert judge_noise("y", 0, suspect, plain, exact).passed


def test_zeros_and_denormal_numbers_are_no_parts_of_their_own() -> None:
    exact = np.concatenate([np.ones(32), np.zeros(32), np.full(32, 1e-40)])
    plain = exact.astype(np.float32)
    flushed = np.where(np.abs(plain) < 1e-38, 0, plain).astype(np.float32)
    flushed[40] = 1e-9  # where plain float32 happens to be exact
    assert judge_noise("y", 0, flushed, plain, exact).passed


# A yardstick that is wrong itself


def result(name: str, value: Array) -> RunnerResult:
    return RunnerResult(name, (Iteration({"y": value}),))


def test_a_bug_that_plain_float32_shares_is_no_rounding() -> None:
    suspect, plain, exact = product(0, np.ones(4))
    wrong = result("plain", plain * np.float32(1.01))
    assert is_doubtful(wrong, result("exact", exact))
    assert not is_doubtful(result("plain", plain), result("exact", exact))
    taken = closest(wrong, result("other", plain), result("exact", exact))
    assert taken.runner == "plain or other"
    assert not judge_noise("y", 0, suspect * np.float32(1.01), taken.iterations[0].outputs["y"], exact).passed


def test_plain_float32_that_errs_much_by_rounding_stays_the_yardstick() -> None:
    exact = np.full(64, 1e-6)
    plain, other = (np.random.default_rng(seed).normal(1e-6, 1e-7, 64).astype(np.float32) for seed in (0, 1))
    assert is_doubtful(result("plain", plain), result("exact", exact))
    assert closest(result("plain", plain), result("other", other), result("exact", exact)).runner == "plain"


def with_contrib_operator(made: onnx.ModelProto) -> onnx.ModelProto:
    """A model with another output, by an operator that float64 cannot compute."""
    made.graph.node.append(helper.make_node("Inverse", ["square"], ["inverse"], domain="com.microsoft"))
    made.graph.input.append(info("square", shape=[4, 4]))
    made.graph.output.append(info("inverse", shape=[4, 4]))
    made.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return made


def test_a_bug_is_found_where_float64_cannot_run(capsys: Captured) -> None:
    skip_without_it()
    save(with_contrib_operator(demonstration_model()), Path("model.onnx"))
    assert noise("--onnxrt") == 1
    told = capsys.readouterr()
    assert "'Inverse'" in told.err
    assert "onnxrt:optimization=none is the reference instead, and its noise is how far its" in told.err
    assert "FAILED | 'logits' of onnxrt is wrong by more than rounding" in told.out
    assert noise("--engine", "onnxrt:optimization=basic") == 0
    assert verdict() == "passes"


def test_what_is_believed_is_not_held_against_itself(capsys: Captured) -> None:
    made = with_contrib_operator(model([helper.make_node("Neg", ["x"], ["y"])], [info("x")], [info("y")]))
    save(made, Path("model.onnx"))
    assert noise("--engine", "onnxrt:optimization=none") == 4
    assert "onnxrt:optimization=none cannot be compared with itself" in capsys.readouterr().err
    assert noise("--onnxrt", "--val-range", "[0,0]") == 4
    assert "no input has a number that could be one rounding off" in capsys.readouterr().err


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_inputs_move_by_one_rounding_and_masks_do_not(dtype: str) -> None:
    values = np.random.default_rng(0).normal(size=100).astype(dtype)
    feed = {"x": values, "mask": np.zeros(4, dtype), "ids": np.arange(3), "whole": np.arange(-9, 9).astype(dtype)}
    (moved,) = roundings_off([feed])
    assert np.array_equal(np.trunc(moved["whole"]), feed["whole"])
    distance = np.abs(moved["x"].astype(np.float64) / feed["x"] - 1)
    assert 0 < distance.max() <= 2 * max(float(np.finfo(dtype).eps), 2.0**-23)
    assert moved["x"].dtype == dtype
    assert all(np.array_equal(moved[name], feed[name]) for name in ("mask", "ids"))
    assert differ([feed], [moved])
    assert not differ([feed], [feed])


def test_a_quantum_that_turns_over_with_a_rounding_is_no_bug(capsys: Captured) -> None:
    held = [numpy_helper.from_array(np.float32(0.3), "scale")]
    nodes = [helper.make_node("Div", ["x", "scale"], ["q"]), helper.make_node("Round", ["q"], ["y"])]
    save(model(nodes, [info("x", shape=[3])], [info("y", shape=[3])], held), Path("model.onnx"))
    ties = np.float32([0.45, 1.05, 1.65])  # 1.5, 3.5 and 5.5 times the scale, but for rounding
    write_feeds("inputs.json", [{"x": ties}])
    given = RunnerResult("suspect", (Iteration({"y": np.rint(ties / np.float32(0.3))}),))
    turned = replace(given, iterations=(Iteration({"y": given.iterations[0].outputs["y"] - [0, 1, 0]}),))
    wrong = replace(given, iterations=(Iteration({"y": given.iterations[0].outputs["y"] - [0, 2, 0]}),))
    assert [judged(one) for one in (given, turned, wrong)] == [True, True, False]


def judged(suspect: RunnerResult) -> bool:
    def run(engine: Engine, count: int = 0) -> RunnerResult:
        feeds = read_feeds("inputs.json")
        moved = roundings_off(feeds, count) if count else feeds
        session = engine.build(ModelInput(Path("model.onnx").read_bytes(), Path()))
        return RunnerResult("", tuple(Iteration(session.run(feed)) for feed in moved))

    (report,) = judge_noise_of([suspect], run, {}, Console())
    return report.passed


def test_numbers_of_eight_bits_do_not_move() -> None:
    import ml_dtypes

    feed = {"x": np.arange(4).astype(ml_dtypes.float8_e5m2), "y": np.full(9, 1.5, ml_dtypes.bfloat16)}
    (moved,) = roundings_off([feed], 4)
    assert moved["x"] is feed["x"]
    assert not np.array_equal(moved["y"], feed["y"])


# Operators that onnx's evaluator lacks


@pytest.mark.parametrize("opset", [10, 13])
def test_old_quantized_models_are_judged_in_float64(opset: int, capsys: Captured) -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"]),
    ]
    held = [numpy_helper.from_array(np.float32(0.05), "scale"), numpy_helper.from_array(np.uint8(100), "zero")]
    made = model(nodes, [info("x")], [info("y")], held)
    made.opset_import[0].version = opset
    save(made, Path("model.onnx"))
    assert noise("--onnxrt") == 0
    assert "reference:float64" in capsys.readouterr().out


def test_contrib_operators_are_judged_in_bodies_and_functions(capsys: Captured) -> None:
    gelu = helper.make_node("Gelu", ["x"], ["g"], domain="com.microsoft")
    body = helper.make_graph([gelu], "body", [], [info("g")])
    function = helper.make_function(
        "own", "Twice", ["x"], ["t"],
        [helper.make_node("QuickGelu", ["x"], ["q"], domain="com.microsoft"),
         helper.make_node("Add", ["q", "q"], ["t"])],
        [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)],
    )  # fmt: skip
    nodes = [
        helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body),
        helper.make_node("Twice", ["x"], ["z"], domain="own"),
    ]
    held = [numpy_helper.from_array(np.array(True), "c")]
    made = model(nodes, [info("x")], [info("y"), info("z")], held)
    made.opset_import.extend([helper.make_opsetid("com.microsoft", 1), helper.make_opsetid("own", 1)])
    made.functions.append(function)
    save(made, Path("model.onnx"))
    assert noise("--onnxrt") == 0
    assert "both against reference:float64" in capsys.readouterr().out


def test_inputs_at_the_edge_of_a_domain_excuse_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One rounding more than 1 has no arc cosine: NaN there says nothing about how far an output may move."""
    node = helper.make_node("Acos", ["x"], ["y"], name="n1")
    path = save(model([node], [info("x", (8,))], [info("y", (8,))]), tmp_path / "model.onnx")
    write_feeds(tmp_path / "ones.npz", [{"x": np.ones(8, np.float32)}])
    words = ["--load-inputs", str(tmp_path / "ones.npz"), "--compare-with", "noise"]
    assert main(["run", str(path), "--engine", "fake:offset.n1=0.5", *words]) == 1
    assert "BUG" in capsys.readouterr().out
