"""``--bundle`` from the command line: real failures of real engines, shown by a script where biopsy is not."""

import importlib.util
import signal
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from biopsy.cli.app import main
from biopsy.cli.demo import demonstration_model
from support import bug
from support.bundles import run_script, unpacked
from support.models import chain, info, model, save

needs_rtx = pytest.mark.skipif(
    not any(map(importlib.util.find_spec, ("tensorrt_rtx", "tensorrt_rtx_bindings"))),
    reason="tensorrt-rtx-cu13 is not installed (it has wheels for Linux on x86-64 and for Windows)",
)
CHURN = """
<ir_version: 9, opset_import: ["" : 17]>
churn_of_customers (double[1,16,32,32] pictures) => (double[1,64,30,30] churn) {
    [first_layer] positive = Relu (pictures)
    [secret_layer] seen = Conv <kernel_shape: ints = [3, 3]> (positive, learned_weights)
    [last_layer] churn = Neg (seen)
}
"""
QUOTIENT = """
<ir_version: 9, opset_import: ["" : 17]>
g (int64[4] a, int64[4] b) => (int64[4] y) { q = Div (a, b) y = Abs (q) }
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def reduced(here: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Reduces model.onnx with --bundle; the status and what was printed."""

    def reduce(bundle: str, *words: str) -> tuple[int, str]:
        status = main(["debug", "reduce", "model.onnx", "-o", "reduced.onnx", "--bundle", bundle, *words])
        return status, "".join(capfd.readouterr())

    return reduce


def test_without_a_check_there_is_nobody_who_could_run_it_again(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(chain(1), here / "model.onnx")
    assert main(["debug", "reduce", "model.onnx", "--bundle", "b"]) == 2
    assert "--bundle needs a check" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["reduce", "layers"])
