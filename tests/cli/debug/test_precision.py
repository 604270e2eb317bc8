"""``biopsy debug precision`` from the command line. Checks are real processes."""

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from benchmarks.models import transformer
from biopsy.cli.app import main
from biopsy.cli.debug.precision import configure
from biopsy.cli.debug.precision_options import PrecisionOptions
from support.command_line import BIN, wait_until
from support.exporters import copied
from support.models import chain, info, model, save, weight
from support.precisions import KNOWN, Network, overflowing

GOLDEN = ("biopsy", "run", "{}", "--onnxrt", "--load-inputs", "i.json", "--load-outputs", "golden.json")
CHECK = ("--check", *GOLDEN, "--rtol", "1e-2", "--atol", "2e-2")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{BIN}:{os.environ['PATH']}")
    return tmp_path


def precision(*words: str) -> int:
    return main(["debug", "precision", *words])


def record(made: onnx.ModelProto) -> None:
    save(made, Path("m.onnx"))
    assert main(["run", "m.onnx", "--onnxrt", "--save-inputs", "i.json", "--save-outputs", "golden.json"]) == 0


def passes(path: str) -> bool:
    words = [path if word == "{}" else word for word in CHECK[2:]]
    return main(words) == 0


def looking(folder: Path, code: str) -> tuple[str, ...]:
    """A check written in Python, which needs no onnx for it. ``high`` are the names of layers that round nothing."""
    path = folder / "check.py"
    path.write_text(
        "import sys\n"
        "model = open(sys.argv[1], 'rb').read()\n"
        "high = {f'n{i}' for i in range(30) if f't{i + 1}_raw'.encode() not in model}\n" + code
    )
    return ("--check", sys.executable, "-S", str(path), "polygraphy_debug.onnx")


def exps(count: int) -> onnx.ModelProto:
    nodes = [helper.make_node("Sin", [f"t{i}"], [f"t{i + 1}"], name=f"n{i}") for i in range(count)]
    return model(nodes, [info("t0")], [info(f"t{count}")])


def test_layers_that_must_be_high_are_told_with_their_lines_of_code(here: Path, capsys) -> None:
    copied("mlp", here)
    (here / "check.py").write_text("import sys; sys.exit(b'gelu_raw' in open(sys.argv[1], 'rb').read())")
    check = ("--check", sys.executable, "-S", "check.py", "polygraphy_debug.onnx")
    assert precision("mlp.onnx", "--fp16", "--report", "r.json", *check) == 0
    assert "\n  Gelu 'node_gelu'\nfrom   modules.py:13 in Block.forward: " in capsys.readouterr().out
    (layer,) = json.loads(Path("r.json").read_text())["precision"]["high_layers"]
    assert layer["source"]["in_words"] == "modules.py:13 in Block.forward"
    assert main(["report", "r.json", "-o", "r.html"]) == 0
    assert "modules.py:13" in Path("r.html").read_text()


@pytest.mark.slow
def test_minimal_names_exactly_the_layers_that_overflow_or_lose_count(here: Path, capsys) -> None:
    record(overflowing())
    assert precision("m.onnx", "--fp16", "-o", "mixed.onnx", "--report", "r.json", "--list", "keep.txt", *CHECK) == 0
    report = json.loads(Path("r.json").read_text())["precision"]
    assert sorted(layer["name"] for layer in report["high_layers"]) == sorted(KNOWN)
    assert report["one_minimal"]
    assert report["verified"] == 3
    assert sorted(Path("keep.txt").read_text().split()) == sorted(KNOWN)
    assert passes("mixed.onnx")
    onnx.checker.check_model(onnx.load("mixed.onnx"), full_check=True)
    assert sorted(path.name for path in here.iterdir()) == [
        "golden.json",
        "i.json",
        "keep.txt",
        "m.onnx",
        "mixed.onnx",
        "r.json",
    ]
    told = capsys.readouterr().out
    assert "4 of 57 layers in float32, the rest in fp16" in told
    assert "Loop 'loop' / body / Add 'running_sum'" in told


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_bisect_gives_an_end_of_the_network_that_contains_them(here: Path, direction: str) -> None:
    record(overflowing())
    assert (
        precision("m.onnx", "-o", "mixed.onnx", "--report", "r.json", "--mode", "bisect", "--dir", direction, *CHECK)
        == 0
    )
    report = json.loads(Path("r.json").read_text())["precision"]
    found = [layer["name"] for layer in report["high_layers"]]
    assert set(KNOWN) <= set(found)
    assert found[-1 if direction == "forward" else 0] in KNOWN
    assert passes("mixed.onnx")


