"""Every command that takes a model, on every engine, against every place that weights may not be read from.

Nothing of what stands there is printed or written. The engine ``trusting`` reads whatever it is told to, as ONNX
Runtime did up to 1.23: what holds for it does not hang on what engines refuse by themselves.
"""

import ctypes
import os
import re
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import biopsy
from biopsy import errors
from biopsy.cli.app import main
from biopsy.engines import registry
from biopsy.engines.base import ModelInput
from biopsy.model.index import index_file
from biopsy.tensors.files import read_results
from security.test_external_locations import PLACES, WAYS, in_function, in_initializer
from support.models import FLOAT, info, model, save
from support.plug_ins import install

SECRET = np.arange(4, dtype=np.float32) + 31_337
_BUFFER = ctypes.create_string_buffer(SECRET.tobytes(), SECRET.nbytes)
ADDRESS = ctypes.addressof(_BUFFER)
TAG = "*/_ORT_MEM_ADDR_/*"

Reference = dict[str, str]


def referring(*entries: tuple[str, str]) -> onnx.TensorProto:
    tensor = onnx.TensorProto(name="w", data_type=FLOAT, dims=[2, 2], data_location=onnx.TensorProto.EXTERNAL)
    for key, value in entries:
        tensor.external_data.add(key=key, value=value)
    return tensor


def at(location: str, offset: object = 0, length: object = 16) -> onnx.TensorProto:
    return referring(("location", location), ("offset", str(offset)), ("length", str(length)))


# The attacks: each prepares what stands around the model, and gives the tensor that refers to it


def absolute(outside: Path) -> onnx.TensorProto:
    return at(str(outside / "secret.bin"))


def upwards(outside: Path) -> onnx.TensorProto:
    return at("../outside/secret.bin")


def linked(outside: Path) -> onnx.TensorProto:
    Path("w.bin").symlink_to(outside / "secret.bin")
    return at("w.bin")


def linked_folder(outside: Path) -> onnx.TensorProto:
    Path("weights").symlink_to(outside)
    return at("weights/secret.bin")


def hard_linked(outside: Path) -> onnx.TensorProto:
    os.link(outside / "secret.bin", "w.bin")
    return at("w.bin")


def address(outside: Path) -> onnx.TensorProto:
    return at(TAG, ADDRESS)


def address_with_a_file_of_that_name(outside: Path) -> onnx.TensorProto:
    """A hole takes no room: the file is as long as any address."""
    Path(TAG).parent.mkdir(parents=True)
    with Path(TAG).open("wb") as stream:
        for size in (1 << 48, 1 << 43):
            with suppress(OSError):
                os.truncate(stream.fileno(), size)
                break
    return at(TAG, ADDRESS)


def named_twice(outside: Path) -> onnx.TensorProto:
    Path("w.bin").write_bytes(bytes(16))
    return referring(("location", "../outside/secret.bin"), ("location", "w.bin"), ("length", "16"))


def longer_than_the_tensor(outside: Path) -> onnx.TensorProto:
    Path("w.bin").write_bytes(bytes(64))
    return at("w.bin", length=64)


def shorter_than_the_tensor(outside: Path) -> onnx.TensorProto:
    """What stands in memory behind four bytes is what an engine would go on with."""
    Path("w.bin").write_bytes(bytes(64))
    return at("w.bin", length=4)


def beyond_the_end(outside: Path) -> onnx.TensorProto:
    Path("w.bin").write_bytes(bytes(64))
    return at("w.bin", offset=1 << 40)


def without_a_length(outside: Path) -> onnx.TensorProto:
    Path("w.bin").write_bytes(bytes(4))
    return referring(("location", "w.bin"))


def numbered_as_only_python_does(outside: Path) -> onnx.TensorProto:
    Path("w.bin").write_bytes(bytes(64))
    return at("w.bin", offset="1_6")


def fifo(outside: Path) -> onnx.TensorProto:
    os.mkfifo("w.bin")
    return at("w.bin")


def nothing_of_a_fifo(outside: Path) -> onnx.TensorProto:
    os.mkfifo("w.bin")
    tensor = at("w.bin", length=0)
    tensor.dims[:] = [0, 2]
    return tensor


