"""Functions in Python files of the user's, which are run because they were named."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from biopsy import errors
from biopsy.filesystem.plain_file import read_whole
from biopsy.model.load import require_file
from biopsy.shell_words import option_line


@dataclass(frozen=True)
class UserScript:
    """A Python file: its ``path``, what messages call it, and the option that named it."""

    path: Path
    called: str
    option: str

    def function(self, name: str) -> Callable[..., Any]:
        """Run the file, and give its function of this name.

        Its folder is on ``sys.path`` meanwhile, as when Python runs it. Raises UsageError if there is no such file or
        function; DataError if the file raises anything.
        """
        require_file(self.path, self.called)
        with self.running():
            source = compile(read_whole(self.path), str(self.path), "exec")
            module = ModuleType(self.path.stem)
            module.__file__ = str(self.path)
            exec(source, module.__dict__)  # noqa: S102 - the user named this script in order to have it run
        found = getattr(module, name, None)
        if not callable(found):
            public = [each for each, value in vars(module).items() if callable(value) and not each.startswith("_")]
            raise errors.UsageError(
                f"{self.path} has no function {name!r}",
                next_steps=[option_line(self.option, f"{self.path}:{each}") for each in public[:3]],
            )
        function: Callable[..., Any] = found
        return function

    @contextmanager
    def running(self, failure: type[errors.BiopsyError] = errors.DataError) -> Iterator[None]:
        """Run its code: its folder can be imported from; what it raises becomes a ``failure`` that names the line.

        So does an exit: what the script ends with is no verdict of ours.
        """
        folder = str(self.path.parent.resolve())
        sys.path.insert(0, folder)
        try:
            yield
        except errors.BiopsyError:
            raise
        except (Exception, SystemExit) as error:
            raise failure(
                f"the {self.called} {self.path} failed{self._line(error)}: {error!r}", next_steps=_remedies(error)
            ) from error
        finally:
            if folder in sys.path:
                sys.path.remove(folder)

    def _line(self, error: BaseException) -> str:
        """Where in the script an exception came from, as ``" in line 3"``."""
        if isinstance(error, SyntaxError):
            return f" in line {error.lineno}"
        trace, place = error.__traceback__, ""
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == str(self.path):
                place = f" in line {trace.tb_lineno}"
            trace = trace.tb_next
        return place


def _remedies(error: BaseException) -> list[str]:
    """Where a script that was written for Polygraphy finds what it imports."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing is None or missing.partition(".")[0] != "polygraphy":
        return []
    return ["alias/README.md of biopsy says which names of Polygraphy's there are, and how to install them"]
