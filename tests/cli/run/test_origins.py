"""The end of a run that fails says where in their author's code wrong outputs come from."""

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
