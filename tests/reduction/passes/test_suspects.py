"""Suspects: where a check says by itself that errors begin, tried before anything else."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import biopsy
from biopsy import events
from biopsy.checks.outcome import Outcome
from biopsy.cli.app import main
from biopsy.model.index import index_bytes
from biopsy.reduction import reduce
from biopsy.reduction.reduce import origins
from biopsy.tensors.files import write_feeds, write_results
from support.models import chain, info, model, save, weight
from support.predicates import names


def test_errors_begin_where_a_wrong_tensor_is_computed_from_right_ones() -> None:
    index = index_bytes(chain(8).SerializeToString())
    ids = index.ids
    assert origins(index, {ids["t3"], ids["t4"], ids["t5"], ids["t7"]}) == (2, 6)
    assert origins(index, ()) == ()


def wrong_layer(folder: Path, count: int, culprit: int) -> list[str]:
    """Write a chain with one layer that adds another number than its golden values say; returns the check's words."""
    nodes = [helper.make_node("Add", [f"t{i}", f"w{i}"], [f"t{i + 1}"], name=f"n{i}") for i in range(count)]
    weights = [weight(f"w{i}", 0.5) for i in range(count)]
    made = model(nodes, [info("t0")], [info(f"t{count}")], weights)
    feed = {"t0": np.linspace(-1, 1, 4, dtype=np.float32).reshape(2, 2)}
    results = biopsy.run(made, "onnxrt:threads=1", feed, outputs="all")
    write_feeds(folder / "in.npz", [{**feed, **results[0].iterations[0].outputs}])
    write_results(folder / "golden.json", results)
    made.graph.initializer[culprit].CopyFrom(numpy_helper.from_array(np.array([0.75], np.float32), f"w{culprit}"))
    save(made, folder / "m.onnx")
    return ["biopsy", "run", "{}", "--onnxrt", "--load-inputs", "in.npz", "--load-outputs", "golden.json"]


@pytest.mark.parametrize("culprit", [0, 77, 149])
def test_one_check_of_all_tensors_finds_the_culprit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], culprit: int
) -> None:
    monkeypatch.chdir(tmp_path)
    check = wrong_layer(tmp_path, 150, culprit)
    assert main(["debug", "reduce", "m.onnx", "-o", "r.onnx", "--hide-fail-output", "--check", *check]) == 0
    assert names(onnx.load("r.onnx")) == [f"n{culprit}"]
    assert (
        "7 checks" in capsys.readouterr().out
    )  # the original three times, Identity, the look, the suspect, the result


@pytest.mark.parametrize(("culprit", "parts"), [(0, 1), (77, 4), (149, 8)])
def test_large_tensors_are_checked_part_by_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, culprit: int, parts: int
) -> None:
    """Of 150 tensors with four elements, twenty at a time."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(reduce, "_MOST_AT_ONCE", 80)
    check = wrong_layer(tmp_path, 150, culprit)
    told: list[events.Event] = []
    found = biopsy.reduce(tmp_path / "m.onnx", check, tmp_path / "r.onnx", listener=told.append)
    assert found.nodes == (f"Add 'n{culprit}'",)
    assert [event.nodes for event in looks(told)] == [20] * min(parts, 7) + [10] * (parts == 8)


def looks(told: list[events.Event]) -> list[events.CheckedCandidate]:
    return [event for event in told if isinstance(event, events.CheckedCandidate) and event.stage == "look"]


@pytest.mark.slow
def test_if_no_part_is_wrong_the_whole_model_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that finds t41 wrong only where n8 is there too, nodes apart."""
    monkeypatch.setattr(reduce, "_MOST_AT_ONCE", 80)
    save(chain(64), tmp_path / "m.onnx")
    check = tmp_path / "check.py"
    check.write_text(
        "#!/usr/bin/env python3\nimport json, os, sys\n"
        "data = open(sys.argv[1], 'rb').read()\n"
        "if not (b'n40' in data and b'n8' in data): sys.exit(0)\n"
        "said = {'outcome': 'fails', 'stage': 'compare', 'kind': 'mismatch', 'outputs': ['t41']}\n"
        "open(os.environ['BIOPSY_VERDICT'], 'w').write(json.dumps(said))\nsys.exit(1)\n"
    )
    check.chmod(0o755)
    told: list[events.Event] = []
    found = biopsy.reduce(tmp_path / "m.onnx", [str(check), "{}"], tmp_path / "r.onnx", listener=told.append)
    assert found.nodes == ("Relu 'n8'", "Relu 'n40'")
    *parts, whole = looks(told)
    assert {event.outcome for event in parts} == {Outcome.PASSES.value}
    assert whole.nodes == sum(event.nodes for event in parts) == 64


def test_damaged_golden_values_of_inner_tensors_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    check = wrong_layer(tmp_path, 8, 5)
    golden = (tmp_path / "golden.json").read_text()
    at = golden.index('"array": "', golden.index('"t2"')) + len('"array": "')
    (tmp_path / "golden.json").write_text(f"{golden[:at]}!!!!{golden[at + 4 :]}")
    assert main(["debug", "reduce", "m.onnx", "-o", "r.onnx", "--hide-fail-output", "--check", *check]) == 0
    told = " ".join(capsys.readouterr().err.split())
    assert "with every tensor marked as an output, the check could not be run: cannot read golden.json" in told
    assert "tensor 't2'" in told


@pytest.mark.slow
def test_a_suspect_that_is_innocent_costs_little(tmp_path: Path) -> None:
    """A check that accuses the wrong tensor: the search goes on as if it had said nothing."""
    save(chain(64), tmp_path / "m.onnx")
    check = tmp_path / "check.py"
    check.write_text(
        "#!/usr/bin/env python3\nimport json, os, sys\n"
        "if b'n40' not in open(sys.argv[1], 'rb').read(): sys.exit(0)\n"
        "said = {'outcome': 'fails', 'stage': 'compare', 'kind': 'mismatch', 'outputs': ['t12']}\n"
        "open(os.environ['BIOPSY_VERDICT'], 'w').write(json.dumps(said))\nsys.exit(1)\n"
    )
    check.chmod(0o755)
    told: list[events.Event] = []
    found = biopsy.reduce(tmp_path / "m.onnx", [str(check), "{}"], tmp_path / "r.onnx", listener=told.append)
    assert found.nodes == ("Relu 'n40'",)
    tried = [event for event in told if isinstance(event, events.Checked) and event.stage == "suspects"]
    assert [event.outcome for event in tried] == [Outcome.PASSES.value] * 2


def test_a_check_that_names_no_outputs_is_not_asked_for_suspects(reducer) -> None:
    told: list[events.Event] = []
    reducer(chain(32), lambda candidate: "n9" in names(candidate), listener=told.append)
    assert not any(isinstance(event, events.Checked) and event.stage in {"look", "suspects"} for event in told)
