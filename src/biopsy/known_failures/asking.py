"""What is known of how a piece fails: from an engine as it is written, and from one run of a check."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from biopsy import errors
from biopsy.checks.judge import Rules, judge
from biopsy.checks.outcome import Check, Outcome
from biopsy.checks.signature import signature_of
from biopsy.engines.registry import parse_spec, release_now
from biopsy.known_failures.lookup import SeenFailure


def seen_in(engine: str, *, release: str = "", stage: str = "", kind: str = "") -> SeenFailure:
    """A failure of an engine as it is written, such as "onnxrt:optimization=none"; "" if nobody knows of which.

    Without a ``release``, it is the installed one. Raises UnknownEngine.
    """
    if not engine:
        return SeenFailure(release=release, stage=stage, kind=kind)
    name = parse_spec(engine).name
    return SeenFailure(engine=name, release=release or _installed(engine), stage=stage, kind=kind)


def seen_by(check: Check, piece: Path, seen: SeenFailure) -> SeenFailure:
    """How a piece fails a check, run once; what ``seen`` says already stays.

    Raises OriginalPasses if the piece passes, CheckError if the check could not be run.
    """
    evidence = check.run(piece)
    judged = judge(evidence, Rules(), None)
    if judged.outcome is Outcome.PASSES:
        raise errors.OriginalPasses(f"{piece} does not fail this check, so there is nothing to look up")
    if judged.outcome not in (Outcome.REPRODUCES, Outcome.OTHER_FAILURE):
        raise errors.CheckError(f"the check says nothing of {piece}: {judged.reason}")
    found = signature_of(evidence)
    engine = seen.engine or found.engine.partition(":")[0]
    release = seen.release or (_installed(found.engine) if engine == found.engine.partition(":")[0] else "")
    return replace(seen, engine=engine, release=release, stage=seen.stage or found.stage, kind=seen.kind or found.kind)


def _installed(engine: str) -> str:
    """The release that an engine as it is written runs; "" if that is not known."""
    if not engine:
        return ""
    try:
        return release_now(parse_spec(engine)) or ""
    except errors.UnknownEngine:
        raise
    except errors.BiopsyError:
        return ""
