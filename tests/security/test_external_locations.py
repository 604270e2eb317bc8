"""A model that names a file outside its folder reads nothing: it is refused before any engine or command sees it.

The secret is float data, so that an engine that followed the name would compute with it, and write it.
"""

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from biopsy import errors
from biopsy.cli.app import main
from biopsy.engines.base import ModelInput
from biopsy.model import external
from biopsy.model.wire import string_field
from support.models import FLOAT, info, model, save

SECRET = np.arange(4, dtype=np.float32) + 31_337


def referring(location: str) -> onnx.TensorProto:
    tensor = onnx.TensorProto(name="w", data_type=FLOAT, dims=[2, 2], data_location=onnx.TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", "0"), ("length", "16")):
        tensor.external_data.add(key=key, value=value)
    return tensor


# Where a location may stand


def in_initializer(tensor: onnx.TensorProto) -> onnx.ModelProto:
    return model([helper.make_node("Add", ["x", "w"], ["y"])], [info("x")], [info("y")], [tensor])


def in_attribute(tensor: onnx.TensorProto) -> onnx.ModelProto:
    nodes = [helper.make_node("Constant", [], ["c"], value=tensor), helper.make_node("Add", ["x", "c"], ["y"])]
    return model(nodes, [info("x")], [info("y")])


def in_body(tensor: onnx.TensorProto) -> onnx.ModelProto:
    branches = {
        name: helper.make_graph([helper.make_node("Constant", [], [name], value=tensor)], name, [], [info(name)])
        for name in ("then_branch", "else_branch")
    }
    nodes = [helper.make_node("If", ["go"], ["c"], **branches), helper.make_node("Add", ["x", "c"], ["y"])]
    return model(nodes, [info("x"), info("go", (), onnx.TensorProto.BOOL)], [info("y")])


def in_function(tensor: onnx.TensorProto) -> onnx.ModelProto:
    inner = [helper.make_node("Constant", [], ["c"], value=tensor), helper.make_node("Add", ["a", "c"], ["b"])]
    made = model([helper.make_node("F", ["x"], ["y"], domain="my")], [info("x")], [info("y")])
    made.functions.append(helper.make_function("my", "F", ["a"], ["b"], inner, [helper.make_opsetid("", 17)]))
    made.opset_import.append(helper.make_opsetid("my", 1))
    return made


def in_default_of_a_function(tensor: onnx.TensorProto) -> onnx.ModelProto:
    made = in_function(onnx.numpy_helper.from_array(SECRET.reshape(2, 2) * 0, "w"))
    made.functions[0].attribute_proto.append(helper.make_attribute("t", tensor))
    return made


def in_sparse_initializer(tensor: onnx.TensorProto) -> onnx.ModelProto:
    made = model([helper.make_node("Add", ["x", "w"], ["y"])], [info("x")], [info("y")])
    tensor.dims[:] = [4]
    indices = onnx.numpy_helper.from_array(np.arange(4), "i")
    made.graph.sparse_initializer.append(helper.make_sparse_tensor(tensor, indices, [2, 2]))
    return made


def in_training_information(tensor: onnx.TensorProto) -> onnx.ModelProto:
    made = model([helper.make_node("Relu", ["x"], ["y"])], [info("x")], [info("y")])
    made.training_info.add().algorithm.initializer.append(tensor)
    return made


PLACES = [
    in_initializer, in_attribute, in_body, in_function, in_default_of_a_function, in_sparse_initializer,
    in_training_information,
]  # fmt: skip


# What a location may lead to


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model's name free, beside which a secret stands."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.bin").write_bytes(SECRET.tobytes())
    made = tmp_path / "model"
    made.mkdir()
    monkeypatch.chdir(made)
    return made


def absolute(folder: Path) -> str:
    return str(folder.parent / "outside" / "secret.bin")


def upwards(folder: Path) -> str:
    return "../outside/secret.bin"


def linked(folder: Path) -> str:
    (folder / "w.bin").symlink_to(folder.parent / "outside" / "secret.bin")
    return "w.bin"


def through_a_linked_folder(folder: Path) -> str:
    (folder / "weights").symlink_to(folder.parent / "outside")
    return "weights/secret.bin"


def hard_linked(folder: Path) -> str:
    os.link(folder.parent / "outside" / "secret.bin", folder / "w.bin")
    return "w.bin"


WAYS = [absolute, upwards, linked, through_a_linked_folder, hard_linked]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("place", PLACES)
def test_no_engine_is_handed_a_model_that_reads_elsewhere(
    place: Callable[[onnx.TensorProto], onnx.ModelProto], way: Callable[[Path], str], folder: Path
) -> None:
    made = place(referring(way(folder)))
    with pytest.raises(errors.ModelError, match="may not be read from"):
        ModelInput(made.SerializeToString(), folder)


LENGTHS = [b"\x08", b"\x88\x00", b"\x88\x80\x00", b"\x88\x80\x80\x80\x00"]
"""The length of ``location`` as protobuf reads it: a varint may have more bytes than it needs."""


@pytest.mark.parametrize("length", LENGTHS, ids=bytes.hex)
def test_no_spelling_of_the_key_hides_a_reference(length: bytes, folder: Path) -> None:
    tensor = referring("../outside/secret.bin")
    del tensor.external_data[:]
    entry = b"\x0a" + length + b"location" + string_field(2, b"../outside/secret.bin")
    weight = tensor.SerializeToString() + string_field(13, entry)
    made = model([helper.make_node("Add", ["x", "w"], ["y"])], [info("x")], [info("y")])
    data = made.SerializeToString() + string_field(7, string_field(5, weight))  # which protobuf joins to the graph
    assert onnx.load_from_string(data).graph.initializer[0].external_data[0].key == "location"
    with pytest.raises(errors.ModelError, match="may not be read from"):
        ModelInput(data, folder)


@pytest.mark.parametrize("name", ["mbox_location", "locations", "a/location", "location2"])
def test_a_tensor_with_location_in_its_name_is_no_reference(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parsed(data: bytes, path: Path | None) -> onnx.ModelProto:
        raise AssertionError("the whole model, with its weights, was parsed")

    monkeypatch.setattr("biopsy.model.external.parse", parsed)
    made = model([helper.make_node("Relu", ["x"], [name])], [info("x")], [info(name)])
    ModelInput(made.SerializeToString(), folder)


@pytest.mark.parametrize("way", [linked, through_a_linked_folder, hard_linked])
def test_links_are_refused_with_what_to_do(way: Callable[[Path], str], folder: Path) -> None:
    made = in_initializer(referring(way(folder)))
    with pytest.raises(errors.ModelError) as refused:
        ModelInput(made.SerializeToString(), folder)
    (step,) = refused.value.next_steps
    location = made.graph.initializer[0].external_data[0].value
    source = os.path.realpath(folder / location)
    condition = f"only if {source} is yours and belongs to this model: "
    assert step.startswith(condition)
    if way is not hard_linked:
        assert f"is a symbolic link to {source if way is linked else Path(source).parent}" in refused.value.message
    command, _, rest = step.removeprefix(condition).partition("    ")
    assert rest.endswith("--external-data-dir COPY")
    subprocess.run(["bash", "-c", command.replace("COPY", "../copy")], check=True)
    assert (folder.parent / "copy" / location).read_bytes() == SECRET.tobytes()
    ModelInput(made.SerializeToString(), folder.parent / "copy")


def test_where_a_link_leads_is_said_without_harm(folder: Path) -> None:
    (folder / "w.bin").symlink_to("/tmp/\x1b[2Jno such $(file)")
    with pytest.raises(errors.ModelError) as refused:
        external.resolve(folder, "w.bin", "w")
    assert r"is a symbolic link to /tmp/\x1b[2Jno such $(file)" in refused.value.message
    assert refused.value.next_steps[0].isprintable()
    assert "cp -rL" not in refused.value.next_steps[0]


def test_the_names_of_a_hard_link_are_counted_once_until_one_is_moved_away(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "w.bin").write_bytes(SECRET.tobytes())
    os.link(folder / "w.bin", folder / "again.bin")
    walks = []
    rglob = Path.rglob
    monkeypatch.setattr(Path, "rglob", lambda path, pattern: walks.append(path) or rglob(path, pattern))
    for _ in range(5):
        external.resolve(folder, "w.bin")
    assert len(walks) == 1
    time.sleep(0.02)  # times of files are no finer everywhere
    (folder / "again.bin").rename(folder.parent / "elsewhere.bin")
    with pytest.raises(errors.ModelError, match="hard link"):
        external.resolve(folder, "w.bin")


COMMANDS = {
    "run": ["run", "bad.onnx", "--onnxrt", "--reference", "--save-outputs", "out.npz"],
    "run marked": ["run", "bad.onnx", "--onnxrt", "--onnx-outputs", "mark", "all", "--save-outputs", "out.npz"],
    "capability": ["inspect", "capability", "bad.onnx", "--onnxrt"],
    "extract": ["surgeon", "extract", "bad.onnx", "-o", "out.onnx", "--outputs", "y:auto"],
    "sanitize": ["surgeon", "sanitize", "bad.onnx", "-o", "out.onnx", "--fold-constants"],
    "reduce": ["debug", "reduce", "bad.onnx", "-o", "out.onnx", "--check", "false"],
    "layers": ["debug", "layers", "bad.onnx", "--suspect", "onnxrt"],
    "build": ["debug", "build", "bad.onnx", "--onnxrt", "--until", "1", "--check", "false"],
    "precision": ["debug", "precision", "bad.onnx", "-o", "out.onnx", "--fp16", "--check", "false"],
}


@pytest.mark.parametrize("way", [absolute, linked])
@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_reads_a_file_that_only_the_model_names(
    command: str, way: Callable[[Path], str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(in_initializer(referring(way(folder))), folder / "bad.onnx")
    assert main(COMMANDS[command]) == 4
    told = capsys.readouterr()
    assert "may not be read from" in told.err
    assert "31337" not in told.out + told.err
    written = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    assert not [path for path in written if SECRET.tobytes() in path.read_bytes()]


@pytest.mark.parametrize("way", WAYS)
def test_inspect_shows_where_a_weight_should_stand_and_reads_nothing_there(
    way: Callable[[Path], str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(in_initializer(referring(way(folder))), folder / "bad.onnx")
    assert main(["inspect", "model", "bad.onnx", "--mode=full"]) == 0
    told = capsys.readouterr()
    assert "may not be read from" in told.out
    assert "31337" not in told.out + told.err


@pytest.mark.parametrize("engine", ["--onnxrt", "--reference", "--openvino"])
def test_an_address_in_memory_is_no_location(engine: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if engine == "--openvino":
        pytest.importorskip("openvino")
    values = np.frombuffer(SECRET.tobytes(), np.float32)
    tensor = referring("*/_ORT_MEM_ADDR_/*")
    tensor.external_data[1].value = str(values.ctypes.data)
    save(in_initializer(tensor), folder / "bad.onnx")
    assert main(["run", "bad.onnx", engine, "--save-outputs", "out.npz"]) == 4
    assert not (folder / "out.npz").exists()
    assert "error" in capsys.readouterr().err


def test_a_fifo_holds_no_weights_and_nobody_waits_for_it(folder: Path) -> None:
    os.mkfifo(folder / "w.bin")
    with pytest.raises(errors.ModelError, match="not a plain file"):
        ModelInput(in_initializer(referring("w.bin")).SerializeToString(), folder)


def test_weights_in_the_folder_are_read_also_with_two_names_there(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "w.bin").write_bytes(SECRET.tobytes())
    os.link(folder / "w.bin", folder / "again.bin")
    save(in_initializer(referring("w.bin")), folder / "fine.onnx")
    assert main(["run", "fine.onnx", "--reference"]) == 0


def test_a_node_that_is_called_location_harms_nothing(folder: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["y"], name="location_embedding")
    save(model([node], [info("x")], [info("y")]), folder / "fine.onnx")
    assert main(["inspect", "model", "fine.onnx"]) == 0


@pytest.mark.parametrize("way", [absolute, linked])
def test_inspecting_such_a_model_shows_it_and_warns(
    way: Callable[[Path], str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(in_initializer(referring(way(folder))), folder / "bad.onnx")
    assert main(["inspect", "model", str(folder / "bad.onnx")]) == 0
    shown = capsys.readouterr()
    assert "1 initializer" in shown.out
    assert shown.err.startswith("warning: the external data of tensor")
    assert "no engine is given this model" in shown.err


@pytest.mark.parametrize("way", [absolute, linked])
def test_a_refusal_names_the_model_and_what_to_do(way: Callable[[Path], str], folder: Path) -> None:
    made = in_initializer(referring(way(folder)))
    with pytest.raises(errors.ModelError) as refused:
        ModelInput(made.SerializeToString(), folder, folder / "bad.onnx")
    assert refused.value.message.startswith(f"the model {folder / 'bad.onnx'}: the external data of tensor")
    assert refused.value.next_steps


def test_weights_that_are_cut_short_are_refused_with_what_to_look_at(folder: Path) -> None:
    (folder / "w.bin").write_bytes(b"1")
    made = in_initializer(referring("w.bin"))
    with pytest.raises(errors.ModelError, match=f"the model {folder / 'bad.onnx'}: ") as refused:
        ModelInput(made.SerializeToString(), folder, folder / "bad.onnx")
    assert refused.value.next_steps[0].startswith("are the files of its weights whole")
