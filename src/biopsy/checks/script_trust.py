"""Whether the fork of a warm process has said of a model what a process of its own has said of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from biopsy.checks.message import normalised
from biopsy.checks.outcome import Evidence
from biopsy.checks.signature import same_failure, signature_of, status_text

_LARGEST = 1 << 28  # bytes of a model that are read to see that it is the same
_COMPARED = 1 << 16  # bytes of each end of what was printed


@dataclass(frozen=True)
class Known:
    """What a process said of a model, which is known by its digest."""

    model: bytes
    evidence: Evidence


def digest(model: Path) -> bytes | None:
    """Tells a model from others; None if it cannot be read, or is so large that reading it is no bargain."""
    try:
        if not model.is_file() or model.stat().st_size > _LARGEST:
            return None
        return hashlib.sha256(model.read_bytes()).digest()
    except OSError:
        return None


def difference(cold: Evidence, warm: Evidence, name: str) -> str:
    """In which way a fork that ran the script of this name has said something else than a process; "" if in none."""
    if (warm.status, warm.timed_out, warm.out_of_memory) != (cold.status, False, False):
        how = "not in time" if warm.timed_out else f"with {status_text(warm.status)}"
        return f"a warm run of {name} ended {how}, a process of its own with {status_text(cold.status)}"
    same = same_failure(signature_of(cold), signature_of(warm), "message")
    if not same or cold.verdict.outcome != warm.verdict.outcome or list(_lines(cold)) != list(_lines(warm)):
        return f"a warm run of {name} said something else than a process of its own"
    return ""


def _lines(evidence: Evidence) -> Iterator[str]:
    """The lines that a script printed, without what may differ between any two runs."""
    for part in (evidence.output[:_COMPARED], evidence.output[_COMPARED:][-_COMPARED:]):
        for line in part.decode("utf-8", "replace").splitlines():
            yield normalised(line.replace(evidence.candidate, "{}") if evidence.candidate else line)