def device(outside: Path) -> onnx.TensorProto:
    try:
        os.mknod("w.bin", stat.S_IFCHR | 0o666, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("only root makes devices")
    return at("w.bin")


ATTACKS = [
    absolute, upwards, linked, linked_folder, hard_linked, address, address_with_a_file_of_that_name, named_twice,
    longer_than_the_tensor, shorter_than_the_tensor, beyond_the_end, without_a_length, numbered_as_only_python_does,
    fifo, nothing_of_a_fifo, device,
]  # fmt: skip
Attack = Callable[[Path], onnx.TensorProto]

REFUSED = re.compile(r"external data of tensor|weights of tensor|tensor 'w' (needs|should be)|file is too short")


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a secret, beside the current one, and the engine ``trusting``, also for processes started."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.bin").write_bytes(SECRET.tobytes())
    source = Path(__file__).parent.parent / "support" / "trusting_engine.py"
    install(tmp_path / "site", "trusting-engine", source.read_text(), "trusting = trusting_engine:Trusting")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path / "model")
    np.savez("inputs.npz", x=np.zeros((2, 2), np.float32))
    return tmp_path / "outside"


def nothing_is_told(told: str, root: Path) -> None:
    """No file that a command made holds the secret, whole or as the outputs of the model, and nothing printed does."""
    assert "31337" not in told
    for path in root.rglob("*"):
        if path.is_file() and not path.is_symlink() and path.stat().st_size < 1 << 30 and path.name != "w.bin":
            data = path.read_bytes()
            assert SECRET.tobytes() not in data, path
            assert b"31337" not in data or path.suffix == ".py", path


WITH_ENGINE = {
    "run": ["run", "bad.onnx", "--engine", "{}", "--load-inputs", "inputs.npz", "--save-outputs", "out.npz"],
    "run marked": ["run", "bad.onnx", "--engine", "{}", "--onnx-outputs", "mark", "all", "--save-outputs", "out.npz"],
    "run into a file": [
        "run", "bad.onnx", "--engine", "{}", "--record-memory", "1MB", "--save-outputs", "out.safetensors",
    ],
    "run build": ["run", "bad.onnx", "--engine", "{}", "--build-only"],
    "capability": ["inspect", "capability", "bad.onnx", "--engine", "{}", "-o", "parts"],
    "layers": ["debug", "layers", "bad.onnx", "--suspect", "{}", "--load-inputs", "inputs.npz", "--report", "out.json"],
    "build": ["debug", "build", "bad.onnx", "--engine", "{}", "--until", "1", "--check", "build"],
    "precision": ["debug", "precision", "bad.onnx", "-o", "out.onnx", "--fp16", "--check", "biopsy", "run", "{{}}",
                  "--engine", "{}"],
    "flags": ["debug", "flags", "bad.onnx", "--check", "biopsy", "run", "{{}}", "--engine", "{}"],
}  # fmt: skip

REDUCTIONS = {
    "reduce": ["debug", "reduce", "bad.onnx", "-o", "out.onnx", "--check", "biopsy", "run", "{{}}", "--engine", "{}"],
    "reduce named": [
        "debug", "reduce", "bad.onnx", "-o", "out.onnx", "--load-inputs", "inputs.npz",
        "--check", "biopsy", "run", "polygraphy_debug.onnx", "--engine", "{}", "--load-inputs", "inputs.npz",
    ],
}  # fmt: skip

WITHOUT_ENGINE = {
    "extract": ["surgeon", "extract", "bad.onnx", "-o", "out.onnx", "--outputs", "y:auto"],
    "sanitize": ["surgeon", "sanitize", "bad.onnx", "-o", "out.onnx", "--cleanup", "--toposort"],
    "sanitize folding": ["surgeon", "sanitize", "bad.onnx", "-o", "out.onnx", "--fold-constants"],
    "sanitize running": ["surgeon", "sanitize", "bad.onnx", "-o", "out.onnx", "--force-fallback-shape-inference"],
    "sanitize moving": ["surgeon", "sanitize", "bad.onnx", "-o", "out.onnx", "--save-external-data", "moved.data"],
}

ENGINES = ["onnxrt", "reference", "openvino", "trt", "fake", "trusting"]

OF_LOCATION = {absolute, upwards, linked, linked_folder, hard_linked, address, address_with_a_file_of_that_name}
"""Attacks that the place itself shows, whether or not anything is read there."""


