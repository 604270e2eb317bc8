"""Nothing that a stranger wrote acts on a terminal or looks like a line of ours, whatever command shows it.

Names, types, messages and paths come from files and programs of others. Each case is one command line over them, run
on a pipe and on a real terminal. A new command, or a new text from outside, is one more line of ``CASES``.
"""

import sys
from pathlib import Path

import pytest

from biopsy.cli.commands import COMMANDS
from support.hostile_names import HOSTILE, MODELS, faults, hostile, write_files
from support.streams import KINDS, shown_by

X, T, Y, W = map(hostile, "xtyw")
PATH = f"{hostile('path')}.onnx"
FOLDER = hostile("folder")
TWO = ["--engine", "onnxrt:optimization=none", "--onnxrt"]
REDUCE = ["debug", "reduce", "ordinary.onnx", "-o", "reduced.onnx", "--events", "events.log"]
PRECISION = ["debug", "precision", "ordinary.onnx", "--emulate"]
LAYERS = ["debug", "layers", "ordinary.onnx", "--reference-engine", "reference"]
FLAGS = ["debug", "flags", "ordinary.onnx"]
BUILD = ["debug", "build", "ordinary.onnx", "--onnxrt"]
FAKE = "fake:offset.Relu=1"
WORKAROUND = ["debug", "workaround", "ordinary.onnx", "--engine", FAKE, "--input-shapes", f"{X}:[2,2]"]
TRANSFORM = ["debug", "transform", "ordinary.onnx", "--input-shapes", f"{X}:[2,2]", "-o", "made.onnx"]
DIAGNOSE = ["diagnose", PATH, "--reference", "--engine", FAKE, "--dir", FOLDER]


def check(what: str, *rest: str) -> list[str]:
    """A check that prints hostile text; ``what`` is its status, or how it fails."""
    return ["--check", sys.executable, "check.py", what, *rest]