def test_a_folder_with_other_things_is_refused_before_any_work(
    here: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    save(chain(1), here / "model.onnx")
    (here / "thesis").mkdir()
    (here / "thesis" / "chapter.txt").write_text("mine")
    end = ["--suspect", "onnxrt"] if command == "layers" else ["--check", "false", "{}"]
    assert main(["debug", command, "model.onnx", "--bundle", "thesis", *end]) == 2
    assert "holds other things" in capsys.readouterr().err
    assert [path.name for path in (here / "thesis").iterdir()] == ["chapter.txt"]
    assert sorted(path.name for path in here.iterdir()) == ["model.onnx", "thesis"]


@pytest.mark.slow
def test_a_script_that_shows_nothing_is_status_4_and_the_result_is_kept(
    here: Path, reduced: Callable[..., tuple[int, str]]
) -> None:
    save(chain(2), here / "model.onnx")
    (here / "check.sh").write_text('#!/bin/sh\ncmp -s "$1" fine.onnx && exit 0\ntest ! -e there\n')
    (here / "check.sh").chmod(0o755)
    (here / "there").touch()  # no word of the check names it
    status, printed = reduced("bundle", "--allow-vacuous-check", "--check", "./check.sh", "{}")
    assert status == 4
    assert "bundle is not fit to be sent" in printed
    assert (here / "reduced.onnx").exists()
    assert (here / "bundle" / "NOT-REPRODUCED.txt").exists()


@pytest.mark.slow
def test_a_build_failure_without_a_word_of_the_original(here: Path, reduced: Callable[..., tuple[int, str]]) -> None:
    made = onnx.parser.parse_model(CHURN)
    made.graph.initializer.append(numpy_helper.from_array(np.ones((64, 16, 3, 3)), "learned_weights"))
    made.metadata_props.add(key="author", value="Jane Q. Public")
    onnx.save(made, "model.onnx")
    status, printed = reduced("b.zip", "--simplify", "--anonymize", "--check", "biopsy", "run", "{}", "--onnxrt")
    assert (status, "was run without biopsy, and fails" in printed) == (0, True)
    with zipfile.ZipFile("b.zip") as stream:
        everything = b"\0".join(stream.read(info) + info.filename.encode() for info in stream.infolist())
    for word in ("churn", "pictures", "learned", "layer", "Jane", str(here), here.name):
        assert word.encode() not in everything, word
    ended = run_script(unpacked(here / "b.zip", here / "unpacked"))
    assert (ended.status, "NOT_IMPLEMENTED" in ended.printed) == (1, True)


@pytest.mark.slow
def test_an_anonymous_bundle_is_refused_if_the_check_tells_a_name(
    here: Path, reduced: Callable[..., tuple[int, str]]
) -> None:
    onnx.save(onnx.parser.parse_model(CHURN.replace("learned_weights", "pictures")), "model.onnx")
    (here / "check.py").write_text(
        "import sys, onnx  # of churn_of_customers\nsys.exit(len(onnx.load(sys.argv[1]).graph.node))\n"
    )
    status, printed = reduced(
        "b.zip", "--anonymize", "--allow-vacuous-check", "--match", "any", "--check", sys.executable, "check.py", "{}"
    )
    assert (status, (here / "b.zip").exists()) == (4, False)
    assert "check.py holds 'churn_of_customers'" in printed


@pytest.mark.slow
def test_a_crash_is_told_by_its_signal(here: Path, reduced: Callable[..., tuple[int, str]]) -> None:
    onnx.save(onnx.parser.parse_model(QUOTIENT), "model.onnx")
    np.savez("in.npz", a=np.full(4, np.iinfo(np.int64).min), b=np.full(4, -1))
    check = ["--load-inputs", "in.npz", "--check", "biopsy", "run", "{}", "--onnxrt", "--load-inputs", "in.npz"]
    status, printed = reduced("bundle", *check)
    if "there is nothing to reduce" in printed:
        pytest.skip("this ONNX Runtime does not crash on the quotient of the least integer and -1 (or this processor)")
    assert (status, "was run without biopsy, and fails" in printed) == (0, True)
    ended = run_script(here / "bundle")
    assert ended.status == -signal.SIGFPE
    script = here / "bundle" / "reproduce.py"
    script.write_text(script.read_text().replace("-1", "1"))
    assert run_script(here / "bundle").status == 0


@pytest.mark.slow
def test_one_engine_against_itself(here: Path, reduced: Callable[..., tuple[int, str]]) -> None:
    bug.skip_without_it()
    onnx.save(demonstration_model(), "model.onnx")
    tolerances = ["--atol", "1e-3", "--rtol", "1e-3"]
    status, printed = reduced(
        "bundle", "--check", "biopsy", "run", "{}", "--engine", bug.OFF, "--engine", bug.ON, *tolerances
    )
    assert (status, "was run without biopsy, and fails" in printed) == (0, True)
    ended = run_script(here / "bundle")
    assert (ended.status, "Mismatched elements" in ended.printed) == (1, True)
    issue = (here / "bundle" / "ISSUE.md").read_text()
    assert "- Excluded: rounding (" in issue
    assert "ReduceMean" in issue
    script = here / "bundle" / "reproduce.py"
    without = "disabled_optimizers=['SimplifiedLayerNormFusion', 'LayerNormFusion', 'LayerNormFusionL1'], providers="
    script.write_text(script.read_text().replace("providers=", without))
    assert run_script(here / "bundle").status == 0


@pytest.mark.slow
def test_the_worst_layers_of_debug_layers(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    bug.skip_without_it()
    onnx.save(demonstration_model(), "model.onnx")
    words = ["--suspect", bug.ON, "--atol", "1e-3", "logits:1e-2", "--rtol", "1e-3", "--bundle", "b.zip"]
    assert main(["debug", "layers", "model.onnx", *words]) == 1
    assert "was run without biopsy, and fails" in capfd.readouterr().out
    folder = unpacked(here / "b.zip", here / "unpacked")
    assert run_script(folder).status == 1
    assert len(onnx.load(folder / "model.onnx").graph.node) < 20


@pytest.mark.slow
def test_openvino_cannot_build_it(here: Path, reduced: Callable[..., tuple[int, str]]) -> None:
    weight = numpy_helper.from_array(np.ones((4, 6), np.float32), "w")
    slope = numpy_helper.from_array(np.ones((3, 1, 1), np.float32), "slope")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("PRelu", ["a", "slope"], ["y"])]
    save(model(nodes, [info("x", (1, 3, 5, 4))], [info("y", (1, 3, 5, 6))], [weight, slope]), here / "model.onnx")
    status, printed = reduced("bundle", "--check", "biopsy", "run", "{}", "--openvino")
    if "there is nothing to reduce" in printed:
        pytest.skip("this OpenVINO no longer has the bug")
    assert (status, "was run without biopsy, and fails" in printed) == (0, True)
    ended = run_script(here / "bundle")
    assert (ended.status, "data.size() == OC" in ended.printed) == (1, True)
    assert "- OpenVINO Version: `20" in (here / "bundle" / "ISSUE.md").read_text()


@pytest.mark.slow
def test_openvino_computes_other_values(here: Path, reduced: Callable[..., tuple[int, str]]) -> None:
    save(
        model([helper.make_node("Softmax", ["x"], ["y"])], [info("x", (8, 64))], [info("y", (8, 64))]),
        here / "model.onnx",
    )
    exact = ["--atol", "0", "--rtol", "0"]
    status, printed = reduced("bundle", "--check", "biopsy", "run", "{}", "--reference", "--openvino", *exact)
    assert (status, "was run without biopsy, and fails" in printed) == (0, True)
    ended = run_script(here / "bundle")
    assert (ended.status, "Mismatched elements" in ended.printed) == (1, True)
    assert "- Not excluded: rounding" in (here / "bundle" / "ISSUE.md").read_text()


@needs_rtx
@pytest.mark.slow
def test_tensorrt_does_not_take_it(here: Path, reduced: Callable[..., tuple[int, str]]) -> None:
    save(model([helper.make_node("Det", ["x"], ["y"])], [info("x", (1, 3, 3))], [info("y", (1,))]), here / "model.onnx")
    status, printed = reduced("bundle", "--check", "biopsy", "run", "{}", "--engine", "trt:package=rtx")
    assert (status, "was run without biopsy, and fails" in printed) == (0, True)
    ended = run_script(here / "bundle")
    assert (ended.status, "UNSUPPORTED_NODE: Det" in ended.printed) == (1, True)


@pytest.mark.slow
def test_the_reference_evaluator_cannot_run_it(here: Path, reduced: Callable[..., tuple[int, str]]) -> None:
    shape = numpy_helper.from_array(np.array([5]), "shape")
    node = helper.make_node("Reshape", ["x", "shape"], ["y"])
    save(model([node], [info("x", (2, 3))], [info("y", (5,))], [shape]), here / "model.onnx")
    status, printed = reduced("bundle", "--check", "biopsy", "run", "{}", "--reference")
    assert (status, "was run without biopsy, and fails" in printed) == (0, True)
    ended = run_script(here / "bundle")
    assert (ended.status, "cannot reshape" in ended.printed) == (1, True)


@pytest.mark.slow
def test_the_piece_of_a_diagnosis_and_its_verdict(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    onnx.save(onnx.parser.parse_model(CHURN.replace("learned_weights", "pictures")), "model.onnx")
    assert main(["diagnose", "model.onnx", "--onnxrt", "--bundle", "bundle"]) == 1
    assert "was run without biopsy, and fails" in capfd.readouterr().out
    assert run_script(here / "bundle").status == 1
    assert not (here / "bundle" / "ISSUE.md").exists()  # the model is invalid
    assert (here / "bundle" / "report.json").exists()


@pytest.mark.slow
def test_a_model_that_does_not_fail_has_no_bundle_of_a_diagnosis(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    save(chain(1), here / "model.onnx")
    assert main(["diagnose", "model.onnx", "--onnxrt", "--bundle", "bundle"]) == 0
    assert "bundle is not written" in capfd.readouterr().err
    assert not (here / "bundle").exists()
