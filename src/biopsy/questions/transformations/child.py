"""The process of the interpreter that has the tool: it serves requests, each in a fork, or answers only one.

Its arguments are the name of the tool, its settings as JSON, and, if it answers only one, the request as JSON. The
answer is written to the file that the request names: ``{"answer": {...}}``, or ``{"error": {"kind", "message"}}``.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

from biopsy.processes.server import serve_forks
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
        reply = {"error": {"kind": type(error).__name__, "message": str(error)[:_LONGEST_MESSAGE]}}
    with open(request["answer"], "x", encoding="utf-8") as file:  # noqa: PTH123 -- this interpreter imports little
        json.dump(reply, file)
    return 0


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
