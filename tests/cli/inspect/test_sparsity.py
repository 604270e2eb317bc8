"""``biopsy inspect sparsity``; the pattern itself is specified in tests/model/test_sparsity.py."""

from pathlib import Path

import pytest
from onnx import helper

from biopsy.cli.app import main
from support.models import info, model, save, weight


def test_the_command_says_it_in_lines_that_begin_as_polygraphys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [helper.make_node("MatMul", [f"x{name}", name], [f"y{name}"], name=name.upper()) for name in "abc"]
    weights = [
        weight("a", 0, 1, 0, 1, shape=[4, 1]),
        weight("b", 1, 1, 1, 1, 0, 0, 1, 1, shape=[8, 1]),
        weight("c", 1, shape=[1, 1]),
    ]
    path = save(model(nodes, [info("xa")], [info("ya")], weights), tmp_path / "m.onnx")
    assert main(["inspect", "sparsity", str(path)]) == 0
    lines = capsys.readouterr().out.split("\n")
    assert lines[0] == "[I] Found: 2 weight tensor(s) eligible for pruning."
    assert lines[1].startswith("[I] Found sparse tensor: a  (axis 0 of [4, 1], read by A)")
    assert lines[2].startswith("[W] Found non-sparse tensor: b  (prunable: 50% of the groups of 4 have two zeros")
    assert lines[3] == "1 sparse, 1 prunable, 1 not eligible (-v names them)"