def words_of(command: list[str], engine: str) -> list[str]:
    return [word.replace("{{}}", "\0").replace("{}", engine).replace("\0", "{}") for word in command]


def require_installed(engine: str) -> None:
    if engine != "trusting" and registry.installed(engine)[0].version is None:
        pytest.skip(f"{engine} does not work here")


def pairs() -> list[object]:
    """Attacks with engines. Each attack meets the engine that would fall for it, and each engine one attack at once.

    What only reading shows is refused in processes of their own, which takes its time.
    """
    found = []
    for attack in ATTACKS:
        for engine in ENGINES:
            with_the_trusting = engine == "trusting" and attack in {*OF_LOCATION, fifo, shorter_than_the_tensor}
            quick = with_the_trusting or attack is absolute
            found.append(pytest.param(attack, engine, marks=() if quick else pytest.mark.slow))
    return found


@pytest.mark.parametrize(("attack", "engine"), pairs())
def test_no_command_hands_it_to_an_engine(
    attack: Attack, engine: str, outside: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    require_installed(engine)
    save(in_initializer(attack(outside)), Path("bad.onnx"))
    for name in WITH_ENGINE:
        refuses(name, engine, outside, capfd)


@pytest.mark.parametrize("attack", [attack for attack in ATTACKS if attack not in OF_LOCATION])
def test_no_engine_of_run_is_handed_it(attack: Attack, outside: Path, capfd: pytest.CaptureFixture[str]) -> None:
    save(in_initializer(attack(outside)), Path("bad.onnx"))
    for engine in ENGINES:
        refuses("run", engine, outside, capfd)


def refuses(command: str, engine: str, outside: Path, capfd: pytest.CaptureFixture[str]) -> None:
    status = main(words_of(WITH_ENGINE[command], engine))
    told = capfd.readouterr()
    assert status == 4, (command, told)
    assert REFUSED.search(told.err), (command, told)
    nothing_is_told(told.out + told.err, outside.parent / "model")


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_command_without_an_engine_reads_it(
    attack: Attack, outside: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    save(in_initializer(attack(outside)), Path("bad.onnx"))
    for name, command in WITHOUT_ENGINE.items():
        status = main(command)
        told = capfd.readouterr()
        assert status == 4, (name, told)
        assert REFUSED.search(told.err), (name, told)
        assert not Path("out.onnx").exists(), name
        nothing_is_told(told.out + told.err, outside.parent / "model")
    malformed = attack in {named_twice, numbered_as_only_python_does}
    assert main(["inspect", "model", "bad.onnx", "--show", "layers", "attrs", "weights"]) == (4 if malformed else 0)
    told = capfd.readouterr()
    nothing_is_told(told.out + told.err, outside.parent / "model")


@pytest.mark.parametrize(
    ("attack", "command"),
    [
        (absolute, "reduce"),
        (shorter_than_the_tensor, "reduce"),
        (linked, "reduce named"),
        *(
            pytest.param(attack, command, marks=pytest.mark.slow)
            for attack, command in [
                (linked, "reduce"), (address, "reduce"), (fifo, "reduce"), (absolute, "reduce named"),
                (address, "reduce named"), (shorter_than_the_tensor, "reduce named"), (fifo, "reduce named"),
            ]
        ),
    ],
)  # fmt: skip
def test_no_reduction_begins_with_it(
    attack: Attack, command: str, outside: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    save(in_initializer(attack(outside)), Path("bad.onnx"))
    status = main(words_of(REDUCTIONS[command], "trusting"))
    told = capfd.readouterr()
    assert status == 4, told
    assert REFUSED.search(told.err), told
    nothing_is_told(told.out + told.err, outside.parent / "model")


@pytest.mark.parametrize("place", [in_initializer, in_function])
@pytest.mark.parametrize("attack", ATTACKS)
def test_no_check_of_a_person_is_given_it(
    attack: Attack,
    place: Callable[[onnx.TensorProto], onnx.ModelProto],
    outside: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A script that reads whatever the model names may wait for a pipe for ever, or read what it should not."""
    save(place(attack(outside)), Path("bad.onnx"))
    for words in (["reduce"], ["precision", "--fp16"], ["build", "--engine", "trusting"], ["flags"]):
        output = [] if words[0] in {"build", "flags"} else ["-o", "out.onnx"]
        status = main(
            ["debug", words[0], "bad.onnx", *output, *words[1:], "--check", "sh", "-c", "touch ran; exit 1", "{}"]
        )
        told = capfd.readouterr()
        assert status == 4, (words, told)
        assert REFUSED.search(told.err), (words, told)
        assert not Path("ran").exists(), words


@pytest.mark.parametrize("attack", ATTACKS)
def test_python_code_reads_it_as_little(attack: Attack, outside: Path) -> None:
    made = in_initializer(attack(outside))
    save(made, Path("bad.onnx"))
    for given in ("bad.onnx", made):
        with pytest.raises(errors.ModelError):
            biopsy.run(given, engines=["trusting"])
    if attack in OF_LOCATION:
        for given in ("bad.onnx", made):
            with pytest.raises(errors.ModelError):
                biopsy.reduce(given, lambda path: False, "out.onnx")
    nothing_is_told("", outside.parent / "model")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("place", PLACES)
def test_no_index_is_made_of_it(
    place: Callable[[onnx.TensorProto], onnx.ModelProto], way: Callable[[Path], str], outside: Path
) -> None:
    save(place(at(way(Path.cwd()))), Path("bad.onnx"))
    with pytest.raises(errors.ModelError, match="may not be read from"):
        index_file(Path("bad.onnx"))


@pytest.mark.parametrize("attack", [absolute, upwards, linked, linked_folder, hard_linked, address])
@pytest.mark.parametrize("place", [in_initializer, in_function])
def test_the_engine_would_read_it(
    place: Callable[[onnx.TensorProto], onnx.ModelProto],
    attack: Attack,
    outside: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What all this is held against: without the rule, the secret is in the file of outputs."""
    monkeypatch.setattr("biopsy.engines.base.require_safe", lambda *_: None)
    save(place(attack(outside)), Path("bad.onnx"))
    assert main(words_of(WITH_ENGINE["run"], "trusting")) == 0
    (result,) = read_results(Path("out.npz"))
    assert (result.iterations[0].outputs["y"].ravel() == SECRET).all()


@pytest.mark.parametrize("tag", [TAG, "*/_ORT_LE_MEM_ADDR_/*", "*/_ORT_NATIVE_ENDIAN_MEM_ADDR_/*", f"./{TAG}"])
@pytest.mark.parametrize("place", PLACES)
def test_no_address_in_memory_is_a_location_wherever_it_stands(
    place: Callable[[onnx.TensorProto], onnx.ModelProto], tag: str, outside: Path
) -> None:
    with pytest.raises(errors.ModelError, match="address in their memory"):
        ModelInput(place(at(tag, ADDRESS)).SerializeToString(), Path())


def test_folding_reads_constants_of_functions_where_the_model_stands(outside: Path) -> None:
    """And not in the current folder, where a file of the user's may have that name."""
    made = in_function(at("w.bin"))
    made.functions[0].node[1].input[1] = "d"
    made.functions[0].node.insert(1, helper.make_node("Neg", ["c"], ["d"]))
    Path("w.bin").write_bytes(SECRET.tobytes())
    elsewhere = outside.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "w.bin").write_bytes(bytes(16))
    save(made, elsewhere / "fine.onnx")
    assert main(["surgeon", "sanitize", str(elsewhere / "fine.onnx"), "-o", "out.onnx", "--fold-constants"]) == 0
    written = onnx.load("out.onnx")
    assert [node.op_type for node in written.functions[0].node] == ["Constant", "Add"]
    assert (-SECRET).tobytes() not in written.SerializeToString()


@pytest.mark.parametrize("location", ["../outside/secret.bin", "/etc/passwd", "w.bin"])
def test_a_file_that_an_engine_has_built_is_held_to_the_same_rules(location: str, outside: Path) -> None:
    Path("w.bin").symlink_to(outside / "secret.bin")
    node = helper.make_node(
        "EPContext", ["x"], ["y"], domain="com.microsoft", embed_mode=0, ep_cache_context=location, main_context=1
    )
    made = model([node], [info("x")], [info("y")], domains=["com.microsoft"])
    with pytest.raises(errors.ModelError, match="may not be read from"):
        ModelInput(made.SerializeToString(), Path())
    node.attribute[0].i = 1  # it stands in the model itself
    made = model([node], [info("x")], [info("y")], domains=["com.microsoft"])
    ModelInput(made.SerializeToString(), Path())
