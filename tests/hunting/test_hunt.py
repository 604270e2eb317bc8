"""``biopsy hunt`` over folders of models, with an engine that has planted bugs: what it finds, and what it does not."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from biopsy.hunting.hunt import changes
from support.command_line import typed
from support.hunts import RULES, ZOO, hunt, kinds, read, unary, zoo
from support.models import info, model, weight
from support.planting import planted as planted


@pytest.fixture
def suspect(planted: Callable[..., str]) -> str:
    return planted(*RULES)


def test_each_model_is_judged_by_itself_and_nothing_is_lost(tmp_path: Path, suspect: str) -> None:
    (zoo(tmp_path / "zoo") / "damaged.onnx").write_bytes(b"\x08\x07nothing")
    shapeless = unary("Cosh", "Neg", "Neg", "Neg")  # the checker wants a shape, which the standard does not
    shapeless.graph.output[0].type.tensor_type.ClearField("shape")
    zoo(tmp_path / "zoo", {"shapeless": shapeless})
    ran = hunt(tmp_path, "zoo", "--onnxrt", "--engine", suspect, "--no-diagnosis")
    assert ran.status == 1
    assert kinds(tmp_path / "found", suspect) == {
        "good": "right", "wrong_one": "wrong", "wrong_two": "wrong", "crash": "crash", "refuse": "unsupported",
        "fail": "refused", "rounding": "rounding", "nan": "wrong", "random": "random", "own_nan": "wrong",
        "damaged": "invalid model", "shapeless": "refused",
    }  # fmt: skip
    others = kinds(tmp_path / "found", "onnxrt")
    assert not {"wrong", "differs", "crash", "hang", "refused"} & set(others.values())
    found = read(tmp_path / "found")
    assert sum(found["counts"].values()) == len(ZOO) + 2 == len(found["models"])
    operators = {Path(each["model"]).stem: each["cells"][1]["operators"] for each in found["models"]}
    assert operators["fail"] == ["Cosh"] and operators["shapeless"] == []  # of a larger model, which is unknown
    assert len(ran.told.splitlines()) <= 25


@pytest.mark.slow
def test_an_engine_that_hangs_is_found_to_do_so_by_itself(tmp_path: Path, suspect: str) -> None:
    zoo(tmp_path / "zoo", {"hang": unary("Cos"), "good": unary("Relu")})
    assert hunt(tmp_path, "zoo", "--onnxrt", "--engine", suspect, "--no-diagnosis", "--model-timeout", "4s").status == 1
    assert kinds(tmp_path / "found", suspect) == {"hang": "hang", "good": "right"}
    assert kinds(tmp_path / "found", "onnxrt") == {"hang": "right", "good": "right"}


@pytest.mark.slow
def test_models_with_the_same_smallest_part_are_one_bug(tmp_path: Path, suspect: str) -> None:
    zoo(tmp_path / "zoo", {name: ZOO[name] for name in ("deep/wrong_one", "deep/wrong_two", "fail")})
    ran = hunt(tmp_path, "zoo", "--onnxrt", "--engine", suspect, "--per-bug", "30s", timeout=400)
    assert ran.status == 1, ran.told
    wrong, refused = read(tmp_path / "found")["bugs"]
    assert (wrong["kind"], refused["kind"]) == ("wrong", "refused")
    assert [Path(name).stem for name in wrong["models"]] == ["wrong_one", "wrong_two"]
    assert wrong["confirmed"] and wrong["fingerprint"].startswith("k2-") and "Tanh" in wrong["graph"]
    assert (tmp_path / "found" / wrong["piece"]).is_file() and (tmp_path / "found" / wrong["page"]).is_file()


@pytest.mark.slow
def test_models_that_fail_alike_come_apart_where_their_smallest_parts_and_switches_differ(
    tmp_path: Path, planted: Callable[..., str]
) -> None:
    suspect = planted(
        {"op": "Tanh", "does": "scale", "dtype": "float32", "unless": "pass_a"},
        {"op": "Tanh", "does": "scale", "dtype": "float64", "unless": "pass_b"},
    )
    double = onnx.TensorProto.DOUBLE
    other = model([helper.make_node("Tanh", ["x"], ["y"])], [info("x", (2, 2), double)], [info("y", (2, 2), double)])
    zoo(tmp_path / "zoo", {"one": unary("Tanh"), "two": unary("Neg", "Tanh", "Abs", "Neg"), "double": other})
    ran = hunt(tmp_path, "zoo", "--onnxrt", "--engine", suspect, "--per-bug", "300s", timeout=1500)
    assert ran.status == 1, ran.told
    bugs = [
        ({Path(name).stem for name in bug["models"]}, bug["unconfirmed"], bug["right_with"])
        for bug in read(tmp_path / "found")["bugs"]
    ]
    assert bugs == [({"one", "two"}, [], f"{suspect},pass_a=false"), ({"double"}, [], f"{suspect},pass_b=false")]


def test_without_a_bug_it_is_green_only_if_everything_was_compared(tmp_path: Path, planted: Callable[..., str]) -> None:
    nodes = [
        helper.make_node("Mul", ["x", "zero"], ["equal"]),
        helper.make_node("ArgMax", ["equal"], ["y"], axis=1, keepdims=0),
    ]
    tie = model(nodes, [info("x", (2, 5))], [info("y", (2,), onnx.TensorProto.INT64)], [weight("zero", 0.0)])
    empty = model([helper.make_node("Relu", ["x"], ["y"])], [info("x", (0, 2))], [info("y", (0, 2))])
    zoo(tmp_path / "zoo", {"good": ZOO["good"], "tie": tie, "empty": empty, "random": ZOO["random"]})
    suspect = planted({"op": "ArgMax", "does": "add", "by": 2})
    words = ("--onnxrt", "--engine", suspect)
    assert hunt(tmp_path, "zoo", *words).status == 4
    assert kinds(tmp_path / "found", "onnxrt") == {
        "good": "right",
        "tie": "right",
        "empty": "empty",
        "random": "random",
    }
    for name in ("empty", "random"):
        (tmp_path / "zoo" / f"{name}.onnx").unlink()
    ran = hunt(tmp_path, "zoo", *words)
    assert ran.status == 0 and "2 models remembered" in ran.told
    assert kinds(tmp_path / "found", suspect) == {"good": "right", "tie": "tie"}


@pytest.mark.slow
def test_of_two_settings_of_an_engine_the_wrong_one_is_named(tmp_path: Path, planted: Callable[..., str]) -> None:
    one, other = planted(), planted({"op": "Tanh", "does": "scale"})
    zoo(tmp_path / "zoo", {"wrong": unary("Tanh")})
    assert hunt(tmp_path, "zoo", "--engine", one, "--engine", other, "--no-diagnosis").status == 1
    assert kinds(tmp_path / "found", one) == {"wrong": "right"}
    assert kinds(tmp_path / "found", other) == {"wrong": "wrong"}


def test_inputs_and_expected_outputs_beside_a_model_are_used(tmp_path: Path, planted: Callable[..., str]) -> None:
    suspect = planted({"op": "Tanh", "does": "scale", "above": 50})
    folder = zoo(
        tmp_path / "zoo", {"data_set/model": unary("Tanh"), "file/model": unary("Tanh"), "none/model": unary("Tanh")}
    )
    values = np.full((2, 2), 60, np.float32)
    (data_set := folder / "data_set" / "test_data_set_0").mkdir()
    for name, array in (("input", values), ("output", np.tanh(values))):
        (data_set / f"{name}_0.pb").write_bytes(numpy_helper.from_array(array).SerializeToString())
    np.savez(folder / "file" / "inputs.npz", t0=values)
    assert hunt(tmp_path, "zoo", "--onnxrt", "--engine", suspect, "--no-diagnosis").status == 1
    cells = {Path(each["model"]).parent.name: each["cells"][1]["kind"] for each in read(tmp_path / "found")["models"]}
    assert cells == {"data_set": "wrong", "file": "wrong", "none": "right"}


@pytest.mark.slow
def test_open_dimensions_get_several_sizes(tmp_path: Path, planted: Callable[..., str]) -> None:
    made = model([helper.make_node("Tanh", ["x"], ["y"])], [info("x", ("n", "m"))], [info("y", ("n", "m"))])
    zoo(tmp_path / "zoo", {"open": made})
    suspect = planted({"op": "Tanh", "does": "scale", "rows": 2})
    assert hunt(tmp_path, "zoo", "--onnxrt", "--engine", suspect, "--no-diagnosis").status == 1


@pytest.mark.slow
def test_the_same_line_tries_only_what_has_changed(tmp_path: Path, planted: Callable[..., str]) -> None:
    zoo(tmp_path / "zoo", {"good": ZOO["good"], "later": ZOO["good"]})
    words = ("zoo", "--onnxrt", "--engine", planted({"op": "Tanh", "does": "scale"}), "--no-diagnosis")
    assert hunt(tmp_path, *words).status == 0
    zoo(tmp_path / "zoo", {"later": unary("Tanh")})
    ran = hunt(tmp_path, *words)
    assert ran.status == 1 and "1 model remembered" in ran.told
    other = hunt(tmp_path, "zoo", "--onnxrt", "--no-diagnosis")
    assert other.status == 2 and "--fresh" in other.told
    assert hunt(tmp_path, *words, "--fresh").status == 1


def test_against_an_earlier_hunt_it_tells_what_is_new_gone_and_still_there(
    tmp_path: Path, planted: Callable[..., str]
) -> None:
    suspect = planted({"op": "Tanh", "does": "scale"}, {"op": "Atan", "does": "scale"})
    rules = Path(suspect.partition("=")[2])
    zoo(tmp_path / "zoo", {"tanh": unary("Tanh"), "atan": unary("Atan"), "exp": unary("Exp"), "abs": unary("Abs")})
    words = ("zoo", "--onnxrt", "--engine", suspect, "--no-diagnosis")
    assert hunt(tmp_path, *words).status == 1
    (tmp_path / "found").rename(tmp_path / "before")
    rules.write_text('[{"op": "Tanh", "does": "scale"}, {"op": "Exp", "does": "scale"}]')
    ran = hunt(tmp_path, *words, "--against", tmp_path / "before")
    assert ran.status == 1
    lines = dict(line.split(maxsplit=1) for line in ran.told.splitlines())
    told = {head: lines[head].partition("-wrong-")[2].partition("-")[0] for head in ("new", "gone", "still")}
    assert told == {"new": "Exp", "gone": "Atan", "still": "Tanh"}
    assert lines["open"] == lines["changed"] == "0"
    assert typed("hunt", "found", "--against", "before", folder=tmp_path).status == 1
    assert changes(read(tmp_path / "found"), read(tmp_path / "found")).status == 0
    (tmp_path / "zoo" / "tanh.onnx").unlink()
    (tmp_path / "zoo" / "exp.onnx").unlink()
    ran = hunt(tmp_path, *words, "--against", tmp_path / "before", "--events", tmp_path / "events.jsonl")
    ended = json.loads((tmp_path / "events.jsonl").read_text().splitlines()[-1])
    assert ended["status"] == ran.status == 4 and "open       1" in ran.told, ran.told