CASES: dict[str, list[str]] = {
    **{f"inspect {name}": ["inspect", "model", f"{name}.onnx", "--mode=full"] for name in (*MODELS, "torn")},
    **{f"run {name}": ["run", f"{name}.onnx", *TWO] for name in (*MODELS, "torn")},
    **{f"reference {name}": ["run", f"{name}.onnx", "--reference"] for name in MODELS},
    **{f"openvino {name}": ["run", f"{name}.onnx", "--openvino"] for name in MODELS},
    **{f"capability {name}": ["inspect", "capability", f"{name}.onnx", "--onnxrt"] for name in MODELS},
    **{
        f"polygraphy {name}": ["inspect", "model", f"{name}.onnx", "--show", "layers", "attrs", "weights"]
        for name in (*MODELS, "torn")
    },
    **{f"lint {name}": ["check", "lint", f"{name}.onnx", "-v"] for name in (*MODELS, "torn")},
    **{f"convert {name}": ["convert", f"{name}.onnx", "-o", "made.ort"] for name in MODELS},
    **{f"sparsity {name}": ["inspect", "sparsity", f"{name}.onnx", "-v"] for name in MODELS},
    **{
        f"sanitize {name}": ["surgeon", "sanitize", f"{name}.onnx", "-o", "made.onnx", "--cleanup", "--toposort"]
        for name in MODELS
    },
    **{f"extract {name}": ["surgeon", "extract", f"{name}.onnx", "-o", "made.onnx"] for name in MODELS},
    **{f"prune {name}": ["surgeon", "prune", f"{name}.onnx", "-o", "made.onnx"] for name in MODELS},
    **{f"strip {name}": ["surgeon", "weight-strip", f"{name}.onnx", "-o", "made.onnx"] for name in MODELS},
    "insert": ["surgeon", "insert", "ordinary.onnx", "-o", "made.onnx", "--op", X, "--inputs", Y, "--outputs", Y],
    "report page": ["report", "report.json", "-o", "page.html"],
    "report hostile": ["report", "hostile_report.json", "-o", f"{hostile('page')}.html"],
    "report damaged": ["report", "damaged_report.json", "-o", "page.html"],
    "reconstruct": ["surgeon", "weight-reconstruct", "ordinary.onnx", "-o", "made.onnx"],
    **{
        f"reduce {name}": ["debug", "reduce", f"{name}.onnx", "-o", "made.onnx", "-v", *check("1", "{}")]
        for name in MODELS
    },
    "explain": [
        *("debug", "reduce", "nonstandard.onnx", "-o", "made.onnx", "-v", "--values", "free", "--allow-vacuous-check"),
        *("--explain-checks", "9", *check("1", "{}")),
    ],
    **{
        f"known {name}": ["debug", "known", f"{name}.onnx", "--known-dir", "known", "-v", "--kind", HOSTILE]
        for name in (*MODELS, "torn")
    },
    "known hostile path": ["debug", "known", PATH, "--engine", FAKE, "--release", HOSTILE],
    "known nowhere": ["debug", "known", PATH, "--known-dir", hostile("none")],
    "known engine": ["debug", "known", PATH, "--engine", hostile("e")],
    "known check": ["debug", "known", PATH, "--check", sys.executable, "check.py", "1", "{}"],
    "known add": ["debug", "known", PATH, "--engine", FAKE, "--add", hostile("a")],
    "known save": ["debug", "known", PATH, "--engine", FAKE, "--save", f"{hostile('made')}.yaml"],
    # hunt
    "hunt": ["hunt", PATH, "ordinary.onnx", "nonstandard.onnx", "--engine", FAKE, "--no-diagnosis", "--dir", "hunted"],
    "hunt nowhere": ["hunt", hostile("none"), "--onnxrt"],
    "hunt against": ["hunt", PATH, "--onnxrt", "--against", "known"],
    # run
    "run verbose": ["run", "ordinary.onnx", *TWO, "-vv"],
    "run hostile path": ["run", PATH, *TWO],
    "run no such file": ["run", hostile("none"), "--onnxrt"],
    "run wrong values": [
        "run",
        "ordinary.onnx",
        "--onnxrt",
        "--load-inputs",
        "inputs.npz",
        "--load-outputs",
        "others.npz",
    ],
    "run all values": [
        "run",
        "ordinary.onnx",
        "--onnxrt",
        "--onnx-outputs",
        "mark",
        "all",
        "--load-outputs",
        "values.npz",
    ],
    "run odd values": ["run", "ordinary.onnx", "--onnxrt", "--load-outputs", "odd.npz"],
    "run odd inputs": ["run", "ordinary.onnx", "--onnxrt", "--load-inputs", "odd.npz"],
    "run noise": ["run", "ordinary.onnx", "--engine", FAKE, "--compare-with", "noise"],
    "run fake": ["run", "ordinary.onnx", "--reference", "--engine", FAKE, "-v"],
    "run outputs unknown": ["run", "ordinary.onnx", "--onnxrt", "--onnx-outputs", hostile("other")],
    "run tolerance unknown": ["run", "ordinary.onnx", *TWO, "--atol", f"{hostile('o')}:1"],
    "run tolerance wrong": ["run", "ordinary.onnx", *TWO, "--atol", hostile("o")],
    "run shape wrong": ["run", "ordinary.onnx", *TWO, "--input-shapes", f"{X}:[3,4,5]"],
    "run shape unknown": ["run", "ordinary.onnx", *TWO, "--input-shapes", f"{hostile('o')}:[3,4,5]"],
    "run shape unreadable": ["run", "ordinary.onnx", *TWO, "--input-shapes", f"{X}:[{HOSTILE}]"],
    "run range": ["run", "ordinary.onnx", *TWO, "--val-range", f"{X}:[5,1]"],
    "run engine unknown": ["run", "ordinary.onnx", "--engine", hostile("e")],
    "run engine setting": ["run", "ordinary.onnx", "--engine", f"onnxrt:{HOSTILE}=1"],
    "run provider": ["run", "ordinary.onnx", "--engine", f"onnxrt:provider={HOSTILE}"],
    "run option unknown": ["run", "ordinary.onnx", hostile("--opt")],
    "run loader": ["run", "ordinary.onnx", "--onnxrt", "--data-loader-script", "loader.py"],
    "run loader wrong": ["run", "ordinary.onnx", "--onnxrt", "--data-loader-script", "loader.py:wrong"],
    "run loader missing": ["run", "ordinary.onnx", "--onnxrt", "--data-loader-script", f"{hostile('l')}.py"],
    "run save": [
        "run",
        "ordinary.onnx",
        "--onnxrt",
        "--save-outputs",
        f"{hostile('s')}.npz",
        "--save-inputs",
        f"{hostile('i')}.json",
    ],
    "run save nowhere": ["run", "ordinary.onnx", "--onnxrt", "--save-outputs", f"{hostile('no')}/x.npz"],
    "run save engine": ["run", "ordinary.onnx", "--openvino", "--save-engine", f"{hostile('e')}.blob"],
    "run memory limit": [
        "run",
        "ordinary.onnx",
        *TWO,
        "--onnx-outputs",
        "mark",
        "all",
        "--record-memory",
        "100MB",
        "--save-outputs",
        "o.npz",
    ],
    "run no command": [hostile("run")],
    "no command of a group": ["debug", hostile("r")],
    # data
    **{
        f"data {name}": ["inspect", "data", name, "--all", "--show-values", "--histogram"]
        for name in [
            "values.npz",
            "values.safetensors",
            "odd.npz",
            "objects.npz",
            "texts.npz",
            "dtype.safetensors",
            "range.safetensors",
            "class.json",
            "array.json",
            "dtype.json",
            "plain.json",
            "runner.json",
            "surrogate.json",
            "replay.json",
        ]
    },
    "data name": ["inspect", "data", "values.npz", "--name", hostile("o")],
    "data missing": ["inspect", "data", hostile("o")],
    "to-input": ["data", "to-input", "inputs.npz", "values.npz", "-o", f"{hostile('o')}.json"],
    "to-input wrong": ["data", "to-input", "inputs.npz", "class.json", "-o", "o.json"],
    "concat": ["data", "concat", "inputs.npz", "values.npz", "-o", f"{hostile('o')}.json"],
    "from-torch": ["data", "from-torch", hostile("f"), "-o", "golden.safetensors"],
    "from-torch to": ["data", "from-torch", "a:b", "-o", hostile("o")],
    "torch": ["torch", hostile("f"), "-o", "found"],
    "torch to": ["torch", "a:b", "--args", f"{hostile('a')}.pt", "--suspect", hostile("s"), "-o", hostile("o")],
    "completion": ["completion", hostile("shell")],
    "merge": ["data", "merge", "runner.json", "values.npz", "-o", f"{hostile('o')}.json"],
    # tactics
    **{
        f"tactics {name}": ["inspect", "tactics", f"{name}.json"]
        for name in ["replay", "record", "damaged_replay", "damaged_record", "version_record", "class"]
    },
    "tactics layers": ["inspect", "tactics", "record.json", "--layers", f"{hostile('o')}*"],
    "inspect diff records": ["inspect", "diff-tactics", "--dir", "records", "--all"],
    "inspect diff replays": ["inspect", "diff-tactics", "--dir", "replays", "--all"],
    "debug diff records": ["debug", "diff-tactics", "--dir", "records"],
    "debug diff replays": ["debug", "diff-tactics", "--dir", "replays"],
    "debug diff damaged": ["debug", "diff-tactics", "--good", "damaged_record.json", "--bad", "replay.json"],
    "debug diff nowhere": ["debug", "diff-tactics", "--dir", FOLDER],
    # checks
    **{
        f"reduce check {what}": [*REDUCE, "--show-output", *check(what, "{}")]
        for what in ("0", "1", "relu", "77", "126")
    },
    **{
        f"reduce check {what}": [*REDUCE, *check(what, "{}")]
        for what in ("verdict", "unclear", "infrastructure", "raises", "flaky")
    },
    "reduce by a person": ["debug", "reduce", PATH, "-o", "r.onnx", "--iter-artifact", f"{hostile('c')}.onnx"],
    "reduce quiet check": [*REDUCE, "--hide-fail-output", *check("relu", "{}")],
    "reduce regex": [*REDUCE, "--fail-regex", "forged", *check("relu", "{}")],
    "reduce simplify": [*REDUCE, "--simplify", "--anonymize", "-v", *check("relu", "{}")],
    "reduce by run": [*REDUCE, "--check", "biopsy", "run", "{}", "--reference", "--engine", FAKE],
    "reduce no program": [*REDUCE, "--check", hostile("prog"), "{}"],
    "reduce quoted program": [*REDUCE, "--check", "a b" + HOSTILE, "{}"],
    "reduce mark": [*REDUCE, "--mark-intermediate", *check("relu", "{}")],
    "reduce hostile paths": ["debug", "reduce", PATH, "-o", f"{hostile('r')}.onnx", *check("relu", "{}")],
    "reduce into nowhere": ["debug", "reduce", PATH, "-o", f"{hostile('no')}/r.onnx", *check("relu", "{}")],
    "reduce limit": [*REDUCE, "--max-checks", "1", *check("relu", "{}", HOSTILE)],
    "reduce replay": [*REDUCE, "--load-debug-replay", "debug_replay.json", *check("relu", "{}")],
    "reduce other replay": [*REDUCE, "--load-debug-replay", "other_replay.json", *check("relu", "{}")],
    "reduce artifacts": [*REDUCE, "--artifacts", hostile("a"), *check("relu", "{}")],
    "reduce order": [*REDUCE, "--order-by", "report.json", *check("relu", "{}")],
    "repeat": ["debug", "repeat", "--until", "2", "--show-output", *check("flaky")],
    "repeat verdict": ["debug", "repeat", "--until", "2", "-v", *check("verdict")],
    "repeat report": [
        "debug",
        "repeat",
        "--until",
        "1",
        "--save-report",
        f"{hostile('r')}.json",
        *check("raises", HOSTILE),
    ],
    "repeat infrastructure": ["debug", "repeat", "--until", "2", *check("infrastructure", HOSTILE)],
    "precision": [*PRECISION, "-o", f"{hostile('mixed')}.onnx", "--list", f"{hostile('l')}.txt", *check("flaky", "{}")],
    "precision passes": [*PRECISION, *check("0", "{}")],
    "precision fails": [*PRECISION, *check("verdict", "{}")],
    "precision loss": [
        *PRECISION,
        "-o",
        "mixed.onnx",
        "--list",
        "l.txt",
        "--check",
        sys.executable,
        "only_low.py",
        "{}",
    ],
    "diagnose": [*DIAGNOSE, "--input-shapes", f"{X}:[2,2]", "--report", f"{hostile('r')}.json"],
    "diagnose json": [*DIAGNOSE, "--input-shapes", f"{X}:[2,2]", "--json", "-v"],
    "diagnose open": DIAGNOSE,
    "diagnose verdict": ["diagnose", PATH, "--dir", FOLDER, *check("verdict", "{}")],
    "diagnose strange": ["diagnose", PATH, "--reference", "--input-shapes", f"{X}:[2,2]", "--dir", "records"],
    "layers": [*LAYERS, "--suspect", FAKE, "--report", f"{hostile('r')}.json", "--csv", f"{hostile('r')}.csv"],
    "layers passes": [*LAYERS, "--suspect", "onnxrt"],
    "layers crash": [*LAYERS, "--suspect", "fake:crash.Relu=SIGSEGV"],
    "layers unknown": ["debug", "layers", "unknown.onnx", "--suspect", "onnxrt"],
    "layers nodes": [*LAYERS, "--suspect", "onnxrt", "--nodes", hostile("(")],
    "flags": [*FLAGS, "-o", f"{hostile('r')}.json", "--engine", "onnxrt", *check("1", "{engine}")],
    "flags by run": [*FLAGS, "--engine", "onnxrt", *check("flaky", "{engine}", HOSTILE)],
    "version package": ["debug", "version", "ordinary.onnx", "--package", hostile("p"), *check("1", "{python}")],
    "version python": [
        *["debug", "version", "ordinary.onnx", "--package", "thing", "--python", hostile("p")],
        *check("1", "{python}"),
    ],
    "workaround": [*WORKAROUND, "-v", "--report", f"{hostile('r')}.json", "--only", "mark", "spelling", "--nodes", T],
    "workaround nodes": [*WORKAROUND, "--nodes", hostile("nodes")],
    "workaround written": ["debug", "workaround", PATH, "--engine", "onnxrt", "-o", FOLDER, *check("1", "{}")],
    "transform": [*TRANSFORM, "-v", "--by", f"{sys.executable} check.py flaky {{}} {{out}}"],
    "transform tool": [*TRANSFORM, "--by", hostile("t")],
    "transform passes": [*TRANSFORM, "--by", "onnxruntime:level=basic", "--passes", hostile("p")],
    "transform check": [
        *["debug", "transform", PATH, "-o", "made.onnx", "--by", "cp {} {out}"],
        *check("1", "{}"),
    ],
    "cache list": ["cache", "list", "-v"],
    "cache clear": ["cache", "clear", "--older-than", hostile("d")],
    "build": [*BUILD, "--until", "2", "--art-dir", FOLDER, *check("flaky", "{}", "{engine}")],
    "build fails": [
        "debug",
        "build",
        "unknown.onnx",
        "--onnxrt",
        "--until",
        "2",
        "--save-tactics",
        "t.json",
        *check("0"),
    ],
    "build vary": [*BUILD, "--until", "1", "--vary", hostile("v"), *check("0", "{}")],
    "build show": [
        "debug",
        "build",
        PATH,
        "--openvino",
        "--until",
        "2",
        "--show-output",
        "-v",
        *check("verdict", "{}"),
    ],
    # changes of models
    "extract path": ["surgeon", "extract", PATH, "-o", f"{hostile('o')}.onnx", "--outputs", f"{T}:auto"],
    "extract unknown": ["surgeon", "extract", PATH, "-o", "o.onnx", "--outputs", f"{hostile('tt')}:auto"],
    "extract input": [
        "surgeon",
        "extract",
        PATH,
        "-o",
        "o.onnx",
        "--inputs",
        f"{T}:auto:auto",
        "--outputs",
        f"{Y}:auto",
    ],
    "extract short": [
        "surgeon",
        "extract",
        PATH,
        "-o",
        "o.onnx",
        "--inputs",
        f"{Y}:auto:auto",
        "--outputs",
        f"{Y}:auto",
    ],
    "extract type": ["surgeon", "extract", PATH, "-o", "o.onnx", "--outputs", f"{T}:{HOSTILE}"],
    "sanitize path": ["surgeon", "sanitize", PATH, "-o", f"{hostile('o')}.onnx", "--fold-constants"],
    "sanitize shapes": ["surgeon", "sanitize", PATH, "-o", "o.onnx", "--override-input-shapes", f"{X}:[1,2]"],
    "sanitize wrong": ["surgeon", "sanitize", PATH, "-o", "o.onnx", "--override-input-shapes", f"{hostile('q')}:[1,2]"],
    "sanitize fallback": ["surgeon", "sanitize", "unknown.onnx", "-o", "o.onnx", "--force-fallback-shape-inference"],
    "capability parts": ["inspect", "capability", "unknown.onnx", "--reference", "-o", hostile("parts")],
    "doctor": ["doctor", hostile("e")],
    "doctor engine": ["doctor", "onnxrt"],
    "demo": ["demo", "-o", FOLDER],
    "help": ["run", "--help"],
}

