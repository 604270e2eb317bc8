"""``biopsy debug flags`` from the command line: which settings switch a failure off. Checks are real processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.models import transformer
from biopsy.cli.app import main
from biopsy.cli.demo import demonstration_model
from biopsy.engines.registry import EngineSpec, parse_spec
from support import bug
from support.models import chain, save

BIN = Path(sys.executable).parent


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{BIN}:{os.environ['PATH']}")
    save(chain(2), tmp_path / "model.onnx")
    return tmp_path


def flags(*words: str) -> int:
    return main(["debug", "flags", "model.onnx", "-o", "report.json", *words])


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    """What is advised to type next."""
    return capsys.readouterr().out.rstrip().splitlines()[-1].strip()


def report() -> dict:
    return json.loads(Path("report.json").read_text())["settings"]


def script(code: str) -> tuple[str, ...]:
    """A check in Python that is told the engine as its first word; ``on`` are its settings, ``n`` its earlier runs."""
    Path("check.py").write_text(
        "import os, sys\n"
        "on = sys.argv[1].partition(':')[2].split(',')\n"
        "n = os.path.getsize('count') if os.path.exists('count') else 0\n"
        "open('count', 'ab').write(b'.')\n"
        f"{code}\n"
    )
    return (sys.executable, "check.py", "{engine}")


@pytest.mark.slow
def test_the_bug_of_the_layer_normalization_is_switched_off_by_its_fusion_alone(here: Path, capsys):
    bug.skip_without_it()
    save(demonstration_model(), here / "model.onnx")
    tolerances = ("--atol", "1e-3", "--rtol", "1e-3")
    check = ("biopsy", "run", "{}", "--engine", bug.OFF, "--engine", bug.ON, *tolerances)
    assert flags("--engine", "onnxrt", "--check", *check) == 0
    best = report()["switches"][0]
    assert best["verified"]
    assert best["optimizers"]
    assert all("LayerNorm" in name for name in best["optimizers"])
    shown = capsys.readouterr().out
    assert f"It goes away when {best['optimizers'][0]}" in shown
    assert "optimization=extended                      still fails" in shown


@pytest.mark.slow
def test_the_precision_of_openvino_is_named(here: Path, capsys):
    pytest.importorskip("openvino", reason="openvino is not installed: pip install 'biopsy[openvino]'")
    save(transformer(24), here / "model.onnx")
    check = ("biopsy", "run", "{}", "--onnxrt", "--engine", "openvino:precision=bf16", "--atol", "1e-4")
    if main([*check[1:2], "model.onnx", *check[3:]]) == 0:
        pytest.skip("OpenVINO does not compute in bf16 on this processor")
    assert flags("--check", *check) == 0
    assert {"precision": "f32"} in [one["settings"] for one in report()["switches"] if one["verified"]]
    assert "It goes away with precision=f32." in capsys.readouterr().out


def test_a_single_setting_is_found_in_any_command_that_takes_the_engine(here: Path, capsys):
    assert flags("--engine", "onnxrt", "--check", *script("sys.exit('threads=1' not in on)")) == 0
    assert [one["settings"] for one in report()["switches"]] == [{"threads": "1"}]
    assert "It goes away with threads=1." in capsys.readouterr().out


def test_the_engine_is_in_the_environment_too(here: Path, capsys):
    Path("check.py").write_text("import os, sys; sys.exit('execution=parallel' not in os.environ['BIOPSY_ENGINE'])")
    assert flags("--engine", "onnxrt:threads=2", "--check", sys.executable, "check.py") == 0
    assert [one["settings"] for one in report()["switches"]] == [{"execution": "parallel"}]
    assert "BIOPSY_ENGINE" not in os.environ
    line = last_line(capsys)
    assert line.startswith("env BIOPSY_ENGINE=onnxrt:threads=2,execution=parallel ")
    assert subprocess.run(["bash", "-c", line]).returncode == 0


def test_settings_that_work_only_together_are_found_without_the_others(here: Path, capsys):
    code = "sys.exit(not {'threads=1', 'config.session.disable_prepacking=1'} <= set(on))"
    assert flags("--engine", "onnxrt", "--check", *script(code)) == 0
    wanted = {"threads": "1", "config.session.disable_prepacking": "1"}
    assert [one["settings"] for one in report()["switches"]] == [wanted]
    (way,) = json.loads(Path("report.json").read_text())["verdict"]["workarounds"]
    assert parse_spec(way["engine"]) == EngineSpec("onnxrt", wanted)


def test_a_variable_of_the_environment_is_a_setting_too(here: Path, capsys):
    code = "sys.exit(os.environ.get('ONEDNN_MAX_CPU_ISA') != 'AVX2')"
    assert flags("--engine", "openvino", "--check", *script(code)) == 0
    (found,) = report()["switches"]
    assert (found["settings"], found["environment"]) == ({}, {"ONEDNN_MAX_CPU_ISA": "AVX2"})
    line = last_line(capsys)
    assert line.startswith("env ONEDNN_MAX_CPU_ISA=AVX2 ")
    assert subprocess.run(["bash", "-c", line]).returncode == 0
    whole = json.loads(Path("report.json").read_text())
    assert [one["line"] for one in whole["next"]] == [line]
    assert [one["line"] for one in whole["verdict"]["workarounds"]] == [line]
    assert [one["engine"] for one in whole["verdict"]["workarounds"]] == [None]


def test_a_level_is_named_where_no_optimizer_can_be(here: Path, capsys):
    assert flags("--engine", "onnxrt", "--check", *script("sys.exit('optimization=none' not in on)")) == 0
    (found,) = report()["switches"]
    assert (found["settings"], found["optimizers"]) == ({"optimization": "none"}, [])


def test_none_is_said_where_no_setting_matters(here: Path, capsys):
    assert flags("--engine", "onnxrt", "--check", *script("sys.exit(1)")) == 0
    assert report()["switches"] == []
    assert "None of the settings that were tried makes it go away" in capsys.readouterr().out


def test_another_failure_is_no_way_to_be_rid_of_the_first(here: Path, capsys):
    assert flags("--engine", "onnxrt", "--check", *script("sys.exit(3 if 'threads=1' in on else 1)")) == 0
    assert report()["switches"] == []
    assert "another failure" in capsys.readouterr().out


def test_a_flaky_failure_must_stay_away_often_enough(here: Path, capsys):
    # Fails in two of three runs; with threads=1 never, and with the others as before.
    assert flags("--engine", "onnxrt", "--check", *script("sys.exit(n % 3 != 0 and 'threads=1' not in on)")) == 0
    found = report()
    assert [one["settings"] for one in found["switches"]] == [{"threads": "1"}]
    assert found["rate"]["failed"] < found["rate"]["runs"]
    assert "flaky" in capsys.readouterr().out


def test_without_a_check_the_line_shown_holds_the_place_of_the_model(here: Path, capsys):
    assert flags("--engine", "onnxrt") == 2
    assert "next  --check biopsy run {} --onnxrt" in capsys.readouterr().err


def test_where_no_setting_helps_the_line_that_tries_other_changes_is_shown(here: Path, capsys):
    check = ("biopsy", "run", "{}", "--engine", "onnxrt:optimization=none", "--engine", "fake:offset.Relu=1")
    assert flags("--check", *check) == 0
    assert last_line(capsys).startswith("biopsy debug workaround ")
    assert report()["switches"] == []


def test_a_model_that_passes_ends_with_status_3(here: Path, capsys):
    assert flags("--engine", "onnxrt", "--check", *script("sys.exit(0)")) == 3
    assert "run it by hand" in capsys.readouterr().err


def test_a_check_that_compares_nothing_is_told_so(here: Path, capsys):
    assert flags("--check", "biopsy", "run", "{}", "--onnxrt") == 3
    assert "next  it compares nothing: name a second engine" in capsys.readouterr().err


def test_a_check_that_cannot_be_run_ends_with_status_4(here: Path, capsys):
    assert flags("--engine", "onnxrt", "--check", "./nothing-of-this-name", "{engine}") == 4


def test_the_engine_must_be_told_for_other_commands_and_be_one_of_the_run(here: Path, capsys):
    assert flags("--check", "./check.sh", "{}") == 2
    assert flags("--engine", "openvino", "--check", "biopsy", "run", "{}", "--onnxrt") == 2
    assert "it runs onnxrt" in capsys.readouterr().err
