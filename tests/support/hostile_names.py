"""Models and files that try to act on a terminal by their names, and what tells whether they did."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from safetensors.numpy import save_file

from support.models import info, model, save

HOSTILE = (
    "\r\nerror: forged\n  next  forged\nPASSED | forged\n\x1b]0;forged\x07\x1b[2J\x1b[35;45m\x9b2J\u202eforged\u2066"
    "\u061c\u200b\u2028error: forged\u2029\x85error: forged\x7f\U000e0041[red]forged\t'\"`$(x)\\"
)
"""What acts on a terminal, what looks like a line of ours, marks of direction, markup, and what a shell looks for."""

_OUR_COLOURS = re.compile(r"\x1b\[(?!35;45m)[0-9;]*m")
_QUOTED = re.compile(r"^(  \| .*\x1b\[35;45m[^\n]*)\x1b\[0m$", re.MULTILINE)
"""A line that a check printed, in its own colours, which end with it."""
_REDRAWING = re.compile(r"\x1b\[(?:\?25[lh]|2K|1A)|\r")
_FORGED = re.compile(r"\s*(?:error:|next |PASSED)[ |]*forged")


def hostile(label: str) -> str:
    """A name of its own that holds everything that a name should not."""
    return f"{label}{HOSTILE}"


def _without_colours(line: re.Match[str]) -> str:
    return line[1].replace("\x1b[35;45m", "")


def faults(shown: str, *, terminal: bool) -> list[str]:
    """What in an output acts on a terminal, or begins a line that looks like ours; nothing if all is well."""
    if terminal:
        shown = _REDRAWING.sub("", _OUR_COLOURS.sub("", _QUOTED.sub(_without_colours, shown)))
    raw = sorted({char for char in shown if char != "\n" and not char.isprintable()})
    forged = [line for line in shown.split("\n") if _FORGED.match(line)]
    around = [shown[max(0, at - 60) : at + 20] for at in (shown.find(char) for char in raw[:2])]
    return [*map(repr, raw), *map(repr, around), *map(repr, forged)]


def ordinary_model(op: str = "Relu") -> onnx.ModelProto:
    """One that every engine runs: every name that the standard leaves free is hostile."""
    nodes = [
        helper.make_node(op, [hostile("x")], [hostile("t")], name=hostile("n"), doc_string=hostile("doc")),
        helper.make_node("Add", [hostile("t"), hostile("w")], [hostile("y")], name=hostile("m")),
    ]
    made = model(
        nodes,
        [info(hostile("x"), (hostile("N"), 2))],
        [info(hostile("y"), (hostile("N"), 2))],
        [numpy_helper.from_array(np.array([1.0, 2.0], np.float32), hostile("w"))],
    )
    made.graph.name = hostile("graph")
    made.producer_name, made.producer_version, made.domain = hostile("maker"), hostile("1"), hostile("domain")
    made.doc_string = made.graph.doc_string = hostile("doc")
    made.metadata_props.add(key=hostile("key"), value=hostile("value"))
    return made


def model_with_functions() -> onnx.ModelProto:
    """Hostile functions and domains, one of them called."""
    made = ordinary_model()
    inner = [helper.make_node("Abs", [hostile("a")], [hostile("b")], name=hostile("in"))]
    called = helper.make_function(
        hostile("own"), hostile("F"), [hostile("a")], [hostile("b")], inner, [helper.make_opsetid("", 17)]
    )
    made.functions.append(called)
    made.opset_import.append(helper.make_opsetid(hostile("own"), 1))
    made.graph.node.insert(
        0, helper.make_node(hostile("F"), [hostile("x")], [hostile("f")], name=hostile("call"), domain=hostile("own"))
    )
    made.graph.node[1].input[0] = hostile("f")
    return made


def unknown_operators() -> onnx.ModelProto:
    """Operators and domains that no engine knows, with hostile attributes."""
    made = ordinary_model()
    node = helper.make_node(hostile("Op"), [hostile("t")], [hostile("u")], name=hostile("k"), domain=hostile("com"))
    node.attribute.append(helper.make_attribute(hostile("attr"), hostile("text")))
    made.graph.node.insert(1, node)
    made.graph.node[2].input[0] = hostile("u")
    made.opset_import.append(helper.make_opsetid(hostile("com"), 1))
    return made


def unknown_standard_operator() -> onnx.ModelProto:
    """An operator that the standard does not have."""
    made = ordinary_model()
    made.graph.node[0].op_type = hostile("Op")
    return made


def missing_tensor() -> onnx.ModelProto:
    """A node reads what nobody writes."""
    made = ordinary_model()
    made.graph.node[0].input[0] = hostile("nobody")
    return made


def wrong_types() -> onnx.ModelProto:
    """An attribute and a shape that no engine can take."""
    made = ordinary_model("Softmax")
    made.graph.node[0].attribute.append(helper.make_attribute("axis", 77))
    return made


def damaged_weight() -> onnx.ModelProto:
    """A weight with fewer bytes than its shape says."""
    made = ordinary_model()
    made.graph.initializer[0].raw_data = b"\0"
    return made


def external_weight() -> onnx.ModelProto:
    """A weight in a file that is not there, of a hostile name."""
    made = ordinary_model()
    made.graph.initializer[0].ClearField("raw_data")
    made.graph.initializer[0].data_location = onnx.TensorProto.EXTERNAL
    made.graph.initializer[0].external_data.add(key="location", value=hostile("file"))
    return made


def unnamed_shapes() -> onnx.ModelProto:
    """An input whose rank is not known, so that a command line is advised."""
    made = ordinary_model()
    del made.graph.input[:]
    made.graph.input.append(info(hostile("x"), None))
    return made


MODELS = {
    "ordinary": ordinary_model,
    "functions": model_with_functions,
    "unknown": unknown_operators,
    "nonstandard": unknown_standard_operator,
    "missing": missing_tensor,
    "wrong": wrong_types,
    "damaged": damaged_weight,
    "external": external_weight,
    "rankless": unnamed_shapes,
}

ALGORITHM = {
    "implementation": 1,
    "tactic": 2,
    "inputs": [{"dtype": hostile("T"), "strides": [1], "polygraphy_class": "TensorInfo"}],
    "outputs": [],
    "polygraphy_class": "Algorithm",
}


def replay(*names: str) -> dict[str, Any]:
    algorithms = {hostile(name): {**ALGORITHM, "tactic": place} for place, name in enumerate(names)}
    return {"replay": algorithms, "polygraphy_class": "TacticReplayData"}


def record(outcome: str, choice: str) -> dict[str, Any]:
    layer = {"nodes": [hostile("n")], "kind": hostile("k"), "implementation": hostile(choice), "device": hostile("d")}
    return {
        "biopsy_tactics": 1,
        **{key: hostile(key) for key in ("engine", "version", "device", "model", "model_digest")},
        "settings": {hostile("s"): hostile(choice)},
        "environment": {hostile("E"): hostile(choice)},
        "varied": [hostile("s"), f"env.{hostile('E')}"],
        "iteration": 1,
        "outcome": outcome,
        "build_seconds": 1.0,
        "remarks": [hostile("remark")],
        "layers": [layer],
    }


def write_files(folder: Path) -> None:
    """Every file that the cases use, below the current folder."""
    for name, make in MODELS.items():
        save(make(), folder / f"{name}.onnx")
    save(ordinary_model(), folder / f"{hostile('path')}.onnx")
    _write_known_failures(folder / "known")
    (folder / "torn.onnx").write_bytes(ordinary_model().SerializeToString()[:-7])
    values = {hostile(name): np.ones((1, 2), np.float32) for name in ("x", "t", "y")}
    others = {name: array + 3 for name, array in values.items()}
    np.savez(folder / "inputs.npz", **{hostile("x"): values[hostile("x")]})
    np.savez(folder / "values.npz", **values)
    np.savez(folder / "others.npz", **others)
    np.savez(folder / "odd.npz", **{hostile("q"): np.full((3,), np.nan, np.float32)})
    np.savez(folder / "objects.npz", **{hostile("x"): np.array([{}], object)})
    np.savez(folder / "texts.npz", **{hostile("x"): np.array([HOSTILE])})
    save_file(values, folder / "values.safetensors", {hostile("key"): hostile("value")})
    _write_safetensors(folder / "dtype.safetensors", {hostile("x"): _entry(hostile("F32"), 4)})
    _write_safetensors(folder / "range.safetensors", {hostile("x"): _entry("F32", 400)})
    trees: dict[str, Any] = {
        "class.json": {hostile("x"): {"polygraphy_class": hostile("Other")}},
        "array.json": {hostile("x"): {"polygraphy_class": "ndarray", "array": "?"}},
        "dtype.json": {hostile("x"): {"polygraphy_class": "ndarray", "array": "", "biopsy_dtype": hostile("f")}},
        "plain.json": {hostile("x"): hostile("value")},
        "runner.json": {"lst": [[hostile("r"), [{}]]], "polygraphy_class": "RunResults"},
        "surrogate.json": {"\ud800": 1},
        "replay.json": replay("a", "b"),
        "damaged_replay.json": {"replay": {hostile("a"): {hostile("k"): 1}}, "polygraphy_class": "TacticReplayData"},
        "record.json": record("good", "c"),
        "damaged_record.json": {**record("good", "c"), "iteration": 1, "layers": [hostile("layer")]},
        "version_record.json": {"biopsy_tactics": hostile("2")},
        "debug_replay.json": {"biopsy_replay": hostile("1"), "identity": {}, "runs": [], "notes": {}},
        "other_replay.json": {"biopsy_replay": 1, "identity": {hostile("i"): hostile("v")}, "runs": [], "notes": {}},
        "hostile_report.json": {"biopsy_report": 2, "verdict": {"kind": hostile("k"), "text": hostile("t")}},
        "damaged_report.json": {"biopsy_report": 2, "whole": {"introduced": {hostile("k"): hostile("v")}}},
        "report.json": {"biopsy_layers": hostile("1"), hostile("k"): hostile("v")},
    }
    for name, tree in trees.items():
        (folder / name).write_text(json.dumps(tree))
    for which, choice in (("good", "c"), ("bad", "d")):
        for kind, tree in (("records", record(which, choice)), ("replays", replay("a", choice))):
            (folder / kind / which).mkdir(parents=True)
            (folder / kind / which / f"{hostile('r')}.json").write_text(json.dumps(tree))
    (folder / "hostile.txt").write_text(HOSTILE)
    (folder / hostile("folder")).mkdir()
    (folder / "check.py").write_text(CHECK)
    (folder / "loader.py").write_text(LOADER)


def _entry(dtype: str, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": [1], "data_offsets": [0, end]}


def _write_safetensors(path: Path, header: dict[str, Any]) -> None:
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))


CHECK = """\
import os, pathlib, sys
sys.path[:] = [p for p in sys.path if p]
what, *rest = sys.argv[1:]
text = pathlib.Path("hostile.txt").read_bytes()
sys.stdout.buffer.write(b"begin " + text + b" end\\n")
sys.stdout.flush()
sys.stderr.buffer.write(text)
sys.stderr.flush()
if what == "verdict":
    import json
    words = {"outcome": "fails", **{key: text.decode() for key in ("engine", "stage", "kind", "message", "hint")}}
    pathlib.Path(os.environ["BIOPSY_VERDICT"]).write_text(json.dumps({**words, "outputs": [text.decode()]}))
    sys.exit(1)