QUICK_ON_A_TERMINAL = {
    *("run wrong values", "run missing", "run save", "reduce check relu", "reduce check raises", "reduce regex"),
    *("precision", "layers", "flags by run", "repeat", "build", "data odd.npz", "inspect functions", "help"),
}
"""Where more than the way to the stream is another one: lines that change, colours, and some that stand for all."""

TEXTS = {".json", ".csv", ".log"}
"""Files for people and programs: their own escapes hold everything."""

FAMILIES = ("polygraphy ", "sparsity ", "sanitize ", "lint ", "run option ", "run shape ", "run tolerance ", "data ")
"""How the names of cases begin of which there are many alike: the first of each is quick."""
SLOW = {"workaround", "demo", "precision loss", "diagnose", "diagnose json"} | {
    case for family in FAMILIES for case in [name for name in CASES if name.startswith(family)][1:]
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path)
    Path("only_low.py").write_text(
        "import sys, onnx\n"
        "print(open('hostile.txt', newline='').read())\n"
        "sys.exit(any(node.op_type == 'Cast' for node in onnx.load(sys.argv[1]).graph.node))\n"
    )
    return tmp_path


SLOW_ON_A_PIPE = {"precision", "layers", "flags by run", "repeat", "build"}
"""Of the long ones, what shows most: it is quick on a terminal."""


