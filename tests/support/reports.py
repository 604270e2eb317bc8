"""Reports as a command could have written them: trees of report.json, made by hand from a few facts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

Tree = dict[str, Any]

VERSIONS: Tree = {
    "biopsy": "0.1.0",
    "python": "3.11.7",
    "packages": {"numpy": "2.3.4", "onnx": "1.23.2", "onnxruntime": "1.32.0"},
    "engines": [{"label": "onnxrt", "name": "onnxrt", "version": "1.32.0"}],
    "os": "Debian GNU/Linux 12, x86_64",
    "cpu": "AMD EPYC 9R14",
    "cpu_features": ["avx512_bf16", "avx512_vnni"],
    "gpu": None,
    "driver": None,
}
LINE = (
    "biopsy diagnose model.onnx --engine onnxrt:optimization=none --onnxrt --load-inputs inputs.npz "
    "--atol 1e-3 --rtol 1e-3"
)
REDUCED = "biopsy run piece.onnx --engine onnxrt:optimization=none --onnxrt --load-inputs piece.inputs.npz --atol 1e-3"


def value(name: str, shape: Sequence[int | str | None], dtype: str = "float32") -> Tree:
    return {"name": name, "dtype": dtype, "shape": list(shape)}


def node(op: str, inputs: Sequence[str], output: str, number: int | None = None, **attributes: object) -> Tree:
    return {
        "number": number,
        "name": f"block7/adapter/{op}",
        "op_type": op,
        "domain": "",
        "attributes": {name: str(each) for name, each in attributes.items()},
        "inputs": list(inputs),
        "outputs": [output],
        "bodies": 0,
        "source": None,
    }


def tensor(kind: str, shape: Sequence[int], ratio: float | None = None, values: str | None = None) -> Tree:
    error = None
    if ratio is not None:
        worst = {"index": [27, 13], "actual": 0.7219, "expected": 1.0421, "error": 0.3202}
        error = {"passed": ratio <= 1, "tolerance_ratio": ratio, "absolute": ratio / 500, "worst": worst}
    return {"kind": kind, "dtype": "float32", "shape": list(shape), "values": values, "error": error}


def piece() -> Tree:
    """Six nodes of a layer normalization, the last two of which are wrong."""
    nodes = [
        node("Pow", ["sub", "two"], "pow", 301),
        node("ReduceMean", ["pow", "last"], "mean", 302, keepdims=0, noop_with_empty_axes=0),
        node("Add", ["mean", "eps"], "add", 303),
        node("Sqrt", ["add"], "sqrt", 304),
        node("Div", ["sub", "sqrt"], "div", 305),
        node("Mul", ["div", "gain"], "mul", 306),
    ]
    nodes[1]["source"] = {
        "file": "/home/ada/models/adapter.py",
        "line": 42,
        "function": "Adapter.forward",
        "code": "var = x.pow(2).mean(-1)",
        "scopes": ["blocks.7", "adapter"],
        "classes": ["Block", "Adapter"],
        "by": "torch",
    }
    tensors = {
        "sub": tensor("input", [32, 32], 0.02),
        "two": tensor("weight", [], values="2"),
        "pow": tensor("inner", [32, 32], 0.04),
        "last": {**tensor("weight", [1], values="[-1]"), "dtype": "int64"},
        "mean": tensor("inner", [32], 0.05),
        "eps": tensor("weight", [], values="1e-05"),
        "add": tensor("inner", [32], 0.05),
        "sqrt": tensor("inner", [32], 0.06),
        "div": tensor("inner", [32, 32], 190.4),
        "gain": tensor("weight", [32], values="0.91 to 1.08, mean 1.0"),
        "mul": tensor("output", [32, 32], 188.2),
    }
    return {
        "path": "piece.onnx",
        "sha256": "9c1e" * 16,
        "bytes": 885,
        "inputs_path": "piece.inputs.npz",
        "failure": {"reason": "compare · mismatch · onnxrt"},
        "nodes": nodes,
        "inputs": [value("sub", [32, 32])],
        "outputs": [value("mul", [32, 32])],
        "tensors": tensors,
    }


def whole(count: int = 458, piece_at: Sequence[int] = range(301, 307), wrong: int = 305) -> Tree:
    """A chain with side branches and skips; from ``wrong`` on every third node carries an error on."""
    ops = ["MatMul", "Add", "Relu", "Mul", "ReduceMean", "Softmax"]
    reads = [[i - 1] if i else [] for i in range(count)]
    for i in range(8, count, 8):
        reads[i] = [i - 1, i - 6]
    for i in range(10, count, 16):
        reads[i] = [i - 3]
        reads[min(i + 3, count - 1)] = sorted({min(i + 2, count - 2), i})
    introduced = {str(i): 0.01 + (i % 7) / 100 for i in range(0, count, 5)} | {str(wrong): 190.4}
    carried = {str(i): 190.4 / (1 + (i - wrong) / 20) for i in range(wrong + 1, count, 3)}
    return {
        "ops": ops,
        "op": [i * 7 % len(ops) for i in range(count)],
        "names": [f"encoder/block{i // 40}/attention/{ops[i * 7 % len(ops)]}_{i}" for i in range(count)],
        "reads": reads,
        "piece": list(piece_at),
        "introduced": introduced,
        "propagated": carried,
    }


def search() -> Tree:
    """Bisection from 458 nodes to 8, delta debugging to 6, and a proof that no single node can go."""
    checks: list[Tree] = []
    left, at = 458, 0.3

    def check(stage: str, nodes: int, outcome: str, what: str) -> None:
        nonlocal left, at
        left = nodes if outcome == "reproduced" else left
        at = round(at + 0.05 + 0.0004 * nodes, 3)
        reasons = {
            "reproduced": "compare · mismatch · onnxrt",
            "passed": "exit status 0",
            "another failure": "run · InvalidArgument · onnxrt",
            "cannot say": "the model is invalid: Div reads what nobody writes",
            "timed out": "longer than 8 s",
        }
        checks.append(
            {
                "number": len(checks) + 1,
                "stage": stage,
                "description": what,
                "nodes": nodes,
                "left": left,
                "outcome": outcome,
                "reason": reasons[outcome],
                "at": at,
                "seconds": round(0.05 + 0.0004 * nodes, 3),
            }
        )

    for nodes, outcome in (
        (458, "reproduced"),
        (229, "passed"),
        (343, "reproduced"),
        (286, "passed"),
        (315, "reproduced"),
    ):
        check("bisect", nodes, outcome, f"outputs of the first {nodes} nodes")
    for nodes, outcome in (
        (158, "reproduced"),
        (79, "reproduced"),
        (40, "reproduced"),
        (20, "passed"),
        (30, "reproduced"),
    ):
        check("bisect", nodes, outcome, f"inputs: the last {nodes} nodes")
    check("bisect", 12, "another failure", "inputs: the last 12 nodes")
    check("bisect", 15, "reproduced", "inputs: the last 15 nodes")
    check("bisect", 8, "reproduced", "inputs: the last 8 nodes")
    for nodes, outcome in ((4, "passed"), (4, "cannot say"), (6, "reproduced"), (3, "passed"), (3, "cannot say")):
        check("sets", nodes, outcome, f"{nodes} of the nodes that are left")
    for number in range(6):
        check("linear", 5, "timed out" if number == 4 else "passed", f"without node {301 + number}")
    return {
        "mode": "minimal",
        "nodes": 458,
        "left": 6,
        "passes": [
            {"stage": "bisect", "before": 458, "after": 8, "checks": 13, "seconds": 1.7},
            {"stage": "sets", "before": 8, "after": 6, "checks": 5, "seconds": 0.26},
            {"stage": "linear", "before": 6, "after": 6, "checks": 6, "seconds": 0.31},
        ],
        "checks": checks,
        "outcomes": {"reproduced": 10, "passed": 10, "cannot say": 2, "another failure": 1, "timed out": 1},
        "remembered": 0,
        "stopped": None,
        "flaky": None,
        "verified": {"failed": 3, "runs": 3},
    }


def output(name: str = "logits") -> Tree:
    """An output that fails, with its differences."""
    edges = [10.0**power for power in range(-9, 1)]
    heat = [
        [0.32 * math.exp(-((x - 13) ** 2 + (y - 27) ** 2) / 60) if y % 3 else 0.0 for x in range(32)] for y in range(32)
    ]
    worst = [
        {"index": [27 - i, 13], "actual": 0.7219, "expected": 1.0421 - i / 50, "error": 0.3202 - i / 50}
        for i in range(5)
    ]
    return {
        "name": name,
        "passed": False,
        "reason": "740 of 1024 elements are outside the tolerances",
        "tolerances": {"decide": True, "atol": 1e-3, "rtol": 1e-3, "stat": "elemwise", "quantile": None},
        "measured": {"elements": 1024, "mismatching": 740, "absolute": {"maximum": 0.3202}},
        "differences": {
            "histogram": {"edges": edges, "counts": [2, 9, 31, 60, 88, 120, 260, 340, 90], "zero": 24},
            "heat": {"rows": heat, "axes": [0, 1], "shape": [32, 32]},
            "worst": worst,
        },
    }


def run() -> Tree:
    engines = [
        {"label": "onnxrt:optimization=none", "version": "1.32.0", "seconds": [0.0013], "remarks": [], "failure": None},
        {"label": "onnxrt", "version": "1.32.0", "seconds": [0.00057], "remarks": [], "failure": None},
    ]
    iterations = [{"number": 0, "outputs": [output()], "only_actual": [], "only_expected": []}]
    compared = {"actual": "onnxrt", "expected": "onnxrt:optimization=none", "passed": False, "iterations": iterations}
    noise = {"name": "logits", "verdict": "bug", "ratio": 925000.0, "reason": "far beyond the error of a plain run"}
    return {
        "engines": engines,
        "comparisons": [compared],
        "noise": [{"suspect": "onnxrt", "outputs": [noise]}],
        "not_finite": [],
    }


def steps() -> list[Tree]:
    told = [
        ("fails", "Does it fail?", "done", "output 'logits' of onnxrt is 144 times the tolerance off", 0.9, 1, "run"),
        ("rounding", "Is it rounding?", "done", "no: 925,000 times the rounding error of a plain run", 0.4, 2, "run"),
        ("steady", "Does it always fail?", "done", "in 3 of 3 runs", 0.5, 3, None),
        ("piece", "Which part fails?", "done", "6 of 458 nodes", 2.7, 24, "piece"),
        (
            "layer",
            "Which layer introduces it?",
            "done",
            "none alone: Div and what is before it are fused",
            0.6,
            8,
            "layers",
        ),
        ("setting", "Which setting switches it?", "done", "the optimizer FuseLayerNormalization", 1.9, 24, "settings"),
        ("precision", "Does higher precision mend it?", "skipped", "not a question of precision", 0.0, 0, None),
        ("vary", "What may vary?", "stopped", "the time was over after 31 checks", 4.1, 31, "variation"),
    ]
    keys = ("name", "question", "outcome", "answer", "seconds", "checks", "evidence")
    return [dict(zip(keys, each, strict=True)) for each in told]


def rich() -> Tree:
    """What ``diagnose`` tells of a layer normalization that an optimizer fuses wrongly."""
    mismatch = {"output": "logits", "kind": "mismatch", "elements": 1024, "wrong": 740, "error": 0.458, "index": [8, 4]}
    mismatch |= {"actual": 2.638776, "expected": 2.180648, "times_tolerance": 144.0}
    known = {
        "sentence": "looks like owner/name#7: a fusion is wrong",
        "fingerprint": "k2-0123456789abcdef0123",
        "graph": "x1 = input float32\nn1 = Relu(x1) -> output\n",
        "seen": {"engine": "onnxrt", "release": "1.32.0", "stage": "compare", "kind": "mismatch"},
        "matches": [
            {
                "reference": "owner/name#7",
                "sentence": "looks like owner/name#7: a fusion is wrong",
                "match": "matches",
                "evidence": [
                    {"about": "pattern", "text": "all nodes, and all conditions hold"},
                    {"about": "release", "text": "1.32.0 is known to fail (>=1.20)"},
                    {"about": "see", "text": "https://github.com/owner/name/issues/7"},
                ],
            }
        ],
        "entries": 7,
        "broken": [],
        "undecided": [],
    }
    variation = {
        "sentence": "It fails for any x and any gain; only if keepdims = 0 and the matrix is square.",
        "complete": False,
        "free": [
            {"what": "input", "name": "sub", "text": "any values", "tried": []},
            {"what": "weight", "name": "gain", "text": "any values", "tried": []},
        ],
        "fixed": [
            {"what": "attribute", "name": "keepdims", "text": "0, not 1", "tried": []},
            {"what": "size", "name": "dimension 1 of sub", "text": "as dimension 0", "tried": []},
        ],
    }
    ranked = {
        "nodes": [302, 305],
        "labels": ["ReduceMean_302", "Div_305"],
        "error": {"tolerance_ratio": 190.4, "absolute": 0.32},
    }
    return {
        "biopsy_report": 2,
        "command": "diagnose",
        "line": LINE,
        "status": 1,
        "created": "2026-11-23T04:17:01Z",
        "seconds": 11.1,
        "verdict": {
            "kind": "fails",
            "text": "ONNX Runtime 1.32.0's optimizer FuseLayerNormalization computes something else when ReduceMean "
            "has keepdims = 0 and the matrix is square.",
            "certainty": "High: it fails in 3 of 3 runs, passes without that optimizer, and float64 agrees with the "
            "reference.",
            "workarounds": [
                {
                    "text": "Switch that optimizer off: right on 3 samples.",
                    "line": "biopsy run model.onnx --engine onnxrt:disable=LayerNormFusion --load-inputs inputs.npz",
                }
            ],
            "not_tried": ["Other versions of ONNX Runtime.", "Whether a GPU does the same."],
        },
        "model": {
            "path": "model.onnx",
            "sha256": "51d0" * 16,
            "nodes": 458,
            "ir_version": 8,
            "opsets": {"": 18},
            "inputs": [value("tokens", ["batch", 32], "int64")],
            "outputs": [value("logits", [32, 32])],
            "weight_bytes": 2_100_000,
            "producer": "pytorch 2.9.0",
        },
        "versions": VERSIONS,
        "steps": steps(),
        "failure": {
            "signature": "compare · mismatch · onnxrt",
            "reason": "'logits' of onnxrt differs from onnxrt:optimization=none",
            "engine": "onnxrt",
            "stage": "compare",
            "kind": "mismatch",
            "outputs": ["logits"],
            "mismatches": [mismatch],
            "rounding": {
                "verdict": "bug",
                "times": 925000.0,
                "reason": "925,000 times the rounding error of a plain run",
            },
            "status": 1,
        },
        "piece": piece(),
        "whole": whole(),
        "search": search(),
        "run": run(),
        "layers": {
            "verdict": "wrong",
            "complete": True,
            "reference": {"label": "onnxrt:optimization=none", "version": "1.32.0"},
            "suspect": {"label": "onnxrt", "version": "1.32.0"},
            "first_wrong": {"layer": 305, "tensor": "block7/adapter/Div_out"},
            "ranking": [],
            "groups": [ranked],
            "remarks": ["No layer is wrong alone: an optimizer fuses them."],
        },
        "settings": {
            "engine": "onnxrt",
            "checks": 24,
            "complete": True,
            "optimizers_that_changed_the_model": ["LayerNormFusion"],
            "switches": [
                {"change": "disable=LayerNormFusion", "text": "when LayerNormFusion is disabled", "verified": True}
            ],
            "tried": [
                {"change": "optimization=basic", "outcome": "passed", "reason": "exit status 0"},
                {"change": "optimization=extended", "outcome": "reproduced", "reason": "compare · mismatch · onnxrt"},
                {"change": "disable=LayerNormFusion", "outcome": "passed", "reason": "exit status 0"},
                {"change": "disable=GeluFusion", "outcome": "reproduced", "reason": "compare · mismatch · onnxrt"},
            ],
        },
        "variation": variation,
        "known": known,
        "other_failures": [
            {"reason": "run · InvalidArgument · onnxrt", "times": 1, "model": "biopsy-run/other/1.onnx"}
        ],
        "remarks": [{"text": "the inputs were made up: none were given", "warning": True, "lines": []}],
        "next": [
            {"line": f"{REDUCED} --rtol 1e-3", "why": "see the piece fail"},
            {"line": "biopsy inspect model piece.onnx --mode=full", "why": "read the piece"},
        ],
    }


def crash() -> Tree:
    """An engine dies of a signal."""
    message = "onnxrt ended by signal SIGFPE (floating point exception) while it built the model"
    stack = "\n".join(f"#{n}  0x00007f3a9c{n:04x} in onnxruntime::Conv<float>::Compute ()" for n in range(12))
    return {
        "biopsy_report": 2,
        "command": "debug reduce",
        "line": "biopsy debug reduce model.onnx -o piece.onnx --check biopsy run '{}' --onnxrt",
        "status": 0,
        "seconds": 3.2,
        "verdict": {
            "kind": "reduced",
            "text": f"1 of 74 nodes is enough: {message}.",
            "workarounds": [],
            "not_tried": [],
        },
        "model": {"path": "model.onnx", "nodes": 74, "weight_bytes": 812},
        "failure": {"reason": message, "stage": "run", "kind": "SIGFPE", "status": -8, "output": stack},
        "piece": {
            "path": "piece.onnx",
            "bytes": 118,
            "nodes": [node("Conv", ["x", "w"], "y", 12, group=0, strides=[1, 1])],
            "inputs": [value("x", [1, 3, "height", None])],
            "outputs": [value("y", [1, 8, None, None])],
            "tensors": {"w": tensor("weight", [8, 3, 3, 3], values="all 0")},
        },
        "search": {"mode": "minimal", "nodes": 74, "left": 1, "outcomes": {"reproduced": 9, "passed": 4}},
        "next": [{"line": "biopsy inspect model piece.onnx --mode=full", "why": "read the piece"}],
    }


def build_failure() -> Tree:
    """An engine refuses two nodes."""
    message = "Check 'data.size() == OC' failed at src/plugins/intel_cpu/src/nodes/common/cpu_convert.cpp:412"
    return {
        "biopsy_report": 2,
        "command": "run",
        "line": "biopsy run model.onnx --openvino",
        "status": 1,
        "verdict": {"kind": "fails", "text": "openvino cannot build the model.", "certainty": None},
        "failure": {
            "reason": message,
            "engine": "openvino",
            "stage": "build",
            "kind": "RuntimeError",
            "message": message,
        },
        "run": {
            "engines": [
                {
                    "label": "openvino",
                    "version": "2026.4.1",
                    "seconds": [None],
                    "remarks": ["f16 became f32"],
                    "failure": {"stage": "build", "kind": "RuntimeError", "message": message},
                }
            ],
            "comparisons": [],
        },
    }


def repeated() -> Tree:
    """Runs of a command and builds of a model, some of which fail."""
    choice = {"where": "Conv_3", "kind": "tactic", "value": "0x5f3a"}
    groups = [{"choices": [choice], "bad": 4, "good": 0, "chance": 0.004, "adjusted": 0.03}]
    return {
        **tiny(),
        "verdict": {"kind": "flaky", "text": "4 of 9 builds are bad."},
        "repeat": {
            "command": ["./check.sh", "model.onnx"],
            "iterations": 9,
            "passed": 5,
            "failed": 4,
            "others": {"timed out": 1},
            "pass_rate": 0.56,
            "pass_rate_interval": [0.27, 0.81],
            "failures": [{"reason": "exit status 3", "times": 4, "first": 2}],
        },
        "builds": {
            "engine": "trt",
            "version": "10.9",
            "runs": 9,
            "outcomes": {"passed": 5, "reproduced": 4},
            "seconds": 81.0,
            "difference": {"good": 5, "bad": 4, "tests": 8, "decided": 1, "more_builds": 0, "groups": groups},
        },
    }


def tiny() -> Tree:
    """No more than every report has."""
    return {
        "biopsy_report": 2,
        "command": "run",
        "line": "biopsy run model.onnx",
        "status": 0,
        "verdict": {"kind": "passes"},
    }


def large(count: int = 10_000) -> Tree:
    """A model of so many nodes, and a search of 4,000 checks."""
    tree = rich()
    tree["whole"] = whole(count, piece_at=range(count // 2, count // 2 + 6), wrong=count // 2 + 4)
    checks = tree["search"]["checks"]
    tree["search"]["checks"] = [
        {
            **checks[i % len(checks)],
            "number": i + 1,
            "at": i / 20,
            "left": max(6, count - 3 * i),
            "nodes": max(6, count - 2 * i),
        }
        for i in range(4000)
    ]
    return tree


def from_pytorch() -> Tree:
    """What ``torch`` tells of attention that the exporter translates wrongly."""
    place: Tree = {"file": "/home/me/models.py", "line": 17, "function": "Reader.forward", "module": "readers.0"}
    place |= {"code": "seen = attention(query, key, value, mask)", "operators": ["aten.attention.default"]}
    nodes = [f"MatMul 'node_MatMul_{number}'" for number in range(13)]
    steps = [{"name": "steady", "question": "does the module give the same twice?", "outcome": "done", "answer": "yes"}]
    piece = {"nodes": nodes, "of": 40, "path": "found/piece.onnx", "inputs": None, "bundle": "found/bundle"}
    return {
        "biopsy_report": 2,
        "command": "torch",
        "line": "biopsy torch models:make -o found --report found.html",
        "status": 1,
        "seconds": 7.5,
        "verdict": {"kind": "exporter", "text": "The exported model computes something else than the module."},
        "versions": VERSIONS,
        "steps": [{**step, "seconds": 0.2, "checks": 0} for step in steps],
        "torch": {
            "suspect": "onnxrt",
            "places": [place, {**place, "module": "readers.1"}, {**place, "file": None, "line": None, "code": None}],
            "error": "0.0274 at [0, 4, 1] of 'softmax': 0.9469725, expected 0.9195306",
            "values": {"matched": 14, "of": 44},
            "piece": piece,
            "remarks": ["the module changes its buffers (seen)"],
            "folder": "found",
        },
        "next": [],
    }


ALL: dict[str, Callable[[], Tree]] = {
    "from pytorch": from_pytorch,
    "rich": rich,
    "crash": crash,
    "build failure": build_failure,
    "repeated": repeated,
    "tiny": tiny,
}
