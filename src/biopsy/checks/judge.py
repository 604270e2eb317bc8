"""From the evidence of one run of a check to its outcome, always with the reason; and the signature: what makes two
failures the same one.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, asdict, dataclass, fields
from typing import Any, Literal

from biopsy.checks.message import Death, Message, Raised, death_in, message_of
from biopsy.checks.outcome import Evidence, Judged, Outcome
from biopsy.processes import own_process

CANNOT_SAY = 125
"""The exit status with which a check says that it cannot tell, as for ``git bisect run``."""

NOT_RUN = frozenset({126, 127})
"""The statuses with which shells say that a program could not be run or was not found."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What a person said of when a check counts as failed; where they say something, they decide alone.

    ``fail_codes``: only these statuses fail. ``ignored_codes``: these do not. ``fail_regexes``: and only if one of
    them is found in the output, whatever the status if no codes are given.
    """

    fail_codes: frozenset[int] = frozenset()
    ignored_codes: frozenset[int] = frozenset()
    fail_regexes: tuple[re.Pattern[str], ...] = ()
    match: Match = "auto"

    @property
    def decide_alone(self) -> bool:
        """Whether codes or regular expressions are given."""
        return bool(self.fail_codes or self.ignored_codes or self.fail_regexes)


def judge(evidence: Evidence, rules: Rules, reference: Signature | None) -> Judged:
    """The outcome of a check. ``reference`` is the signature of the original's failure; None while it is not known,
    when any failure is taken for the failure.
    """
    outcome, reason = _judge(evidence, rules, reference)
    settings = evidence.verdict.settings
    own_process.settings_heard.update(dict.fromkeys(settings))
    if settings and outcome is Outcome.PASSES:
        reason = f"{reason}, with {', '.join(settings)}"
    return Judged(outcome, reason, evidence)


def _judge(evidence: Evidence, rules: Rules, reference: Signature | None) -> tuple[Outcome, str]:
    said = evidence.verdict
    if said.outcome == "infrastructure":
        return Outcome.INFRASTRUCTURE, said.message or "the check says that it could not be run"
    if evidence.status in NOT_RUN and evidence.status not in rules.fail_codes:
        return Outcome.INFRASTRUCTURE, f"exit status {evidence.status}: a program could not be run"
    if said.outcome == "invalid" or (evidence.status == CANNOT_SAY and CANNOT_SAY not in rules.fail_codes):
        return Outcome.INVALID, said.message or f"exit status {CANNOT_SAY}"
    if evidence.timed_out:
        if reference is None or reference.timed_out:
            return Outcome.REPRODUCES, "no answer in time"
        return Outcome.TIMED_OUT, f"no answer after {evidence.seconds:.0f} s"
    if evidence.out_of_memory:
        outcome = Outcome.REPRODUCES if reference is None or reference.out_of_memory else Outcome.OTHER_FAILURE
        return outcome, "more memory than --check-memory allows"
    if rules.decide_alone:
        return _by_rules(evidence, rules)
    return _by_signature(evidence, rules, reference)


def _by_rules(evidence: Evidence, rules: Rules) -> tuple[Outcome, str]:
    status = evidence.status
    counted = _status_counts(status, rules)
    if counted and rules.fail_regexes:
        text = evidence.output.decode("utf-8", "replace")
        found = next((regex.pattern for regex in rules.fail_regexes if regex.search(text)), None)
        if found is not None:
            return Outcome.REPRODUCES, f"the output matches '{found}'"
        reason = f"{status_text(status)}, and the output matches no --fail-regex"
    elif counted:
        return Outcome.REPRODUCES, status_text(status)
    else:
        reason = f"{status_text(status)}, which is not counted as the failure"
    return (Outcome.OTHER_FAILURE if status < 0 else Outcome.PASSES), reason


def _status_counts(status: int, rules: Rules) -> bool:
    if rules.fail_codes:
        return status in rules.fail_codes
    if rules.ignored_codes:
        return status not in rules.ignored_codes and (status != 0 or bool(rules.fail_regexes))
    return True


def _by_signature(evidence: Evidence, rules: Rules, reference: Signature | None) -> tuple[Outcome, str]:
    if evidence.status == 0 and evidence.verdict.outcome != "fails":
        return Outcome.PASSES, "exit status 0"
    if evidence.verdict.outcome == "passes":
        return Outcome.PASSES, "the check says that it passes"
    found = signature_of(evidence)
    if reference is None or same_failure(found, reference, rules.match):
        return Outcome.REPRODUCES, str(found)
    return Outcome.OTHER_FAILURE, _in_words(found, reference, rules.match)


def _in_words(found: Signature, reference: Signature, match: Match) -> str:
    """Another failure in words, with what it says at its end where only that makes it another one."""
    if match in {"message", "exact"} and same_failure(found, reference, "auto") and str(found.words):
        return f"{found}: {found.words}"
    return str(found)


# What makes two failures the same one.
#
# A candidate that fails in another way than the original is the main way for a reducer to go astray ("slippage"), so
# the kind of failure is part of what has to be reproduced.

Match = Literal["any", "status", "auto", "message", "exact"]
"""How much of a signature must agree: nothing (any failure counts); status or signal and what the check reported of
itself; where it reported nothing, the Python exception that it died of too; the meaning of the last line too; what it
says to the letter, and the names of the outputs too."""

_PLACE = re.compile(r"Exception from \S+:\d+:\s*")
"""Lines in messages of OpenVINO that name a place in its own source."""

_NOTHING = Message()
_LOOKED_AT = 1 << 16
"""Bytes of the end of an output."""


@dataclass(frozen=True, kw_only=True)
class Signature:
    """The identity of a failure, as far as the check tells.

    ``message`` is what the check reported. ``raised`` are the exceptions that a Python script died of, each the cause
    of the next, and ``parts`` those of a group of exceptions; empty where the check reported something of itself, or
    did not die so. ``words`` are the message of the last exception, or the last line of the output.
    """

    status: int
    timed_out: bool = False
    out_of_memory: bool = False
    engine: str = ""
    stage: str = ""
    kind: str = ""
    message: Message = _NOTHING
    raised: tuple[Raised, ...] = ()
    parts: tuple[Raised, ...] = ()
    words: Message = _NOTHING
    outputs: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Words for a person: ``compare · mismatch · onnxrt``, ``exit status 1``, ``signal SIGSEGV``."""
        told = [part for part in (self.stage, self.kind, self.engine) if part]
        if self.timed_out:
            return "no answer in time"
        if self.out_of_memory:
            return "more memory than allowed"
        if told and self.status > 0:
            return " · ".join((*told, *filter(None, [str(self.message)])))
        return " · ".join((status_text(self.status), *told, *(str(one) for one in self.raised[-1:])))

    @property
    def reported(self) -> bool:
        """Whether the check itself said what failed."""
        return bool(self.engine or self.stage or self.kind or self.message.exact)

    def as_json(self) -> dict[str, Any]:
        """Its fields, as plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Signature:
        """The signature of such values; what another version wrote and this one does not know is left out.

        Raises ValueError for values that are none.
        """
        try:
            return cls(**{one.name: _read(one, found[one.name]) for one in fields(cls) if one.name in found})
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no signature: {error}") from error


def _read(field: Field[Any], value: Any) -> Any:
    """The value of a field from a plain one. Raises KeyError or TypeError."""
    if field.name in _READ:
        return _READ[field.name](value)
    if str(field.type).startswith("tuple") and isinstance(value, list | tuple):
        if all(isinstance(one, str) for one in value):
            return tuple(value)
    elif type(value).__name__ == field.type:
        return value
    raise TypeError(f"a '{field.name}' of a wrong type ({type(value).__name__})")


def _message_from(found: Mapping[str, Any]) -> Message:
    _require_texts(found["meaning"], *found["items"], found["exact"])
    return Message(found["meaning"], tuple(found["items"]), found["exact"])


def _raised_from(found: Sequence[Mapping[str, Any]]) -> tuple[Raised, ...]:
    for one in found:
        _require_texts(one["kind"], one["function"], one["line"])
    return tuple(Raised(one["kind"], one["function"], one["line"]) for one in found)


def _require_texts(*values: object) -> None:
    if not all(isinstance(value, str) for value in values):
        raise TypeError("something that is no text")


_READ: Mapping[str, Callable[[Any], Any]] = {
    "message": _message_from, "words": _message_from, "raised": _raised_from, "parts": _raised_from,
}  # fmt: skip
"""How fields that are no plain values are read."""


def signature_of(evidence: Evidence) -> Signature:
    """The signature of a failure from its evidence."""
    said = evidence.verdict
    reported = bool(said.engine or said.stage or said.kind or said.message)
    text = evidence.output[-_LOOKED_AT:].decode("utf-8", "replace")
    death = None if reported or evidence.status < 0 else death_in(text, evidence.status, evidence.scripts)
    return Signature(
        status=evidence.status,
        timed_out=evidence.timed_out,
        out_of_memory=evidence.out_of_memory,
        engine=said.engine,
        stage=said.stage,
        kind=said.kind,
        message=message_of(said.message, evidence.candidate),
        raised=death.chain if death else (),
        parts=death.parts if death else (),
        words=message_of(_last_words(text, death), evidence.candidate),
        outputs=tuple(sorted(said.outputs)),
        kinds=said.kinds,
    )


def _last_words(text: str, death: Death | None) -> str:
    """The first lines of what an exception says, and its list; without an exception, the last line of the output.

    What follows the first two lines in the messages of numpy and torch are values: another text for each shape.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    if death is None:
        return lines[-1] if lines else ""
    said = [line for line in death.message.splitlines() if line.strip() and not _PLACE.fullmatch(line)]
    listed = [line for line in said[2:] if line.lstrip().startswith("-- ")]
    last = [] if death.certain or len(said) < 3 or listed else said[-1:]
    return "\n".join([f"{death.chain[-1].kind}: {' '.join(said[:2])}", *listed, *last])


