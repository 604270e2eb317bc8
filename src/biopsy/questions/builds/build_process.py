"""What the processes of builds do: one build, whose result stands in a file; or, having read the model and loaded the
engine, forks of which each is a build.
"""

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
from biopsy.model.load import read_bytes
from biopsy.processes.server import as_json, serve_forks

_RUNS_OF_A_PROFILE = 3


def main() -> None:
    """Build what the only argument asks for, as ``Builder`` writes it; or serve forks that build.

    These have the path of a model, the folder of its weights, and an engine as arguments. A model that cannot be read
    ends them: a process of its own will tell what is wrong.
    """
    if len(sys.argv) == 2:
        request = json.loads(sys.argv[1])
        build(request, Path(request["model"]), Path(request["folder"]))
        return
    path, folder, engine = sys.argv[1:]
    data = read_bytes(Path(path))
    with contextlib.suppress(Exception):  # what is wrong with it is told when something is built
        create(engine).warm_up()
    serve_forks(lambda request: build(request, Path(path), Path(folder), data))


def build(request: Mapping[str, Any], path: Path, folder: Path, data: bytes | None = None) -> int:
    """Build a model and report what came of it, an error too; ``data`` are the bytes at ``path``, if known."""
    report = Path(request["report"])
    try:
        model = ModelInput(read_bytes(path) if data is None else data, folder, path)
        tree = _build(request, model, report)
    except Exception as error:
        tree = as_json(error)
    _write(report, tree)
    return 0


def _write(report: Path, tree: Mapping[str, Any]) -> None:
    """In one step: who is ended while it writes leaves what was there before."""
    part = report.with_suffix(".part")
    part.write_text(json.dumps(tree), encoding="utf-8")
    part.replace(report)


def _build(request: Mapping[str, Any], model: ModelInput, report: Path) -> dict[str, Any]:
    engine = create(request["engine"])
    engine.version()  # imports its package
    _write(report, {"stage": "build"})
    started = time.monotonic()
    session = engine.build(model)
    seconds = time.monotonic() - started
    remarks = list(session.remarks)
    if request["save_to"] is not None:
        session.save(Path(request["save_to"]))
    if engine.options.get("profile"):
        remarks += _profiled(session)
    layers = []
    if engine.capabilities.layers:
        try:
            layers = [asdict(layer) for layer in session.layers()]
        except errors.BiopsyError as error:
            remarks.append(f"{engine.name} does not tell its layers: {error.message}")
    return {"version": type(engine).version(), "seconds": seconds, "layers": layers, "remarks": remarks}


def _profiled(session: Any) -> list[str]:
    """Run with random inputs, so that there are times to tell; what goes wrong is a remark."""
    from biopsy.engines.runner import Inputs, feeds_for, run_session

    try:
        feeds = feeds_for(session.inputs, Inputs(iterations=_RUNS_OF_A_PROFILE)).feeds
        run_session(session, feeds, runner="profile")
    except errors.BiopsyError as error:
        return [f"no times were measured: {error.message}"]
    return []