@pytest.mark.slow
def test_four_layers_of_a_transformer_of_400_nodes(here: Path) -> None:
    made = transformer(400)
    wanted = _spoil(made)
    record(made)
    assert precision("m.onnx", "-o", "mixed.onnx", "--report", "r.json", *CHECK) == 0
    report = json.loads(Path("r.json").read_text())["precision"]
    assert sorted(layer["name"] for layer in report["high_layers"]) == sorted(wanted)
    assert passes("mixed.onnx")
    assert report["seconds"] < 60


def _spoil(made: onnx.ModelProto) -> list[str]:
    """Put three factors that fp16 cannot hold and a long sum between the layers; returns what must be high."""
    nodes = list(made.graph.node)
    wanted = ["factor_a", "factor_b", "running_sum", "factor_c"]
    for place, name in zip((60, 150, 262, 330), wanted, strict=True):
        number = next(
            number
            for number, node in enumerate(nodes)
            if number >= place and node.op_type == "MatMul" and node.input[1].startswith("w")
        )
        network = Network(nodes[number].input[0], 16, f"{name}_")
        (network.accumulation if name == "running_sum" else network.overflow)(name)
        nodes[number].input[0] = network.x
        nodes[number:number] = network.nodes
        made.graph.initializer.extend(network.weights)
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del made.graph.node[:]
    made.graph.node.extend(copies)
    return wanted


def test_the_seeds_form_with_artifacts_and_the_default_name(here: Path) -> None:
    save(exps(6), here / "m.onnx")
    check = looking(here, "sys.exit(not {'n1', 'n4'} <= high)")
    words = ("--artifacts", "polygraphy_debug.onnx", "--art-dir", "sorted", "--iter-info", "i.json", *check)
    assert precision("m.onnx", "--fp16", "-o", "mixed.onnx", "--list", "l.txt", *words) == 0
    assert Path("l.txt").read_text().split() == ["n1", "n4"]
    good, bad = (list((here / "sorted" / kind).glob("polygraphy_debug_*.onnx")) for kind in ("good", "bad"))
    assert len(good) + len(bad) == json.loads(Path("i.json").read_text())["iteration"] + 1
    assert all(not _low(path) & {"n1", "n4"} for path in good)
    assert all(_low(path) & {"n1", "n4"} for path in bad)


def _low(path: Path) -> set[str]:
    return {node.name for node in onnx.load(path).graph.node if node.output[0].endswith("_raw")}


def test_linear_raises_layer_by_layer(here: Path) -> None:
    save(exps(6), here / "m.onnx")
    check = looking(here, "sys.exit('n4' not in high)")
    assert precision("m.onnx", "--list", "l.txt", "--mode", "linear", "--direction", "reverse", *check) == 0
    assert Path("l.txt").read_text().split() == ["n4", "n5"]


def test_what_cannot_be_said_does_not_count_as_passing(here: Path) -> None:
    save(exps(6), here / "m.onnx")
    check = looking(here, "sys.exit(0 if {'n1', 'n4'} <= high else 1 if len(high) % 2 == 0 else 125)")
    assert precision("m.onnx", "--list", "l.txt", *check) == 0
    assert Path("l.txt").read_text().split() == ["n1", "n4"]


@pytest.mark.parametrize(("option", "shown"), [((), 1), (("--hide-fail-output",), 0), (("--show-output",), 1)])
def test_if_even_all_high_fails_what_the_check_printed_is_shown(
    here: Path, capsys, option: tuple[str, ...], shown: int
) -> None:
    save(exps(4), here / "m.onnx")
    code = "print('the golden file is of', 'yesterday'); raise SystemExit(1)"
    line = ("--jobs", "1", *option, "--check", sys.executable, "-c", code, "{}")
    assert precision("m.onnx", "-o", "mixed.onnx", *line) == 3
    assert capsys.readouterr().out.count("| the golden file is of yesterday") == shown


