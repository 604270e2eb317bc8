"""Inputs that a Python script of the user's makes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from biopsy import errors
from biopsy.filesystem.plain_file import read_whole
from biopsy.model.load import require_file
from biopsy.shell_words import option_line
from biopsy.tensors.dtypes import KINDS, is_extended
from biopsy.tensors.results import Array


def load_script(path: Path | str, function: str = "load_data") -> Iterator[dict[str, Array]]:
    """The inputs that a Python script makes: run ``function`` of the file, one dictionary per iteration.

    The script is run because the user named it; its folder is on ``sys.path`` meanwhile, as when Python runs it. The
    file is loaded at once, iterations are made as they are asked for.

    Raises UsageError if there is no such file or function; DataError, while iterating too, naming the iteration, if the
    script raises, yields anything but dictionaries of tensors, or yields nothing.
    """
    path = require_file(Path(path), "data loader script")
    with _running(path):
        source = compile(read_whole(path), str(path), "exec")
        module = ModuleType(path.stem)
        module.__file__ = str(path)
        exec(source, module.__dict__)  # noqa: S102 - the user named this script in order to have it run
    loader = getattr(module, function, None)
    if not callable(loader):
        found = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise errors.UsageError(
            f"{path} has no function {function!r}",
            next_steps=[option_line("--data-loader-script", f"{path}:{name}") for name in found[:3]],
        )
    return _iterations(path, loader)


@contextmanager
def _running(path: Path) -> Iterator[None]:
    """Run a script's code: its folder can be imported from, its exceptions become a DataError that names the line."""
    folder = str(path.parent.resolve())
    sys.path.insert(0, folder)
    try:
        yield
    except errors.BiopsyError:
        raise
    except Exception as error:
        raise errors.DataError(f"the data loader script {path} failed{_line(path, error)}: {error!r}") from error
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


def _line(path: Path, error: Exception) -> str:
    """Where in the script an exception came from, as ``" in line 3"``."""
    if isinstance(error, SyntaxError):
        return f" in line {error.lineno}"
    trace, place = error.__traceback__, ""
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            place = f" in line {trace.tb_lineno}"
        trace = trace.tb_next
    return place


def _iterations(path: Path, loader: Callable[[], Iterable[Any]]) -> Iterator[dict[str, Array]]:
    with _running(path):
        feeds = iter(loader())
    number = 0
    while True:
        with _running(path):
            feed = next(feeds, feeds)  # the iterator itself stands for its end: it is no dictionary
        if feed is feeds:
            break
        yield _checked(f"iteration {number} of {path}", feed)
        number += 1
    if number == 0:
        raise errors.DataError(f"the data loader script {path} gave no iteration")


def _checked(place: str, feed: Any) -> dict[str, Array]:
    if not isinstance(feed, Mapping):
        raise errors.DataError(
            f"{place} is of type {type(feed).__name__}, not a dictionary of tensors",
            next_steps=['the function must yield dictionaries: yield {"x": np.zeros((1, 3), np.float32)}'],
        )
    arrays = {}
    for name, value in feed.items():
        array = np.asarray(value)
        text = array.dtype.kind == "O" and all(isinstance(element, str | bytes) for element in array.flat)
        if not (text or array.dtype.kind in KINDS or is_extended(array.dtype)):
            raise errors.DataError(f"{place}: {name!r} is of type {type(value).__name__}, not a tensor")
        arrays[str(name)] = array
    return arrays
