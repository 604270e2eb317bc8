"""A hunt on the machines of a Ray cluster finds what it finds on one machine, whatever becomes of them."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from biopsy import errors, events
from biopsy.hunting import sweep
from biopsy.hunting.hunt import hunt
from biopsy.hunting.sweep import HuntQuestion
from support.hunts import ZOO, unary, zoo
from support.models import info, model, save
from support.ray_nodes import MARKS, RayNodes

pytest.importorskip("ray")
from biopsy.session.ray_cluster import RayWorkers

pytestmark = MARKS

MODELS = 18


def question(folder: Path, name: str) -> HuntQuestion:
    return HuntQuestion(
        places=[str(folder / "zoo")],
        engines=("onnxrt:optimization=none", "openvino", "reference"),
        folder=folder / name,
        per_bug=0,
    )


def make_zoo(folder: Path) -> None:
    zoo(folder, {name: ZOO[name] for name in ("good", "rounding", "random", "own_nan")})
    zoo(folder, {f"more/{number}": unary(*["Relu", "Tanh", "Neg"][: number % 3 + 1]) for number in range(MODELS)})
    (folder / "damaged.onnx").write_bytes(b"\x08\x07nothing")
    (data_set := folder / "set" / "test_data_set_0").mkdir(parents=True)
    shift = helper.make_node("BitShift", ["x", "by"], ["y"], direction="LEFT")  # OpenVINO saturates
    kind = onnx.TensorProto.UINT8
    made = model([shift], [info(name, (1,), kind) for name in ("x", "by")], [info("y", (1,), kind)])
    save(made, folder / "set" / "model.onnx")
    for name, value in (("input_0", 200), ("input_1", 3), ("output_0", 200 << 3 & 255)):
        array = np.array([value], np.uint8)
        (data_set / f"{name}.pb").write_bytes(numpy_helper.from_array(array).SerializeToString())
    weights = np.arange(1000, dtype=np.float32)
    for name in ("weights", "lost"):
        (folder / name).mkdir()
        add = helper.make_node("Add", ["x", "w"], ["y"])
        made = model([add], [info("x", (1000,))], [info("y", (1000,))], [numpy_helper.from_array(weights, "w")])
        path = folder / name / "model.onnx"
        onnx.save(made, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    np.savez(folder / "weights" / "model.npz", x=weights)
    (folder / "lost" / "w.bin").unlink()


def outcome(question: HuntQuestion) -> tuple[str, dict[str, bytes]]:
    tree = json.loads((question.folder / "hunt.json").read_text())
    for each in (tree, *tree["models"]):
        del each["seconds"]
    return json.dumps(tree, indent=1), {path.name: path.read_bytes() for path in (question.folder / "inputs").iterdir()}


def test_a_hunt_on_three_machines_of_which_one_is_killed_is_that_on_one(tmp_path: Path, ray_nodes: RayNodes) -> None:
    make_zoo(tmp_path / "zoo")
    here, there = question(tmp_path, "found"), question(tmp_path, "there")
    assert hunt(here).counts["wrong"] == 1
    added = ray_nodes.add(21)
    workers = RayWorkers(ray_nodes.address)
    tried = list[str]()

    def listen(event: events.Event) -> None:
        if isinstance(event, events.ModelTried):
            tried.append(event.model)
            if len(tried) == 4:
                ray_nodes.cluster.remove_node(added, allow_graceful=False)

    try:
        hunt(there, listen, workers)
    finally:
        workers.close()
    assert added not in ray_nodes.cluster.worker_nodes and len(tried) == MODELS + 8
    ours, samples = outcome(here)
    theirs, sent = outcome(there)
    assert theirs.replace(str(there.folder), str(here.folder)) == ours
    assert samples and sent == samples
    folders = [folder for number in range(3) for folder in ray_nodes.host_folders(number)]
    assert not [path for folder in folders for path in folder.rglob("*.onnx")]


def test_a_machine_with_another_release_of_an_engine_is_refused(
    tmp_path: Path, ray_workers: RayWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    zoo(tmp_path / "zoo", {"good": ZOO["good"]})
    assert sweep.releases_of(["onnxrt"]) != {"onnxrt": "0.1"}
    monkeypatch.setattr(sweep, "releases_of", lambda engines: dict.fromkeys(engines, "0.1"))
    with pytest.raises(errors.CheckError, match="other releases"):
        hunt(replace(question(tmp_path, "there"), engines=("onnxrt",)), machines=ray_workers)
