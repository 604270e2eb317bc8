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
from typing import Any, TypeAlias

import numpy as np

from biopsy import errors
from biopsy.engines.base import Engine, ModelInput, Session
from biopsy.engines.registry import create
from biopsy.engines.run_contract import MISSING_OUTPUT, run_by_contract
from biopsy.engines.runner import Inputs, checked_feed, feeds_for
from biopsy.model.index import ModelIndex, index_bytes
from biopsy.model.tensor_type import STRING, TensorType
from biopsy.processes import supervised
from biopsy.processes.server import as_json, from_json
from biopsy.processes.watch import Limits, signal_name
from biopsy.slow_imports import onnx
from biopsy.tensors.results import Array, same_values

__all__ = ["EngineFault", "check_engine", "engine_faults"]


@dataclass(frozen=True, kw_only=True)
class EngineFault:
    """One way in which an engine breaks the contract: the ``rule`` in a few words, and ``how``."""

    rule: str
    how: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.how}"


def check_engine(engine: str, models: Sequence[bytes | onnx.ModelProto] = (), *, timeout: float = 60.0) -> None:
    """Raise AssertionError that lists all faults of an engine; ``engine_faults`` says what is tried."""
    faults = engine_faults(engine, models, timeout=timeout)
    if faults:
        raise AssertionError("\n".join((f"engine {engine!r} breaks the contract of engines:", *map(str, faults))))


def engine_faults(
    engine: str, models: Sequence[bytes | onnx.ModelProto] = (), *, timeout: float = 60.0
) -> tuple[EngineFault, ...]:
    """The faults of an engine, from small models and ``models`` of yours, with random inputs.

    Only the first fault per rule is given. The computed values are not compared with others.

    ``engine`` is a spec such as ``"onnxrt:optimization=none"``. A model that the engine refuses, as it may, is left
    out. On Linux, the engine runs in a fork of this process, where each model may take ``timeout`` seconds; trials end
    with the first that takes longer. Elsewhere, the engine runs in this process, without a limit. Raises EngineMissing
    if it is not installed, UsageError for a wrong option.
    """
    under_test = create(engine)
    given = [model if isinstance(model, bytes) else model.SerializeToString() for model in models]
    named = {f"model {number}": data for number, data in enumerate(given)}
    trials = {"version()": partial(_try_version, under_test)}
    for name, data in {**_small_models(), **named}.items():
        trials[name] = partial(_try_model, under_test, data, is_given=name in named)
    trials["an unknown operator"] = partial(_try_refusal, under_test)
    if supervised.can_call_in_fork():
        faults = _faults_apart(trials, timeout)
    else:
        faults = [fault for name, trial in trials.items() for fault in _faults_in(_answer(name, trial))]
    if all(fault.rule != _BUILT for fault in faults):
        faults.append(EngineFault(rule="builds a model", how="it refuses all; give models= that it takes"))
    first = {fault.rule: fault for fault in reversed(faults) if fault.rule != _BUILT}
    return tuple(first.values())[::-1]


_Faults: TypeAlias = Iterator[tuple[str, object]]
"""Rules that an engine breaks in a trial, and how."""

_BUILT = ""
"""Given in place of a rule once a model was built, or when a trial was cut short."""


def _answer(name: str, trial: Callable[[], _Faults]) -> bytes:
    """The result of a trial for ``_faults_in``, whatever the engine raises or prints."""
    faults: list[tuple[str, object]] = []
    missing = None
    with _printed() as printed:
        try:
            for fault in trial():
                faults.append(fault)  # noqa: PERF402 - faults found before an exception count
        except errors.EngineFailure as failure:
            if failure.kind == MISSING_OUTPUT:
                faults += [(_BUILT, ""), ("gives every output", failure)]
        except errors.EngineMissing as error:
            missing = as_json(error)
        except errors.BiopsyError as error:
            faults.append(("gives arrays by name", error))
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and not supervised.can_call_in_fork():
                raise  # it is the user's; a fork gets none from outside
            faults.append(("raises only its own errors", f"{type(error).__name__}: {error}"))
    if printed:
        faults.append(("prints nothing", repr(printed[0][:80])))
    trees = [{"rule": rule, "how": f"{how} ({name})"} for rule, how in faults]
    return json.dumps({"faults": trees, "missing": missing}).encode()


def _faults_in(answer: bytes) -> list[EngineFault]:
    """The faults in the result of a trial. Raises EngineMissing."""
    tree = json.loads(answer)
    if tree["missing"]:
        raise from_json(tree["missing"])
    return [EngineFault(**fault) for fault in tree["faults"]]


def _faults_apart(trials: Mapping[str, Callable[[], _Faults]], timeout: float) -> list[EngineFault]:
    """Run the trials in a fork, to see engines that end, crash or hang; go on in another fork after that."""
    faults: list[EngineFault] = []
    left = dict(trials)

    def answers() -> Iterator[bytes]:
        """Runs in the fork, where the unhandled signal ends it, whatever native code is doing."""
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        for name, trial in left.items():
            signal.setitimer(signal.ITIMER_REAL, timeout)
            yield _answer(name, trial)

    while left:
        status = 0
        try:
            given = supervised.call_in_fork(answers, Limits(seconds=timeout * (len(left) + 1)))
        except supervised.ForkEndedError as error:
            given, status = error.answers, error.status
            if error.cause == "time":
                status = -signal.SIGALRM  # the engine has blocked the signal
        for name, answer in zip(list(left), given, strict=False):
            faults += _faults_in(answer)
            del left[name]
        if left:
            name = next(iter(left))
            del left[name]
            if status == -signal.SIGALRM:
                how = f"it was killed, and nothing was tried after it ({name})"
                return [*faults, *_cut_short(f"does not end within {timeout:g} s", how)]
            how = f"with status {status}" if status >= 0 else f"by {signal_name(-status)}"
            faults += _cut_short("ends its process", f"{how} ({name})")
    return faults