def test_if_even_all_high_fails_it_says_so_and_writes_nothing(here: Path, capsys) -> None:
    save(exps(4), here / "m.onnx")
    assert precision("m.onnx", "-o", "mixed.onnx", "--check", sys.executable, "-c", "raise SystemExit(1)", "{}") == 3
    told = capsys.readouterr().err
    assert "the check fails even with every layer in float32" in told
    assert "biopsy debug reduce" in told
    assert not Path("mixed.onnx").exists()


def test_if_all_low_passes_it_says_so_and_the_list_is_empty(here: Path, capsys) -> None:
    save(exps(4), here / "m.onnx")
    words = ("-o", "mixed.onnx", "--list", "l.txt", "--check", sys.executable, "-c", "pass", "{}")
    assert precision("m.onnx", "--bf16", *words) == 0
    assert Path("l.txt").read_text() == ""
    assert _low(Path("mixed.onnx")) == {"n0", "n1", "n2", "n3"}
    assert "0 of 4 layers need float32: the check passes with every layer in bf16" in capsys.readouterr().out


def test_a_flaky_check_is_measured_and_its_layers_are_found(here: Path, capsys) -> None:
    save(exps(12), here / "m.onnx")
    calls = "import os\nopen('calls', 'a').write('.')\n"  # two of three runs fail, and no run of the test by luck
    code = f"{calls}sys.exit(not {{'n3', 'n8'}} <= high and os.path.getsize('calls') % 3 > 0)"
    assert precision("m.onnx", "--list", "l.txt", "--confidence", "0.999", *looking(here, code)) == 0
    assert Path("l.txt").read_text().split() == ["n3", "n8"]
    assert "flaky" in capsys.readouterr().out


@pytest.mark.parametrize("jobs", ["1", "2", "3"])
def test_the_result_does_not_depend_on_how_many_checks_run_at_once(here: Path, jobs: str) -> None:
    save(exps(24), here / "m.onnx")
    *words, _ = looking(here, "sys.exit(not ({'n3', 'n17'} <= high or {'n5', 'n6'} <= high))")
    assert precision("m.onnx", "-o", "mixed.onnx", "--list", "l.txt", "--jobs", jobs, *words, "{}") == 0
    assert Path("l.txt").read_text().split() == ["n5", "n6"]


def test_a_limit_ends_the_search_with_the_best_so_far(here: Path, capsys) -> None:
    save(exps(24), here / "m.onnx")
    check = looking(here, "sys.exit(not {'n3', 'n17'} <= high)")
    words = ("-o", "mixed.onnx", "--report", "r.json", "--repeat", "1", "--max-checks", "7")
    assert precision("m.onnx", *words, *check) == 5
    report = json.loads(Path("r.json").read_text())["precision"]
    assert {"n3", "n17"} <= set(report["nodes_to_exclude"])
    assert len(report["nodes_to_exclude"]) < 24
    assert report["stopped"] == "--max-checks 7"
    assert not report["one_minimal"]


def test_weights_that_fp16_cannot_hold_are_told(here: Path, capsys) -> None:
    nodes = [helper.make_node("Mul", ["x", "w"], ["y"], name="mul")]
    save(model(nodes, [info("x")], [info("y")], [weight("w", 1e5, 1e-9, shape=(1, 2))]), here / "m.onnx")
    assert precision("m.onnx", "--report", "r.json", "--check", sys.executable, "-c", "pass", "{}") == 0
    assert "weight 'w': of 2 values 1 too large for fp16, 1 become zero" in capsys.readouterr().out
    (told,) = json.loads(Path("r.json").read_text())["precision"]["damaged_weights"]
    assert told == {"name": "w", "count": 2, "saturated": 1, "vanished": 1}


@pytest.mark.slow
def test_external_weights_are_found_from_the_candidate_and_the_result(here: Path) -> None:
    (here / "data").mkdir()
    made = model(
        [helper.make_node("Mul", ["x", "w"], ["y"], name="mul"), helper.make_node("Sin", ["y"], ["z"], name="sin")],
        [info("x", (1000,))], [info("z", (1000,))], [weight("w", *np.linspace(0, 3, 1000), shape=(1000,))],
    )  # fmt: skip
    onnx.save(made, here / "data" / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=10)
    for form in ("--emulate", "--native"):
        check = ("--check", sys.executable, "-c", _IS_SOUND, "{}")
        assert precision("data/m.onnx", form, "-o", "mixed.onnx", "--save-external-data", "mixed.bin", *check) == 0
        assert (here / "mixed.bin").stat().st_size >= 4000
        assert main(["run", "mixed.onnx", "--onnxrt"]) == 0


