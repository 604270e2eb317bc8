"""What an engine must do, as a test: for the author of a plug-in.

from biopsy.testing import check_engine

def test_my_engine_keeps_the_contract():
    check_engine("myengine")
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from inspect import unwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from biopsy import errors
from biopsy.engines.base import Engine, ModelInput, Session
from biopsy.engines.registry import create
from biopsy.engines.run_contract import MISSING_OUTPUT, run_by_contract
from biopsy.engines.runner import Inputs, checked_feed, feeds_for
from biopsy.model.index import index_bytes
from biopsy.model.tensor_type import STRING, TensorType
from biopsy.processes import supervised
from biopsy.processes.server import as_json, from_json
from biopsy.processes.watch import Limits, signal_name
from biopsy.tensors.results import Array, same_values

if TYPE_CHECKING:
    import onnx

__all__ = ["EngineFault", "check_engine", "engine_faults"]


@dataclass(frozen=True, kw_only=True)
class EngineFault:
    """One thing that an engine does wrong: the rule that it breaks, in a few words, and how."""

    rule: str
    how: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.how}"


def check_engine(engine: str, models: Sequence[bytes | onnx.ModelProto] = (), *, timeout: float = 60.0) -> None:
    """Raise AssertionError that names everything an engine does wrong; ``engine_faults`` says what is tried."""
    faults = engine_faults(engine, models, timeout=timeout)
    if faults:
        raise AssertionError("\n".join((f"engine {engine!r} breaks the contract of engines:", *map(str, faults))))


def engine_faults(
    engine: str, models: Sequence[bytes | onnx.ModelProto] = (), *, timeout: float = 60.0
) -> tuple[EngineFault, ...]:
    """What an engine does wrong, tried on small models and on ``models`` of yours, with random inputs.

    Of each rule that it breaks, the first time is told. The values that it gives are not compared with any.

    ``engine`` is a spec such as ``"onnxrt:optimization=none"``. A model that the engine refuses, as it may, is left
    out. On Linux the engine runs in a fork of this process, where each model may take ``timeout`` seconds; the first
    that takes longer is the last one tried. Elsewhere the engine runs in this process, without a limit. Raises
    EngineMissing if it is not installed, UsageError for a wrong option.
    """
    made = create(engine)
    given = [model if isinstance(model, bytes) else model.SerializeToString() for model in models]
    named = {f"model {number}": data for number, data in enumerate(given)}
    trials = [_EngineTrial("version()", partial(_try_version, made))]
    for name, data in {**_small_models(), **named}.items():
        trials.append(_EngineTrial(name, _ModelInEngine(made, data, is_given=name in named).try_in))
    trials.append(_EngineTrial("an unknown operator", partial(_try_refusal, made)))
    if supervised.is_apart_possible():
        _try_apart(trials, timeout)
    else:
        for trial in trials:
            trial.take(trial.answer())
    faults = [fault for trial in trials for fault in trial.faults]
    if not any(trial.has_built or trial.is_cut_short for trial in trials):
        faults.append(EngineFault(rule="builds a model", how="it refuses all; give models= that it takes"))
    return tuple({fault.rule: fault for fault in reversed(faults)}.values())[::-1]


class _EngineTrial:
    """One thing that is tried, and what the engine did wrong in it."""

    def __init__(self, name: str, work: Callable[[_EngineTrial], None]) -> None:
        self.name = name
        self._work = work
        self.faults: list[EngineFault] = []
        self.has_built = False
        self.is_cut_short = False

    def add(self, rule: str, how: object) -> None:
        """Tell a fault."""
        self.faults.append(EngineFault(rule=rule, how=f"{how} ({self.name})"))

    def answer(self) -> bytes:
        """Try it, whatever the engine raises or prints; what came of it, for ``take``."""
        missing = None
        with _printed() as printed:
            try:
                self._work(self)
            except errors.EngineFailure as failure:
                if failure.kind == MISSING_OUTPUT:
                    self.has_built = True
                    self.add("gives every output", failure)
            except errors.EngineMissing as error:
                missing = as_json(error)
            except errors.BiopsyError as error:
                self.add("gives arrays by name", error)
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt) and not supervised.is_apart_possible():
                    raise  # it is the user's; a fork gets none from outside
                self.add("raises only its own errors", f"{type(error).__name__}: {error}")
        if printed:
            self.add("prints nothing", repr(printed[0][:80]))
        faults = [(fault.rule, fault.how) for fault in self.faults]
        return json.dumps({"faults": faults, "has_built": self.has_built, "missing": missing}).encode()

    def take(self, answer: bytes) -> None:
        """Take over what a fork has answered. Raises EngineMissing."""
        given = json.loads(answer)
        if given["missing"]:
            raise from_json(given["missing"])
        self.has_built = given["has_built"]
        self.faults = [EngineFault(rule=rule, how=how) for rule, how in given["faults"]]


def _try_apart(trials: Sequence[_EngineTrial], timeout: float) -> None:
    """Try in a fork, so that an engine that ends, crashes or hangs is told like any other; in another one after it."""
    left = list(trials)
    while left:
        status = 0
        try:
            answers = supervised.call_apart(partial(_answers, left, timeout), Limits(seconds=timeout * (len(left) + 1)))
        except supervised.EndedApartError as error:
            answers, status = error.answers, error.status
            if error.cause == "time":
                status = -signal.SIGALRM  # which it has blocked
        for trial, answer in zip(left, answers, strict=False):
            trial.take(answer)
        left = left[len(answers) :]
        if not left:
            return
        cut_short = left.pop(0)
        cut_short.is_cut_short = True
        if status == -signal.SIGALRM:
            cut_short.add(f"does not end within {timeout:g} s", "it was killed, and nothing was tried after it")
            return
        how = f"with status {status}" if status >= 0 else f"by {signal_name(-status)}"
        cut_short.add("ends its process", how)


def _answers(trials: Sequence[_EngineTrial], timeout: float) -> Iterator[bytes]:
    """In the fork: a signal that nobody handles ends it, whatever native code is doing."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for trial in trials:
        signal.setitimer(signal.ITIMER_REAL, timeout)
        yield trial.answer()


