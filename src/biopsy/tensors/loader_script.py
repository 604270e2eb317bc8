"""Inputs that a Python script of the user's makes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from biopsy import errors
from biopsy.tensors.dtypes import KINDS, is_extended
from biopsy.tensors.results import Array
from biopsy.tensors.user_script import UserScript


def load_script(path: Path | str, function: str = "load_data") -> Iterator[dict[str, Array]]:
    """The inputs that a Python script makes: run ``function`` of the file, one dictionary per iteration.

    The script is run because the user named it: see ``UserScript``. The file is loaded at once, iterations are made as
    they are asked for.

    Raises UsageError if there is no such file or function; DataError, while iterating too, naming the iteration, if the
    script raises, yields anything but dictionaries of tensors, or yields nothing.
    """
    script = UserScript(Path(path), "data loader script", "--data-loader-script")
    return _iterations(script, script.function(function))


def _iterations(script: UserScript, loader: Callable[[], Iterable[Any]]) -> Iterator[dict[str, Array]]:
    with script.running():
        feeds = iter(loader())
    number = 0
    while True:
        with script.running():
            feed = next(feeds, feeds)  # the iterator itself stands for its end: it is no dictionary
        if feed is feeds:
            break
        yield tensors_of(f"iteration {number} of {script.path}", feed)
        number += 1
    if number == 0:
        raise errors.DataError(f"the data loader script {script.path} gave no iteration")


def tensors_of(place: str, given: Any, example: str = 'yield {"x": np.zeros((1, 3), np.float32)}') -> dict[str, Array]:
    """What a script gave, as tensors by name. Raises DataError, naming the ``place``, if it is anything else."""
    if not isinstance(given, Mapping):
        raise errors.DataError(
            f"{place} is of type {type(given).__name__}, not a dictionary of tensors",
            next_steps=[f"the function must {example.partition(' ')[0]} dictionaries: {example}"],
        )
    arrays = {}
    for name, value in given.items():
        array = np.asarray(value)
        text = array.dtype.kind == "O" and all(isinstance(element, str | bytes) for element in array.flat)
        if not (text or array.dtype.kind in KINDS or is_extended(array.dtype)):
            raise errors.DataError(f"{place}: {name!r} is of type {type(value).__name__}, not a tensor")
        arrays[str(name)] = array
    return arrays
