"""What a bundle holds, and that its script shows the failure where biopsy is not."""

import ast
import json
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest

from biopsy import errors
from biopsy.checks.judge import Rules
from biopsy.findings.bundle.disclosures import without_words_of, words_of_model
from biopsy.findings.bundle.make import Bundle
from support.bundles import bundle_of, run_script, unpacked
from support.models import chain, save


@dataclass(frozen=True)
class Compared:
    """A bundle, the folder that it was made in, and it unpacked."""

    folder: Path
    made: Bundle
    unpacked: Path


NOT_IMPLEMENTED = """
<ir_version: 9, opset_import: ["" : 17]>
g (double[1,1,3,3] pictures, double[1,1,3,3] w) => (double[1,1,1,1] seen) { [first] seen = Conv (pictures, w) }
"""


CONSTANT = """
<ir_version: 9, opset_import: ["" : 17]>
g () => (float[2] y) <float[2] w = {1, 1}, float two = {2}> { y = Add (w, two) }
"""


def golden(folder: Path) -> list[object]:
    """A check of a chain of two Relu in this folder: one of its golden values is wrong, and 100 are of no use."""
    save(chain(2), folder / "model.onnx")
    x = np.array([[0, 1], [2, 3]], np.float32)
    np.savez(folder / "in.npz", t0=x, t7=np.zeros(5000, np.float32))
    inner = {f"inner{number}": np.zeros(1000, np.float32) for number in range(100)}
    np.savez(folder / "golden.npz", t2=x + np.array([[0, 0.5], [0, 0]], np.float32), **inner)
    loaded = ["--load-inputs", folder / "in.npz", "--load-outputs", folder / "golden.npz"]
    return ["biopsy", "run", "{}", "--onnxrt", *loaded]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    """A bundle of golden values, made once; nobody changes it."""
    folder = tmp_path_factory.mktemp("compared")
    made = bundle_of(folder / "model.onnx", folder / "bundle.zip", *golden(folder), reports={"report.json": b"{}"})
    return Compared(folder, made, unpacked(folder / "bundle.zip", folder / "unpacked"))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a chain of two Relu in model.onnx."""
    monkeypatch.chdir(tmp_path)
    save(chain(2), tmp_path / "model.onnx")
    return tmp_path


def test_a_comparison_is_shown_without_biopsy_with_both_sides(compared: Compared) -> None:
    assert (compared.made.reproduced, compared.made.status, compared.made.needs_biopsy) == ("alone", 1, "")
    assert "Mismatched elements: 1 / 4" in compared.made.output
    assert "DESIRED: array([[0. , 1.5]," in compared.made.output


def test_only_values_that_the_result_needs_are_in_it_and_it_is_small(compared: Compared) -> None:
    assert list(np.load(compared.unpacked / "inputs.npz")) == ["t0"]
    assert list(np.load(compared.unpacked / "expected.npz")) == ["t2"]
    assert (compared.folder / "golden.npz").stat().st_size > 400_000
    assert (compared.folder / "bundle.zip").stat().st_size < compared.made.size < 30_000


def test_the_script_is_plain_python_without_biopsy(compared: Compared) -> None:
    tree = ast.parse((compared.unpacked / "reproduce.py").read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported == {"numpy", "onnx", "onnxruntime"}


def test_versions_and_reports_are_members(compared: Compared) -> None:
    versions = json.loads((compared.unpacked / "versions.json").read_bytes())
    assert [engine["name"] for engine in versions["engines"]] == ["onnxrt"]
    assert {"os", "cpu", "cpu_features", "driver"} <= versions.keys()
    assert "report.json" in compared.made.members


def test_members_are_plain_files_of_one_date_and_mode(compared: Compared) -> None:
    with zipfile.ZipFile(compared.folder / "bundle.zip") as stream:
        infos = stream.infolist()
    assert [info.filename for info in infos] == list(compared.made.members)
    assert {info.date_time for info in infos} == {(1980, 1, 1, 0, 0, 0)}
    assert {info.external_attr >> 16 for info in infos} == {0o100644}
    assert not any("/" in info.filename for info in infos)


@pytest.mark.slow
def test_the_archive_is_the_same_each_time(compared: Compared, tmp_path: Path) -> None:
    words = golden(compared.folder)
    bundle_of(compared.folder / "model.onnx", tmp_path / "b.zip", *words, reports={"report.json": b"{}"})
    assert (tmp_path / "b.zip").read_bytes() == (compared.folder / "bundle.zip").read_bytes()


@pytest.mark.slow
def test_once_the_bug_is_mended_the_script_ends_with_0_and_the_test_passes(compared: Compared, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(compared.unpacked, tmp_path / "copy"))
    test = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_regression.py"]
    assert subprocess.run(test, cwd=folder, capture_output=True).returncode == 1
    script = (folder / "reproduce.py").read_text()
    (folder / "reproduce.py").write_text(script.replace("expected = np.array([[0, 1.5]", "expected = np.array([[0, 1]"))
    assert run_script(folder).status == 0
    assert subprocess.run(test, cwd=folder, capture_output=True).returncode == 0


@pytest.mark.slow
def test_an_engine_that_refuses_the_model_is_shown_with_its_message(here: Path) -> None:
    onnx.save(onnx.parser.parse_model(NOT_IMPLEMENTED), "conv.onnx")
    made = bundle_of(here / "conv.onnx", here / "bundle", "biopsy", "run", "{}", "--onnxrt")
    assert (made.reproduced, "inputs.npz" in made.members) == ("alone", False)
    ended = run_script(here / "bundle")
    assert ended.status == 1
    assert "NOT_IMPLEMENTED" in ended.printed
    script = (here / "bundle" / "reproduce.py").read_text()
    (here / "bundle" / "reproduce.py").write_text(script.replace("double[", "float["))
    assert run_script(here / "bundle").status == 0  # it is built now


@pytest.mark.slow
def test_a_check_is_copied_with_its_files_and_run_by_the_script(here: Path) -> None:
    (here / "rule.py").write_text("def wrong(model):\n    return len(model.graph.node) > 1\n")
    (here / "check.py").write_text(
        "import sys, onnx, rule\nassert not rule.wrong(onnx.load(sys.argv[1])), 'too many nodes'\n"
    )
    made = bundle_of(here / "model.onnx", here / "bundle", sys.executable, "check.py", "{}")
    assert made.reproduced == "alone"
    assert {"check.py", "rule.py"} <= set(made.members)
    ended = run_script(here / "bundle")
    assert (ended.status, "too many nodes" in ended.printed) == (1, True)
    (here / "bundle" / "rule.py").write_text("import no_such_module\n")
    assert run_script(here / "bundle").status == 125  # Python exits with 1 for that too
    (here / "bundle" / "rule.py").write_text("def wrong(model):\n    return False\n")
    assert run_script(here / "bundle").status == 0


@pytest.mark.slow
def test_a_script_that_needs_biopsy_says_so(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check = ("biopsy", "run", "{}", "--engine", "fake:refuse.Relu=build")
    made = bundle_of(here / "model.onnx", here / "bundle", *check)
    assert (made.reproduced, made.needs_biopsy) == (
        "with biopsy",
        "the engine fake, which comes with biopsy or a plug-in of it",
    )
    assert "It needs biopsy" in (here / "bundle" / "reproduce.py").read_text()
    assert "only where biopsy is installed" in (here / "bundle" / "ISSUE.md").read_text()
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    assert run_script(here / "bundle").status == 1


@pytest.mark.slow
def test_a_script_that_needs_biopsy_loads_no_inputs_for_a_model_without_any(here: Path) -> None:
    onnx.save(onnx.parser.parse_model(CONSTANT), "constant.onnx")
    check = ("biopsy", "run", "{}", "--engine", "fake:refuse.Add=run")
    made = bundle_of(here / "constant.onnx", here / "bundle", *check)
    assert (made.reproduced, "inputs.npz" in made.members) == ("with biopsy", False)


def test_a_failure_told_by_what_is_printed_is_told_by_the_script_too(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "check.sh").write_text("#!/bin/sh\necho it is $((6*7))\n")
    (here / "check.sh").chmod(0o755)
    rules = Rules(fail_regexes=(re.compile("is 4[0-9]"),))
    made = bundle_of(here / "model.onnx", here / "bundle.zip", "./check.sh", "{}", rules=rules)
    assert made.reproduced == "alone"
    folder = unpacked(here / "bundle.zip", here / "unpacked")
    assert run_script(folder).status == 1
    (folder / "check.sh").write_text("#!/bin/sh\necho no\n")
    assert run_script(folder).status == 0


def test_a_script_that_does_not_fail_makes_no_fit_bundle_and_all_of_it_says_so(here: Path) -> None:
    (here / "check.sh").write_text("#!/bin/sh\ntest ! -e there\n")
    (here / "check.sh").chmod(0o755)
    (here / "there").touch()  # the check looks at a file that no word of it names
    made = bundle_of(here / "model.onnx", here / "bundle", "./check.sh", "{}")
    assert (made.reproduced, made.status) == ("not", 0)
    assert "ended with status 0" in (here / "bundle" / "NOT-REPRODUCED.txt").read_text()
    assert "**NOT REPRODUCED" in (here / "bundle" / "ISSUE.md").read_text()[:400]


def test_a_model_that_does_not_fail_makes_no_bundle(here: Path) -> None:
    with pytest.raises(errors.CheckError, match="does not fail"):
        bundle_of(here / "model.onnx", here / "bundle", "true", "{}")
    assert not (here / "bundle").exists()


@pytest.mark.slow
def test_outputs_that_a_check_marks_are_outputs_of_the_model(here: Path) -> None:
    np.savez("inner.npz", t1=np.full((2, 2), 9, np.float32))
    words = [*golden(here)[:-1], "inner.npz", "--onnx-outputs", "t1"]
    bundle_of(here / "model.onnx", here / "bundle", *words)
    assert [port.name for port in onnx.load(here / "bundle" / "model.onnx").graph.output] == ["t1"]
    assert run_script(here / "bundle").status == 1


@pytest.mark.slow
def test_words_of_the_original_are_in_no_member_or_nothing_is_written(here: Path) -> None:
    made = chain(2)
    made.graph.node[0].name = "secret_layer"
    made.metadata_props.add(key="author", value="somebody_known")
    onnx.save(made, "customer_churn.onnx")
    words = words_of_model(here / "customer_churn.onnx")
    assert {"secret_layer", "somebody_known", "customer_churn"} <= words.keys()
    assert "Relu" not in words
    (here / "check.py").write_text("import sys  # secret_layer\nsys.exit(3)\n")
    hidden = without_words_of(words, here / "model.onnx")
    with pytest.raises(errors.CheckError, match="hide") as caught:
        bundle_of(here / "model.onnx", here / "bundle.zip", sys.executable, "check.py", "{}", secrets=hidden)
    assert "check.py holds 'secret_layer'" in caught.value.message
    assert not (here / "bundle.zip").exists()
    (here / "check.py").write_text("import sys\nsys.exit(3)\n")
    bundle_of(here / "model.onnx", here / "bundle.zip", sys.executable, "check.py", "{}", secrets=hidden)
    with zipfile.ZipFile(here / "bundle.zip") as stream:
        everything = b"".join(stream.read(info) for info in stream.infolist())
    assert b"secret_layer" not in everything
    assert str(here).encode() not in everything


@pytest.mark.slow
def test_a_model_without_inputs_is_compared_too(here: Path) -> None:
    onnx.save(onnx.parser.parse_model(CONSTANT), "constant.onnx")
    np.savez("nothing.npz", other=np.zeros(1))
    np.savez("golden.npz", y=np.full(2, 4, np.float32))
    loaded = ["--load-inputs", "nothing.npz", "--load-outputs", "golden.npz"]
    made = bundle_of(here / "constant.onnx", here / "bundle", "biopsy", "run", "{}", "--onnxrt", *loaded)
    assert (made.reproduced, "inputs.npz" in made.members) == ("alone", False)
    script = (here / "bundle" / "reproduce.py").read_text()
    (here / "bundle" / "reproduce.py").write_text(script.replace("np.array([4, 4]", "np.array([3, 3]"))
    assert run_script(here / "bundle").status == 0


@pytest.mark.slow
def test_weights_in_a_file_of_their_own_are_in_the_model(here: Path) -> None:
    made = onnx.parser.parse_model(CONSTANT)
    onnx.save_model(made, "outside.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    np.savez("nothing.npz", other=np.zeros(1))
    np.savez("golden.npz", y=np.full(2, 4, np.float32))
    loaded = ["--load-inputs", "nothing.npz", "--load-outputs", "golden.npz"]
    made = bundle_of(here / "outside.onnx", here / "bundle", "biopsy", "run", "{}", "--onnxrt", *loaded)
    assert (made.reproduced, "model.onnx.data" in made.members) == ("alone", False)


@pytest.mark.slow
def test_a_check_that_never_ends_is_shown_as_one(here: Path) -> None:
    (here / "check.py").write_text("import time\ntime.sleep(600)\n")
    made = bundle_of(here / "model.onnx", here / "bundle", sys.executable, "check.py", "{}", timeout=2.0)
    assert made.reproduced == "alone"
    ended = run_script(here / "bundle")
    assert (ended.status, "no end in time" in made.title) == (1, False)
    assert "no answer in time" in made.title


@pytest.mark.slow
def test_other_measures_than_tolerances_are_asked_without_biopsy(here: Path) -> None:
    words = [*golden(here), "--cosine", "0.9999", "--check-error-stat", "max", "--atol", "0.1"]
    made = bundle_of(here / "model.onnx", here / "bundle", *words)
    assert made.reproduced == "alone"
    assert "max of the errors: absolute 0.5 (limit 0.1)" in made.output
    assert "cosine: 0.99" in made.output
