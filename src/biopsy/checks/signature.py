"""What makes two failures the same one.

A candidate that fails in another way than the original is the main way for a reducer to go astray ("slippage"), so the
kind of failure is part of what has to be reproduced.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from typing import Literal

from biopsy.checks.outcome import Evidence

Match = Literal["any", "status", "message", "exact"]
"""How much of a signature must agree: nothing (any failure counts); status or signal and what the check reported of
itself; the last line of the output too; the names of the outputs too."""


@dataclass(frozen=True)
class Signature:
    """The identity of a failure, as far as the check tells."""

    status: int
    timed_out: bool
    engine: str
    stage: str
    kind: str
    message: str
    last_line: str
    outputs: tuple[str, ...]
    out_of_memory: bool = False
    kinds: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Words for a person: ``compare · mismatch · onnxrt``, ``exit status 1``, ``signal SIGSEGV``."""
        told = [part for part in (self.stage, self.kind, self.engine) if part]
        if self.timed_out:
            return "no answer in time"
        if self.out_of_memory:
            return "more memory than allowed"
        if told and self.status > 0:
            return " · ".join((*told, *([self.message] if self.message else [])))
        return " · ".join((status_text(self.status), *told))


def signature_of(evidence: Evidence) -> Signature:
    """The signature of a failure from its evidence."""
    said = evidence.verdict
    lines = evidence.output[-65536:].decode("utf-8", "replace").strip().splitlines()
    return Signature(
        evidence.status,
        evidence.timed_out,
        said.engine,
        said.stage,
        said.kind,
        normalised(said.message),
        normalised(lines[-1]) if lines else "",
        tuple(sorted(said.outputs)),
        evidence.out_of_memory,
        said.kinds,
    )


def same_failure(one: Signature, other: Signature, match: Match) -> bool:
    """Whether two failures count as the same under ``match``; ``one`` may be of further kinds too."""
    if match == "any":
        return True
    if _by_status(one) != _by_status(other) or (one.kind != other.kind and other.kind not in one.kinds):
        return False
    if match in {"message", "exact"} and one.last_line != other.last_line:
        return False
    return match != "exact" or one.outputs == other.outputs


def _by_status(signature: Signature) -> tuple[object, ...]:
    return (
        signature.status, signature.timed_out, signature.out_of_memory,
        signature.engine, signature.stage, signature.message,
    )  # fmt: skip


_PARTS_THAT_VARY = re.compile(
    r"0x[0-9a-fA-F]+"  # addresses
    r"|'[^']*'|\"[^\"]*\"|\([^()]*\)|\[[^\[\]]*\]|\{[^{}]*\}"  # quoted names, lists of dimensions, node names
    r"|/[\w./+-]+"  # paths, and names with slashes
    r"|[-+]?\d[\d.,x*e+-]*"  # numbers and shapes
)


_LONGEST_MESSAGE = 20_000


def normalised(message: str) -> str:
    """A message without what differs from candidate to candidate: names, numbers, shapes, values, addresses, paths."""
    before, text = "", message[:_LONGEST_MESSAGE]
    while text != before:  # brackets stand in brackets: a matrix is as many lists as it has rows
        before, text = text, _PARTS_THAT_VARY.sub("_", text)
    return " ".join(text.split())[:400]


def status_text(status: int) -> str:
    """``exit status 1`` or ``signal SIGSEGV``."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"
