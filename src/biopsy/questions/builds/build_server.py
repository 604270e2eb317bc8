"""The warm process behind builds: it has read the model and loaded the engine, and each build is a fork of it."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from biopsy.engines.registry import create
from biopsy.model.load import read_bytes
from biopsy.processes.server import serve_forks
from biopsy.questions.builds.build_task import build


def main() -> None:
    """Build in forks. Its words are the path of a model, the folder of its weights, and an engine.

    A model that cannot be read ends it: a process of its own will tell what is wrong.
    """
    path, folder, engine = sys.argv[1:]
    data = read_bytes(Path(path))
    with contextlib.suppress(Exception):  # what is wrong with it is told when something is built
        create(engine).warm_up()
    serve_forks(lambda request: build(request, Path(path), Path(folder), data))
