"""Files of tactics: what is written is read; Polygraphy's replays in both their forms; what is no such file."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from biopsy import errors
from biopsy.engines.base import LayerRecord
from biopsy.questions.builds.record import (
    Algorithm,
    TacticRecord,
    TacticReplay,
    TensorInfo,
    read_tactics,
    tactics_below,
    write_record,
)
from support.replays import write_replay

RECORD = TacticRecord(
    engine="openvino",
    version="2026.4.1",
    device="CPU",
    model="model.onnx",
    model_digest="abc",
    settings={"precision": "bf16"},
    environment={"OMP_NUM_THREADS": "2"},
    varied=("precision", "env.OMP_NUM_THREADS"),
    iteration=3,
    outcome="bad",
    build_seconds=0.25,
    remarks=("a remark",),
    layers=(
        LayerRecord(
            name="conv",
            kind="Convolution",
            implementation="jit",
            precision="bfloat16",
            layout="nchw",
            nodes=("conv", "relu"),
            device="CPU",
            time_us=12.5,
        ),
    ),
)
INFO = TensorInfo("DataType.FLOAT", (8, 1), -1, 1)
REPLAY = TacticReplay({"layer": Algorithm(-2147483643, 0, (INFO,), (INFO, replace(INFO, vectorized_dim=None)))})


def test_a_record_is_read_as_it_was_written(tmp_path: Path):
    write_record(RECORD, tmp_path / "t.json")
    assert read_tactics(tmp_path / "t.json") == RECORD
    assert json.loads((tmp_path / "t.json").read_text())["biopsy_tactics"] == 1


def test_a_name_that_an_engine_made_up_is_not_kept(tmp_path: Path):
    made_up = LayerRecord(name="Reorder_4711", kind="Reorder")
    write_record(replace(RECORD, layers=(made_up,)), tmp_path / "t.json")
    assert "4711" not in (tmp_path / "t.json").read_text()
    assert read_tactics(tmp_path / "t.json").layers == (replace(made_up, name=""),)  # type: ignore[union-attr]


def test_a_replay_is_read_as_it_was_written_and_looks_as_polygraphy_shows_it(tmp_path: Path):
    write_replay(REPLAY, tmp_path / "r.json")
    assert read_tactics(tmp_path / "r.json") == REPLAY
    assert str(REPLAY.algorithms["layer"]) == (
        "(Implementation: -2147483643, Tactic: 0) | Inputs: (TensorInfo(DataType.FLOAT, (8, 1), -1, 1),) | "
        "Outputs: (TensorInfo(DataType.FLOAT, (8, 1), -1, 1), TensorInfo(DataType.FLOAT, (8, 1), None, 1))"
    )


def test_the_older_form_of_a_replay_is_read(tmp_path: Path):
    write_replay(REPLAY, tmp_path / "r.json")
    text = (tmp_path / "r.json").read_text()
    for name in ("TacticReplayData", "Algorithm", "TensorInfo"):
        text = text.replace(
            f'"polygraphy_class": "{name}"', f'"__polygraphy_encoded_{name}": "polygraphy_serialized_json_type"'
        )
    (tmp_path / "r.json").write_text(text)
    assert read_tactics(tmp_path / "r.json") == REPLAY


def test_other_files_below_a_folder_are_passed_over(tmp_path: Path):
    (tmp_path / "deep").mkdir()
    write_record(RECORD, tmp_path / "deep" / "t.json")
    (tmp_path / "model.onnx").write_bytes(b"\x08\x09")
    (tmp_path / "other.json").write_text("{}")
    (tmp_path / "empty").touch()
    assert list(tactics_below(tmp_path)) == [tmp_path / "deep" / "t.json"]


@pytest.mark.parametrize("left", [0, 1, 40, -3])
def test_a_record_that_was_cut_short_is_not_passed_over(tmp_path: Path, left: int):
    write_record(RECORD, tmp_path / "t.json")
    (tmp_path / "t.json").write_bytes((tmp_path / "t.json").read_bytes()[:left])
    with pytest.raises(errors.DataError, match=r"t\.json is damaged: it is not JSON"):
        tactics_below(tmp_path)


@pytest.mark.parametrize(
    ("text", "error", "told"),
    [
        ("{}", errors.DataError, "neither a tactic record"),
        ("no JSON", errors.DataError, "neither a tactic record"),
        ('{"biopsy_tactics": 2}', errors.DataError, "version 2"),
        ('{"biopsy_tactics": 1, "engine": 5}', errors.DataError, "damaged tactic record"),
        ('{"replay": {"a": {}}, "polygraphy_class": "TacticReplayData"}', errors.DataError, "damaged tactic replay"),
    ],
)
def test_what_is_no_file_of_tactics_is_told(tmp_path: Path, text: str, error: type[Exception], told: str):
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(error, match=told):
        read_tactics(tmp_path / "t.json")


def test_a_file_that_is_not_there_is_wrong_usage(tmp_path: Path):
    with pytest.raises(errors.UsageError, match="No such file"):
        read_tactics(tmp_path / "t.json")
