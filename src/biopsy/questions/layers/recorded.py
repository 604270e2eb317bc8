"""The reference engine's values of a model's tensors, recorded batch by batch in mapped files."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np

from biopsy import errors, events
from biopsy.comparison import metrics
from biopsy.engines.base import GivenTensors, ModelInput
from biopsy.engines.registry import create
from biopsy.engines.worker import CANNOT_RUN, Worker
from biopsy.model.extract import mark_outputs
from biopsy.model.index import ModelIndex
from biopsy.model.known_names import listed
from biopsy.model.load import read_bytes
from biopsy.model.nodes import is_constant_node
from biopsy.model.tensor_type import STRING, TensorType
from biopsy.questions.layers.findings import GoldenCoverage, TensorError
from biopsy.questions.layers.question import Judge, Question
from biopsy.recording.reference_run import StoredValues, ValuesInMemory
from biopsy.recording.types import CutTypes
from biopsy.tensors.files import write_feeds
from biopsy.tensors.recording import AppendableStore, Batch, Disagreement, Request, record, results_of, tensor_sizes
from biopsy.tensors.results import Array, Feed, release
from biopsy.tensors.types import dtype_named, is_text

_MOST_REFUSED = 8


class ReferenceRecorder:
    """Records the reference's values in files in ``folder``, with at most ``question.limit`` bytes in memory."""

    def __init__(self, question: Question, reference: Worker, folder: Path, listener: events.Listener) -> None:
        self._question = question
        self._index = question.index
        self._reference = reference
        self._folder = folder
        self._listener = listener
        self._inputs = folder / "inputs.safetensors"
        self._samples = 0
        self._refused: list[str] = []
        self._differing: set[str] = set()

    def record(self, feeds: Sequence[Feed]) -> RecordedModel:
        """Record the tensors that subgraphs need for every feed, as far as the engine gives them.

        Raises CannotCompare if the engine cannot run the model or gives none of its tensors.
        """
        started = time.monotonic()
        engine, self._samples = self._reference.engine, len(feeds)
        write_feeds(self._inputs, feeds)
        wanted = tensors_to_record(self._index)
        given = self._given_tensors(wanted)
        outputs = ValuesInMemory(self._outputs(given))
        names = [name for name in wanted if given is None or name in given.sizes]
        computed = self._computed(feeds, names, given)
        if self._refused:
            self._listener(events.Remark(f"{engine} cannot give {listed(self._refused, most=4)}: not recorded"))
        fed = cast_to_model_types(self._index, computed, self._folder / "fed.safetensors")
        golden = None
        if given is not None:
            golden = GoldenCoverage(tensors=len(names), of=len(wanted), misfits=given.refused)
        self._listener(
            events.Recorded(
                engine=engine,
                tensors=len(names),
                samples=len(feeds),
                bytes=computed.path.stat().st_size,
                seconds=time.monotonic() - started,
                of=None if golden is None else golden.of,
            )
        )
        cuts, ids = CutTypes(self._index, ValuesInMemory()), self._index.ids
        keeps_types = create(self._question.suspect).keeps_types
        return RecordedModel(
            computed=computed,
            fed=fed,
            inputs=self._inputs,
            outputs=outputs,
            golden=golden,
            types={name: cuts.tensor_type(ids[name]) for name in wanted} if keeps_types else {},
        )

    def _given_tensors(self, names: Sequence[str]) -> GivenTensors | None:
        """The tensors that an engine of golden values has; None for an engine that computes."""
        engine = self._reference.engine
        given = None
        if not create(engine).capabilities.computes:
            given = self._reference.tensors_given(self._question.model)
        if given is None or any(name in given.sizes for name in names):
            return given
        others = "" if not given.refused else " that fits"
        raise errors.CannotCompare(
            f"{engine} has golden values of none of the model's tensors{others}",
            details=[misfit_text(name, why) for name, why in list(given.refused.items())[:_MOST_REFUSED]],
            next_steps=["biopsy inspect data FILE    shows what is in a file; names must be those in the model"],
        )

    def _outputs(self, given: GivenTensors | None) -> list[dict[str, Array]]:
        """The model's outputs, as far as the engine gives them."""
        own = [self._index.names[tensor] for tensor in self._index.outputs]
        known = own if given is None else [name for name in own if name in given.sizes]
        if not known:
            return [{} for _ in range(self._samples)]
        try:
            return self._reference.run(self._question.model, self._inputs, None if known == own else known)
        except errors.EngineFailure as failure:
            raise errors.CannotCompare(
                f"the reference engine {self._reference.engine} cannot {failure.stage} the model: {failure.kind}: "
                f"{failure.message}",
                next_steps=["--reference-engine NAME    another engine to compare with, such as reference"],
            ) from failure

    def _computed(self, feeds: Sequence[Feed], names: Sequence[str], given: GivenTensors | None) -> StoredValues:
        """The values of the inputs and of ``names``, in one file."""
        path = self._folder / "recorded.safetensors"
        limit = max(self._question.limit // max(len(feeds), 1), 1)
        fed = [name for name in feeds[0] if name not in names] if feeds else []
        places = [(0, sample, name) for sample in range(len(feeds)) for name in (*fed, *names)]

        def run(model: bytes, feed: Feed) -> Mapping[str, Array]:
            sample = self._folder / "one.safetensors"
            write_feeds(sample, [feed])
            return self._reference.run(ModelInput(model, self._index.folder), sample)[0]

        def progress(batch: Batch) -> None:
            self._listener(events.Measured("record", batch.number, batch.count))

        sizes: Mapping[str, int | None]
        if given is not None:
            sizes = given.sizes
        else:
            assert self._index.path is not None
            sizes = tensor_sizes(mark_outputs(read_bytes(self._index.path), names), feeds, run, limit)
        request = Request(
            runner=0,
            names=names,
            sizes=sizes,
            own=[self._index.names[tensor] for tensor in self._index.outputs],
            iterations=len(feeds),
            limit=limit,
        )
        with AppendableStore(path, None, places) as store:
            for sample, feed in enumerate(feeds):
                for name in fed:
                    store.append((0, sample, name), feed[name])
            store.commit()
            record(store, request, self._run, progress, self._differs)
            store.finish({0: results_of(store, [*fed, *names], 0, self._reference.engine, len(feeds))})
        return StoredValues(path)

    def _differs(self, difference: Disagreement) -> None:
        """Warn, once per tensor, that batches disagree on it."""
        name, judge = difference.name, self._question.judge
        if name in self._differing or judge.error(name, [difference.again], [difference.first]).passed:
            return
        self._differing.add(name)
        self._listener(
            events.Remark(
                f"the reference engine {self._reference.engine} gives other values for {name!r} when other tensors are "
                "marked as outputs: take one that does not optimize, such as onnxrt:optimization=none",
                warning=True,
            )
        )

    def _run(self, names: Sequence[str]) -> list[dict[str, Array]]:
        """The values of some tensors per sample, without those that the engine cannot give."""
        samples: list[dict[str, Array]] = [{} for _ in range(self._samples)]
        run = partial(self._reference.run, self._question.model, self._inputs)
        for part, runs in by_halves(names, run, (errors.EngineFailure, errors.TooMuchMemory)):
            if isinstance(runs, errors.BiopsyError):
                self._refused += part
            else:
                for sample, values in zip(samples, runs, strict=True):
                    sample.update(values)
        return samples


@dataclass(kw_only=True)
class RecordedModel:
    """Recorded values of a model's tensors, for every input sample.

    ``computed`` are the reference's values; ``fed`` are the same rounded to the types of the model, for subgraphs.
    ``inputs`` is a file of the model's inputs, ``outputs`` are the model's outputs with nothing marked. ``golden`` is
    set if the values come from a file, so that no others can be computed. ``types`` are those by the model; it is empty
    if the suspect computes in others on purpose.
    """

    computed: StoredValues
    fed: StoredValues
    inputs: Path
    outputs: ValuesInMemory
    golden: GoldenCoverage | None = None
    types: Mapping[str, TensorType | None] = field(default_factory=dict)
    _non_finite: dict[str, NonFinite | None] = field(default_factory=dict)

    @property
    def is_golden(self) -> bool:
        """Whether the values are golden."""
        return self.golden is not None

    @property
    def is_rounded(self) -> bool:
        """Whether subgraphs are fed with rounded values, other than those that the reference computed with."""
        return self.fed is not self.computed

    def __contains__(self, name: str) -> bool:
        return name in self.computed

    def expected(self, name: str) -> list[Array]:
        """The reference's values of a tensor, per sample. Raises KeyError if it is not recorded."""
        values = self.computed.values(name)
        if values is None:
            raise KeyError(name)
        return values

    def non_finite(self, name: str) -> NonFinite | None:
        """The NaN and infinities in a tensor; None if there are none or it is not recorded."""
        if name not in self._non_finite:
            values = self.computed.values(name) or []
            self._non_finite[name] = non_finite(values)
            release(*values)
        return self._non_finite[name]


def misfit_text(name: str, why: str) -> str:
    """A message that a golden value does not fit a tensor of the model."""
    return f"the golden value of {name!r} does not fit: {why}"


def tensors_to_record(index: ModelIndex) -> list[str]:
    """The node outputs that are read; of a node without any, the first output.

    Without the outputs of Constant nodes, which are never cut, and what is known to be no plain tensor.
    """
    types = CutTypes(index, ValuesInMemory())
    needed: dict[int, None] = {}
    outputs = set(index.outputs)
    for node in index.nodes:
        if is_constant_node(index, node.number):
            continue
        read = [tensor for tensor in node.writes if tensor in index.consumers or tensor in outputs]
        needed.update(dict.fromkeys(read or node.writes[:1]))
    return [index.names[tensor] for tensor in needed if types.info(tensor) is None or types.tensor_type(tensor)]


def cast_to_model_types(index: ModelIndex, computed: StoredValues, path: Path) -> StoredValues:
    """The values in the types of the model, written to ``path``; ``computed`` itself if none differs."""
    types = CutTypes(index, ValuesInMemory())
    samples = computed.samples
    narrower: dict[str, np.dtype[Any]] = {}
    for name, value in samples[0].items():
        kind = types.tensor_type(index.ids[name])
        dtype = None if kind is None or kind.elem == STRING else dtype_named(kind.dtype)
        if dtype is not None and dtype != value.dtype:
            narrower[name] = dtype
    if not narrower:
        return computed
    names = list(samples[0])
    places = [(0, number, name) for number in range(len(samples)) for name in names]
    with AppendableStore(path, None, places) as store:
        for number, sample in enumerate(samples):
            for name, value in sample.items():
                with np.errstate(all="ignore"):
                    store.append((0, number, name), value.astype(narrower[name]) if name in narrower else value)
                release(value)
        store.commit()
        store.finish({0: results_of(store, names, 0, "fed", len(samples))})
    return StoredValues(path)


Runs: TypeAlias = Sequence[Mapping[str, Array]]
"""Tensors by name, per input sample."""

Item = TypeVar("Item")
Answer = TypeVar("Answer")


def by_halves(
    items: Sequence[Item],
    run: Callable[[Sequence[Item]], Answer],
    failures: tuple[type[errors.BiopsyError], ...] = CANNOT_RUN,
) -> Iterator[tuple[Sequence[Item], Answer | errors.BiopsyError]]:
    """Run all items at once. If that raises one of ``failures``, run each half of them, and so on.

    Yields the items of each run with its result; a single item that fails, with the error.
    """
    waiting = [items]
    while waiting:
        part = waiting.pop()
        answer: Answer | errors.BiopsyError
        try:
            answer = run(part)
        except failures as error:
            if len(part) > 1:
                half = len(part) // 2
                waiting += [part[half:], part[:half]]
                continue
            answer = error
        yield part, answer


@dataclass
class ReferenceValues:
    """The reference values of subgraphs, to judge the suspect by.

    If the reference computes in wider types than the model's, the values recorded in the whole model do not serve:
    subgraphs are fed with rounded values, so the ``reference`` must run each subgraph on the same ones.
    """

    recorded: RecordedModel
    reference: Worker
    judge: Judge

    def run_subgraph(self, model: ModelInput, *, always: bool = False) -> Runs | None:
        """The reference's outputs of a subgraph; None if the recorded values serve, as golden values always do.

        ``always``: run it even if it computes in the types of the model.
        """
        if self.recorded.is_golden or not (always or self.recorded.is_rounded):
            return None
        try:
            return self.reference.run(model, self.recorded.fed.path)
        except CANNOT_RUN:
            return None  # the values recorded in the whole model are the best available

    def errors(self, names: Iterable[str], runs: Runs, expected: Runs | None) -> list[TensorError]:
        """The errors of the tensors in ``runs``, against ``expected`` of ``run_subgraph`` or recorded values."""
        measured = []
        for name in names:
            if all(name in run for run in runs):
                is_expected = expected is not None and all(name in run for run in expected)
                right = [run[name] for run in expected or ()] if is_expected else self.recorded.expected(name)
                types = self.recorded.types
                measured.append(self.judge.error(name, [run[name] for run in runs], right, types.get(name)))
        return measured


@dataclass(frozen=True)
class NonFinite:
    """The numbers of NaN and of infinite elements of a tensor, over all samples."""

    nan: int
    inf: int


def non_finite(values: Sequence[Array]) -> NonFinite | None:
    """The NaN and infinities of a tensor with one value per sample; None if there are none."""
    nan = inf = 0
    for value in values:
        if is_text(value):
            continue
        numbers = metrics.numeric(value)
        if numbers.dtype.kind not in "fc" or np.isfinite(numbers).all():
            continue
        nans = int(np.isnan(numbers).sum())
        nan += nans
        inf += int((~np.isfinite(numbers)).sum()) - nans
    return NonFinite(nan, inf) if nan or inf else None
