"""Whatever stands where a file is wanted, nobody waits for it: pipes without a writer, devices without an end."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from biopsy.cli.app import main
from biopsy.processes.reading import open_delivering
from biopsy.questions.builds.record import TacticRecord, write_record
from support.confined import Confinement
from support.models import info, model

ARGUMENTS = [
    "inspect model {any}",
    "inspect model {any} --show weights",
    "inspect data {any}.json",
    "inspect data {any}.npz",
    "inspect data {any}.safetensors",
    "inspect data {any}",
    "data to-input {any}.json -o made.npz",
    "inspect tactics {any}",
    "inspect diff-tactics --good {any} --bad {any}",
    "debug diff-tactics {folder}",
    "run {any} --reference",
    "run m.onnx --reference --load-inputs {any}.json",
    "run m.onnx --reference --load-inputs {any}.npz",
    "run m.onnx --reference --load-outputs {any}.safetensors",
    "run m.onnx --reference --load-outputs {any}",
    "run m.onnx --reference --data-loader-script {any}.py",
    "surgeon sanitize {any} -o made.onnx",
    "surgeon extract {any} -o made.onnx --outputs y:auto",
    "inspect capability {any} --onnxrt",
    "debug layers {any} --suspect onnxrt",
    "debug reduce {any} -o made.onnx --check false",
    "debug reduce m.onnx -o made.onnx --load-debug-replay {any} --check false",
    "debug reduce m.onnx -o made.onnx --load-inputs {any}.npz --check false",
    "debug reduce m.onnx -o made.onnx --order-by {any} --check false",
    "debug precision {any} -o made.onnx --check false",
]

ENDINGS = ("", ".json", ".npz", ".safetensors", ".py")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "work"
    found.mkdir()
    plain = model([helper.make_node("Relu", ["x"], ["y"])], [info("x")], [info("y")])
    (found / "m.onnx").write_bytes(plain.SerializeToString())
    return found


def pipe(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def terminal(path: Path) -> None:
    path.symlink_to("/dev/tty")


def itself(path: Path) -> None:
    path.symlink_to(path.name)


@pytest.mark.parametrize(
    "make", [pipe, *(pytest.param(other, marks=pytest.mark.slow) for other in (endless, terminal, itself))]
)
@pytest.mark.parametrize("words", ARGUMENTS)
def test_what_is_no_file_is_refused_and_never_waited_for(
    words: str, make: Callable[[Path], None], folder: Path, confined: Confinement
) -> None:
    below = folder / "folder"
    for part in ("good", "bad"):
        (below / part).mkdir(parents=True)
        make(below / part / "strange.json")
    for ending in ENDINGS:
        make(folder / f"strange{ending}")
    ended = confined.run(words.format(any="strange", folder="folder").split(), folder)
    assert ended.status in {2, 4}, ended
    assert ended.err.count("error: ") == 1, ended.err
    assert "strange" in ended.err or "folder" in ended.err
    assert "itself failed" not in ended.err
    assert ended.peak < 600 << 20
    assert not (folder / "made.onnx").exists()


def test_a_pipe_that_somebody_writes_into_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_record(TacticRecord(engine="onnxrt", model="m.onnx"), tmp_path / "record.json")
    data = (tmp_path / "record.json").read_bytes()
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(data,))
    writer.start()
    status = main(["inspect", "tactics", str(tmp_path / "pipe")])
    writer.join()
    assert status == 0
    assert "onnxrt" in capsys.readouterr().out


def test_a_writer_that_takes_its_time_is_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    def write() -> None:
        with (tmp_path / "pipe").open("wb", buffering=0) as stream:
            threading.Event().wait(2.5)
            stream.write(b"one")
            threading.Event().wait(0.1)
            stream.write(b" two")

    writer = threading.Thread(target=write)
    writer.start()
    with open_delivering(tmp_path / "pipe") as stream:
        assert stream.read() == b"one two"
    writer.join()


JSON = {
    "10,000 lists": b"[" * 10_000,
    "10^5 objects": b'{"biopsy_tactics":' * 100_000,
    "a number of 10^5 digits": b'{"biopsy_tactics": 1' + b"0" * 100_000 + b"}",
    "a version of lists": b'{"biopsy_tactics": [[[]]], "biopsy_replay": [[[]]]}',
    "no values": b'{"biopsy_tactics": 1, "biopsy_replay": 1}',
    "wrong values": b'{"biopsy_tactics": 1, "engine": 7, "layers": 7, "biopsy_replay": 1, "identity": 7, "runs": 7}',
    "a text that is none": b'{"biopsy_tactics": "\xff\xfe"}',
    "not a number": b'{"biopsy_tactics": NaN, "biopsy_replay": Infinity}',
    "half a pair": b'{"biopsy_tactics": "\\ud800", "biopsy_replay": "\\ud800"}',
    "a replay of numbers": b'{"polygraphy_class": "TacticReplayData", "replay": {"x": 7}}',
    "a replay of infinite numbers": b'{"polygraphy_class": "TacticReplayData", "replay": {"x": '
    b'{"implementation": 1e999, "tactic": 1, "inputs": [], "outputs": []}}}',
    "a replay of long numbers": b'{"polygraphy_class": "TacticReplayData", "replay": {"x": '
    b'{"implementation": "' + b"9" * 9000 + b'", "tactic": 1, "inputs": [], "outputs": []}}}',
    "a layer of infinite time": b'{"biopsy_tactics": 1, "engine": "", "version": "", "device": "", "model": "", '
    b'"model_digest": "", "outcome": "", "settings": {}, "environment": {}, "varied": [], "iteration": 1, '
    b'"build_seconds": 1, "remarks": [], "layers": [{"nodes": [], "time_us": ' + b"9" * 400 + b"}]}",
    "an iteration that is a text": b'{"biopsy_tactics": 1, "engine": "", "version": "", "device": "", "model": "", '
    b'"model_digest": "", "outcome": "", "settings": {}, "environment": {}, "varied": [], "iteration": "x", '
    b'"build_seconds": [], "remarks": [], "layers": []}',
    "a run of nothing": b'{"biopsy_replay": 1, "identity": {}, "notes": {}, "runs": [[]]}',
    "nothing": b"",
    "a list": b"[]",
}


@pytest.mark.parametrize(
    "words",
    [
        "inspect tactics f.json",
        "inspect diff-tactics --good f.json --bad f.json",
        "debug reduce m.onnx -o made.onnx --load-debug-replay f.json --check false",
        "debug reduce m.onnx -o made.onnx --order-by f.json --check false",
    ],
)
@pytest.mark.parametrize("name", JSON)
def test_json_from_a_stranger_is_refused_by_name(name: str, words: str, folder: Path, confined: Confinement) -> None:
    (folder / "f.json").write_bytes(JSON[name])
    ended = confined.run(words.split(), folder)
    assert ended.status in {0, 2, 4}, ended
    assert "itself failed" not in ended.err, ended.err
    assert "Traceback" not in ended.err
    assert len(ended.err) < 2_000
    if ended.status:
        assert "f.json" in ended.err


AS_VERDICTS = {"10,000 lists", "no values", "a text that is none", "not a number", "nothing", "a list"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in AS_VERDICTS else pytest.mark.slow) for name in JSON]
)
def test_a_verdict_from_a_stranger_never_ends_a_reduction_as_our_fault(
    name: str, folder: Path, confined: Confinement
) -> None:
    (folder / "f.json").write_bytes(JSON[name])
    words = ["debug", "reduce", "m.onnx", "-o", "made.onnx", "--check", "sh", "-c", "cp f.json $BIOPSY_VERDICT; exit 1"]
    ended = confined.run(words, folder)
    assert ended.status in range(5), ended
    assert "itself failed" not in ended.err
    assert "Traceback" not in ended.err


def test_inputs_whose_names_are_odd_come_back_as_they_were(tmp_path: Path) -> None:
    from biopsy.tensors.files import read_feeds, write_feeds

    feed = {"../../x": np.zeros(2, np.float32), "": np.ones(1, np.int64), "a/b": np.zeros((0, 3), np.float64)}
    write_feeds(tmp_path / "f.npz", [feed])
    assert list(read_feeds(tmp_path / "f.npz")[0]) == list(feed)