def _cut_short(rule: str, how: str) -> list[EngineFault]:
    return [EngineFault(rule=_BUILT, how=""), EngineFault(rule=rule, how=how)]


def _try_version(engine: Engine) -> _Faults:
    versions: list[Any] = [engine.version(), engine.version()]
    if not isinstance(versions[0], str):
        yield "tells its version", f"version() gives {versions[0]!r:.80}, and no text"
    elif versions[0] != versions[1]:
        yield "says the same each time", f"version() gives {versions[0]!r}, then {versions[1]!r}"


def _try_model(engine: Engine, data: bytes, *, is_given: bool) -> _Faults:
    """Build a model twice and run it several times; raises what the engine raises."""
    model = ModelInput(data, Path())
    session = engine.build(model)
    yield _BUILT, ""
    index = index_bytes(model.data, model.folder)
    declared = index.fed_types()
    inputs = dict(session.inputs)
    if inputs != declared:
        yield "tells its inputs", f"{inputs} where the model declares {declared}"
        return
    random = Inputs(iterations=2, val_range={"": (-1, 1)})
    first, second = (checked_feed(feed, session.inputs) for feed in feeds_for(session.inputs, random).feeds)
    # The method as the class defines it: the session's own wraps it to enforce the contract, and so hides faults.
    run = partial(unwrap(type(session).run), session)
    # It gets writable copies: a native engine may write to its inputs whatever their flags say.
    lent = {name: value.copy() for name, value in first.items()}
    arrays = dict(lent)
    run(lent)
    changed = [name for name, value in first.items() if not same_values(arrays[name], value)]
    if changed:
        yield "leaves its inputs as they are", f"it writes into {', '.join(changed)}"
        return
    if lent.keys() != first.keys() or any(lent[name] is not arrays[name] for name in lent):
        yield "leaves its inputs as they are", "it changes the dictionary of inputs"
    given, again = (run_by_contract(session, engine.label, run, first) for _ in range(2))
    if given.keys() != again.keys() or not all(same_values(given[name], again[name]) for name in given):
        yield "gives the same again", "other outputs for the same inputs"
    yield from _wrong_types(index, given, None if is_given else first["x"].shape)
    if session.gives_new_arrays:  # then the outputs of one run must survive the next
        given = dict(run(first))
        kept = {name: np.array(value) for name, value in given.items()}
        run(second)
        lost = [name for name, value in given.items() if not same_values(np.asarray(value), kept[name])]
        if lost:
            how = f"the next run writes over {', '.join(lost)}, and gives_new_arrays says that it does not"
            yield "does not use the memory of outputs again", how
    yield from _other_labels(engine, session, engine.build(model))


def _wrong_types(index: ModelIndex, given: Mapping[str, Array], shape: tuple[int, ...] | None) -> _Faults:
    """Faults in element types, and in shapes: all tensors of our models have the same one."""
    for name, value in given.items():
        declared = index.declared_type(name)
        type_ = value.dtype.name
        if isinstance(declared, TensorType) and declared.elem != STRING and type_ != declared.dtype:
            yield "keeps types", f"output {name!r} has type {type_}, expected {declared.dtype}"
        if shape is not None and value.shape != shape:
            yield "keeps shapes", f"output {name!r} has shape {list(value.shape)}, expected {list(shape)}"


def _other_labels(engine: Engine, session: Session, again: Session) -> _Faults:
    """Faults in outputs, remarks and layers: they must be equal for each build, or builds cannot be compared."""
    if list(session.outputs) != list(again.outputs) or list(session.remarks) != list(again.remarks):
        yield "says the same each time", "outputs or remarks differ between two builds"
    if engine.capabilities.layers:
        # Without their names, which some engines number.
        layers = [[(layer.kind, layer.nodes, layer.precision) for layer in side.layers()] for side in (session, again)]
        if layers[0] != layers[1]:
            yield "says the same each time", "layers differ between two builds"


def _try_refusal(engine: Engine) -> _Faults:
    """An unknown operator must be refused as such, in the same way each time."""
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
            yield rule, f"{type(error).__name__} and no EngineFailure: {error}"
            return
        else:
            yield rule, "it builds an operator that does not exist"
            return
    if seen[0][0] not in ("load", "build"):
        yield rule, f"with stage {seen[0][0]!r}; it is load or build"
    if seen[0] != seen[1]:
        yield rule, f"once as {seen[0]}, then as {seen[1]}: a reduction compares these"


@contextmanager
def _printed() -> Iterator[list[str]]:
    """Collect what this process prints, native code included; the list is filled at the end."""
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
    """Models of one or two nodes whose operators nearly every runtime has; a refused one is skipped."""
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
    computed = {output for _, _, output in nodes}
    read = dict.fromkeys(name for _, inputs, _ in nodes for name in inputs if name not in computed)
    inputs = [*read, *([unread] if unread else [])]
    ends = [[onnx.helper.make_tensor_value_info(name, 1, shape) for name in names] for names in (inputs, outputs)]
    protos = [onnx.helper.make_node(op, list(given), [output], name=f"the {op}") for op, given, output in nodes]
    graph = onnx.helper.make_graph(protos, "small", ends[0], ends[1])
    data: bytes = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9
    ).SerializeToString()
    return data
