"""The end of a run that fails says where in their author's code wrong outputs come from."""

import json
from pathlib import Path

from biopsy.cli.app import main
from support.exporters import copied


def test_the_line_that_a_wrong_output_comes_from_is_told(tmp_path: Path, capsys) -> None:
    model, golden = copied("attention", tmp_path)
    given = ["--load-inputs", str(golden), "--load-outputs", str(golden)]
    assert main(["run", str(model), "--engine", "onnxrt:optimization=none", *given]) == 1
    shown = capsys.readouterr().out
    assert (
        "\n'add' comes from Add 'node_add', modules.py:38 in Attention.forward: return torch.relu(seen) + x\n" in shown
    )


def test_a_report_has_it_and_its_page_shows_it(tmp_path: Path) -> None:
    model, golden = copied("attention", tmp_path)
    report, page = tmp_path / "run.json", tmp_path / "run.html"
    given = ["--load-inputs", str(golden), "--load-outputs", str(golden), "--report", str(report)]
    assert main(["run", str(model), "--engine", "onnxrt:optimization=none", *given]) == 1
    (origin,) = json.loads(report.read_text())["run"]["origins"]
    assert (origin["output"], origin["label"]) == ("add", "Add 'node_add'")
    assert (origin["source"]["line"], origin["source"]["operator"]) == (38, "aten.add.Tensor")
    assert main(["report", str(report), "-o", str(page)]) == 0
    assert "Where these outputs come from" in page.read_text()
    assert "modules.py:38 in forward" in page.read_text()


def test_a_run_that_passes_tells_none(tmp_path: Path, capsys) -> None:
    model, golden = copied("mlp", tmp_path)
    given = ["--load-inputs", str(golden), "--load-outputs", str(golden), "--report", str(tmp_path / "run.json")]
    assert main(["run", str(model), "--onnxrt", *given]) == 0
    assert json.loads((tmp_path / "run.json").read_text())["run"]["origins"] == []
    assert "modules.py" not in capsys.readouterr().out
