"""``biopsy debug version``: which release it was. Packages are installed, and checks are processes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from biopsy.cli.app import main
from biopsy.findings.page.document import page_of
from processes.environments.conftest import index as index
from support.models import chain, save
from support.package_index import PackageIndex

PASSES, FAILS = "def look(): pass", "def look(): raise SystemExit(1)"
CHECK = ("--check", "{python}", "check.py", "{}")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    save(chain(1), tmp_path / "model.onnx")
    Path("check.py").write_text("import thing\nthing.look()\n")
    return tmp_path


def version(*words: str, package: str = "thing") -> int:
    return main(["debug", "version", "model.onnx", "--package", package, "-o", "report.json", *words])


def report() -> dict:
    return json.loads(Path("report.json").read_text())


def test_two_releases_are_enough_to_say_which_one_broke_it(index: PackageIndex, here: Path, capsys) -> None:
    index.add("thing", "1.0", PASSES, uploaded="2026-01-01T00:00:00Z")
    index.add("thing", "2.0", FAILS, uploaded="2026-02-01T00:00:00Z")
    assert version("--hide-fail-output", *CHECK) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split() for line in shown[1:4]] == [
        ["fails", "exit", "status", "1", "·", shown[1].split()[-2], "s"],
        ["2.0", "2026-02-01", "fails"],
        ["1.0", "2026-01-01", "passes"],
    ]
    assert "thing: 2.0 broke it, 1.0 is right." in shown
    assert shown[-2:] == ["Next     pip install 'thing<2.0'", "         pip install thing==1.0"]
    found = report()
    assert found["status"] == 0
    assert found["verdict"]["text"] == "thing: 2.0 broke it, 1.0 is right."
    assert found["verdict"]["workarounds"][0]["line"] == "pip install 'thing<2.0'"
    assert [one["outcome"] for one in found["releases"]["tried"]] == ["passes", "fails"]
    assert "2.0 broke it, 1.0 is right" in page_of(found)
    index.files["thing"].popitem()
    assert version(*CHECK) == 3
    assert "every release tried passes (1 of 1" in capsys.readouterr().err
    assert report()["verdict"]["kind"] == "passes"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "there is no command to run"),
        (("--package", "thing==1.0", *CHECK), "is more than the name of a package"),
        (("--package", "thing==1.0", *CHECK), "--package thing --bad 1.0"),
        (("--package", "onnxruntme", "--check", "biopsy", "run", "{}", "--onnxrt"), "did you mean 'onnxruntime'?"),
        (("--package", "openvino", "--check", "biopsy", "run", "{}", "--onnxrt"), "next  --package onnxruntime"),
        (("--versions", "1.0-2.0", *CHECK), "next  --versions 1.0..2.0"),
        (("--with", "other @ https://example.org/x.whl", *CHECK), "names an address"),
        (("--bad", "7.0", *CHECK), "has no release 7.0 with a wheel"),
        (("--check", "biopsy", "run", "{}", "--onnxrt"), "no engine of it is the package thing"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_anything_is_installed(
    index: PackageIndex, here: Path, capsys, words: tuple[str, ...], said: str
) -> None:
    index.add("thing", "1.0", PASSES)
    assert version(*words) == 2
    assert said in capsys.readouterr().err
    assert not any(path.startswith("/files/") for path in index.asked)


def test_an_index_that_does_not_know_the_package_is_no_answer(index: PackageIndex, here: Path, capsys) -> None:
    assert version(*CHECK) == 4
    assert "thing" in capsys.readouterr().err


@pytest.mark.slow
def test_what_is_known_is_told_after_an_interrupt(index: PackageIndex, here: Path) -> None:
    index.add("thing", "1.0", "import time\ndef look(): open('waits', 'w').close(); time.sleep(60)")
    index.add("thing", "2.0", FAILS)
    words = [
        sys.executable,
        "-m",
        "biopsy",
        "debug",
        "version",
        "model.onnx",
        "--package",
        "thing",
        "-o",
        "report.json",
    ]
    program = subprocess.Popen([*words, *CHECK], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 30
    while not Path("waits").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    program.send_signal(signal.SIGINT)
    out, err = program.communicate(timeout=30)
    assert program.returncode == 5
    assert "So far: thing: every release tried fails (1 of 2, 2.0 to 2.0)." in out
    assert "biopsy debug version model.onnx --package thing" in err
    assert [one["version"] for one in report()["releases"]["tried"]] == ["2.0"]


ENGINE = ("--check", "biopsy", "run", "{}", "--engine", "onnxrt:optimization=none", "--onnxrt")


@pytest.mark.slow
class TestOfRealReleases:
    """Packages from the package index: FusedConv, Clip and ConvTranspose as public issues tell of them."""

    @pytest.fixture(autouse=True)
    def models(self, here: Path) -> None:
        page = Path(__file__).parents[3] / "docs" / "how-to" / "find-the-release.md"
        script = page.read_text().partition("```python\n")[2].partition("```")[0]
        exec(compile(script, str(page), "exec"), {})

    def ask(self, model: str, package: str, *words: str) -> dict:
        assert main(["debug", "version", model, "--package", package, "-o", "report.json", *words]) == 0
        found: dict = report()["releases"]
        return found

    def test_the_fourth_input_of_a_fused_convolution(self) -> None:
        found = self.ask("fused.onnx", "onnxruntime", "--versions", "1.24.4..1.31.1", *ENGINE)
        assert [one["text"] for one in found["borders"]] == ["1.27.0 mended it, 1.26.0 fails"]
        assert found["borders"][0]["verified"]
        assert found["yardstick"] == "onnxrt:optimization=none"

    def test_a_refusal_whose_status_code_changes_is_one_failure(self) -> None:
        check = ("--check", "biopsy", "run", "{}", "--onnxrt")
        found = self.ask("clip.onnx", "onnxruntime", "--versions", "1.23.2,1.24.4,1.32.0", "--all", *check)
        assert found["answer"] == "every release tried fails"
        assert [one["outcome"] for one in found["tried"]] == ["fails"] * 3

    def test_a_shape_of_openvino(self) -> None:
        pytest.importorskip("openvino", reason="openvino is not installed: pip install 'biopsy[openvino]'")
        check = ("--check", "biopsy", "run", "{}", "--onnxrt", "--openvino")
        found = self.ask("transposed.onnx", "openvino", "--bad", "2025.1.0", "--good", "2026.0.0", *check)
        assert [one["text"] for one in found["borders"]] == ["2025.4.0 mended it, 2025.3.0 fails"]

    def test_a_wrong_yardstick_is_blamed_and_not_the_releases(self, here: Path, capsys) -> None:
        save(chain(2), here / "chain.onnx")
        check = ("--check", "biopsy", "run", "{}", "--engine", "fake:offset.Relu=1", "--onnxrt")
        found = self.ask("chain.onnx", "onnxruntime", "--versions", "1.25.1,1.26.0", *check)
        assert found["answer"] == "every release tried fails"
        assert found["doubt"].endswith("errs by no more than rounding: what it is compared with is wrong")
        assert found["doubt"] in capsys.readouterr().err
        assert found["doubt"] in report()["verdict"]["certainty"]

    def test_the_piece_is_searched_with_and_the_whole_model_has_the_last_word(self) -> None:
        import onnx

        whole = onnx.load("fused.onnx")
        whole.graph.node[0].output[0] = "fused"
        for number in range(6):
            read = "fused" if number == 0 else f"t{number}"
            written = "y" if number == 5 else f"t{number + 1}"
            whole.graph.node.append(onnx.helper.make_node(["Abs", "Neg"][number % 2], [read], [written]))
        onnx.save(whole, "whole.onnx")
        found = self.ask(
            "whole.onnx", "onnxruntime", "--versions", "1.25.1..1.27.0", "--bad", "1.25.1", "--reduce", *ENGINE
        )
        assert len(onnx.load("whole_reduced.onnx").graph.node) == 1
        assert [(one["text"], one["verified"]) for one in found["borders"]] == [
            ("1.27.0 mended it, 1.26.0 fails", True)
        ]
