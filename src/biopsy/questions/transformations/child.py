"""The side of the interpreter that has the tool: a fork for each order, or one order in a process of its own.

Its words: the name of the tool, its settings as JSON, and in a process of its own the order as JSON. What comes of an
order is JSON too, in the file that the order names: ``{"answer": {...}}``, or ``{"error": {"kind", "message"}}``.
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
    """Serve orders, or do one."""
    tool = TOOLS[sys.argv[1]](json.loads(sys.argv[2]))
    if len(sys.argv) <= 3:
        tool.warm_up()
        serve_forks(partial(_done, tool))
    return _done(tool, json.loads(sys.argv[3]))


def _done(tool: Tool, request: Mapping[str, Any]) -> int:
    """Do one order, and tell what came of it."""
    try:
        told: dict[str, Any] = {"answer": _answer(tool, request)}
    except (Exception, SystemExit) as error:  # whatever a tool raises is what it says of the model
        told = {"error": {"kind": type(error).__name__, "message": str(error)[:_LONGEST_MESSAGE]}}
    with open(request["answer"], "x", encoding="utf-8") as file:  # noqa: PTH123 -- this interpreter imports little
        json.dump(told, file)
    return 0


def _answer(tool: Tool, request: Mapping[str, Any]) -> dict[str, Any]:
    tool.warm_up()
    if request["wants"] == "version":
        return {"version": tool.version()}
    if request["wants"] == "passes":
        return {"passes": list(tool.passes(request["source"]))}
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in request["order"].items()
    }
    order = TransformOrder(**given)
    os.chdir(os.path.dirname(order.target))  # noqa: PTH120 -- what a tool leaves in the current folder goes with it
    with contextlib.redirect_stdout(sys.stderr):
        tool.transform(order)
    return {}
