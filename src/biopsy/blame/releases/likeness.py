"""Whether failures of two releases are the same one: by stage and meaning, for words and codes change.

ONNX Runtime reported the same refusal as RUNTIME_EXCEPTION up to 1.23.2 and as FAIL since 1.24: the status, its code,
the line of its source and the Python class that it raises changed, and the sentence did not.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from difflib import SequenceMatcher

from biopsy.checks.message import Message
from biopsy.checks.raised import Raised
from biopsy.checks.signature import Signature

_ALIKE = 0.6
"""Two messages mean the same if so much of their words is the same, in the same order."""

_BEFORE_IT_RUNS = frozenset({"load", "build"})

_CODE_NAMES = re.compile(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*\b")
_CLASS = re.compile(r"^(?:\w+\.)*\w+: ")
_WORD = re.compile(r"[A-Za-z]{2,}")

_TOO_NEW = re.compile(
    r"opset \d+ is under development|IR version|IR_VERSION|is not a registered function/op|No Op registered for"
    r"|opset (?:import|version)\S* .*(?:support|greater|higher|newer)|unsupported (?:model )?opset"
    r"|unrecognized attribute"
    r"|(?:does not|doesn't) support the following ONNX operations|Ops? (?:is|are) not supported",
    re.IGNORECASE,
)


def same_across_releases(found: Signature, reference: Signature, operators: Collection[str] = ()) -> bool:
    """Whether a failure with one release is the ``reference``, that of another one, in other words.

    ``operators`` are those of the model: messages that speak of different ones are different. What a comparison has
    found has no words that could change, so this is for failures of engines and for Python exceptions.
    """
    if _ended(found) != _ended(reference) or found.stage == "compare" or found.engine != reference.engine:
        return False
    if found.reported or reference.reported:
        same_stage = found.stage == reference.stage or {found.stage, reference.stage} <= _BEFORE_IT_RUNS
        return same_stage and _mean_the_same(found.message, reference.message, operators)
    if not found.raised or _frames(found.raised) != _frames(reference.raised):
        return False
    return _mean_the_same(found.words, reference.words, operators)


def is_too_old(found: Signature, reference: Signature | None) -> bool:
    """Whether a release cannot read the model at all, which is not what the ``reference`` failed at.

    Such a release says nothing of the failure: it came before the operators, or the version of the format. None: no
    failure is known by now.
    """
    if reference is not None and _TOO_NEW.search(_said(reference)):
        return False
    if found.stage not in _BEFORE_IT_RUNS and not found.raised:
        return False
    at_loading = reference is not None and found.stage == "load" and reference.stage != "load"
    return at_loading or bool(_TOO_NEW.search(_said(found)))


def _said(signature: Signature) -> str:
    return f"{signature.message.exact}\n{signature.words.exact}"


def _ended(signature: Signature) -> tuple[object, ...]:
    return signature.status, signature.timed_out, signature.out_of_memory


def _frames(raised: tuple[Raised, ...]) -> list[tuple[str, str]]:
    return [(one.function, one.line) for one in raised]


def _mean_the_same(one: Message, other: Message, operators: Collection[str]) -> bool:
    if bool(one.items) != bool(other.items) or (one.items and set(one.items).isdisjoint(other.items)):
        return False
    named = [_named(message, operators) for message in (one, other)]
    if all(named) and named[0].isdisjoint(named[1]):
        return False
    said, expected = _words(one), _words(other)
    return said == expected or SequenceMatcher(None, said, expected, autojunk=False).ratio() >= _ALIKE


def _named(message: Message, operators: Collection[str]) -> set[str]:
    return set(re.findall(r"\w+", message.exact)) & set(operators)


def _words(message: Message) -> list[str]:
    """The words of a message without names of codes and of the class that it was raised as."""
    return _WORD.findall(_CODE_NAMES.sub(" ", _CLASS.sub("", message.meaning)))
