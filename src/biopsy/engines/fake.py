"""An engine that fails on request: to try biopsy on any model, and to test it.

It runs ONNX Runtime with its optimizer off, so that only the requested faults are wrong. To make a layer wrong, it
puts nodes behind it: whatever reads the layer, also as an output, gets the wrong value.

The KEY of a setting selects layers: by a node's name, one of its outputs, its operator, or a regular expression for
its name. ``A~B`` selects a B that reads the result of an A.
"""

from __future__ import annotations

import random
import re
import signal
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from biopsy import errors
from biopsy.engines.base import BuiltModel, Engine, ModelInput, Option, Session, count, number, words
from biopsy.engines.registry import create, find_class
from biopsy.model import infer, load, walk
from biopsy.model.tensor_type import FLOATS, TensorType
from biopsy.slow_imports import onnx
from biopsy.tensors.results import Array, Feed

_INSIDE = "onnxrt:optimization=none,threads=1"
"""What computes. One thread, so that a process may be forked after its first session."""

_SIGNALS = ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGKILL", "SIGTERM")


def _share(text: str) -> float:
    value = number(text)
    if not 0 <= value <= 1:
        raise ValueError("a number from 0 to 1 is wanted")
    return value


def _deviation(text: str) -> float:
    value = number(text)
    if not value > 0:
        raise ValueError("a number above 0 is wanted")  # ONNX Runtime ends the process on 0
    return value


@dataclass(frozen=True)
class _Faults:
    """What is to fail in one model: stage -> label of the node; and the settings that select no node in it."""

    refused: Mapping[str, str] = field(default_factory=dict)
    crashing: Mapping[str, str] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()


class Fake(Engine):
    """ONNX Runtime without optimizations, with the faults that options ask for."""

    name = "fake"
    summary = "fails as its options say, to try biopsy and to test it"
    package = "onnxruntime"
    forks_warm = True
    options_declared = (
        Option(
            "scale.KEY", "multiply what layers give; KEY is their name, output, operator or a pattern", parse=number
        ),
        Option("offset.KEY", "add to what layers give, as in offset.Softmax=0.5", parse=number),
        Option(
            "noise.KEY", "relative noise on what layers give: its standard deviation", parse=_deviation, takes="number"
        ),
        Option("nan.KEY", "the share of elements that become NaN", parse=_share, takes="0 to 1"),
        Option("refuse.KEY", "layers that fail, and in which stage", choices=("load", "build", "run")),
        Option(
            "crash.KEY",
            "layers that end the process, as in crash.MatMul~PRelu=run, and in which stage",
            choices=("build", "run"),
        ),
        Option("signal", "how crash ends the process", "SIGSEGV", _SIGNALS),
        Option("unless_marked", "tensors, joined by '+': no fault if one of them is an output", (), parse=words),
        Option("flaky", "in which share of the builds there are faults", 1.0, parse=_share, takes="0 to 1"),
        Option("seed", "of noise; of flaky too: then the same model always fails or never", parse=count),
        Option("sleep_ms", "milliseconds that every run takes longer", 0.0, parse=number),
    )

    @classmethod
    def version(cls) -> str:
        """The version of biopsy. Raises EngineMissing if ONNX Runtime, which it runs, is missing."""
        find_class("onnxrt").version()
        from importlib.metadata import version

        return version("biopsy")

    def build(self, model: ModelInput) -> Session:
        """Build the model with its wrong layers; refuse it or crash if it has a layer for that."""
        faulty, faults = model, _Faults()
        rate, seed = self.options["flaky"], self.options["seed"]
        lot = random.Random(f"{seed} {zlib.crc32(model.data)}" if seed is not None else None)  # noqa: S311
        if lot.random() < rate:
            proto = load.parse(model.data, model.path)
            if not any(output.name in self.options["unless_marked"] for output in proto.graph.output):
                faults = self._faults(proto)
                faulty = self._with_wrong_layers(model, proto)
        self.fail("load", faults)
        self.fail("build", faults)
        with _as_own_failure():
            return FakeSession(create(_INSIDE).build(faulty), self, faults)

    def _faults(self, proto: onnx.ModelProto) -> _Faults:
        """The faults for which the model has a layer, in its graph, a body or a function."""
        refused: dict[str, str] = {}
        crashing: dict[str, str] = {}
        unknown = []
        places: list[Any] = [*walk.graphs(proto), *proto.functions]
        for fault in (*_WRONG, "refuse", "crash"):
            for pattern, value in self.options[fault].items():
                labels = [_label(node) for place in places for node in selected(place.node, pattern)]
                if not labels:
                    unknown.append(f"{fault}.{pattern}")
                elif fault in ("refuse", "crash"):
                    (refused if fault == "refuse" else crashing).setdefault(value, labels[0])
        return _Faults(refused, crashing, tuple(unknown))

    def fail(self, stage: errors.Stage, faults: _Faults) -> None:
        """End the process or raise EngineFailure if a fault asks for it in this stage."""
        if stage in faults.crashing:
            signal.raise_signal(signal.Signals[self.options["signal"]])
        if stage in faults.refused:
            raise self.failure(f"{faults.refused[stage]} is refused", stage, "NotSupported")

    def _with_wrong_layers(self, model: ModelInput, proto: onnx.ModelProto) -> ModelInput:
        """The model with nodes behind each layer of its graph that shall be wrong; the same model if none shall."""
        wrong = [
            (_label(node), output, make, value)
            for fault, make in _WRONG.items()
            for pattern, value in self.options[fault].items()
            for node in selected(proto.graph.node, pattern)
            for output in filter(None, node.output)
        ]
        if not wrong:
            return model
        types = infer.infer_types(proto)
        for number_, (label, output, make, value) in enumerate(wrong):
            type_ = types.get(output, TensorType(1, None))
            if type_.elem in FLOATS:
                seed = zlib.crc32(f"{self.options['seed'] or 0} {label}".encode()) % 1_000_000
                right = f"{output}/right{number_}"
                place, node = next((at, node) for at, node in enumerate(proto.graph.node) if output in node.output)
                node.output[list(node.output).index(output)] = right
                for offset, added in enumerate(make(right, output, value, type_.elem, float(seed)), 1):
                    proto.graph.node.insert(place + offset, added)
        return ModelInput(proto.SerializeToString(), model.folder)


