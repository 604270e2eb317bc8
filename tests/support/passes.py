"""A pass over the model by itself: a predicate answers its proposals, as a driver would."""

from collections.abc import Callable
from dataclasses import dataclass

import onnx
import onnxruntime

from biopsy.reduction.passes.common import ModelPass

Predicate = Callable[[onnx.ModelProto], bool]


@dataclass(frozen=True)
class Run:
    """What a pass ended at, and what it tried on the way, in its words."""

    model: onnx.ModelProto
    tried: list[str]


def run_pass(search: ModelPass, model: onnx.ModelProto, fails: Predicate = lambda candidate: True) -> Run:
    """Run a pass once; what it was given and sent must stay as it was."""
    frozen = {0: (model, model.SerializeToString(deterministic=True))}
    tried: list[str] = []
    rounds = search(model)
    answer = None
    while True:
        try:
            changes = rounds.send(answer)
        except StopIteration:
            break
        answer = None
        for change in changes:
            tried.append(change.description)
            if fails(change.model):
                answer = change.model
                frozen[len(frozen)] = (answer, answer.SerializeToString(deterministic=True))
                break
    for given, before in frozen.values():
        assert given.SerializeToString(deterministic=True) == before, "a pass changed a model that is not its own"
    return Run(frozen[len(frozen) - 1][0], tried)


def assert_valid(model: onnx.ModelProto) -> None:
    """ONNX's checker and ONNX Runtime both take it."""
    onnx.checker.check_model(model, full_check=True)
    session(model)


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