def marks(case: str, kind: str) -> list[pytest.MarkDecorator]:
    slow = case in SLOW or case not in QUICK_ON_A_TERMINAL if kind == "terminal" else case in SLOW | SLOW_ON_A_PIPE
    return [pytest.mark.slow] if slow else []


@pytest.mark.parametrize(
    ("case", "kind"),
    [pytest.param(case, kind, marks=marks(case, kind)) for kind in KINDS for case in CASES],
)
def test_no_command_lets_names_act_on_a_terminal(here: Path, case: str, kind: str) -> None:
    before = set(here.rglob("*"))
    status, shown = shown_by(CASES[case], kind, typed="f\np\n" * 20)
    assert faults(shown, terminal=kind == "terminal") == []
    assert shown
    assert status in range(6)
    assert "biopsy itself failed" not in shown
    for path in set(here.rglob("*")) - before:
        if path.suffix in TEXTS:
            lines = path.read_bytes().decode("ascii").splitlines()
            assert all(line.isprintable() for line in lines), path.suffix


def test_every_command_is_attacked() -> None:
    begun = {tuple(words[:length]) for words in CASES.values() for length in (1, 2)}
    assert {command.words for command in COMMANDS} <= begun
    assert set(CASES) >= QUICK_ON_A_TERMINAL | SLOW
