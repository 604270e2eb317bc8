"""How a result is shown: arrows join only nodes that are joined."""

from pathlib import Path

import onnx
import pytest

from biopsy.cli.app import main
from biopsy.cli.debug.reduction_report import _graph
from support.models import save

DIAMOND = """
<ir_version: 9, opset_import: ["" : 17]>
g (float[2] x) => (float[2] y)
{
    [a] p = Relu (x)
    [b] q = Neg (p)
    [c] r = Exp (p)
    [d] y = Add (q, r)
}
"""


def shown(*labels: str, reads: tuple[tuple[int, ...], ...], most: int = 24) -> list[str]:
    return list(_graph("N of M nodes", labels, reads, most))


def test_a_chain_is_one_line_with_arrows() -> None:
    assert shown("Mul 'a'", "Add 'b'", "Sub 'c'", reads=((), (0,), (1,))) == [
        "N of M nodes   Mul 'a' -> Add 'b' -> Sub 'c'"
    ]
    assert shown("Mul 'a'", reads=((),)) == ["N of M nodes   Mul 'a'"]


def test_anything_else_is_a_line_for_each_node_with_those_that_it_reads() -> None:
    assert shown("Mul 'a'", "ReduceMean 'b'", "Div 'c'", reads=((), (0,), (0, 1))) == [
        "N of M nodes",
        "   1  Mul 'a'",
        "   2  ReduceMean 'b'  reads 1",
        "   3  Div 'c'         reads 1, 2",
    ]
    assert shown("Mul 'a'", "Add 'b'", reads=((), ())) == ["N of M nodes", "   1  Mul 'a'", "   2  Add 'b'"]


def test_many_nodes_and_many_sources_are_cut_short() -> None:
    labels = [f"Relu 'n{number}'" for number in range(100)]
    chain = tuple((number - 1,) if number else () for number in range(100))
    assert shown(*labels, reads=chain, most=2) == ["N of M nodes   Relu 'n0' -> Relu 'n1' and 98 more (-v shows all)"]
    apart = tuple(() for _ in labels)
    lines = shown(*labels, reads=apart, most=3)
    assert len(lines) == 5
    assert lines[-1].strip() == "and 97 more (-v shows all)"
    assert shown(*labels[:20], reads=(*apart[:19], tuple(range(19))))[-1].endswith("reads 1, 2, 3, 4, 5, 6, 7, 8, ...")


def test_a_result_with_two_branches_is_shown_as_a_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save(onnx.parser.parse_model(DIAMOND), tmp_path / "m.onnx")
    check = "test $(grep -ac Relu {0}) = 1 && grep -aq Neg {0} && grep -aq Exp {0} && exit 1; exit 0"
    (tmp_path / "check.sh").write_text(check.replace("{0}", '"$1"'))
    assert main(["debug", "reduce", "m.onnx", "-o", "r.onnx", "--check", "sh", "check.sh", "{}"]) == 0
    told = capsys.readouterr().out
    assert "3 of 4 nodes\n   1  Relu 'a'\n   2  Neg 'b'   reads 1\n   3  Exp 'c'   reads 1\n" in told
