"""Every pass but one leaves what exporters noted of nodes; a reduction tells it, and --anonymize drops it."""

import random
import zipfile
from pathlib import Path

import onnx
import pytest

from biopsy.cli.app import main
from biopsy.model import walk
from biopsy.model.index import index_bytes
from biopsy.model.sources import source_of, sources_of
from biopsy.reduction.passes.common import NamedModelPass, unrefuted
from biopsy.reduction.schedule import MODEL_PASSES
from support.bodied import bodied
from support.exporters import exported
from support.models import save

CHECK = ("--check", "biopsy", "run", "{}", "--onnxrt", "--engine", "fake:scale.Softmax=1.5")


def noted(seed: int) -> onnx.ModelProto:
    made = bodied(seed)
    for number, node in enumerate(walk.nodes(made)):
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=f"['', 'module{number}', 'op']")
    return made


def last(named: NamedModelPass, model: onnx.ModelProto, draw: random.Random) -> onnx.ModelProto:
    search, answer = named.search(model), None
    while True:
        try:
            changes = search.send(answer)
        except StopIteration:
            return model
        answer = None
        for change in unrefuted(model, changes):
            if draw.random() < 0.7:
                answer = model = change.model
                break


@pytest.mark.parametrize("named", [n for n in MODEL_PASSES if n.name != "notes"], ids=lambda named: named.name)
def test_a_remaining_node_keeps_its_notes(named: NamedModelPass) -> None:
    for seed in range(6):
        made = noted(seed)
        before = {(node.op_type, *node.output) for node in walk.nodes(made)}
        result = last(named, made, random.Random(seed))
        if named.name == "names":
            assert all(node.metadata_props for node in walk.nodes(result))
        for node in walk.nodes(result):
            if (node.op_type, *node.output) in before:
                assert node.metadata_props, (seed, node)


def by_node(made: onnx.ModelProto, original: onnx.ModelProto) -> dict[tuple[str, ...], tuple[str, ...]]:
    """The modules that the nodes of a graph come from, by operator and outputs; () of those that say nothing."""
    index, before = (index_bytes(each.SerializeToString()) for each in (made, original))
    sources = sources_of(index, before)
    return {
        (node.op_type, *node.output): () if source is None else source.scopes
        for node, source in zip(made.graph.node, sources, strict=True)
        if source is None or source.stands_for is None
    }


@pytest.mark.parametrize("named", [n for n in MODEL_PASSES if n.name != "names"], ids=lambda named: named.name)
def test_a_remaining_node_has_its_source_of_the_original(named: NamedModelPass) -> None:
    for seed in range(3):
        original = noted(seed)
        before = by_node(original, original)
        after = by_node(last(named, original, random.Random(seed)), original)
        for node in after.keys() & before.keys():
            assert after[node] == before[node], (seed, node)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save(exported("pytorch"), tmp_path / "m.onnx")
    return tmp_path


def test_a_reduction_ends_with_the_line_of_code(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["debug", "reduce", "m.onnx", "-o", "r.onnx", *CHECK]) == 0
    line = "from   model.py:12 in Attention.forward: return scaled(torch.softmax(y, -1), x)"
    assert line in capsys.readouterr().out.splitlines()
    (node,) = onnx.load("r.onnx").graph.node
    assert str(source_of(node.SerializeToString())) == "model.py:12 in Attention.forward"
    assert main(["inspect", "model", "r.onnx", "--mode=full"]) == 0
    assert "\n        from model.py:12 in Attention.forward: return scaled(" in capsys.readouterr().out


PRIVATE = (b"model.py", b"Attention.forward", b"/home/me", b"softmax(y", b"aten.")
"""Of the lines that the exporter noted."""


def told(path: Path) -> dict[str, set[bytes]]:
    """Which private words stand in a file, or in the members of an archive, by their names."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            contents = {name: archive.read(name) for name in archive.namelist()}
    else:
        contents = {path.name: path.read_bytes()}
    return {name: {word for word in PRIVATE if word in data} for name, data in contents.items()}


def test_an_anonymized_result_does_not_name_it(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["debug", "reduce", "m.onnx", "-o", "r.onnx", "--anonymize", "--report", "r.json", "--events", "e.jsonl"]
    assert main([*words, *CHECK]) == 0
    assert "model.py" not in capsys.readouterr().out
    assert main(["report", "r.json", "-o", "r.html"]) == 0
    for name in ("r.onnx", "r.json", "r.html", "e.jsonl"):
        assert told(here / name) == {name: set()}
    assert b"torch" not in Path("r.onnx").read_bytes()


@pytest.mark.slow
def test_a_bundle_names_it_and_an_anonymized_one_does_not(here: Path) -> None:
    words = ["debug", "reduce", "m.onnx", "--report", "r.json"]
    assert main([*words, "-o", "r.onnx", "--bundle", "b.zip", *CHECK]) == 0
    assert b"model.py" in told(here / "b.zip")["ISSUE.md"]
    assert main([*words, "-o", "s.onnx", "--bundle", "c.zip", "--anonymize", *CHECK]) == 0
    assert not set().union(*told(here / "c.zip").values())
