"""What an engine must do, as a test: for the author of a plug-in.

from biopsy.testing import check_engine

def test_my_engine_keeps_the_contract():
    check_engine("myengine")
"""

from __future__ import annotations

import os
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
from biopsy.engines.feeding import Inputs, feeds_for
from biopsy.engines.registry import create
from biopsy.engines.run_contract import MISSING_OUTPUT, run_by_contract
from biopsy.engines.runner import checked_feed
from biopsy.model.index import index_bytes
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


def check_engine(engine: str, models: Sequence[bytes | onnx.ModelProto] = ()) -> None:
    """Raise AssertionError that names everything an engine does wrong; ``engine_faults`` says what is tried."""
    faults = engine_faults(engine, models)
    if faults:
        raise AssertionError("\n".join((f"engine {engine!r} breaks the contract of engines:", *map(str, faults))))


def engine_faults(engine: str, models: Sequence[bytes | onnx.ModelProto] = ()) -> tuple[EngineFault, ...]:
    """What an engine does wrong, tried on small models and on ``models`` of yours, with random inputs.

    Of each rule that it breaks, the first time is told.

    ``engine`` is a spec such as ``"onnxrt:optimization=none"``. A model that the engine refuses, as it may, is left
    out. The engine runs in this process. Raises EngineMissing if it is not installed, UsageError for a wrong option.
    """
    made = create(engine)
    made.version()
    given = [model if isinstance(model, bytes) else model.SerializeToString() for model in models]
    faults: list[EngineFault] = []
    tried = 0
    named = {f"model {number}": data for number, data in enumerate(given)}
    for name, data in {**_small_models(), **named}.items():
        trial = _ModelInEngine(made, name, data, is_given=name in named)
        tried += trial.has_built
        faults += trial.faults
    if not tried:
        faults.append(EngineFault(rule="builds a model", how="it refuses all; give models= that it takes"))
    faults += _faults_of_refusal(made)
    unlike = [] if made.version() == made.version() else ["its version is another one each time"]
    faults += [EngineFault(rule="says the same each time", how=how) for how in unlike]
    return tuple({fault.rule: fault for fault in reversed(faults)}.values())[::-1]


class _ModelInEngine:
    """One model, built twice and run three times by an engine."""

    def __init__(self, engine: Engine, name: str, data: bytes, *, is_given: bool) -> None:
        self._engine = engine
        self._is_given = is_given
        self._name = name
        self._model = ModelInput(data, Path())
        self.faults: list[EngineFault] = []
        self.has_built = False
        with _printed() as printed:
            try:
                self._try()
            except errors.EngineFailure as failure:
                if failure.kind == MISSING_OUTPUT:
                    self.has_built = True
                    self.faults.append(self._fault("gives every output", failure))
            except errors.EngineMissing:
                raise
            except errors.BiopsyError as error:
                self.faults.append(self._fault("gives arrays by name", error))
            except Exception as error:
                self.faults.append(self._fault("raises only its own errors", f"{type(error).__name__}: {error}"))
        if printed:
            self.faults.append(self._fault("prints nothing", repr(printed[0][:80])))

    def _fault(self, rule: str, how: object) -> EngineFault:
        return EngineFault(rule=rule, how=f"{how} ({self._name})")

    def _try(self) -> None:
        session = self._engine.build(self._model)
        self.has_built = True
        if not self._tells_inputs(session):
            return
        first, second = self._feeds(session)
        # As a class defines it: what is called in a session is held to the contract, and hides what is tried here.
        run = partial(unwrap(type(session).run), session)
        if self._writes_into_inputs(run, first):
            return
        given = run_by_contract(session, self._engine.label, run, first)
        again = run_by_contract(session, self._engine.label, run, first)
        if given.keys() != again.keys() or not all(same_values(given[name], again[name]) for name in given):
            self.faults.append(self._fault("gives the same again", "other outputs for the same inputs"))
        if not self._is_given and any(value.shape != first["x"].shape for value in given.values()):
            self.faults.append(self._fault("keeps shapes", f"{[list(value.shape) for value in given.values()]}"))
        if session.gives_new_arrays:
            self._require_new_arrays(run, first, second)
        self._require_same_labels(session)

    def _feeds(self, session: Session) -> list[dict[str, Array]]:
        random = Inputs(iterations=2, val_range={"": (-1, 1)})
        return [checked_feed(feed, session.inputs) for feed in feeds_for(session.inputs, random).feeds]

    def _tells_inputs(self, session: Session) -> bool:
        index = index_bytes(self._model.data, self._model.folder)
        declared = index.fed_types()
        told = dict(session.inputs)
        if told != declared:
            self.faults.append(self._fault("tells its inputs", f"{told} where the model declares {declared}"))
        return told == declared

    def _writes_into_inputs(self, run: Callable[[Any], Any], feed: Mapping[str, Array]) -> bool:
        """Whether an engine changes arrays that it may write to: as a native one does, whatever their flags say."""
        lent = {name: value.copy() for name, value in feed.items()}
        arrays = dict(lent)
        run(lent)
        changed = [name for name, value in feed.items() if not same_values(arrays[name], value)]
        if changed:
            self.faults.append(self._fault("leaves its inputs as they are", f"it writes into {', '.join(changed)}"))
        elif lent.keys() != feed.keys() or any(lent[name] is not arrays[name] for name in lent):
            self.faults.append(self._fault("leaves its inputs as they are", "it changes the dictionary of inputs"))
        return bool(changed)

    def _require_new_arrays(self, run: Callable[[Any], Any], *feeds: Mapping[str, Array]) -> None:
        """What ``gives_new_arrays`` promises: the outputs of one run are there after the next."""
        given = dict(run(feeds[0]))
        kept = {name: np.array(value) for name, value in given.items()}
        run(feeds[1])
        lost = [name for name, value in given.items() if not same_values(np.asarray(value), kept[name])]
        if lost:
            how = f"the next run writes over {', '.join(lost)}, and gives_new_arrays says that it does not"
            self.faults.append(self._fault("does not use the memory of outputs again", how))

    def _require_same_labels(self, session: Session) -> None:
        """What is told of a model must be the same for each build, or records of builds cannot be compared."""
        other = self._engine.build(self._model)
        if list(session.outputs) != list(other.outputs) or list(session.remarks) != list(other.remarks):
            self.faults.append(self._fault("says the same each time", "outputs or remarks differ between two builds"))
        if self._engine.capabilities.layers:
            # Not their names: some engines number what they make.
            told = [
                [(layer.kind, layer.nodes, layer.precision) for layer in each.layers()] for each in (session, other)
            ]
            if told[0] != told[1]:
                self.faults.append(self._fault("says the same each time", "layers differ between two builds"))


def _faults_of_refusal(engine: Engine) -> Iterator[EngineFault]:
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
            yield EngineFault(rule=rule, how=f"{type(error).__name__} and no EngineFailure: {error}")
            return
        else:
            yield EngineFault(rule=rule, how="it builds an operator that does not exist")
            return
    if seen[0][0] not in ("load", "build"):
        yield EngineFault(rule=rule, how=f"with stage {seen[0][0]!r}; it is load or build")
    if seen[0] != seen[1]:
        yield EngineFault(rule=rule, how=f"once as {seen[0]}, then as {seen[1]}: a reduction compares these")


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
