"""Recording more tensors than fit into memory: a batch of them at a time, each from a run of its own.

Every batch marks its tensors as outputs of the model, builds it and runs it with every feed; what it gives goes to the
file before the next batch begins. The model's own outputs, as far as they are small, are in every batch: what is marked
changes what an engine fuses, and where that changes values, the batches do not agree on them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from biopsy.tensors.appendable_store import AppendableStore
from biopsy.tensors.results import Array, same_values

RunBatch: TypeAlias = Callable[[Sequence[str]], Iterable[dict[str, Array]]]
"""Runs the model with these tensors as its outputs: what it gives, one iteration after the other."""


@dataclass(frozen=True)
class Request:
    """What to record: the tensors ``names`` with their ``sizes`` in bytes (None: unknown), of so many iterations.

    ``own`` are those of them that are outputs of the model itself. ``limit`` is how many bytes of tensors may be in
    memory at a time; a single tensor may be larger. ``runner`` is the number of the engine in the file.
    """

    runner: int
    names: Sequence[str]
    sizes: Mapping[str, int | None]
    own: Sequence[str]
    iterations: int
    limit: int


@dataclass(frozen=True)
class Batch:
    """A finished batch: its number from 1, of how many; tensors and bytes that it added; seconds that it took."""

    number: int
    count: int
    tensors: int
    bytes: int
    seconds: float


@dataclass(frozen=True)
class Disagreement:
    """A tensor that two batches have, with other values in the later one. ``again`` is valid during the call only."""

    name: str
    iteration: int
    batch: int
    again: Array
    first: Array


def plan(request: Request, done: frozenset[str] = frozenset()) -> tuple[list[list[str]], list[str]]:
    """The batches of tensors still to record, and the tensors that every batch has.

    Tensors stay in their order. Those whose size is unknown have a batch of their own.
    """
    shared = _shared(request)
    room = max(request.limit - sum(request.sizes[name] or 0 for name in shared), 1)
    batches: list[list[str]] = []
    left = -1
    for name in dict.fromkeys((*shared, *request.names)):
        if name in done:
            continue
        size = 0 if name in shared else request.sizes[name]
        if size is None or size > left:
            batches.append([])
            left = room
        batches[-1].append(name)
        left = -1 if size is None else left - size
    return batches, shared


def _shared(request: Request) -> list[str]:
    """The model's own outputs, smallest first, up to a quarter of the limit; else the smallest tensor of all."""
    known = {name: size for name in request.names if (size := request.sizes[name]) is not None}
    room = request.limit // 4
    shared = []
    for name in sorted((name for name in request.own if name in known), key=known.__getitem__):
        if known[name] <= room:
            shared.append(name)
            room -= known[name]
    smallest = min(known, key=known.__getitem__, default=None)
    return shared or ([smallest] if smallest is not None and known[smallest] <= room else [])


def record(
    file: AppendableStore,
    request: Request,
    run: RunBatch,
    finished: Callable[[Batch], None],
    disagree: Callable[[Disagreement], None],
) -> int:
    """Record all that the file does not have yet; returns how many tensors it had from an earlier time.

    ``finished`` is called after each batch is safe, ``disagree`` for every tensor that a later batch gives otherwise.
    Raises what ``run`` raises, and what AppendableStore.append raises.
    """
    done = frozenset(
        name
        for name in request.names
        if all((request.runner, number, name) in file.committed for number in range(request.iterations))
    )
    batches, shared = plan(request, done)
    for number, batch in enumerate(batches, 1):
        started, before = time.monotonic(), file.size
        again = [name for name in shared if name not in batch]
        for iteration, outputs in enumerate(run([*batch, *again])):
            _store(file, request.runner, iteration, batch, outputs)
            for name in again:
                first = file.array((request.runner, iteration, name))
                if first is not None and name in outputs and not same_values(outputs[name], first):
                    disagree(Disagreement(name, iteration, number, outputs[name], first))
            outputs.clear()  # a single one left keeps all memory of an engine (onnxruntime's arena)
        file.commit()
        finished(Batch(number, len(batches), len(batch), file.size - before, time.monotonic() - started))
    return len(done)


def _store(file: AppendableStore, runner: int, iteration: int, batch: Sequence[str], outputs: dict[str, Array]) -> None:
    """Write a batch's tensors, each freed as soon as it is written; wide elements first, so that few bytes are lost."""
    wide_first = sorted((name for name in batch if name in outputs), key=lambda name: -outputs[name].dtype.alignment)
    for name in wide_first:
        file.append((runner, iteration, name), outputs.pop(name))
    for name in set(batch) - set(wide_first):
        file.append((runner, iteration, name), None)