def _try_version(engine: Engine, trial: _EngineTrial) -> None:
    versions: list[Any] = [engine.version(), engine.version()]
    if not isinstance(versions[0], str):
        trial.add("tells its version", f"version() gives {versions[0]!r:.80}, and no text")
    elif versions[0] != versions[1]:
        trial.add("says the same each time", f"version() gives {versions[0]!r}, then {versions[1]!r}")


class _ModelInEngine:
    """One model, built twice and run several times by an engine."""

    def __init__(self, engine: Engine, data: bytes, *, is_given: bool) -> None:
        self._engine = engine
        self._is_given = is_given
        self._model = ModelInput(data, Path())

    def try_in(self, trial: _EngineTrial) -> None:
        """Try what is asked of a session; raises what the engine does."""
        self._trial = trial
        session = self._engine.build(self._model)
        trial.has_built = True
        index = index_bytes(self._model.data, self._model.folder)
        declared = index.fed_types()
        told = dict(session.inputs)
        if told != declared:
            self._trial.add("tells its inputs", f"{told} where the model declares {declared}")
        if told != declared:
            return
        first, second = self._feeds(session)
        # As a class defines it: what is called in a session is held to the contract, and hides what is tried here.
        run = partial(unwrap(type(session).run), session)
        # It is lent arrays that it may write to: a native engine does so whatever their flags say.
        lent = {name: value.copy() for name, value in first.items()}
        arrays = dict(lent)
        run(lent)
        changed = [name for name, value in first.items() if not same_values(arrays[name], value)]
        if changed:
            self._trial.add("leaves its inputs as they are", f"it writes into {', '.join(changed)}")
        elif lent.keys() != first.keys() or any(lent[name] is not arrays[name] for name in lent):
            self._trial.add("leaves its inputs as they are", "it changes the dictionary of inputs")
        if changed:
            return
        given = run_by_contract(session, self._engine.label, run, first)
        again = run_by_contract(session, self._engine.label, run, first)
        if given.keys() != again.keys() or not all(same_values(given[name], again[name]) for name in given):
            trial.add("gives the same again", "other outputs for the same inputs")
        self._require_types(given, first)
        if session.gives_new_arrays:
            self._require_new_arrays(run, first, second)
        self._require_same_labels(session)

    def _require_types(self, given: Mapping[str, Array], feed: Mapping[str, Array]) -> None:
        """Element types as the model declares them; of our models, all tensors have the shape of the inputs too."""
        index = index_bytes(self._model.data, self._model.folder)
        for name, value in given.items():
            declared = index.declared_type(name)
            type_ = value.dtype.name
            if isinstance(declared, TensorType) and declared.elem != STRING and type_ != declared.dtype:
                self._trial.add("keeps types", f"output {name!r} has type {type_}, expected {declared.dtype}")
            if not self._is_given and value.shape != feed["x"].shape:
                shapes = f"{list(value.shape)}, expected {list(feed['x'].shape)}"
                self._trial.add("keeps shapes", f"output {name!r} has shape {shapes}")

    def _feeds(self, session: Session) -> list[dict[str, Array]]:
        random = Inputs(iterations=2, val_range={"": (-1, 1)})
        return [checked_feed(feed, session.inputs) for feed in feeds_for(session.inputs, random).feeds]

    def _require_new_arrays(self, run: Callable[[Any], Any], *feeds: Mapping[str, Array]) -> None:
        """What ``gives_new_arrays`` promises: the outputs of one run are there after the next."""
        given = dict(run(feeds[0]))
        kept = {name: np.array(value) for name, value in given.items()}
        run(feeds[1])
        lost = [name for name, value in given.items() if not same_values(np.asarray(value), kept[name])]
        if lost:
            how = f"the next run writes over {', '.join(lost)}, and gives_new_arrays says that it does not"
            self._trial.add("does not use the memory of outputs again", how)

    def _require_same_labels(self, session: Session) -> None:
        """What is told of a model must be the same for each build, or records of builds cannot be compared."""
        other = self._engine.build(self._model)
        if list(session.outputs) != list(other.outputs) or list(session.remarks) != list(other.remarks):
            self._trial.add("says the same each time", "outputs or remarks differ between two builds")
        if self._engine.capabilities.layers:
            # Not their names: some engines number what they make.
            told = [
                [(layer.kind, layer.nodes, layer.precision) for layer in each.layers()] for each in (session, other)
            ]
            if told[0] != told[1]:
                self._trial.add("says the same each time", "layers differ between two builds")


