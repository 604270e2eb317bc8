"""An engine with bugs that are known: a plug-in whose rules, in a file of JSON, say which nodes are wrong, and when.

It computes node by node with the reference evaluator of onnx. A rule is for the nodes that ``op`` names, by operator
or by name, or all nodes for ``any``, and ``does`` is what becomes of their first output, or of the run::

    {"op": "Softmax", "does": "scale", "by": 1.5, "negative": true}

What else must hold: ``marked``: the node's output is an output of the model, or is none; ``after``: an input comes
from a node of this operator; ``before``: this is the operator of its only consumer; ``unless``: a pass of the engine
is on, such as ``pass_a``, or all of a list are; ``above``: an element of its first input is greater; ``negative``: one
is, or none is, below 0; ``rows``: the first input has at least so many rows; ``share``: a random number of this run is
below; ``below``, ``near_zero``: an element is smaller, or nearer to zero; ``exactly``: all are this; ``equal``:
the first two inputs are equal, or are not; ``odd``: the size of this axis is odd; ``dtype``; ``attribute``: values of
attributes; ``every``: this is the n-th run, or a multiple of it, of all that any process made with these rules.
``input`` is the number of the input that these look at, the first by default. ``sleep`` takes ``by``
seconds longer, ``skip`` gives what the node reads. With ``copy``, only the copy
that the run returns is wrong: nodes that read the tensor get the right value.
"""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from biopsy.engines.base import BuiltModel, Engine, ModelInput, Option, Session, switch
from biopsy.model import walk
from biopsy.model.index import index_bytes

_A_HANG = 600.0  # seconds
PASSES = ("pass_a", "pass_b", "pass_c", "pass_d")

Rule = Mapping[str, Any]


class Planted(Engine):
    """The reference evaluator, and the bugs of a file."""

    name = "planted"
    summary = "the reference evaluator with the bugs that a file of rules plants"
    package = "biopsy-planted"
    options_declared = (
        Option("rules", "a file of rules", ""),
        *(Option(name, "what an optimizer would do; rules may depend on it", True, parse=switch) for name in PASSES),
    )

    @classmethod
    def version(cls) -> str:
        """It never changes."""
        return "1.0"

    def build(self, model: ModelInput) -> Session:
        """Load the model; fail here if a rule says so."""
        proto = onnx.load_model_from_string(model.data)
        onnx.external_data_helper.load_external_data_for_model(proto, str(model.folder))
        rules = json.loads(Path(self.options["rules"]).read_text()) if self.options["rules"] else []
        rules = [rule for rule in rules if all(self.options[name] for name in _passes(rule.get("unless", [])))]
        runs = Path(f"{self.options['rules']}.runs") if self.options["rules"] else None
        session = PlantedSession(proto, rules, index_bytes(model.data, model.folder), runs)
        for rule in rules:
            if rule["does"] in ("refuse build", "crash build", "hang build") and any(
                session.holds(rule, n) for n in proto.graph.node
            ):
                if rule["does"] == "crash build":
                    signal.raise_signal(signal.SIGSEGV)
                if rule["does"] == "hang build":
                    time.sleep(_A_HANG)
                raise self.failure(f"no kernel for {rule['op']}", "build", "NotSupported")
        return session


