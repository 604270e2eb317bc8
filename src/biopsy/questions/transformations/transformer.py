"""A tool at work: each transformation in a process of its own, which is a fork of a warm one where that is possible."""

from __future__ import annotations

import itertools
import json
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from biopsy import errors
from biopsy.processes import process
from biopsy.processes.own_process import other_python, own_python
from biopsy.processes.reading import read_plain
from biopsy.processes.warm import ForkServer, ServerGoneError
from biopsy.processes.watch import Ended, Limits, signal_name
from biopsy.questions.transformations.question import PASSES, SOURCE, TARGET, ToolSpec
from biopsy.questions.transformations.tools import Omission, TransformOrder
from biopsy.text import first_line

_CHILD = "biopsy.questions.transformations.child"
_MOST_BYTES = 1 << 20
_MOST_SHOWN = 2000


@dataclass(frozen=True)
class ToolFailure:
    """How a tool failed on a model: ``kind`` is the type of its exception, a signal, ``Timeout``, or ``NoModel``.

    ``message`` is what it said, in its own words.
    """

    kind: str
    message: str


class Transformer(ABC):
    """What transforms models. Use it in a ``with``."""

    release: str = ""
    """The release of the tool, empty where nobody can tell."""

    @abstractmethod
    def passes(self, source: Path) -> list[str]:
        """The names of the passes that may run on a model; none if they have no names. Raises BiopsyError."""

    @abstractmethod
    def transform(self, order: TransformOrder, *, cold: bool = False) -> ToolFailure | None:
        """Write what becomes of a model; how the tool fails on it, None if it does not.

        ``cold``: not in a fork of a warm process. Raises BiopsyError if the tool cannot be run at all.
        """

    def omission(self, passes: Sequence[str]) -> Omission:
        """How a user of the tool leaves passes out."""
        del passes
        return Omission()


class KnownTransformer(Transformer):
    """A known tool, in the interpreter ``python``. ``scratch`` is a folder for transient files."""

    def __init__(self, spec: ToolSpec, python: Path, scratch: Path, limits: Limits) -> None:
        assert spec.known is not None
        self._tool = spec.known(spec.settings)
        start = own_python(_CHILD) if str(python) == sys.executable else other_python(python, _CHILD)
        self._words = [*start, spec.name, json.dumps(dict(spec.settings))]
        self._name = spec.text
        self._scratch = scratch
        self._limits = limits
        self._numbers = itertools.count()
        self._server: ForkServer | None = None
        with suppress(ServerGoneError):
            self._server = ForkServer(self._words)

    def close(self) -> None:
        """End the warm process."""
        server, self._server = self._server, None
        if server is not None:
            server.close()

    def learn_release(self) -> None:
        """Find out the release of the tool. Raises BiopsyError if it cannot be imported."""
        answer = self._asked({"wants": "version"})
        if isinstance(answer, ToolFailure):
            raise errors.BiopsyError(
                f"{self._name} does not work here: {answer.kind}: {first_line(answer.message)}",
                next_steps=[f"--package {self._tool.package}    takes it from an environment of its own"],
            )
        self.release = str(answer["version"])

    def passes(self, source: Path) -> list[str]:
        """Those that the tool names for this model; none where it fails on it so early."""
        answer = self._asked({"wants": "passes", "source": str(source.resolve())})
        return [] if isinstance(answer, ToolFailure) else list(map(str, answer["passes"]))

    def transform(self, order: TransformOrder, *, cold: bool = False) -> ToolFailure | None:
        """Have the tool read one file and write the other."""
        source, target = (Path(path).resolve() for path in (order.source, order.target))
        target.unlink(missing_ok=True)
        samples = order.samples if self._tool.wants_samples else ()
        whole = replace(order, source=str(source), target=str(target), samples=samples)
        answer = self._asked({"wants": "model", "order": asdict(whole)}, cold=cold)
        return answer if isinstance(answer, ToolFailure) else _written(target)

    def omission(self, passes: Sequence[str]) -> Omission:
        """As the tool itself is told."""
        return self._tool.omission(passes)

    def _asked(self, request: Mapping[str, Any], *, cold: bool = False) -> dict[str, Any] | ToolFailure:
        """What came of a request."""
        told = self._scratch / f"answer-{next(self._numbers)}.json"
        try:
            ended = self._run({**request, "answer": str(told)}, cold=cold)
            if ended.cause != "itself" or ended.status < 0:
                return _death(ended)
            try:
                found = json.loads(read_plain(told, _MOST_BYTES))
                if "error" in found:
                    return ToolFailure(str(found["error"]["kind"]), str(found["error"]["message"]))
                return dict(found["answer"])
            except FileNotFoundError:
                return ToolFailure(f"exit status {ended.status}", _printed(ended))
            except (OSError, ValueError, KeyError, TypeError) as error:
                what = f"the process of {self._name} gave an answer that is not understood: {error}"
                raise errors.BiopsyError(what) from error
        finally:
            told.unlink(missing_ok=True)

    def _run(self, request: Mapping[str, Any], *, cold: bool) -> Ended:
        if self._server is not None and not cold:
            try:
                return self._server.run(request, lambda: self._limits)
            except ServerGoneError:
                self.close()  # it was never warm: a process of its own tells why
                Path(request["answer"]).unlink(missing_ok=True)
        return process.run([*self._words, json.dumps(request)], lambda: self._limits)


