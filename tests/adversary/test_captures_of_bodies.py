"""Models whose If, Loop and Scan read tensors from around them: every mixed model of precisions stays valid."""

import contextlib
import random
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from biopsy import errors
from biopsy.cli.app import main
from biopsy.model.walk import sort_nodes
from biopsy.questions.precision import task
from biopsy.questions.precision.formats import BF16, FP16, FP32
from biopsy.questions.precision.mixed_models import CastModels, MixedModels, QuantizedModels
from support.models import BOOL, INT64, info, model, save, weight

FEED = {"x": np.array([[0.5, -1.0], [2.0, 0.25]], np.float32), "c": np.array(True)}


class _Captures:
    """Draws a model of float32[2, 2] tensors in which bodies, one in another at times, read whatever stands before."""

    def __init__(self, seed: int) -> None:
        self._lot = random.Random(seed)
        self._count = 0

    def made(self) -> onnx.ModelProto:
        weights = [weight(name, 0.1, 0.7, -0.4, 0.9, shape=(2, 2)) for name in ("w", "v")]
        weights.append(weight("two", 2, dtype="int64", shape=()))
        known = ["x", "w", "v"]
        nodes = [node for _ in range(self._lot.randint(4, 9)) for node in self._layer(known, 2)]
        return model(nodes, [info("x"), info("c", (), BOOL)], [info(known[-1])], weights, opset=21)

    def _name(self, kind: str) -> str:
        self._count += 1
        return f"{kind}{self._count}"

    def _layer(self, known: list[str], depth: int) -> list[onnx.NodeProto]:
        """A node that reads what is known, and is known then; the bodies' own inputs stay theirs."""
        kinds = ["MatMul", "MatMul", "Add", "Mul", "Relu", *(["If", "Loop", "Scan"] if depth else [])]
        kind, given, output = self._lot.choice(kinds), [self._some(known) for _ in range(2)], self._name("t")
        if kind in ("If", "Loop", "Scan"):
            node = getattr(self, f"_{kind.lower()}")(known, depth - 1, given[0], output)
        else:
            node = helper.make_node(kind, given[:1] if kind == "Relu" else given, [output], name=self._name("n"))
        known.append(output)
        return [node]

    def _some(self, known: list[str]) -> str:
        return self._lot.choice(known[-4:] if self._lot.random() < 0.7 else known)

    def _body(self, known: list[str], depth: int) -> tuple[list[onnx.NodeProto], str]:
        inner = list(known)
        nodes = [node for _ in range(self._lot.randint(1, 3)) for node in self._layer(inner, depth)]
        return nodes, inner[-1]

    def _if(self, known: list[str], depth: int, given: str, output: str) -> onnx.NodeProto:
        del given
        branches = {}
        for name in ("then_branch", "else_branch"):
            nodes, last = self._body(known, depth)
            branches[name] = helper.make_graph(nodes, name, [], [info(last)])
        return helper.make_node("If", ["c"], [output], name=self._name("if"), **branches)

    def _loop(self, known: list[str], depth: int, given: str, output: str) -> onnx.NodeProto:
        trip, go, carried, on = (self._name(kind) for kind in ("trip", "go", "carried", "on"))
        nodes, last = self._body([*known, carried], depth)
        body = helper.make_graph(
            [helper.make_node("Identity", [go], [on]), *nodes],
            "body",
            [info(trip, (), INT64), info(go, (), BOOL), info(carried)],
            [info(on, (), BOOL), info(last)],
        )
        return helper.make_node("Loop", ["two", "", given], [output], name=self._name("loop"), body=body)

    def _scan(self, known: list[str], depth: int, given: str, output: str) -> onnx.NodeProto:
        state, row, out, summed = (self._name(kind) for kind in ("state", "row", "out", "sum"))
        nodes, last = self._body([*known, state], depth)
        nodes += [helper.make_node("Add", [last, row], [summed]), helper.make_node("Identity", [row], [out])]
        body = helper.make_graph(nodes, "body", [info(state), info(row, (2,))], [info(summed), info(out, (2,))])
        unused = self._name("rows")
        return helper.make_node(
            "Scan", [given, "x"], [output, unused], name=self._name("scan"), num_scan_inputs=1, body=body
        )


