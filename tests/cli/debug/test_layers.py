"""``biopsy debug layers`` from the command line: what it shows, writes and ends with."""

import contextlib
import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from biopsy.cli.app import main
from biopsy.tensors.files import read_feeds, write_feeds
from support.models import chain, info, model, save

TWO_WRONG = "fake:scale.n10=1.01,scale.n20=1.5"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a chain of 30 layers in it that neither shrinks nor hides an error."""
    monkeypatch.chdir(tmp_path)
    save(chain(30, ["Relu", "Neg", "Neg"]), tmp_path / "m.onnx")
    return tmp_path


def layers(*words: str) -> int:
    return main(["debug", "layers", "m.onnx", *words])


@dataclass(frozen=True, kw_only=True)
class Examined:
    """An examination with every file that it writes: how it ended, what it showed, and where the files are."""

    status: int
    shown: str
    folder: Path

    @property
    def report(self) -> Any:
        """The key ``layers`` of the report, which must be JSON for everyone."""
        return json.loads((self.folder / "l.json").read_text(), parse_constant=pytest.fail)["layers"]


def examined(folder: Path, suspect: str) -> Examined:
    """Examine the chain of 30 layers in a suspect."""
    save(chain(30, ["Relu", "Neg", "Neg"]), folder / "m.onnx")
    (folder / "work").mkdir()
    written = ["--report", "l.json", "--csv", "l.csv", "--events", "e.jsonl", "--work-dir", "work"]
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as shown:
        patch.chdir(folder)
        status = layers("--suspect", suspect, *written)
    return Examined(status=status, shown=shown.getvalue(), folder=folder)


@pytest.fixture(scope="module")
def two_wrong(tmp_path_factory: pytest.TempPathFactory) -> Examined:
    """Two layers are wrong, the later one more."""
    return examined(tmp_path_factory.mktemp("two_wrong"), TWO_WRONG)


@pytest.fixture(scope="module")
def with_nan(tmp_path_factory: pytest.TempPathFactory) -> Examined:
    """One layer makes NaN."""
    return examined(tmp_path_factory.mktemp("with_nan"), "fake:nan.n7=1")


# What it shows


def test_the_worst_introducers_come_first_then_the_first_wrong_tensor_and_what_to_type(two_wrong: Examined) -> None:
    assert two_wrong.status == 1
    shown = two_wrong.shown
    assert shown.index("Neg 'n20'") < shown.index("Neg 'n10'") < shown.index("first      't11' of Neg 'n10'")
    assert (
        "2 of 30 layers out of tolerance in isolation" in shown
        and "20 of 30 layers out of tolerance in the whole" in shown
    )
    assert "FAILED | Neg 'n20'; Neg 'n10'\n\nNext     biopsy debug reduce m.onnx -o reduced.onnx --order-by" in shown
    assert f"biopsy run {{}} --engine onnxrt:optimization=none --engine {TWO_WRONG}\n" in shown
    assert "biopsy surgeon extract m.onnx -o suspect.onnx --inputs t20:auto:auto --outputs t21:auto\n" in shown


TRUSTED = "onnxrt:optimization=none"


@pytest.mark.parametrize(
    ("words", "reference", "suspect"),
    [
        pytest.param(["--engine", TWO_WRONG], TRUSTED, TWO_WRONG, marks=pytest.mark.slow),
        (["--reference", "--engine", TWO_WRONG], "reference", TWO_WRONG),
        pytest.param(["--reference", "--suspect", TWO_WRONG], "reference", TWO_WRONG, marks=pytest.mark.slow),
        pytest.param(
            ["--reference-engine", "reference", "--engine", TWO_WRONG], "reference", TWO_WRONG, marks=pytest.mark.slow
        ),
        pytest.param(["--threads", "1"], TRUSTED, "onnxrt:threads=1", marks=pytest.mark.slow),
    ],
)
def test_engines_are_named_as_for_run_and_the_first_of_two_is_trusted(
    here: Path, capsys, words: list[str], reference: str, suspect: str
) -> None:
    save(chain(22), here / "m.onnx")
    assert layers(*words) == (suspect == TWO_WRONG)
    shown = capsys.readouterr().out
    assert f"\nrecorded   {reference} · " in shown
    assert f"\nwhole      {suspect} · " in shown


def test_without_an_engine_one_that_works_here_is_the_suspect_and_that_is_said(here: Path, capsys) -> None:
    save(chain(2), here / "m.onnx")
    assert layers() == 0
    said = capsys.readouterr().out.splitlines()[0]
    engine = said.split()[4]
    assert said == f"no engine is named: {engine} is the suspect"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--onnxrt", "--openvino", "--reference"], "too many engines: onnxrt, openvino, reference; "),
        (["--suspect", "onnxrt", "--onnxrt", "--reference"], "too many engines: --suspect onnxrt, onnxrt, reference; "),
        (["--suspect", "onxrt"], "did you mean 'onnxrt'?"),
        (["--engine", "onnxrt:optimizaton=none"], "did you mean 'optimization'?"),
        (["--suspct", "onnxrt"], "did you mean '--suspect'?"),
    ],
)
def test_engines_that_are_too_many_or_mistyped_are_wrong_usage(here: Path, capsys, words: list[str], told: str) -> None:
    assert layers(*words) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "outputs"),
    [
        ("reduced.onnx", ("-o reduced_2.onnx --check", "-o suspect.onnx --inputs", "biopsy run suspect.onnx")),
        pytest.param(
            "suspect.onnx",
            ("-o reduced.onnx --check", "-o suspect_2.onnx --inputs", "biopsy run suspect_2.onnx"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_to_type_never_writes_over_the_model(here: Path, capsys, name: str, outputs: tuple[str, ...]) -> None:
    (here / "m.onnx").rename(here / name)
    assert main(["debug", "layers", name, "--suspect", TWO_WRONG]) == 1
    shown = capsys.readouterr().out
    assert all(output in shown for output in outputs)


def test_the_table_is_aligned(two_wrong: Examined) -> None:
    head, *rows = [line for line in two_wrong.shown.splitlines() if line.startswith(("layer ", "Neg "))]
    for title in ("introduces", "x allowed", "in model"):
        end = head.index(title) + len(title)
        assert all(row[end - 1] != " " and row[end] == " " for row in rows)


def test_a_model_that_is_right_passes(here: Path, capsys) -> None:
    assert layers("--suspect", "onnxrt") == 0
    shown = capsys.readouterr().out
    assert "PASSED | no tensor is out of tolerance" in shown and "Next" not in shown


@pytest.mark.slow
def test_what_is_right_outside_and_wrong_inside_is_said_and_the_next_step_fits(here: Path, capsys) -> None:
    save(chain(30, ["Softplus", "Tanh"]), here / "m.onnx")
    assert layers("--suspect", "fake:scale.n4=1.5", "--report", "l.json") == 1
    shown = capsys.readouterr().out
    assert "masked     the outputs are right all the same" in shown
    assert "reduced.onnx --order-by l.json --mark-intermediate --check" in shown


@pytest.mark.slow
def test_a_layer_that_cannot_be_run_stands_in_the_table(here: Path, capsys) -> None:
    assert layers("--suspect", "fake:crash.n7=run") == 1
    shown = capsys.readouterr().out
    assert "whole      fake:crash.n7=run cannot run: SIGSEGV" in shown
    assert "1 cannot be run in isolation (SIGSEGV)" in shown and "Neg 'n7'       fails" in shown


@pytest.mark.slow
def test_a_group_is_shown_with_what_marking_does(here: Path, capsys) -> None:
    assert layers("--suspect", "fake:scale.n7=1.5,unless_marked=t8") == 1
    shown = capsys.readouterr().out
    assert "together   2 layers, right one by one: they are wrong when run as one piece" in shown
    assert "marking the tensors between them as outputs prevents the error" in shown
    assert "observing  with 't8' marked as an output, the failure of 't30' is gone" in shown


def test_nan_is_told_with_its_origin(with_nan: Examined) -> None:
    assert with_nan.status == 1
    assert "NaN/inf    begins at Neg 'n7' in fake:nan.n7=1: 4 NaN in 't8', its inputs" in with_nan.shown


@pytest.mark.slow
def test_no_escape_sequence_of_a_name_reaches_the_terminal(here: Path, capsys) -> None:
    nodes = [helper.make_node("Neg", ["x"], ["\x1b[31my"], name="\x1b[2Jneg")]
    save(model(nodes, [info("x")], [info("\x1b[31my")]), here / "m.onnx")
    assert layers("--suspect", "fake:scale.Neg=2") == 1
    assert "\x1b" not in "".join(capsys.readouterr())


# Inputs


@pytest.mark.slow
def test_layers_samples_and_rows_are_those_that_were_asked_for(here: Path, capsys) -> None:
    write_feeds(here / "in.npz", [{"t0": np.full((2, 2), value, np.float32)} for value in (1, 5)])
    samples = ("--load-inputs", "in.npz", "--save-inputs", "out.npz")
    assert layers("--suspect", TWO_WRONG, "--nodes", "^n[12][0-9]$", "--top", "1", *samples) == 1
    shown = capsys.readouterr().out
    assert "2 of 20 layers out of tolerance in isolation" in shown
    assert "and 1 more (--top N, --report, --csv)" in shown and "\nNeg 'n10'" not in shown
    assert " of 2 samples" in shown
    np.testing.assert_array_equal(read_feeds(here / "out.npz")[1]["t0"], np.full((2, 2), 5, np.float32))


@pytest.mark.slow
def test_an_open_shape_is_said_and_can_be_chosen(here: Path, capsys) -> None:
    made = chain(2)
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    for value in made.graph.output:
        value.type.tensor_type.shape.dim[0].dim_param = "N"
    save(made, here / "m.onnx")
    assert layers("--suspect", "onnxrt") == 0
    assert "--input-shapes 't0:[...]'" in capsys.readouterr().err
    assert layers("--suspect", "onnxrt", "--input-shapes", "t0:[7,2]") == 0
    assert capsys.readouterr().err == ""


# Files


def test_the_report_has_every_layer_and_the_ranking(two_wrong: Examined) -> None:
    tree = two_wrong.report
    assert (tree["biopsy_layers"], tree["verdict"], tree["complete"], tree["samples"]) == (1, "wrong", True, 1)
    assert tree["suspect"]["label"] == TWO_WRONG and tree["reference"]["label"] == "onnxrt:optimization=none"
    assert [one["nodes"] for one in tree["ranking"]] == [[20], [10]]
    assert tree["first_wrong"] == {"layer": 10, "tensor": "t11"}
    assert len(tree["layers"]) == 30 and tree["layers"][11]["verdict"] == "propagates"
    assert tree["layers"][20]["introduced"]["worst"]["expected"] == pytest.approx(
        tree["layers"][20]["introduced"]["worst"]["actual"] / 1.5, rel=1e-6
    )


def test_the_csv_has_one_line_per_layer(two_wrong: Examined) -> None:
    with (two_wrong.folder / "l.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 30
    assert [(row["name"], row["rank"]) for row in rows if row["verdict"] == "introduces"] == [
        ("n10", "2"),
        ("n20", "1"),
    ]
    assert float(rows[20]["introduced_relative"]) == pytest.approx(0.5, rel=1e-5)
    assert float(rows[9]["propagated_absolute"]) == 0


def test_infinities_are_texts_so_that_the_report_is_json_for_everyone(with_nan: Examined) -> None:
    assert with_nan.report["layers"][7]["introduced"]["absolute"] == "inf"


def test_events_are_json_lines(two_wrong: Examined) -> None:
    kinds = [json.loads(line)["event"] for line in (two_wrong.folder / "e.jsonl").read_text().splitlines()]
    assert kinds[0] == "ModelRead" and {"Recorded", "Measured"} <= set(kinds)


def test_no_file_is_left_behind_but_those_that_were_asked_for(two_wrong: Examined) -> None:
    assert list((two_wrong.folder / "work").iterdir()) == []
    assert {path.name for path in two_wrong.folder.iterdir()} == {"m.onnx", "work", "l.json", "l.csv", "e.jsonl"}


# Its ranking orders a reduction


@pytest.mark.slow
def test_a_reduction_begins_with_the_layers_of_the_report(here: Path, capsys) -> None:
    save(chain(300, ["Relu", "Neg", "Neg"]), here / "m.onnx")
    layers("--suspect", "fake:scale.n200=1.5", "--report", "l.json")
    check = [
        "--check",
        "biopsy",
        "run",
        "{}",
        "--engine",
        "onnxrt:optimization=none",
        "--engine",
        "fake:scale.n200=1.5",
    ]
    assert main(["debug", "reduce", "m.onnx", "-o", "r.onnx", "--order-by", "l.json", *check]) == 0
    assert [node.name for node in onnx.load("r.onnx").graph.node] == ["n200"]
    assert "ranked     300 -> 3 nodes" in capsys.readouterr().out


def test_a_report_of_another_model_or_no_report_is_refused(here: Path, two_wrong: Examined, capsys) -> None:
    shutil.copy(two_wrong.folder / "l.json", here)
    save(chain(31), here / "m.onnx")
    (here / "no.json").write_text("[]")
    for report, reason in (("l.json", "of another model"), ("no.json", "not a report"), ("none.json", "cannot read")):
        assert main(["debug", "reduce", "m.onnx", "-o", "r.onnx", "--order-by", report, "--check", "false"]) == 2
        assert reason in capsys.readouterr().err


# How it ends


@pytest.mark.parametrize(
    ("words", "status", "reason"),
    [
        (["--suspect", "nobody"], 2, "there is no engine 'nobody'"),
        (["--suspect", "onnxrt:nonsense=1"], 2, "nonsense"),
        (["--suspect", "onnxrt", "--nodes", "["], 2, "--nodes [: not a valid regular expression"),
        (["--suspect", "onnxrt", "--nodes", "nothing"], 2, "--nodes nothing: no layer has a name"),
        (["--suspect", "onnxrt", "--top", "0"], 2, "--top 0: must be a whole number from 1 to 1000000"),
        (["--suspect", "onnxrt", "--record-memory", "much"], 2, "--record-memory much: not a valid size"),
        (["--suspect", "onnxrt", "--atol", "x"], 2, "--atol"),
        (["--suspect", "onnxrt", "--report", "m.onnx"], 2, "given twice"),
        (["--suspect", "onnxrt", "--report", "m.onnx/l.json"], 2, "m.onnx is not a folder"),
        (["--suspect", "onnxrt", "--work-dir", "m.onnx/w"], 2, "m.onnx is not a folder"),
        (["--suspect", "onnxrt", "--load-inputs", "no.npz"], 2, "no.npz"),
        (["--suspect", "onnxrt", "--reference-engine", "fake:refuse.n3=build"], 4, "cannot build the model"),
    ],
)
def test_wrong_words_and_missing_engines_are_told(
    here: Path, capsys, words: list[str], status: int, reason: str
) -> None:
    assert layers(*words) == status
    assert reason in capsys.readouterr().err


def test_a_model_that_is_not_there_or_is_none_is_told(here: Path, capsys) -> None:
    assert main(["debug", "layers", "none.onnx", "--suspect", "onnxrt"]) == 2
    (here / "m.onnx").write_bytes(b"\x08\x01")
    assert layers("--suspect", "onnxrt") == 4
    assert "no ONNX model" in capsys.readouterr().err


@pytest.mark.slow
def test_interrupted_it_shows_and_writes_what_was_measured(here: Path) -> None:
    words = ["--suspect", "fake:scale.n10=2,sleep_ms=700", "--record-memory", "100", "--report", "l.json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "biopsy", "debug", "layers", "m.onnx", *words, "--events", "e.jsonl"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while '"stage": "isolated"' not in (here / "e.jsonl").read_text() if (here / "e.jsonl").exists() else True:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 5 and "interrupted: what was measured" in err and "kept  l.json" in err
    assert "(interrupted: not all was measured)" in out
    tree = json.loads((here / "l.json").read_text())["layers"]
    assert tree["complete"] is False and any(layer["introduced"] for layer in tree["layers"])


# Memory

_MEASURED = """
import resource, sys
from biopsy.cli.app import main
status = main(["debug", "layers", *sys.argv[1:]])
peaks = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print("peaks", status, *peaks)
"""


def peaks(*words: str) -> list[int]:
    """Greatest resident memory of the process and of any engine's process, in KiB."""
    ran = subprocess.run([sys.executable, "-c", _MEASURED, *words], capture_output=True, text=True, check=True)
    status, *found = map(int, ran.stdout.rpartition("peaks ")[2].split())
    assert status == 1, ran.stdout
    return found


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="units of ru_maxrss are those of Linux")
def test_tensors_of_ten_times_the_memory_limit_need_little_more_than_the_limit(here: Path) -> None:
    made = chain(300, ["Relu", "Neg", "Neg"])
    suspect = ["--suspect", "fake:scale.n100=1.01,scale.n200=1.5", "--work-dir", os.fspath(here), "--report", "l.json"]
    save(made, here / "small.onnx")
    for value in (*made.graph.input, *made.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            dim.dim_value = 512  # 1 MiB a tensor
    save(made, here / "large.onnx")
    base = peaks("small.onnx", *suspect)
    found = peaks("large.onnx", *suspect, "--record-memory", "31MB")
    ranking = json.loads((here / "l.json").read_text())["layers"]["ranking"]
    assert [one["nodes"] for one in ranking] == [[200], [100]]
    assert all(now - before < 3 * 31_000 for now, before in zip(found, base, strict=True)), (base, found)


@pytest.mark.parametrize("on", [("--on", "ray"), ("--on",)])
def test_layers_are_measured_by_one_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], on: tuple[str, ...]
) -> None:
    path = save(chain(1), tmp_path / "model.onnx")
    assert main(["debug", "layers", str(path), "--onnxrt", *on]) == 2
    told = capsys.readouterr().err
    assert "--on is not available here: layers are compared with each other" in told
    assert "next  debug reduce --on ray" in told
