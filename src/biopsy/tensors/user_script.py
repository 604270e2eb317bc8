"""Runs functions in the user's Python files: they make inputs, or get outputs as dictionaries."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from biopsy import errors
from biopsy.model.load import require_file
from biopsy.processes.reading import read_whole
from biopsy.tensors.results import Array, Iteration, RunnerResult
from biopsy.tensors.types import KINDS, is_extended
from biopsy.text import option_line


@dataclass(frozen=True)
class UserScript:
    """A Python file: its ``path``, its name in messages, and the option that named it."""

    path: Path
    called: str
    option: str

    def function(self, name: str) -> Callable[..., Any]:
        """Run the file and return its function of this name.

        Its folder is on ``sys.path`` meanwhile, as when Python runs it. Raises UsageError if there is no such file or
        function, DataError if the file raises anything.
        """
        require_file(self.path, self.called)
        with self.running():
            source = compile(read_whole(self.path), str(self.path), "exec")
            module = ModuleType(self.path.stem)
            module.__file__ = str(self.path)
            exec(source, module.__dict__)  # noqa: S102 - the user named this script in order to have it run
        attribute = getattr(module, name, None)
        if not callable(attribute):
            public = [each for each, value in vars(module).items() if callable(value) and not each.startswith("_")]
            raise errors.UsageError(
                f"{self.path} has no function {name!r}",
                next_steps=[option_line(self.option, f"{self.path}:{each}") for each in public[:3]],
            )
        function: Callable[..., Any] = attribute
        return function

    @contextmanager
    def running(self, failure: type[errors.BiopsyError] = errors.DataError) -> Iterator[None]:
        """Run its code with its folder on ``sys.path``. An exception or exit becomes a ``failure`` with the line."""
        folder = str(self.path.parent.resolve())
        sys.path.insert(0, folder)
        try:
            yield
        except errors.BiopsyError:
            raise
        except (Exception, SystemExit) as error:
            missing = error.name if isinstance(error, ModuleNotFoundError) else None
            steps = []
            if missing is not None and missing.partition(".")[0] == "polygraphy":
                steps = [
                    "alias/README.md of biopsy says which names of Polygraphy's there are, and how to install them"
                ]
            raise failure(
                f"the {self.called} {self.path} failed{self._line(error)}: {error!r}", next_steps=steps
            ) from error
        finally:
            if folder in sys.path:
                sys.path.remove(folder)

    def _line(self, error: BaseException) -> str:
        """The line of the script that an exception came from: ``" in line 3"``."""
        if isinstance(error, SyntaxError):
            return f" in line {error.lineno}"
        trace, place = error.__traceback__, ""
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == str(self.path):
                place = f" in line {trace.tb_lineno}"
            trace = trace.tb_next
        return place


def load_script(path: Path | str, function: str = "load_data") -> Iterator[dict[str, Array]]:
    """The inputs that ``function`` of a Python script yields, one dictionary per iteration.

    The file is run at once; iterations are made when they are needed.

    Raises UsageError if there is no such file or function; DataError, also while iterating, with the iteration, if the
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
            feed = next(feeds, feeds)  # the iterator itself, which is not a dictionary, marks the end
        if feed is feeds:
            break
        yield tensors_of(f"iteration {number} of {script.path}", feed)
        number += 1
    if number == 0:
        raise errors.DataError(f"the data loader script {script.path} gave no iteration")


def tensors_of(place: str, value: Any, example: str = 'yield {"x": np.zeros((1, 3), np.float32)}') -> dict[str, Array]:
    """What a script returned, as tensors by name. Raises DataError, with the ``place``, if it is anything else."""
    if not isinstance(value, Mapping):
        raise errors.DataError(
            f"{place} is of type {type(value).__name__}, not a dictionary of tensors",
            next_steps=[f"the function must {example.partition(' ')[0]} dictionaries: {example}"],
        )
    arrays = {}
    for name, item in value.items():
        array = np.asarray(item)
        is_text = array.dtype.kind == "O" and all(isinstance(element, str | bytes) for element in array.flat)
        if not (is_text or array.dtype.kind in KINDS or is_extended(array.dtype)):
            raise errors.DataError(f"{place}: {name!r} is of type {type(item).__name__}, not a tensor")
        arrays[str(name)] = array
    return arrays


class ScriptOutputs(dict[str, Any]):
    """The outputs of one iteration for the user's function, by name, as in Polygraphy; ``runtime`` is in seconds."""

    def __init__(self, runner: str, iteration: Iteration) -> None:
        """Copy the outputs, so that the function may change them."""
        super().__init__({name: np.array(value) for name, value in iteration.outputs.items()})
        self.runner_name = runner
        self.runtime = iteration.runtime


class Postprocessing:
    """The user's function that changes the outputs of an iteration before they are compared."""

    def __init__(self, script: UserScript, name: str) -> None:
        """Load the function. Raises as ``UserScript.function``."""
        self._script = script
        self._function = script.function(name)

    def __call__(self, result: RunnerResult) -> RunnerResult:
        """The runner with the outputs that the function returns. Raises DataError if it fails or returns no tensors."""

        def outputs(number: int, iteration: Iteration) -> dict[str, Array]:
            with self._script.running():
                returned = self._function(ScriptOutputs(result.runner, iteration))
            place = f"what {self._script.path} gives for iteration {number} of {result.runner}"
            return tensors_of(place, returned, 'return {"y": np.zeros((1, 3), np.float32)}')

        return result.with_outputs(outputs)