def same_failure(one: Signature, other: Signature, match: Match) -> bool:
    """Whether two failures count as the same under ``match``; ``one`` may be of further kinds too."""
    if match == "any":
        return True
    if _by_status(one) != _by_status(other) or not one.message.means(other.message):
        return False
    if one.kind != other.kind and other.kind not in one.kinds:
        return False
    if match != "status" and not _died_alike(one, other):
        return False
    if match in {"message", "exact"} and not one.words.means(other.words):
        return False
    return match != "exact" or _to_the_letter(one) == _to_the_letter(other)


def _by_status(signature: Signature) -> tuple[object, ...]:
    return (
        signature.status, signature.timed_out, signature.out_of_memory,
        signature.engine, signature.stage,
    )  # fmt: skip


def _died_alike(one: Signature, other: Signature) -> bool:
    """Whether both died of the same exceptions at the same places; of a group, one that both have is enough."""
    if one.raised != other.raised or bool(one.parts) != bool(other.parts):
        return False
    return not one.parts or not set(one.parts).isdisjoint(other.parts)


def _to_the_letter(signature: Signature) -> tuple[object, ...]:
    return signature.message.exact, signature.words.exact, signature.outputs


def status_text(status: int) -> str:
    """``exit status 1`` or ``signal SIGSEGV``."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"
