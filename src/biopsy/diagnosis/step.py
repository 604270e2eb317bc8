"""One question of a diagnosis: when it is asked, and what answers it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from biopsy.diagnosis.context import StepContext
from biopsy.diagnosis.facts import KnownFacts

TIME = "the time limit"
PERSON = "an interruption"


@dataclass(frozen=True)
class StepAnswer:
    """What is known after a step, and the line that says what was learnt. ``line`` is "" if nothing was.

    ``ended`` is what ended it before its end, TIME or PERSON: what is known by then counts, and the question is asked
    again when the diagnosis goes on.
    """

    facts: KnownFacts
    line: str
    ended: str | None = None


@dataclass(frozen=True, kw_only=True)
class DiagnosisStep:
    """A question, the reason not to ask it (None: it is asked), and what answers it.

    ``evidence`` is the key of the report that holds the evidence. ``answer`` raises TimeUpError, and BiopsyError where
    the question cannot be answered. ``files`` are what it leaves in the folder of the evidence, if it has an answer.
    """

    name: str
    question: str
    not_asked: Callable[[KnownFacts, StepContext], str | None]
    answer: Callable[[KnownFacts, StepContext], StepAnswer]
    evidence: str | None = None
    files: tuple[str, ...] = ()
