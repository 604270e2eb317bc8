"""Building one model again and again, each time in a process of its own: a crash, or a variable of the environment, is
that of one build.

Where the engine allows it, the model is read and the engine loaded once, and each build is a fork of that process
(``build_server``); otherwise, and where the environment differs, each build is a process (``build_task``). What came of
a build stands in a file.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from biopsy import errors
from biopsy.engines.base import LayerRecord, ModelInput
from biopsy.engines.registry import class_of, parse_spec
from biopsy.isolation import process
from biopsy.isolation.cleanup import temporary_folder
from biopsy.isolation.death import engine_death
from biopsy.isolation.errors_as_json import from_json
from biopsy.isolation.fork_server import ForkServer, ServerGoneError
from biopsy.isolation.interpreter import own_python
from biopsy.isolation.watch import Ended, Limits, Stop

# They are named, not imported: they are what child processes do.
_TASK = "biopsy.tactics.build_task"
_SERVER = "biopsy.tactics.build_server"

_SECONDS_TO_LOAD = 600.0
"""For the warm process, where nobody has set a limit; after that each build is a process of its own."""


@dataclass(frozen=True)
class Order:
    """What to build: an engine with its settings, in which environment, and where to save the result, if anywhere."""

    engine: str
    environment: Mapping[str, str] = field(default_factory=dict)
    save_to: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Built:
    """What came of a build: its layers as far as the engine tells them, or how it failed."""

    version: str = ""
    seconds: float = 0.0
    layers: tuple[LayerRecord, ...] = ()
    remarks: tuple[str, ...] = ()
    failure: errors.EngineFailure | None = None


class Builder:
    """Builds a model that is a file. ``timeout`` is in seconds for one build. Use it in a ``with``."""

    def __init__(self, model: ModelInput, timeout: float | None = None) -> None:
        assert model.path is not None
        self._model = model
        self._timeout = timeout
        self._stack = contextlib.ExitStack()
        self._report = self._stack.enter_context(temporary_folder("biopsy-build-")) / "report.json"
        self._server: ForkServer | None = None
        self._is_cold = False

    def __enter__(self) -> Builder:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the warm process."""
        self._stop_server()
        self._stack.close()

    def build(self, order: Order, stop: Stop | None = None) -> Built:
        """Build once, unless ``stop`` ends it.

        A failure of the engine, its crash and its taking too long are in the result.
        Raises what else is wrong: EngineMissing, UsageError, ModelError.
        """
        self._report.unlink(missing_ok=True)
        request = {
            "model": str(self._model.path),
            "folder": str(self._model.folder),
            "engine": order.engine,
            "save_to": None if order.save_to is None else str(order.save_to),
            "report": str(self._report),
        }
        started = time.monotonic()
        ended = self._ended(request, order, stop)
        return _built(order, ended, _read(self._report), time.monotonic() - started)

    def _ended(self, request: Mapping[str, Any], order: Order, stop: Stop | None) -> Ended:
        """Build in a fork if that is possible; else, and if the warm process is lost, in a process of its own."""
        if not self._is_cold and not order.environment and class_of(parse_spec(order.engine)).forks_warm:
            try:
                return self._warm_server(order.engine).run(request, self._limits, stop)
            except ServerGoneError:
                self._is_cold = True
                self._stop_server()
                self._report.unlink(missing_ok=True)
        command = [*own_python(_TASK), json.dumps(request)]
        return process.run(command, self._limits, stop, environment=order.environment, patient=False)

    def _limits(self) -> Limits:
        return Limits(seconds=self._timeout)

    def _warm_server(self, engine: str) -> ForkServer:
        if self._server is None:
            words = [*own_python(_SERVER), str(self._model.path), str(self._model.folder), engine]
            patience = _SECONDS_TO_LOAD if self._timeout is None else self._timeout
            self._server = ForkServer(words, patience=patience)
        return self._server

    def _stop_server(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()


def _read(report: Path) -> dict[str, Any]:
    try:
        tree = json.loads(report.read_bytes())
    except (OSError, ValueError):
        return {}
    return tree if isinstance(tree, dict) else {}


def _built(order: Order, ended: Ended, report: Mapping[str, Any], seconds: float) -> Built:
    failure: errors.BiopsyError
    if ended.cause == "itself" and "error" in report:
        failure = from_json(report)
    elif ended.cause != "itself" or ended.status < 0 or "layers" not in report:
        failure = engine_death(order.engine, "build" if report else None, ended)
    else:
        layers = tuple(LayerRecord(**{**layer, "nodes": tuple(layer["nodes"])}) for layer in report["layers"])
        return Built(
            version=report["version"], seconds=report["seconds"], layers=layers, remarks=tuple(report["remarks"])
        )
    if not isinstance(failure, errors.EngineFailure):
        raise failure
    return Built(failure=failure, seconds=seconds)