def _try_refusal(engine: Engine, trial: _EngineTrial) -> None:
    """An operator that nobody has must be refused as such, in the same way each time."""
    rule = "refuses what it does not know"
    if not engine.capabilities.computes:
        return
    seen = []
    for _ in range(2):
        try:
            engine.build(ModelInput(_graph([("NoSuchOperator", ["x"], "y")], ["y"]), Path()))
        except errors.EngineFailure as failure:
            seen.append((failure.stage, failure.kind))
        except Exception as error:
            trial.add(rule, f"{type(error).__name__} and no EngineFailure: {error}")
            return
        else:
            trial.add(rule, "it builds an operator that does not exist")
            return
    if seen[0][0] not in ("load", "build"):
        trial.add(rule, f"with stage {seen[0][0]!r}; it is load or build")
    if seen[0] != seen[1]:
        trial.add(rule, f"once as {seen[0]}, then as {seen[1]}: a reduction compares these")


@contextmanager
def _printed() -> Iterator[list[str]]:
    """What this process prints meanwhile, once it is over: native code too."""
    lines: list[str] = []
    kept = os.dup(1), os.dup(2)
    with tempfile.TemporaryFile("w+", errors="replace") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
        try:
            with redirect_stdout(file), redirect_stderr(file):
                yield lines
        finally:
            file.flush()
            for number, old in zip((1, 2), kept, strict=True):
                os.dup2(old, number)
                os.close(old)
            file.seek(0)
            lines += file.read().splitlines()


def _small_models() -> Mapping[str, bytes]:
    """Models of one or two nodes of the operators that nearly every runtime has; each is tried if it is taken."""
    chain = [("Relu", ["x"], "b"), ("Tanh", ["b"], "a")]
    return {
        "Identity": _graph([("Identity", ["x"], "y")], ["y"]),
        "Relu": _graph([("Relu", ["x"], "y")], ["y"]),
        "Relu and Tanh, two outputs": _graph(chain, ["b", "a"]),
        "Add of two inputs": _graph([("Add", ["x", "z"], "y")], ["y"]),
        "MatMul": _graph([("MatMul", ["x", "z"], "y")], ["y"]),
        "Relu of an open dimension": _graph([("Relu", ["x"], "y")], ["y"], ("N", 3)),
        "Relu of a scalar": _graph([("Relu", ["x"], "y")], ["y"], ()),
        "an input that nothing reads": _graph([("Relu", ["x"], "y")], ["y"], unread="z"),
    }


def _graph(
    nodes: Sequence[tuple[str, Sequence[str], str]],
    outputs: Sequence[str],
    shape: Sequence[int | str] = (3, 3),
    unread: str | None = None,
) -> bytes:
    from onnx import helper

    made = {output for _, _, output in nodes}
    read = dict.fromkeys(name for _, inputs, _ in nodes for name in inputs if name not in made)
    inputs = [*read, *([unread] if unread else [])]
    ends = [[helper.make_tensor_value_info(name, 1, shape) for name in names] for names in (inputs, outputs)]
    made_nodes = [helper.make_node(op, list(given), [output], name=f"the {op}") for op, given, output in nodes]
    graph = helper.make_graph(made_nodes, "small", ends[0], ends[1])
    data: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    ).SerializeToString()
    return data