_IS_SOUND = """
import sys, onnx, onnxruntime
onnxruntime.InferenceSession(sys.argv[1])
names = [node.name for node in onnx.load(sys.argv[1], load_external_data=False).graph.node]
"""


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--fp8",), "Cast knows fp8 e4m3fn since opset 19"),
        (("--fp8", "--native"), "no operator of ONNX computes in fp8"),
        (("--fp16", "-p", "float16"), "no higher precision"),
        (("-o", "m.onnx"), "it would be lost"),
        (("--save-external-data", "w.bin"), "needs an output"),
    ],
)
def test_what_makes_no_sense_is_told(here: Path, capsys, words: tuple[str, ...], why: str) -> None:
    save(exps(2), here / "m.onnx")
    assert precision("m.onnx", *words, "--check", sys.executable, "-c", "pass", "{}") == 2
    assert why in capsys.readouterr().err


def test_a_model_without_layers_says_why(here: Path, capsys) -> None:
    made = model([helper.make_node("Fused", ["x"], ["y"], domain="com.example")], [info("x")], [info("y")])
    made.opset_import.add(domain="com.example", version=1)
    save(made, here / "m.onnx")
    assert precision("m.onnx", "--check", sys.executable, "-c", "pass", "{}") == 2
    assert "no schema of com.example.Fused is known" in capsys.readouterr().err


