"""Random failures: predicates on models that a given model has. Some are monotone, some are not."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import numpy as np
import onnx

from fuzz.oracle import Predicate, Values, captures, reads, same_value, values_of


@dataclass(frozen=True)
class Failure:
    """A predicate, in words for a report."""

    text: str
    fails: Predicate


def _operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def _weights(model: onnx.ModelProto) -> set[str]:
    constants = {name for node in model.graph.node if node.op_type == "Constant" for name in node.output}
    return constants | {weight.name for weight in model.graph.initializer}


def _has(operator: str) -> Failure:
    return Failure(f"a {operator} is there", lambda model: operator in _operators(model))


def _has_both(one: str, other: str) -> Failure:
    return Failure(f"{one} and {other} are there", lambda model: {one, other} <= set(_operators(model)))


def _at_least(count: int, operator: str) -> Failure:
    return Failure(f"{count} of {operator} are there", lambda model: _operators(model).count(operator) >= count)


def _reads_from(reader: str, writer: str) -> Failure:
    def fails(model: onnx.ModelProto) -> bool:
        made = {name for node in model.graph.node if node.op_type == writer for name in node.output if name}
        return any(node.op_type == reader and made.intersection(reads(node)) for node in model.graph.node)

    return Failure(f"a {reader} reads what a {writer} computes", fails)


def _all_fed(operator: str) -> Failure:
    """What a folding optimizer hides: the failure goes where an input is a constant."""

    def fails(model: onnx.ModelProto) -> bool:
        constant = _weights(model)
        return any(node.op_type == operator and not constant.intersection(node.input) for node in model.graph.node)

    return Failure(f"a {operator} reads no constant", fails)


def _reads_constant(operator: str) -> Failure:
    def fails(model: onnx.ModelProto) -> bool:
        constant = _weights(model)
        return any(node.op_type == operator and bool(constant.intersection(node.input)) for node in model.graph.node)

    return Failure(f"a {operator} reads a constant", fails)


def _captures(operator: str) -> Failure:
    def fails(model: onnx.ModelProto) -> bool:
        return any(node.op_type == operator and bool(captures(node)) for node in model.graph.node)

    return Failure(f"a body of {operator} captures a tensor", fails)


def _without(wanted: str, unwanted: str) -> Failure:
    """Not monotone: a part without the second fails, and the whole fails too."""

    def fails(model: onnx.ModelProto) -> bool:
        operators = _operators(model)
        return wanted in operators and (unwanted not in operators or len(operators) > 3)

    return Failure(f"{wanted} is there, and {unwanted} is not unless there are more than 3 nodes", fails)


def _open_input(operator: str) -> Failure:
    """A failure that freezing a dimension would lose."""

    def fails(model: onnx.ModelProto) -> bool:
        open_ones = {
            info.name for info in model.graph.input if any(dim.dim_param for dim in info.type.tensor_type.shape.dim)
        }
        return bool(open_ones) and operator in _operators(model)

    return Failure(f"an input has an open dimension and a {operator} is there", fails)


def _three_in_a_row(first: str, second: str, third: str) -> Failure:
    def fails(model: onnx.ModelProto) -> bool:
        made = {name: node for node in model.graph.node for name in node.output}
        for last in model.graph.node:
            middles = [made[name] for name in reads(last) if name in made] if last.op_type == third else []
            for middle in middles:
                before = {made[name].op_type for name in reads(middle) if name in made}
                if middle.op_type == second and first in before:
                    return True
        return False

    return Failure(f"{first}, {second} and {third} stand in a row", fails)


def _anywhere(operator: str) -> Failure:
    def fails(model: onnx.ModelProto) -> bool:
        inner = list(model.graph.node)
        inner += [node for function in model.functions for node in function.node]
        while inner:
            node = inner.pop()
            if node.op_type == operator:
                return True
            inner += [other for attribute in node.attribute for other in attribute.g.node]
        return False

    return Failure(f"a {operator} is there, or in a body or function", fails)


def _value_as_before(tensor: str, before: Values) -> Failure:
    """What tells whether a cut has the value that it had in the original."""

    def fails(model: onnx.ModelProto) -> bool:
        if not any(tensor in node.output for node in model.graph.node):
            return False
        inputs = [info.name for info in model.graph.input]
        if any(name not in before for name in inputs):
            return False
        now = values_of(model, {name: before[name] for name in inputs}).get(tensor)
        return isinstance(now, np.ndarray) and same_value(now, before[tensor])

    return Failure(f"{tensor} is computed as in the original", fails)


def random_failure(random: Random, model: onnx.ModelProto, feeds: Values) -> Failure:
    """A failure that the model has; ``feeds`` are the inputs whose values some failures depend on."""
    operators = _operators(model)
    deep = [node.op_type for function in model.functions for node in function.node]
    deep += [inner.op_type for node in model.graph.node for a in node.attribute for inner in a.g.node]
    values = values_of(model, feeds)
    written = [name for node in model.graph.node for name in node.output if isinstance(values.get(name), np.ndarray)]
    while True:
        one, other = random.choice(operators), random.choice(operators)
        found = random.choice(
            [
                _has(one),
                _has_both(one, other),
                _at_least(random.randint(2, 3), one),
                _reads_from(one, other),
                _all_fed(one),
                _reads_constant(one),
                _captures(one),
                _without(one, other),
                _open_input(one),
                _three_in_a_row(one, other, random.choice(operators)),
                _anywhere(random.choice(deep or operators)),
                _value_as_before(random.choice(written), values) if written else _has(other),
            ]
        )
        if found.fails(model):
            return found
