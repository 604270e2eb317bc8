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


def seen_in(
    engine: str, *, release: str = "", stage: str = "", kind: str = "", is_checked: bool = False
) -> SeenFailure:
    """A failure of an engine as it is written, such as "onnxrt:optimization=none"; "" if nobody knows of which.

    Without a ``release``, it is the installed one; unless a check is going to tell, with ``is_checked``. Raises
    UnknownEngine.
    """
    if not engine:
        return SeenFailure(release=release, stage=stage, kind=kind)
    spec = parse_spec(engine)
    told = spec.settings.get("release") or "" if is_checked else _installed(engine)
    return SeenFailure(engine=spec.name, release=release or told, stage=stage, kind=kind)


def seen_by(check: Check, piece: Path, seen: SeenFailure) -> SeenFailure:
    """How a piece fails a check, run once; what ``seen`` says already stays.

    Which of two engines computes something wrong a person may know better; which one ends before that, the check does.

    Raises OriginalPasses if the piece passes, CheckError if the check could not be run, UsageError if it is another
    engine than ``seen`` says that cannot load, build or run the piece.
    """
    evidence = check.run(piece)
    judged = judge(evidence, Rules(), None)
    if judged.outcome is Outcome.PASSES:
        raise errors.OriginalPasses(
            f"{piece} does not fail this check ({judged.reason}), so there is nothing to look up"
        )
    if judged.outcome not in (Outcome.REPRODUCES, Outcome.OTHER_FAILURE):
        raise errors.CheckError(f"the check says nothing of {piece}: {judged.reason}")
    found = signature_of(evidence)
    name = found.engine.partition(":")[0]
    engine = seen.engine or name
    if name and name != engine and found.stage != "compare":
        raise errors.UsageError(
            f"it is {found.engine} that fails this check ({judged.reason}), and not {engine}",
            next_steps=[f"--engine {name}", "leave out --engine"],
        )
    release = seen.release or (_installed(found.engine or engine) if name in ("", engine) else "")
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