if what == "unclear":
    pathlib.Path(os.environ["BIOPSY_VERDICT"]).write_text('{"outcome": "invalid", "message": "' + "\\\\n" * 3 + 'x"}')
    sys.exit(1)
if what == "infrastructure":
    import json
    words = {"outcome": "infrastructure", "message": text.decode()}
    pathlib.Path(os.environ["BIOPSY_VERDICT"]).write_text(json.dumps(words))
    sys.exit(1)
if what == "raises":
    raise ValueError(text.decode())
data = pathlib.Path(rest[0]).read_bytes() if rest and os.path.isfile(rest[0]) else b""
if what == "relu":
    sys.exit(b"Relu" in data)
if what == "flaky":
    at = pathlib.Path("count")
    at.write_bytes((at.read_bytes() if at.exists() else b"") + b".")
    sys.exit(len(at.read_bytes()) % 2)
sys.exit(int(what))
"""

LOADER = """\
import pathlib

def load_data():
    raise RuntimeError(pathlib.Path("hostile.txt").read_bytes().decode())

def wrong():
    yield {pathlib.Path("hostile.txt").read_bytes().decode(): [1]}
"""


def _write_known_failures(folder: Path) -> None:
    """A list that knows the ordinary model, and has a file that nobody can use."""
    from biopsy.questions.known_failures.lookup import SeenFailure, entry_text, look_up, write_entry

    piece = save(ordinary_model(), folder.parent / "ordinary_piece.onnx")
    lookup = look_up(piece, SeenFailure(engine="fake", kind=hostile("kind")))
    write_entry(folder / f"{hostile('bug')}.yaml", entry_text(lookup, title=hostile("title")))
    piece.unlink()
    (folder / f"{hostile('odd')}.yaml").write_text(f"{json.dumps(hostile('key'))}: 1\n")
