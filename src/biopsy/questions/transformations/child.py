"""The process of the interpreter that has the tool: it serves requests, each in a fork, or answers only one.

Its arguments are the name of the tool, its settings as JSON, and, if it answers only one, the request as JSON. The
answer is written to the file that the request names: ``{"answer": {...}}``, or ``{"error": {"kind", "message"}}``, with
``"ours": true`` if the tool was not called as this release of it wants to be.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Mapping
from functools import partial
from typing import Any

from biopsy.processes.server import serve_forks
from biopsy.questions.transformations import tools
from biopsy.questions.transformations.tools import TOOLS, Tool, TransformOrder

_LONGEST_MESSAGE = 4000


def main() -> int:
    """Serve requests, or answer one."""
    tool = TOOLS[sys.argv[1]](json.loads(sys.argv[2]))
    if len(sys.argv) <= 3:
        tool.warm_up()
        serve_forks(partial(_write_answer, tool))
    return _write_answer(tool, json.loads(sys.argv[3]))


def _write_answer(tool: Tool, request: Mapping[str, Any]) -> int:
    try:
        reply: dict[str, Any] = {"answer": _answer(tool, request)}
    except (Exception, SystemExit) as error:  # tools raise anything
        message = str(error)[:_LONGEST_MESSAGE]
        reply = {"error": {"kind": type(error).__name__, "message": message, "ours": _is_ours(error)}}
    with open(request["answer"], "x", encoding="utf-8") as file:  # noqa: PTH123 -- this interpreter imports little
        json.dump(reply, file)
    return 0


def _is_ours(error: BaseException) -> bool:
    """Whether a call of the tool went wrong before the tool began: the name or the argument is not there."""
    frames = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    own = [file for file in frames if not file.startswith("<frozen importlib") and "importlib" not in file]
    return isinstance(error, AttributeError | ImportError | TypeError) and own[-1:] in ([tools.__file__], [__file__])


def _answer(tool: Tool, request: Mapping[str, Any]) -> dict[str, Any]:
    tool.warm_up()
    if request["wants"] == "version":
        return {"version": tool.version()}
    if request["wants"] == "passes":
        return {"passes": list(tool.passes(request["source"]))}
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in request["order"].items()
    }
    order = TransformOrder(**fields)
    # files that a tool leaves in the current folder must land in the temporary one
    os.chdir(os.path.dirname(order.target))  # noqa: PTH120 -- this interpreter imports little
    with contextlib.redirect_stdout(sys.stderr):
        tool.transform(order)
    return {}
