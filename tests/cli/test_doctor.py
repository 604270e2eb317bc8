"""``biopsy doctor``."""

import importlib.util
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

import onnxruntime
import pytest

from biopsy.cli.app import main
from biopsy.engines.onnxrt import OnnxRuntime
from biopsy.processes.own_process import install_line


def test_engines_that_work_are_shown_with_version_and_devices(capsys: pytest.CaptureFixture[str]):
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert f"onnxrt     {onnxruntime.__version__} · ONNX Runtime · " in shown
    assert "CPUExecutionProvider" in shown
    assert "reference  " in shown


@pytest.mark.skipif(importlib.util.find_spec("openvino") is not None, reason="openvino is installed here")
def test_an_engine_that_is_not_installed_is_shown_with_how_to_get_it(capsys: pytest.CaptureFixture[str]):
    assert main(["doctor", "openvino"]) == 4
    shown = capsys.readouterr().out
    assert "does not work here: openvino is not installed" in shown
    assert install_line("biopsy[openvino]") in shown


def test_pytorch_is_named_with_its_release_or_how_to_get_it(capsys: pytest.CaptureFixture[str]):
    assert main(["doctor"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("PyTorch")]
    try:
        assert f"torch {version('torch')}" in line
    except PackageNotFoundError:
        assert install_line("biopsy[torch]") in line


def test_tensorrt_is_named_with_its_package_or_how_to_get_it(capsys: pytest.CaptureFixture[str]):
    main(["doctor", "trt"])
    assert "(TensorRT" in (shown := capsys.readouterr().out) or install_line("biopsy[tensorrt]") in shown


def test_the_options_of_an_engine_are_explained(capsys: pytest.CaptureFixture[str]):
    assert main(["doctor", "onnxrt"]) == 0
    shown = capsys.readouterr().out
    assert "none, basic, extended, layout, all (default: all)" in shown
    assert "config.KEY" in shown
    assert "whole number (default: 0)" in shown


def test_what_an_engine_can_do_is_told(capsys: pytest.CaptureFixture[str]):
    assert main(["doctor", "reference"]) == 0
    assert "it can: return every tensor" in capsys.readouterr().out


def test_only_the_engine_that_is_named_is_loaded():
    code = "from biopsy.cli.app import main; main(['doctor', 'reference']); sys.exit('onnxruntime' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", f"import sys; {code}"], stdout=subprocess.DEVNULL).returncode == 0


def test_an_unknown_engine_is_an_error_that_lists_the_others(capsys: pytest.CaptureFixture[str]):
    assert main(["doctor", "abacus"]) == 2
    assert "known here: onnxrt, reference, openvino" in capsys.readouterr().err


def test_the_status_tells_whether_onnxruntime_works(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert main(["doctor"]) == 4
    assert "onnxrt     does not work here: onnxruntime cannot be imported" in capsys.readouterr().out


def test_a_package_that_fails_in_any_way_is_survived(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def fail() -> str:
        raise OSError("libcudart.so.13: cannot open shared object file")

    monkeypatch.setattr(OnnxRuntime, "version", fail)
    assert main(["doctor"]) == 4
    assert "libcudart.so.13" in capsys.readouterr().out
