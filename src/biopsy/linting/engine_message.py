"""What an engine says against a node, without what is around it: the report tells the node anyway."""

from __future__ import annotations

import re

_AROUND = (
    r"^\[ONNXRuntimeError\] : \d+ : \w+ : ",
    r"^(Load model from .* failed|Failed to load model with error|Error|Exception during (loading|initialization)):",
    r"^This is an invalid model\.",
    r"^(Error in Node|In Node), ?.*, Error ",
    r"^Node ?\(.*\) Op ?\(.*\) \[\w+\]",
    r"^Non-zero status code returned while running .* Status Message:",
)
"""How ONNX Runtime begins its messages, in the order in which these heads follow each other."""


def plain_message(message: str) -> str:
    """The message in one line, without the heads that ONNX Runtime puts before it; never empty if there is one."""
    rest = " ".join(message.split())
    for head in _AROUND:
        shorter = re.sub(head, "", rest).strip()
        rest = shorter or rest
    return rest
