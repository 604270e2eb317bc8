"""Running a model in an engine: the feeds are checked first, each run is timed."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from biopsy import errors
from biopsy.engines.base import Session
from biopsy.engines.casting import cast
from biopsy.model.tensor_type import STRING, TensorType, ValueType
from biopsy.tensors.dtypes import is_text, text
from biopsy.tensors.results import Array, Feed, Iteration, RunnerResult
from biopsy.tensors.structured_values import has_value, marks, parts


def run_session(session: Session, feeds: Iterable[Feed], *, runner: str, warm_up: int = 0) -> RunnerResult:
    """Run a model that is built with every feed, one iteration each.

    ``runner`` names the result; ``warm_up`` runs with the first feed come before and are not recorded. Raises
    EngineFailure, or CannotCompare if a feed does not fit.
    """
    iterations = []
    for number, feed in enumerate(feeds):
        fed = checked_feed(feed, session.inputs, number)
        for _ in range(warm_up if number == 0 else 0):
            session.run(fed)
        start = time.perf_counter()
        outputs = session.run(fed)
        iterations.append(Iteration(outputs, time.perf_counter() - start))
    return RunnerResult(runner, tuple(iterations))


def runner_name(engine_name: str, number: int, now: float | None = None) -> str:
    """A name as saved results carry it: ``onnxrt-runner-N0-11/21/26-05:31:06``; ``now`` in seconds since the epoch."""
    stamp = time.strftime("%m/%d/%y-%H:%M:%S", time.localtime(now))
    return f"{engine_name}-runner-N{number}-{stamp}"


def missing_inputs(feed: Feed, inputs: Mapping[str, ValueType | None]) -> list[str]:
    """Names of the inputs that a feed has no value for."""
    return [name for name, kind in inputs.items() if not has_value(feed, name, kind)]


def checked_feed(feed: Feed, inputs: Mapping[str, ValueType | None], iteration: int = 0) -> dict[str, Array]:
    """The part of a feed that a model takes, in its types; other entries are ignored.

    A value of another element type is cast as ``casting`` allows (float64 is rounded to float32). Raises CannotCompare
    if an input is missing, is of an unknown type, has another shape, or would become another value.
    Of sequences, optionals and maps these are the tensors that they hold (tensors/structured_values.py).
    """
    for name, type_ in inputs.items():
        if type_ is None:
            raise errors.CannotCompare(f"input {name!r} is no tensor, or of an unknown type: it cannot be fed here")
    missing = missing_inputs(feed, inputs)
    if missing:
        raise errors.CannotCompare(
            f"iteration {iteration} has no value for input {', '.join(map(repr, missing))}",
            next_steps=[
                "biopsy data to-input INPUTS OUTPUTS -o LAYERWISE    gives every tensor's value, for a part of a model"
            ],
        )
    fed: dict[str, Array] = {}
    for name, type_ in inputs.items():
        if isinstance(type_, TensorType):
            fed[name] = _fitting(name, feed[name], type_)
        elif type_ is not None:
            fed |= _fitting_parts(feed, name, type_, inputs)
    return fed


def _fitting_parts(feed: Feed, name: str, kind: ValueType, inputs: Collection[str]) -> dict[str, Array]:
    """The tensors of a sequence, an optional or a map."""
    wanted = parts(feed, name, kind)
    twice = next((part for part in wanted if part != name and part in inputs), None)
    if twice is not None:
        raise errors.CannotCompare(f"two inputs are called {twice!r}: one is a tensor, one a part of {name!r}")
    return marks(feed, name, kind) | {part: _fitting(part, feed[part], type_) for part, type_ in wanted.items()}


def _fitting(name: str, value: Array, wanted: TensorType) -> Array:
    array = np.asarray(value)
    if not _shape_fits(array.shape, wanted):
        raise errors.CannotCompare(
            f"input {name!r} is {wanted} in the model, but the value given has shape {list(array.shape)}"
        )
    if wanted.elem == STRING:
        return _as_text(name, array)
    target = _numpy_type(name, wanted)
    if array.dtype == target and array.dtype.isnative:
        return array
    return cast(name, array, target)


def _shape_fits(shape: tuple[int, ...], wanted: TensorType) -> bool:
    if wanted.shape is None:
        return True
    pairs = zip(shape, wanted.shape, strict=False)
    return len(shape) == len(wanted.shape) and all(not isinstance(dim, int) or size == dim for size, dim in pairs)


def _numpy_type(name: str, wanted: TensorType) -> np.dtype[Any]:
    try:
        return np.dtype(wanted.dtype)
    except TypeError:
        import ml_dtypes

        extended = getattr(ml_dtypes, wanted.dtype, None)
    if extended is None:
        raise errors.CannotCompare(f"input {name!r} has type {wanted.dtype}, which NumPy cannot hold here")
    dtype: np.dtype[Any] = np.dtype(extended)
    return dtype


def _as_text(name: str, array: Array) -> Array:
    if is_text(array):
        return array if array.dtype.kind == "U" else text(array)
    raise errors.CannotCompare(f"input {name!r} is of strings, but the value given is {array.dtype}")