def test_a_person_is_asked_and_may_take_an_answer_back(here: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """n2 is the one; the first look at it goes wrong."""
    save(exps(4), here / "m.onnx")
    told: list[str] = []

    def answer(question: str) -> str:
        assert "[p]ass or [f]ail" in question
        right = "f" if "n2" in _low(Path("polygraphy_debug.onnx")) else "p"
        undo = told[-1:] == ["wrong"]
        told.append("undo" if undo else "wrong" if len(told) == 2 else right)
        return {"undo": "u", "wrong": "f" if right == "p" else "p"}.get(told[-1], right)

    monkeypatch.setattr("builtins.input", answer)
    assert precision("m.onnx", "-o", "mixed.onnx", "--list", "l.txt") == 0
    assert Path("l.txt").read_text().split() == ["n2"]
    assert "undo" in told


def test_a_result_that_only_the_journal_answers_for_is_not_written_once_the_person_denies_it(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save(exps(8), here / "m.onnx")
    answers = iter("pfpq")
    monkeypatch.setattr("builtins.input", lambda question: next(answers, "f"))
    line = ("m.onnx", "-o", "mixed.onnx", "--mode", "bisect")
    assert precision(*line) == 5
    Path("mixed.onnx").unlink(missing_ok=True)
    assert precision(*line) == 4
    assert "the journal says that the result passes, and you do not" in capsys.readouterr().err
    assert not Path("mixed.onnx").exists()


def test_sigterm_keeps_the_best_so_far(here: Path) -> None:
    save(exps(24), here / "m.onnx")
    hangs = here.parent / f"{here.name}-hangs"
    code = f"""
import time
if 0 < len([i for i in range(24) if f'n{{i}}' in high]) < 12:
    open({str(hangs)!r}, "w").close()
    time.sleep(60)
sys.exit(not {{'n3'}} <= high)"""
    check = looking(here, code)
    words = [sys.executable, "-m", "biopsy", "debug", "precision", "m.onnx", "-o", "mixed.onnx", "--jobs", "1"]
    words += ["--list", "l.txt", "--report", "r.json", *check]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        assert wait_until(hangs.exists)
        running.send_signal(signal.SIGTERM)
        told = running.communicate(timeout=60)[0]
    assert running.returncode == 5, told
    assert "mixed.onnx, which passes; l.txt, with what is known so far; r.json, with what is known so far" in told
    report = json.loads(Path("r.json").read_text())["precision"]
    assert report["stopped"] == "an interruption or error" and not report["one_minimal"]
    assert Path("l.txt").read_text().split() == report["nodes_to_exclude"]
    assert "n3" in report["nodes_to_exclude"]
    assert "n3" not in _low(Path("mixed.onnx"))
    left = ["check.py", "l.txt", "m.onnx", "mixed.onnx", "mixed.onnx.journal", "r.json"]
    assert sorted(path.name for path in here.iterdir()) == left
    assert "resume" in told


# Engines and int8


def spoilt() -> onnx.ModelProto:
    """11 layers, one of which overflows in fp16 and is lost in int8."""
    network = Network()
    network.plain(2)
    network.overflow("big")
    network.plain(1)
    return network.made()


LOOSE = ("--check", *GOLDEN, "--rtol", "5e-2", "--atol", "5e-2")


@pytest.mark.slow
def test_an_engine_is_built_from_each_candidate_and_checked_in_its_place(here: Path) -> None:
    record(spoilt())
    words = (
        "--engine",
        "onnxrt",
        "--emulate",
        "-o",
        "mixed.onnx",
        "--list",
        "l.txt",
        "--artifacts",
        "polygraphy_debug.ort",
    )
    assert precision("m.onnx", *words, *LOOSE) == 0
    assert Path("l.txt").read_text().split() == ["big"]
    assert list(here.glob("polygraphy_artifacts/good/polygraphy_debug_*.ort"))
    assert list(here.glob("polygraphy_artifacts/bad/polygraphy_debug_*.ort"))
    assert passes("mixed.onnx")
    assert not list(here.glob("polygraphy_debug*"))


def test_an_engine_that_writes_no_files_is_told(here: Path, capsys) -> None:
    record(spoilt())
    assert precision("m.onnx", "--engine", "reference", *LOOSE) == 2
    assert "writes no file of what it builds" in capsys.readouterr().err


def test_tensorrt_builds_each_mixed_model(here: Path, capsys) -> None:
    """TensorRT-RTX builds without a GPU; what it has built cannot be run here, so the check only looks at it."""
    pytest.importorskip("tensorrt_rtx")
    save(spoilt(), here / "m.onnx")
    check = ("--check", sys.executable, "-c", "import sys; sys.exit(open(sys.argv[1], 'rb').read(4) == b'')", "{}")
    assert precision("m.onnx", "--trt", "-o", "mixed.onnx", "--report", "r.json", "--repeat", "1", *check) == 0
    report = json.loads(Path("r.json").read_text())["precision"]
    assert report["form"] == "native"
    assert report["high_layers"] == []


@pytest.mark.slow
def test_int8_names_the_layer_whose_values_have_no_common_scale(here: Path, capsys) -> None:
    record(spoilt())
    words = ("--int8", "-o", "mixed.onnx", "--list", "l.txt")
    assert precision("m.onnx", *words, *LOOSE) == 0
    assert "big" in Path("l.txt").read_text().split()
    assert "int8 is calibrated with 1 inputs of i.json" in capsys.readouterr().out
    kinds = [node.op_type for node in onnx.load("mixed.onnx").graph.node]
    assert "QuantizeLinear" in kinds
    assert passes("mixed.onnx") or main([*(word.replace("{}", "mixed.onnx") for word in LOOSE[2:])]) == 0


def test_int8_without_inputs_says_loudly_that_they_are_random(here: Path, capsys) -> None:
    save(spoilt(), here / "m.onnx")
    assert precision("m.onnx", "--int8", "--check", sys.executable, "-c", "pass", "{}") == 0
    assert "calibrated with RANDOM inputs" in capsys.readouterr().err


def test_settings_of_tensorrt_need_trt_and_are_given_to_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(save(chain(1), tmp_path / "model.onnx"))
    assert main(["debug", "precision", path, "--pool-limit", "workspace:16M", "--check", "true"]) == 2
    assert "--pool-limit is a setting of --trt" in capsys.readouterr().err
    engine = ["--engine", "trt:optimization=2"]
    assert main(["debug", "precision", path, *engine, "--pool-limit", "workspace:16M", "--check", "true"]) == 2
    assert "write settings after the name" in capsys.readouterr().err
    parser = argparse.ArgumentParser()
    configure(parser)
    args = parser.parse_args([path, "--trt", "--pool-limit", "workspace:16M", "--builder-optimization-level", "2"])
    assert PrecisionOptions.of(args).builder == "trt:pool.workspace=16M,optimization=2"
