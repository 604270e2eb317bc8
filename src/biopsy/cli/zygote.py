"""The warm process behind checks that are our own ``run``: engine and files are loaded once, each check is a fork.

Talks over a socket, one JSON object a line: ``{"ready": true}`` when warm, or an end of file if these words cannot be
served; then for each request ``{"words": [...], "output": path, "BIOPSY_VERDICT": path}`` first ``{"pid": n}``, then
``{"status": n}``, negative for a signal. It ends with the connection, and so does the child that runs then.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from biopsy import errors
from biopsy.checks.command import own_words
from biopsy.checks.verdict import VARIABLE

WARM_ENGINES = frozenset({"onnxrt", "reference"})
"""Engines whose process may be forked after its first session: no thread of theirs outlives it."""


def main() -> None:
    """Serve the connection whose descriptor is the first argument; the second holds the words of the check."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    if not warm_up(json.loads(sys.argv[2])):
        return
    gc.collect()
    gc.freeze()  # what is loaded now is shared with the children, and not copied by their collector's marks
    connection.sendall(b'{"ready": true}\n')
    with connection.makefile("rb") as requests:
        for line in requests:
            _serve(json.loads(line), connection)


def warm_up(words: Sequence[str]) -> bool:
    """Load what the check will need; False if it is no ``run``, or one that may not be forked."""
    own = own_words(words)
    if not own or own[0] != "run":
        return False
    from biopsy.cli import run
    from biopsy.cli.app import Parser
    from biopsy.cli.option_groups import engine_specs

    parser = Parser(prog="biopsy run", allow_abbrev=False, add_help=False)
    run.configure(parser)
    try:
        args = parser.parse_known_args(list(own[1:]))[0]
        names = {spec.name for spec in engine_specs(args)}
    except errors.BiopsyError:
        return False  # the check itself will tell what is wrong with it
    if not names <= WARM_ENGINES or args.data_loader_script:
        return False
    _load_code(names)
    _load_files((*(args.load_inputs or ()), *(args.load_outputs or ())))
    return True


def _load_code(names: set[str]) -> None:
    """Import everything that a check uses, and pay what the first session of an engine costs."""
    import biopsy.cli.console
    import biopsy.cli.run_report
    import biopsy.cli.run_settings
    import biopsy.comparison.compare
    import biopsy.comparison.describe
    import biopsy.engines.feeding  # noqa: F401
    from biopsy.engines.base import ModelInput
    from biopsy.engines.registry import create
    from biopsy.engines.runner import run_model
    from biopsy.model.identity import identity_bytes
    from biopsy.tensors.generate import generate_feeds

    for name in names:
        engine = create("onnxrt:threads=1" if name == "onnxrt" else name)
        made = ModelInput(identity_bytes(), Path())
        with suppress(errors.BiopsyError):  # an engine that is missing will be told of by the check
            from biopsy.model.tensor_type import TensorType

            run_model(made, engine, generate_feeds({"x": TensorType(1, (1,))}))


def _load_files(paths: Sequence[Path]) -> None:
    """Read inputs and golden values that stay the same, once for all checks."""
    from biopsy.tensors import files

    for path in paths:
        with suppress(errors.BiopsyError):
            files.keep(path)


def _serve(request: dict[str, object], connection: socket.socket) -> None:
    child = os.fork()
    if child == 0:
        connection.close()
        _check(request)
    try:
        connection.sendall(json.dumps({"pid": child}).encode() + b"\n")
        status = _wait(child, connection)
    finally:
        for end in (os.killpg, os.kill):
            with suppress(ProcessLookupError, PermissionError):
                end(child, signal.SIGKILL)  # what it started and left behind, or itself if nobody listens any more
    connection.sendall(json.dumps({"status": status}).encode() + b"\n")


def _wait(child: int, connection: socket.socket) -> int:
    """Wait for the child's end: its status, or minus its signal. Raises ConnectionError if the client has gone."""
    descriptor = os.pidfd_open(child) if hasattr(os, "pidfd_open") else None
    try:
        while True:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            waited_for = [connection.fileno()] if descriptor is None else [connection.fileno(), descriptor]
            readable, _, _ = select.select(waited_for, [], [], 0.002 if descriptor is None else None)
            if connection.fileno() in readable and not connection.recv(1, socket.MSG_PEEK):
                raise ConnectionError("the client has gone")
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _check(request: dict[str, object]) -> NoReturn:
    """In the fork: become what a cold process would be, run the command, end."""
    status = 4
    try:
        os.setsid()
        sink = os.open(str(request["output"]), os.O_WRONLY | os.O_APPEND)
        for descriptor in (1, 2):
            os.dup2(sink, descriptor)
        os.environ[VARIABLE] = str(request[VARIABLE])
        words = request["words"]
        assert isinstance(words, list)
        sys.argv = [Path(words[0]).name]
        from biopsy.cli.app import main as run_command

        status = run_command(words[1:])
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)