def mixed_models(made: onnx.ModelProto, low: str) -> MixedModels:
    if low == "int8":
        return QuantizedModels(made, Path(), {}, [FEED])
    kind, form = low.split()
    return CastModels(made, {"fp16": FP16, "bf16": BF16}[kind], FP32, form, Path(), {})  # type: ignore[arg-type]


@pytest.mark.parametrize("low", ["int8", "fp16 emulate", "fp16 native", "bf16 emulate", "bf16 native"])
@pytest.mark.parametrize("seed", range(12))
def test_every_mixture_of_a_model_with_captures_is_accepted_by_the_checker(seed: int, low: str) -> None:
    made = _Captures(seed).made()
    onnx.checker.check_model(made, full_check=True)
    mixed = mixed_models(made, low)
    lot, numbers = random.Random(seed), [layer.number for layer in mixed.layers]
    for high in (set[int](), *({n for n in numbers if lot.random() < 0.5} for _ in range(3))):
        found = onnx.ModelProto.FromString(b"".join(mixed.parts(frozenset(high))))
        onnx.checker.check_model(found, full_check=True)
        _require_loadable(found)


def _require_loadable(found: onnx.ModelProto) -> None:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    a_kernel_is_missing = onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented  # as for bfloat16
    with contextlib.suppress(a_kernel_is_missing):
        onnxruntime.InferenceSession(found.SerializeToString(), options, providers=["CPUExecutionProvider"])


def captured_before_it_is_computed() -> onnx.ModelProto:
    """An If whose branches read what a MatMul computes that int8 puts QuantizeLinear before."""
    branches = {
        name: helper.make_graph([helper.make_node(kind, ["m"], ["t"])], name, [], [info("t")])
        for name, kind in (("then_branch", "Neg"), ("else_branch", "Exp"))
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], name="matmul"),
        helper.make_node("If", ["c"], ["i"], name="if", **branches),
        helper.make_node("Add", ["i", "x"], ["y"], name="add"),
    ]
    return model(nodes, [info("x"), info("c", (), BOOL)], [info("y")], [weight("w", 0.1, 0.2, 0.3, 0.4, shape=(2, 2))])


def test_an_int8_result_that_is_called_verified_is_accepted_by_the_checker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save(captured_before_it_is_computed(), Path("m.onnx"))
    assert main(["run", "m.onnx", "--onnxrt", "--save-inputs", "i.json", "--save-outputs", "golden.json"]) == 0
    check = ("biopsy", "run", "{}", "--onnxrt", "--load-inputs", "i.json", "--load-outputs", "golden.json")
    status = main(["debug", "precision", "m.onnx", "--int8", "-o", "o.onnx", "--check", *check, "--atol", "0.5"])
    assert status == 0 and "verified" in capsys.readouterr().out
    found = onnx.load("o.onnx")
    assert any(node.op_type == "QuantizeLinear" for node in found.graph.node)
    onnx.checker.check_model(found, full_check=True)


def test_a_result_that_the_checker_refuses_is_never_called_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sorting is taken away, so that the quantizer's own order is written, as it once was."""
    monkeypatch.setattr("biopsy.questions.precision.mixed_models.sort_nodes", lambda nodes: None)
    monkeypatch.chdir(tmp_path)
    save(captured_before_it_is_computed(), Path("m.onnx"))
    status = main(["debug", "precision", "m.onnx", "--int8", "-o", "o.onnx", "--check", "true", "{}"])
    said = "".join(capsys.readouterr())
    assert status == 4 and "onnx.checker refuses it" in said and "verified   o.onnx" not in said


def test_what_the_checker_refused_before_may_be_refused_after() -> None:
    bad, good = model([], [info("x")], [info("y")]), captured_before_it_is_computed()
    pieces = [[made.SerializeToString()] for made in (bad, good)]
    task.require_valid(pieces[0], pieces[0], None)
    task.require_valid(pieces[1], pieces[1], None)
    with pytest.raises(errors.CheckError, match="refuses it"):
        task.require_valid(pieces[0], pieces[1], None)


def test_nodes_that_stand_in_order_are_left_as_they_are_and_others_are_put_in_order() -> None:
    made = _Captures(5).made()
    before = [node.name for node in made.graph.node]
    sort_nodes(made.graph.node)
    assert [node.name for node in made.graph.node] == before
    backwards = list(made.graph.node)[::-1]
    del made.graph.node[:]
    made.graph.node.extend(backwards)
    sort_nodes(made.graph.node)
    onnx.checker.check_model(made)
