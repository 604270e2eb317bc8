"""The child process of ``Builder``: it makes one build; or it loads model and engine and serves forks, a build each."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from biopsy import errors
from biopsy.engines.base import ModelInput
from biopsy.engines.registry import create
from biopsy.engines.runner import Inputs, feeds_for, run_session
from biopsy.model.load import read_bytes
from biopsy.processes.server import as_json, serve_forks

_PROFILED_RUNS = 3


def main() -> None:
    """Build once, if the only argument is a request of ``Builder``; otherwise serve forks that build.

    For forks the arguments are the path of a model, the folder of its weights, and an engine. A model that cannot be
    read ends the process; ``Builder`` then builds in a process of its own, which reports the error.
    """
    if len(sys.argv) == 2:
        request = json.loads(sys.argv[1])
        build(request, Path(request["model"]), Path(request["folder"]))
        return
    path, folder, engine = sys.argv[1:]
    data = read_bytes(Path(path))
    with contextlib.suppress(Exception):  # the build itself will report the error
        create(engine).warm_up()
    serve_forks(lambda request: build(request, Path(path), Path(folder), data))


def build(request: Mapping[str, Any], path: Path, folder: Path, data: bytes | None = None) -> int:
    """Build a model and report its result or error; ``data`` are the bytes at ``path``, if known."""
    report = Path(request["report"])
    try:
        model = ModelInput(read_bytes(path) if data is None else data, folder, path)
        result = _build(request, model, report)
    except Exception as error:
        result = as_json(error)
    _write(report, result)
    return 0


def _write(report: Path, content: Mapping[str, Any]) -> None:
    """Replace the report in one step, so that a process that is killed leaves the old one whole."""
    part = report.with_suffix(".part")
    part.write_text(json.dumps(content), encoding="utf-8")
    part.replace(report)


def _build(request: Mapping[str, Any], model: ModelInput, report: Path) -> dict[str, Any]:
    engine = create(request["engine"])
    engine.version()  # imports its package: only what fails after this is the build
    _write(report, {"stage": "build"})
    started = time.monotonic()
    session = engine.build(model)
    seconds = time.monotonic() - started
    remarks = list(session.remarks)
    if request["save_to"] is not None:
        session.save(Path(request["save_to"]))
    if engine.options.get("profile"):
        try:
            feeds = feeds_for(session.inputs, Inputs(iterations=_PROFILED_RUNS)).feeds
            _write(report, {"stage": "run"})
            run_session(session, feeds, runner="profile")
        except errors.BiopsyError as error:
            remarks.append(f"no times were measured: {error.message}")
        _write(report, {"stage": "build"})
    layers = []
    if engine.capabilities.layers:
        try:
            layers = [asdict(layer) for layer in session.layers()]
        except errors.BiopsyError as error:
            remarks.append(f"{engine.name} does not tell its layers: {error.message}")
    return {"version": type(engine).version(), "seconds": seconds, "layers": layers, "remarks": remarks}
