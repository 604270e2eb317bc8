"""``biopsy.reduce``: a reduction as a Python function."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from biopsy import events
from biopsy.checks.command import CommandCheck
from biopsy.checks.function import FunctionCheck
from biopsy.checks.judge import Rules
from biopsy.checks.outcome import Check
from biopsy.checks.signature import Match
from biopsy.model.index import ModelIndex, index_bytes, index_file
from biopsy.reduction.job import Job, run_job
from biopsy.reduction.problem import Cut
from biopsy.reduction.reduce import Reduction, Target
from biopsy.reduction.schedule import Mode
from biopsy.tensors.results import Feed

if TYPE_CHECKING:
    import onnx


def reduce(
    model: str | Path | bytes | onnx.ModelProto,
    check: Callable[[Any], object] | Sequence[str],
    output: str | Path = "reduced.onnx",
    *,
    takes: Literal["path", "model"] = "path",
    mode: Mode = "bisect",
    inputs: Sequence[Feed] | None = None,
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
    min_good: str | Path | None = None,
    match: Match = "status",
    cut: Cut = "auto",
    keep_inputs: bool = False,
    keep_outputs: bool = False,
    listener: events.Listener = events.ignore,
) -> Reduction:
    """Find the smallest part of ``model`` that still fails ``check``, and write it to ``output``.

    ``check`` is called with each candidate, a ``pathlib.Path`` or, with ``takes="model"``, an ``onnx.ModelProto``. It
    returns True if the model fails and False if it passes. An exception is a failure too, of which type and message
    must be those that the original raises; ``biopsy.EngineFailure`` counts by engine, stage and kind. Or ``check`` is
    a command, a list of words in which ``{}`` stands for the candidate's path.

    ``inputs`` are feeds, tensor name -> array of the input's shape and dtype, of which every one is recorded: cuts
    that look like shapes are frozen with their values. ``input_shapes`` freezes dynamic inputs. ``min_good`` is where
    to write the passing model closest in size. ``listener`` is called with each event of ``biopsy.events``.

    Raises OriginalPasses if the original does not fail, CheckError if the check cannot be run or contradicts itself,
    ModelError for a damaged model, UsageError for a path that cannot be read or written, Interrupted on Ctrl-C with
    the best result written.

    >>> import biopsy, onnx                                                              # doctest: +SKIP
    >>> def has_mul(model: onnx.ModelProto) -> bool:
    ...     return any(node.op_type == "Mul" for node in model.graph.node)
    >>> biopsy.reduce("model.onnx", has_mul, "reduced.onnx", takes="model").nodes        # doctest: +SKIP
    ((1, "Mul 'onnx_graphsurgeon_node_3'"),)
    """
    with tempfile.TemporaryDirectory(prefix="biopsy-") as folder:
        candidate = Path(folder) / "candidate.onnx"
        job = Job(
            Target(Path(output), None if min_good is None else Path(min_good)),
            mode,
            Rules(match=match),
            candidate,
            samples=inputs,
            input_shapes=dict(input_shapes or {}),
            cut=cut,
            keep_inputs=keep_inputs,
            keep_outputs=keep_outputs,
        )
        return run_job(_index(model), _check(check, candidate, takes), job, listener)


def _check(check: Callable[[Any], object] | Sequence[str], candidate: Path, takes: str) -> Check:
    if callable(check):
        return FunctionCheck(check, as_proto=takes == "model")
    return CommandCheck(check, str(candidate))


def _index(model: str | Path | bytes | onnx.ModelProto) -> ModelIndex:
    if isinstance(model, str | Path):
        return index_file(Path(model))
    return index_bytes(model if isinstance(model, bytes) else model.SerializeToString())
