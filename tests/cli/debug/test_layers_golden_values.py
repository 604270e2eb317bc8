"""``biopsy debug layers --load-outputs``: golden values instead of an engine to trust, and lines that work."""

import json
import shlex
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from biopsy import errors
from biopsy.cli.app import main
from biopsy.tensors.files import read_feeds, write_feeds
from support.advice import advised, parse
from support.exporters import copied
from support.models import save


@pytest.fixture
def attention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model that was exported wrongly, in the current folder, beside the values that its module gave."""
    copied("attention", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def typed(line: str) -> int:
    """The status of a line that is typed."""
    return main(shlex.split(line)[1:])


GOLDEN = ["--load-outputs", "golden.safetensors"]


def test_a_fault_of_the_exporter_is_shown_with_its_line_and_the_lines_to_type_work(attention: Path, capsys) -> None:
    asked = ["debug", "layers", "attention.onnx", *GOLDEN, "--engine", "onnxrt:optimization=none"]
    assert main([*asked, "--report", "layers.json", "--events", "events.jsonl"]) == 1
    shown = capsys.readouterr().out
    assert "golden values of 6 of 18 tensors" in shown
    assert "12 without a recorded value, each measured as one piece with the next that has one" in shown
    assert "\nas one     12 layers, of which only the last has a recorded value\n" in shown
    assert "modules.py:37 in Attention.forward: seen = nn.functional.scaled_dot_product_attention(" in shown
    assert "the engine gives what the model says there" in shown
    assert "\nFAILED | class Attention: aten.scaled_dot_product_attention.default (12 layers)\n" in shown
    told = map(json.loads, (attention / "events.jsonl").read_text().splitlines())
    assert [event["total"] for event in told if event.get("stage") == "record"] == [1]  # none is asked for in vain
    tree = json.loads((attention / "layers.json").read_text())["layers"]
    assert tree["golden"] == {"tensors": 6, "of": 18, "misfits": {}}
    wrong = next(layer for layer in tree["layers"] if layer["verdict"] == "introduces")
    assert (wrong["is_of_model"], len(wrong["piece"]["nodes"]), tree["unmeasured"]) == (True, 12, [])
    assert wrong["source"]["file"] == "/home/me/project/modules.py"
    assert tree["ranking"][0]["origins"]["name"] == "class Attention: aten.scaled_dot_product_attention.default"
    assert main(["report", "layers.json", "-o", "layers.html"]) == 0
    page = (attention / "layers.html").read_text()
    assert "class Attention: aten.scaled_dot_product_attention.default (Reshape" in page
    assert "of 6 of 18 tensors" in page

    reduction, *others = advised(shown)
    parse(reduction)
    for line in others:
        assert typed(line) == (1 if line.startswith("biopsy run") else 0), line
    extracted = onnx.load(attention / "suspect.onnx").graph
    golden = {"mask", "unsqueeze", "unsqueeze_1"}
    assert {value.name for value in extracted.input} == golden


@pytest.mark.slow
def test_the_reduction_takes_golden_values_and_cuts_nowhere_else(attention: Path, capsys) -> None:
    checked = ["biopsy", "run", "{}", "--load-inputs", "cut_inputs.npz", *GOLDEN, "--engine", "onnxrt"]
    recorded = ["--record-with", "recorded:file=golden.safetensors", "--load-inputs", "golden.safetensors"]
    words = ["debug", "reduce", "attention.onnx", "-o", "reduced.onnx", *recorded, "--iter-inputs", "cut_inputs.npz"]
    capsys.readouterr()
    assert main([*words, "--check", *checked]) == 0
    shown = capsys.readouterr().out
    assert "\nfrom   class Attention: aten.scaled_dot_product_attention.default\nfrom   modules.py:37 in " in shown
    graph = onnx.load(attention / "reduced.onnx").graph
    assert len(graph.node) == 12
    assert {value.name for value in graph.input} == {"mask", "unsqueeze", "unsqueeze_1"}
    assert "has no value for input" not in shown
    layers, flags, known, inspect = advised(shown)
    assert layers == "biopsy debug layers reduced.onnx --suspect onnxrt --load-outputs golden.safetensors"
    assert [typed(line) for line in (layers, flags, known, inspect)] == [1, 0, 0, 0]
    assert "UNKNOWN" not in capsys.readouterr().out


@pytest.mark.slow
def test_inputs_of_a_result_that_stand_elsewhere_are_put_into_one_file(attention: Path, capsys) -> None:
    (feed,) = read_feeds(attention / "golden.safetensors")
    write_feeds(attention / "inputs.npz", [{name: feed[name] for name in ("x", "mask")}])
    write_feeds(attention / "inner.npz", [{name: feed[name] for name in feed if name not in ("x", "mask")}])
    assert (
        main(["run", "attention.onnx", "--onnxrt", "--load-inputs", "inputs.npz", "--load-outputs", "inner.npz"]) == 1
    )
    (reduction,) = advised(capsys.readouterr().out)
    assert typed(reduction) == 0
    merging, layers, *_ = advised(capsys.readouterr().out)
    assert merging == "biopsy data to-input inputs.npz inner.npz -o reduced_inputs.npz"
    assert [typed(merging), typed(layers)] == [0, 1]
    assert "\nas one     12 layers" in capsys.readouterr().out


def test_a_run_that_fails_by_golden_values_is_reduced_by_them(attention: Path, capsys) -> None:
    given = ["--load-inputs", "golden.safetensors", "--load-outputs", "golden.safetensors"]
    assert main(["run", "attention.onnx", "--onnxrt", *given]) == 1
    (line,) = advised(capsys.readouterr().out)
    assert line == (
        "biopsy debug reduce attention.onnx -o reduced.onnx --record-with recorded:file=golden.safetensors"
        " --load-inputs golden.safetensors --iter-inputs cut_inputs.npz"
        " --check biopsy run {} --onnxrt --load-outputs golden.safetensors --load-inputs cut_inputs.npz"
    )
    parse(line)


def test_golden_values_of_outputs_alone_are_not_cut_at(attention: Path, capsys) -> None:
    (feed,) = read_feeds(attention / "golden.safetensors")
    write_feeds(attention / "outputs.npz", [{"add": feed["add"]}])
    given = ["--load-inputs", "golden.safetensors", "--load-outputs", "outputs.npz"]
    assert main(["run", "attention.onnx", "--onnxrt", *given]) == 1
    assert "recorded:" not in capsys.readouterr().out.partition("\nNext")[2]


@pytest.mark.slow
def test_a_layer_that_reads_a_constant_is_cut_out_with_it(attention: Path, capsys) -> None:
    """A Constant has no golden value: nothing is cut behind it."""
    made = onnx.load("attention.onnx")
    shape = numpy_helper.from_array(np.array([1, 1, 3, 4], np.int64))
    nodes = [
        helper.make_node("Constant", [], ["shape"], value=shape),
        helper.make_node("Reshape", ["linear", "shape"], ["last"], name="last"),
    ]
    made.graph.node.extend(nodes)
    made.graph.output.append(helper.make_tensor_value_info("last", 1, [1, 1, 3, 4]))
    onnx.save(made, "attention.onnx")
    (feed,) = read_feeds(attention / "golden.safetensors")
    write_feeds(attention / "golden.safetensors", [{**feed, "last": np.asarray(feed["linear"]).reshape(1, 1, 3, 4)}])
    words = ["--engine", "fake:scale.last=1e6", "--nodes", "last"]
    assert main(["debug", "layers", "attention.onnx", *GOLDEN, *words]) == 1
    _, extraction, merging, run = advised(capsys.readouterr().out)
    assert "--inputs linear:auto:auto --outputs" in extraction
    assert [typed(line) for line in (extraction, merging, run)] == [0, 0, 1]


def test_layers_that_nothing_judges_leave_status_4(tmp_path: Path, monkeypatch, capsys) -> None:
    path, _ = copied("mlp", tmp_path)
    monkeypatch.chdir(tmp_path)
    made = onnx.load(path)
    made.graph.node.append(helper.make_node("Neg", ["linear"], ["more"], name="more"))
    made.graph.output.append(helper.make_tensor_value_info("more", 1, [2, 8]))
    save(made, path)
    assert main(["debug", "layers", "mlp.onnx", *GOLDEN, "--engine", "onnxrt:optimization=none"]) == 4
    shown = capsys.readouterr()
    assert "UNKNOWN | no golden value judges 1 layer; the others are right" in shown.out
    assert "output 'more' has no golden value: it is not judged" in shown.out + shown.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--reference-engine", "reference"], "trust one of them"),
        (["--reference", "--onnxrt"], "too many engines: --load-outputs golden.safetensors, reference, onnxrt"),
        (["--load-inputs", "a.npz", "b.npz"], "takes the inputs from one file"),
        (["--data-loader-script", "script.py"], "not to those that a script makes"),
    ],
)
def test_what_could_only_mislead_is_refused(attention: Path, capsys, words: list[str], told: str) -> None:
    for name in ("a.npz", "b.npz", "script.py"):
        (attention / name).write_bytes(b"")
    assert main(["debug", "layers", "attention.onnx", *GOLDEN, *words]) == errors.UsageError.status
    assert told in capsys.readouterr().err