class PlantedSession(BuiltModel):
    """A graph that is computed node by node."""

    gives_new_arrays = True

    def __init__(self, proto: onnx.ModelProto, rules: Sequence[Rule], index: Any, runs: Path | None = None) -> None:
        super().__init__(index.fed_types(), [output.name for output in proto.graph.output])
        self._proto, self._rules, self._runs = proto, rules, runs
        self._marked = {output.name for output in proto.graph.output}
        self._producer = {name: node for node in proto.graph.node for name in node.output if name}
        self._consumers: dict[str, list[onnx.NodeProto]] = {}
        for node in proto.graph.node:
            for name in node.input:
                self._consumers.setdefault(name, []).append(node)
        self._weights = {weight.name: onnx.numpy_helper.to_array(weight) for weight in proto.graph.initializer}

    def holds(self, rule: Rule, node: onnx.NodeProto) -> bool:
        """Whether a rule is for a node, as far as the graph decides that."""
        if rule["op"] not in ("any", node.op_type, node.name):
            return False
        consumers = self._consumers.get(node.output[0], [])
        producers = [self._producer[name].op_type for name in node.input if name in self._producer]
        return (
            ("marked" not in rule or (node.output[0] in self._marked) == rule["marked"])
            and ("after" not in rule or rule["after"] in producers)
            and ("before" not in rule or [consumer.op_type for consumer in consumers] == [rule["before"]])
        )

    def run(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """Compute every node, then do to it what the rules say."""
        values, copies, number = {"": None, **self._weights, **feed}, {}, 0
        if self._runs is not None:
            with self._runs.open("ab") as file:
                file.write(b".")
                number = file.tell()
        for node in self._proto.graph.node:
            outputs = self._computed(node, values)
            for rule in self._rules:
                inputs = [values[name] for name in node.input]
                if number % rule.get("every", 1) == 0 and self.holds(rule, node) and _holds_of(rule, node, inputs):
                    changed = inputs[0] if rule["does"] == "skip" else _changed(rule, outputs[0], node)
                    if rule.get("copy"):
                        copies[node.output[0]] = changed
                    else:
                        outputs = [changed, *outputs[1:]]
            values.update(zip(node.output, outputs, strict=False))
        missing = {rule["op"] for rule in self._rules if rule["does"] == "leave out"}
        values |= copies
        return {
            name: values[name]
            for name in self.outputs
            if name not in self._producer or self._producer[name].op_type not in missing
        }

    def _computed(self, node: onnx.NodeProto, values: Mapping[str, Any]) -> list[Any]:
        read = [name for name in sorted(walk.reads(node)) if name]
        inputs = [
            onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(values[name].dtype), None)
            for name in read
        ]
        outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        graph = onnx.helper.make_graph([node], "node", inputs, outputs)
        alone = onnx.helper.make_model(graph, opset_imports=self._proto.opset_import, functions=self._proto.functions)
        alone.ir_version = self._proto.ir_version
        try:
            results = iter(ReferenceEvaluator(alone).run(None, {name: values[name] for name in read}))
        except Exception as error:  # whatever numpy objects to
            raise Planted.failure(f"{node.op_type}: {error}", "run", type(error).__name__) from error
        return [next(results) if name else None for name in node.output]


def _passes(names: str | list[str]) -> list[str]:
    return [names] if isinstance(names, str) else names


def _holds_of(rule: Rule, node: onnx.NodeProto, inputs: Sequence[Any]) -> bool:
    """Whether a rule holds of what a node reads, of its attributes, and in this run."""
    value = inputs[rule.get("input", 0)] if inputs else None
    attributes = {entry.name: onnx.helper.get_attribute_value(entry) for entry in node.attribute}
    return (
        ("above" not in rule or bool(np.any(value > rule["above"])))
        and ("below" not in rule or bool(np.any(value < rule["below"])))
        and ("near_zero" not in rule or bool(np.any(abs(value) < rule["near_zero"])))
        and ("exactly" not in rule or bool(np.all(value == rule["exactly"])))
        and ("equal" not in rule or np.array_equal(inputs[0], inputs[1]) == rule["equal"])
        and ("odd" not in rule or value.shape[rule["odd"]] % 2 == 1)
        and ("dtype" not in rule or value.dtype == rule["dtype"])
        and all(attributes.get(name) == wanted for name, wanted in rule.get("attribute", {}).items())
        and ("negative" not in rule or bool(np.any(value < 0)) == rule["negative"])
        and ("rows" not in rule or value.shape[0] >= rule["rows"])
        and ("share" not in rule or random.random() < rule["share"])
    )


def _changed(rule: Rule, value: Any, node: onnx.NodeProto) -> Any:
    """A node's output as the rule spoils it."""
    does, by = rule["does"], rule.get("by", 1.5)
    if does == "scale":
        return (value * by).astype(value.dtype)
    if does == "add":
        return (value + by).astype(value.dtype)
    if does in ("nan", "inf", "-inf"):
        spoiled = value.copy()
        spoiled.reshape(-1)[0] = float(does)
        return spoiled
    if does in ("fp16", "bf16"):
        return value.astype(np.float16 if does == "fp16" else ml_dtypes.bfloat16).astype(value.dtype)
    if does == "widen":
        return np.concatenate([value, value[..., :1]], axis=-1)
    if does == "cast":
        return value.astype(by)
    if does == "crash run":
        signal.raise_signal(signal.SIGSEGV)
    if does in ("hang run", "sleep"):
        time.sleep(by if does == "sleep" else _A_HANG)
    np.ones(int(by) if does == "allocate" else 0, np.uint8)
    if does == "refuse run":
        raise Planted.failure(f"{node.op_type} failed", "run", "RuntimeError")
    return value