class CommandTransformer(Transformer):
    """A command of the user's. In its words, ``{}`` is the model, ``{out}`` the file to write, ``{passes}`` the passes.

    ``control`` is the command that only loads and saves, if there is one: else the control is that of onnx.
    ``named`` are the passes that the user names.
    """

    def __init__(self, spec: ToolSpec, limits: Limits, control: ToolSpec | None, named: Sequence[str]) -> None:
        self._words = spec.words
        self._control = control.words if control is not None else ()
        self._named = list(named)
        self._limits = limits
        self._tells_passes = any(PASSES in word for word in spec.words)

    def passes(self, source: Path) -> list[str]:
        """Those that the user names, if the command takes them."""
        del source
        return self._named if self._tells_passes else []

    def transform(self, order: TransformOrder, *, cold: bool = False) -> ToolFailure | None:
        """Run the command."""
        target, words = Path(order.target), self._words
        target.unlink(missing_ok=True)
        if order.passes == () and self._control:
            words = self._control
        elif order.passes == () and not self._tells_passes:
            import onnx

            try:
                onnx.save(onnx.load(order.source), target)
            except Exception as error:  # what onnx raises at a model is what it says of it
                return ToolFailure(type(error).__name__, str(error))
            return None
        chosen = self._named if order.passes is None else order.passes
        places = {SOURCE: order.source, TARGET: order.target, PASSES: ",".join(chosen)}
        place = re.compile("|".join(map(re.escape, places)))  # what a name puts in one of them is no place again
        command = [place.sub(lambda found: places[found.group()], word) for word in words]
        try:
            ended = process.run(command, lambda: self._limits)
        except process.CannotStartError as error:
            raise errors.UsageError(f"--by: {command[0]} cannot be started: {error.reason}") from error
        if ended.cause != "itself" or ended.status < 0:
            return _death(ended)
        if ended.status != 0:
            lines = [line for line in _printed(ended).splitlines() if line.strip()]
            return ToolFailure(f"exit status {ended.status}", lines[-1] if lines else "")
        return _written(target)


def _death(ended: Ended) -> ToolFailure:
    seconds = {"time": ("Timeout", "it took too long"), "memory": ("OutOfMemory", "it took more memory than it may")}
    if ended.cause in seconds:
        return ToolFailure(*seconds[ended.cause])
    return ToolFailure(signal_name(-ended.status), _printed(ended))


def _printed(ended: Ended) -> str:
    return ended.output[-_MOST_SHOWN:].decode("utf-8", "replace").strip()


def _written(target: Path) -> ToolFailure | None:
    """Whether the tool has written what it should."""
    if target.is_file() and not target.is_symlink() and target.stat().st_size:
        return None
    return ToolFailure("NoModel", "it ended without an error and wrote no model")