class FakeSession(BuiltModel):
    """A session of ONNX Runtime that may fail while it runs."""

    gives_new_arrays = True

    def __init__(self, session: Session, engine: Fake, faults: _Faults) -> None:
        remarks = [f"the model has no layer for {setting}: nothing goes wrong there" for setting in faults.unknown]
        super().__init__(session.inputs, session.outputs, remarks)
        self._session = session
        self._engine = engine
        self._faults = faults

    def run(self, feed: Feed) -> dict[str, Array]:
        """Run once, after the delay, or fail."""
        time.sleep(self._engine.options["sleep_ms"] / 1000)
        self._engine.fail("run", self._faults)
        with _as_own_failure():
            return self._session.run(feed)


@contextmanager
def _as_own_failure() -> Iterator[None]:
    """Turn failures of the ONNX Runtime inside into failures of this engine, the one that the user named."""
    try:
        yield
    except errors.EngineFailure as failure:
        failure.engine = Fake.name
        raise


def selected(nodes: Sequence[onnx.NodeProto], pattern: str) -> list[onnx.NodeProto]:
    """The nodes that a KEY selects (see the top of this file). Raises UsageError for an invalid expression."""
    matches: list[onnx.NodeProto] = []
    for number_, part in enumerate(pattern.split("~")):
        results = {output for node in matches for output in node.output if output}
        matches = [
            node for node in nodes if _matches(node, part) and (number_ == 0 or results.intersection(node.input))
        ]
    return matches


def _matches(node: onnx.NodeProto, pattern: str) -> bool:
    if pattern in (node.name, node.op_type, *node.output):
        return bool(pattern)
    try:
        return bool(node.name) and re.fullmatch(pattern, node.name) is not None
    except re.error as error:
        raise errors.UsageError(f"engine 'fake': {pattern!r} is not a regular expression: {error}") from error


def _label(node: onnx.NodeProto) -> str:
    return f"{node.op_type} {node.name or next(filter(None, node.output), '')!r}"


# Nodes that read the right value x and compute the wrong one, y.


def _combined(op_type: str, x: str, y: str, value: float, elem: int, seed: float) -> list[onnx.NodeProto]:
    del seed
    return [_constant(f"{x}/by", value, elem), _node(op_type, [x, f"{x}/by"], y)]


def _noisy(x: str, y: str, deviation: float, elem: int, seed: float) -> list[onnx.NodeProto]:
    return [
        _node("RandomNormalLike", [x], f"{x}/normal", dtype=1, mean=1.0, scale=deviation, seed=seed),
        _node("Cast", [f"{x}/normal"], f"{x}/noise", to=elem),
        _node("Mul", [x, f"{x}/noise"], y),
    ]


def _partly_nan(x: str, y: str, share: float, elem: int, seed: float) -> list[onnx.NodeProto]:
    return [
        _node("RandomUniformLike", [x], f"{x}/uniform", dtype=1, seed=seed),
        _constant(f"{x}/share", share, 1),
        _node("Less", [f"{x}/uniform", f"{x}/share"], f"{x}/is_lost"),
        _constant(f"{x}/nan", float("nan"), elem),
        _node("Where", [f"{x}/is_lost", f"{x}/nan", x], y),
    ]


_Fault = Callable[[str, str, float, int, float], "list[onnx.NodeProto]"]
"""Right tensor, wrong tensor, how much, element type, seed -> the nodes between them."""

_WRONG: Mapping[str, _Fault] = {
    "scale": partial(_combined, "Mul"),
    "offset": partial(_combined, "Add"),
    "noise": _noisy,
    "nan": _partly_nan,
}


def _node(op_type: str, inputs: Sequence[str], output: str, **attributes: Any) -> onnx.NodeProto:
    name = f"{inputs[0] if inputs else output}/{op_type}"  # the right tensor, or one made from it: no other has it
    return onnx.helper.make_node(op_type, inputs, [output], name=name, **attributes)


def _constant(name: str, value: float, elem: int) -> onnx.NodeProto:
    return _node("Constant", [], name, value=onnx.helper.make_tensor("", elem, (), [value]))
