"""The reference engine's values of the tensors of a model: recorded batch by batch in mapped files, and made anew
for subgraphs.
"""

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
from biopsy.engines.worker import Worker
from biopsy.model.extract import mark_outputs
from biopsy.model.index import ModelIndex
from biopsy.model.known_names import listed
from biopsy.model.load import read_bytes
from biopsy.model.nodes import is_constant_node
from biopsy.model.tensor_type import STRING
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
    """Records what a question's reference gives, with at most its ``limit`` bytes of tensors in memory at a time.

    Files go into ``folder``.
    """

    def __init__(self, question: Question, reference: Worker, folder: Path, listener: events.Listener) -> None:
        self._question = question
        self._index = question.index
        self._reference = reference
        self._folder = folder
        self._listener = listener
        self._inputs = folder / "inputs.safetensors"
        self._samples = 0
        self._lost: list[str] = []
        self._differing: set[str] = set()

    def record(self, feeds: Sequence[Feed]) -> RecordedModel:
        """Record what subgraphs need, as far as the engine can give it, for every feed.

        Raises CannotCompare if the engine cannot run the model, or gives none of its tensors.
        """
        started = time.monotonic()
        engine, self._samples = self._reference.engine, len(feeds)
        write_feeds(self._inputs, feeds)
        wanted = tensors_to_record(self._index)
        given = self._given(wanted)
        outputs = ValuesInMemory(self._outputs(given))
        names = [name for name in wanted if given is None or name in given.sizes]
        computed = self._computed(feeds, names, given)
        if self._lost:
            self._listener(events.Remark(f"{engine} cannot give {listed(self._lost, most=4)}: not recorded"))
        fed = in_types_of_the_model(self._index, computed, self._folder / "fed.safetensors")
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
        return RecordedModel(computed=computed, fed=fed, inputs=self._inputs, outputs=outputs, golden=golden)

    def _given(self, names: Sequence[str]) -> GivenTensors | None:
        """What the engine says that it can give, and the bytes of each; None if it computes."""
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
        """The model's own outputs, as far as the engine gives them."""
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
        """Say, once per tensor, that batches do not agree on it."""
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
                self._lost += part
            else:
                for sample, values in zip(samples, runs, strict=True):
                    sample.update(values)
        return samples


# The reference engine's values of the tensors of a model, for every input sample, in mapped files.


@dataclass(kw_only=True)
class RecordedModel:
    """Recorded values of a model.

    ``computed`` are those that the reference gave. ``fed`` are the same in the types of the model, which subgraphs are
    fed with; they differ where the reference computes in more than these types hold. ``inputs`` is a file with the
    model's inputs alone. ``outputs`` are the model's own outputs when nothing is marked. ``golden``: nobody computed
    them here, they come from a file, and others cannot be had; None where the reference computed them.
    """

    computed: StoredValues
    fed: StoredValues
    inputs: Path
    outputs: ValuesInMemory
    golden: GoldenCoverage | None = None
    _non_finite: dict[str, NonFinite | None] = field(default_factory=dict)

    @property
    def is_golden(self) -> bool:
        """Whether the values are golden."""
        return self.golden is not None

    @property
    def is_rounded(self) -> bool:
        """Whether subgraphs are fed with other values than the reference has computed with."""
        return self.fed is not self.computed

    def __contains__(self, name: str) -> bool:
        return name in self.computed

    def expected(self, name: str) -> list[Array]:
        """What the reference computed for a tensor, per sample. Raises KeyError if it is not recorded."""
        values = self.computed.values(name)
        if values is None:
            raise KeyError(name)
        return values

    def non_finite(self, name: str) -> NonFinite | None:
        """The NaN and infinities in a tensor, counted when first asked for; None also if it is not recorded."""
        if name not in self._non_finite:
            values = self.computed.values(name) or []
            self._non_finite[name] = non_finite(values)
            release(*values)
        return self._non_finite[name]


def misfit_text(name: str, why: str) -> str:
    """That a golden value cannot be of a model's tensor, in words."""
    return f"the golden value of {name!r} does not fit: {why}"


def tensors_to_record(index: ModelIndex) -> list[str]:
    """What a node computes and anything needs; of a node that nothing needs, its first output.

    Not the outputs of Constant nodes, which are never cut, nor what is known to be no plain tensor.
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


def in_types_of_the_model(index: ModelIndex, computed: StoredValues, path: Path) -> StoredValues:
    """The values in the types that the model has them in, written to ``path``; ``computed`` if they are already."""
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


# Reference values of a subgraph: what the reference makes of the very values that the subgraph is fed with.
#
# Where the reference computes in the types of the model, and without fusing, that is what it recorded in the whole
# model. Where it computes in more, or keeps more than these types hold, it is not: recorded values are rounded before
# a subgraph is fed with them, and an exact layer would be judged by values that were computed from others.

CANNOT_RUN = (errors.EngineFailure, errors.CannotCompare, errors.DataError, errors.ModelError)
"""What says that one subgraph cannot be run, and nothing about others."""

Runs: TypeAlias = Sequence[Mapping[str, Array]]
"""Tensors by name, per input sample."""

Item = TypeVar("Item")
Answer = TypeVar("Answer")


def by_halves(
    items: Sequence[Item],
    run: Callable[[Sequence[Item]], Answer],
    failures: tuple[type[errors.BiopsyError], ...] = CANNOT_RUN,
) -> Iterator[tuple[Sequence[Item], Answer | errors.BiopsyError]]:
    """What a run gives for all items; where it raises one of some ``failures``, for its halves, down to single items.

    Of a single item that is the error.
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
    """Judges subgraphs fed with recorded values; ``reference`` is run on them where what it recorded may differ."""

    recorded: RecordedModel
    reference: Worker
    judge: Judge

    def of(self, model: ModelInput, *, always: bool = False) -> Runs | None:
        """What the reference gives for a subgraph; None where the recorded values are just that.

        ``always``: ask it also where it computes in the types of the model. Golden values are all that there is.
        """
        if self.recorded.is_golden or not (always or self.recorded.is_rounded):
            return None
        try:
            return self.reference.run(model, self.recorded.fed.path)
        except CANNOT_RUN:
            return None  # it could run the whole model: what it recorded there is the best that there is

    def errors(self, names: Iterable[str], runs: Runs, expected: Runs | None) -> list[TensorError]:
        """The errors of those tensors that ``runs`` hold, by what ``of`` gave for the same subgraph."""
        measured = []
        for name in names:
            if all(name in run for run in runs):
                is_given = expected is not None and all(name in run for run in expected)
                wanted = [run[name] for run in expected or ()] if is_given else self.recorded.expected(name)
                measured.append(self.judge.error(name, [run[name] for run in runs], wanted))
        return measured


# NaN and infinities in the values of a tensor, counted.


@dataclass(frozen=True)
class NonFinite:
    """How many elements of a tensor are NaN and infinite, over all samples."""

    nan: int
    inf: int


def non_finite(values: Sequence[Array]) -> NonFinite | None:
    """The NaN and infinities of a tensor, one value per sample; None if there are none."""
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
