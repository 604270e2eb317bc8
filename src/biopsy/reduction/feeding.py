"""Recorded values for what a candidate is fed, where the check is our own ``run`` with inputs of the user's.

Their files hold the inputs of the whole model. What a candidate is fed in its middle would be random, and then all that
computes the values that the failure needs would have to stay.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from biopsy import errors
from biopsy.checks.outcome import Check
from biopsy.model.index import index_bytes
from biopsy.reduction.inputs_file import inputs_file
from biopsy.reduction.problem import Problem
from biopsy.session.iteration import write_all, write_inputs
from biopsy.session.memory import OutcomeMemory
from biopsy.session.oracle import Oracle

_NOTE = "cuts are fed with"
_RECORDED, _RANDOM = "recorded", "random"
_MOST_ELEMENTS = 1 << 28
"""Elements of all tensors together: more are not kept on disk only to be fed."""


class Feeding:
    """Hands recorded values of a problem to a check that loads inputs; ``folder`` is where they stand meanwhile.

    ``wanted``: the check is such a one. Without it, or where nothing can be recorded, nothing is done. ``inputs`` is
    the file that the result is fed from; None if the user's files are enough.
    """

    def __init__(self, problem: Problem, oracle: Oracle, folder: Path, *, wanted: bool) -> None:
        self._problem = problem
        self._oracle = oracle
        self._folder = folder
        self.is_wanted = wanted
        self.inputs: Path | None = None
        self._plain: Check | None = None

    def begin(self) -> None:
        """Have candidates checked with recorded values from now on, unless the user's files hold inner tensors too."""
        check, problem = self._oracle.check, self._problem
        path = self._folder / "recorded.safetensors"
        if self._plain is not None:
            self._oracle.pool.use(self._plain.cold().fed(path))
            return
        if not self.is_wanted or problem.elements > _MOST_ELEMENTS:
            return
        if problem.recording.holds_inner:
            return
        trouble = self._record(path)
        _require_as_before(self._oracle.memory, trouble)
        if trouble is None:
            self._plain = check
            self._oracle.pool.use(check.fed(path))

    def _record(self, path: Path) -> str | None:
        """Write recorded values of every tensor to a file; why that cannot be done, None if it was."""
        recording, index = self._problem.recording, self._problem.index
        recording.include(index.producer)
        try:
            return None if write_all(index, recording, path) else "no values could be recorded"
        except errors.BiopsyError as error:
            return error.message  # of a type that cannot be stored: what is cut is made up, as it was

    def settle(self, result: Iterable[bytes], output: Path) -> None:
        """Leave what the result is fed beside it, for the check from now on, unless the user's files are enough."""
        self.inputs = None
        if self._plain is None:
            return
        index, recording, data = self._problem.index, self._problem.recording, b"".join(result)
        fed = index_bytes(data)
        tensors = [index.ids.get(fed.names[tensor], -1) for tensor in fed.fed_inputs()]
        if not any(tensor in index.producer and index.names[tensor] in recording for tensor in tensors):
            self._oracle.pool.use(self._plain)
            return
        path = inputs_file(output)
        write_inputs(index, recording, data, path)
        self._oracle.pool.use(self._plain.fed(path))
        self.inputs = path


def _require_as_before(memory: OutcomeMemory, trouble: str | None) -> None:
    """Raise UsageError where a journal's answers are about candidates that were fed otherwise: random, or recorded."""
    now, before = _RANDOM if trouble else _RECORDED, memory.noted(_NOTE)
    if before is None:
        memory.note(_NOTE, now)
    elif before != now:
        from biopsy.checks.journal import FRESH

        why = f": {trouble}" if trouble else ""
        raise errors.UsageError(
            f"the answers in {memory.journal_path} are about candidates fed with {before} values, and now they would "
            f"be fed with {now} ones{why}",
            kept="the journal, as it is",
            next_steps=[FRESH],
        )
