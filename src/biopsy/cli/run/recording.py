"""``biopsy run --record-memory``: outputs are computed in batches, written to a file, and compared from there."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path

from biopsy import errors
from biopsy.cli.console import Console
from biopsy.cli.run.options import RunOptions
from biopsy.comparison.compare import OutputComparison, compare_output
from biopsy.comparison.describe import number as shown_number
from biopsy.comparison.tolerance import Criteria, Tolerances
from biopsy.engines.base import Engine, ModelInput
from biopsy.engines.runner import checked_feed, runner_name
from biopsy.model.external import resolve
from biopsy.model.extract import mark_outputs
from biopsy.model.index import index_bytes
from biopsy.model.load import read_bytes
from biopsy.model.tensor_type import TensorType, ValueType
from biopsy.processes.cleanup import temporary_folder
from biopsy.tensors.recording import AppendableStore, Batch, Disagreement, Request, record, results_of, tensor_sizes
from biopsy.tensors.results import Array, Feed, RunnerResult
from biopsy.text import count, size_text


class Recorder:
    """Records the outputs of engines, one engine after the other, in the file ``save_to`` or a temporary one."""

    def __init__(
        self,
        model: ModelInput,
        engines: Sequence[Engine],
        options: RunOptions,
        console: Console,
        save_to: Path | None,
    ) -> None:
        self._model = model
        self._engines = engines
        self._options = options
        self._console = console
        self._index = index_bytes(model.data, model.folder)
        self._names = [self._index.names[tensor] for tensor in self._index.outputs]
        for name, kind in zip(self._names, map(self._index.value_type, self._index.outputs), strict=True):
            if not isinstance(kind, TensorType | None):
                console.warn(f"output {name!r}, {kind}, is not recorded: with --record-memory only tensors are")
        self._scratch = contextlib.ExitStack()
        self._path = save_to or self._scratch.enter_context(temporary_folder("biopsy-")) / "outputs.safetensors"
        self._saved = save_to is not None
        self._file: AppendableStore | None = None
        self._results: dict[int, RunnerResult] = {}
        self._sizes: Mapping[str, int | None] | None = None
        self.remarks: tuple[str, ...] = ()
        """The remarks of the engine that was recorded last."""

    @property
    def inputs(self) -> Mapping[str, ValueType | None]:
        """The types of the inputs to feed, by name."""
        return self._index.fed_types()

    def record(self, engine: Engine, position: int, feeds: Sequence[Feed]) -> RunnerResult:
        """Record the outputs of an engine; the result reads them from the file when they are used.

        Raises the exceptions of the engine, and Interrupted. Finished batches are kept in either case.
        """
        if self._file is None:
            places = list(product(range(len(self._engines)), range(len(feeds)), self._names))
            self._file = AppendableStore(self._path, self._identity(feeds) if self._saved else None, places)
        file = self._file
        limit = self._options.record_memory or 0
        self.remarks = ()
        if self._sizes is None:

            def run(model: bytes, feed: Feed) -> Mapping[str, Array]:
                return next(self._iterate(engine, model, [feed]))

            self._sizes = tensor_sizes(self._model.data, feeds, run, limit)
        own = index_bytes(read_bytes(self._options.model))
        request = Request(
            runner=position,
            names=self._names,
            sizes=self._sizes,
            own=[own.names[tensor] for tensor in own.outputs],
            iterations=len(feeds),
            limit=limit,
        )
        messages = _Messages(engine, self._options.tolerances(), self._console)
        try:
            earlier = record(
                file,
                request,
                lambda names: self._iterate(engine, mark_outputs(self._model.data, names), feeds),
                messages.finished,
                messages.differs,
            )
        except errors.EngineFailure:
            raise
        except KeyboardInterrupt as interrupt:
            file.close()
            wanted = len(self._names) * len(feeds) * len(self._engines)
            raise errors.Interrupted(
                "interrupted",
                kept=f"{len(file.committed)} of {wanted} tensors" if file.stays else None,
                resume="the same command goes on from there" if file.stays else None,
            ) from interrupt
        except BaseException:
            file.close()
            raise
        messages.summary(earlier, request)
        label = runner_name(engine.name, position)
        self._results[position] = results_of(file, self._names, position, label, len(feeds))
        return self._results[position]

    def finish(self) -> bool:
        """Complete the file of --save-outputs; returns whether it was written. Results stay readable."""
        if self._file is None:
            return False
        if self._saved and self._results:
            self._file.finish(self._results)
            return True
        self._file.close()
        if not self._saved:
            self._file.discard()
            self._scratch.close()
        elif self._file.committed:
            kept = f"{size_text(self._file.size)} are kept beside it, and the same command continues from there"
            self._console.warn(f"{self._path} is not written; {kept if self._file.stays else 'nothing is kept of it'}")
        return False

    def _identity(self, feeds: Sequence[Feed]) -> dict[str, str]:
        """Digests that must be equal for an unfinished recording to be continued.

        Files of external weights enter with their names, sizes and times.
        """
        weights = {weight.external.location for weight in self._index.weights.values() if weight.external}
        model = [self._model.data]
        for location in sorted(weights):
            stat = resolve(self._index.folder, location).stat()
            model.append(f"{location} {stat.st_size} {stat.st_mtime_ns}".encode())

        def inputs() -> Iterator[bytes]:
            for name, array in (pair for feed in feeds for pair in sorted(feed.items())):
                yield json.dumps([name, array.dtype.name, array.shape]).encode()
                yield repr(array.tolist()).encode() if array.dtype.kind in "OUST" else array.tobytes()

        return {
            "model": _digest(model),
            "inputs": _digest(inputs()),
            "engines": "; ".join(f"{engine.label} {engine.version()}" for engine in self._engines),
        }

    def _iterate(self, engine: Engine, data: bytes, feeds: Sequence[Feed]) -> Iterator[dict[str, Array]]:
        session = engine.build(ModelInput(data, self._model.folder))
        for remark in session.remarks:
            if remark not in self.remarks:
                self._console.warn(remark)
                self.remarks += (remark,)
        for number, feed in enumerate(feeds):
            yield session.run(checked_feed(feed, session.inputs, number))


class _Messages:
    """Shows the progress of a recording: each batch with -v, then a summary, and how much batches disagree."""

    def __init__(self, engine: Engine, tolerances: Tolerances, console: Console) -> None:
        self._engine = engine
        self._tolerances = tolerances
        self._console = console
        self._batches: list[Batch] = []
        self._worst: dict[str, tuple[Disagreement, OutputComparison]] = {}

    def finished(self, batch: Batch) -> None:
        self._batches.append(batch)
        self._console.detail(
            f"  batch {batch.number} of {batch.count}: {batch.tensors} tensors, {size_text(batch.bytes)}, "
            f"{batch.seconds:.2g} s"
        )

    def differs(self, disagreement: Disagreement) -> None:
        name = disagreement.name
        tolerance = self._tolerances.for_output(name)
        criteria = Criteria(tolerance=tolerance, integers=tolerance)
        compared = compare_output(name, disagreement.again, disagreement.first, criteria)
        worst = self._worst.get(name)
        if worst is None or _error(compared) > _error(worst[1]):
            self._worst[name] = disagreement, compared

    def summary(self, earlier: int, request: Request) -> None:
        total = size_text(sum(batch.bytes for batch in self._batches))
        before = f", {earlier} of them by an earlier run" if earlier else ""
        self._console.note(
            f"{self._engine.label}  {len(request.names)} tensors recorded{before}; {total} in "
            f"{count(len(self._batches), 'batch', 'batches')}, {sum(batch.seconds for batch in self._batches):.3g} s"
        )
        for worst, compared in self._worst.values():
            text = (
                f"{self._engine.label}: batches do not agree on {worst.name!r}, "
                f"|difference| up to {shown_number(_error(compared))} (iteration {worst.iteration}, batch "
                f"{worst.batch}): marking outputs changes what the engine computes, or its runs differ; the value of "
                "the first batch is kept"
            )
            (self._console.note if compared.passed else self._console.warn)(text)


def _error(compared: OutputComparison) -> float:
    return compared.measured.absolute.maximum if compared.measured is not None else float("inf")


def _digest(parts: Iterable[bytes]) -> str:
    hashed = hashlib.blake2b(digest_size=16)
    for part in parts:
        hashed.update(len(part).to_bytes(8, "little"))
        hashed.update(part)
    return hashed.hexdigest()
