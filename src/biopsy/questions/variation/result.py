"""What was found of a failing model: what may vary, what may not, and the sentence that says it all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from biopsy.questions.variation.features import ExaminedFeature, What, consistent_forms, is_ambiguous, kinds
from biopsy.records import plain
from biopsy.text import count, first_of, html_table, printable, series

Claim: TypeAlias = Literal["free", "fixed", "open"]
"""It may be anything that was tried; it must be so, or as a condition says; or nothing can be said."""

Together: TypeAlias = Literal["always", "sometimes", "never"]
"""Whether it still fails where all that is free is changed at once."""

_LEAST_KINDS = 2
_KINDS_FOR_ANY_BUT = 3
_MOST_SHOWN = 8


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What is known of one feature: ``text`` in one line, ``short`` what it must be in a few words.

    ``is_given``: the model itself states it. ``still`` are the changes with which the model still failed in the same
    way, ``gone`` those with which it passed.
    """

    what: What
    name: str
    text: str
    short: str = ""
    is_given: bool = True
    still: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """What it is about, in words: "values of x", "keepdims of ReduceMean"."""
        return f"{_TITLES.get(self.what, '')}{self.name}"

    def as_json(self) -> dict[str, Any]:
        """The finding as it stands in a report."""
        tree = {"what": self.what, "name": self.name, "text": self.text, "tried": self.gone or self.still}
        return {key: plain(value) for key, value in {**tree, "still": self.still, "gone": self.gone}.items()}


_VALUES = {"input", "weight"}

_TITLES = {"input": "values of ", "weight": "values of ", "dtype": "type of "}


@dataclass(frozen=True, kw_only=True)
class Variation:
    """What may vary in a model, and it still fails in the same way.

    ``free``: several changes of different kinds still failed, and none passed. ``fixed``: it must be as it is, or as a
    simple condition says; some change passed. ``unknown``: neither can be said. ``together``: whether it still fails
    where all that is free is changed at once, None where that was not asked. ``checks`` counts runs of the check.
    ``complete``: the budget sufficed. ``kept`` says why nothing was varied at all, "" if that is not so.
    """

    free: tuple[Finding, ...] = ()
    fixed: tuple[Finding, ...] = ()
    unknown: tuple[Finding, ...] = ()
    together: Together | None = None
    checks: int = 0
    complete: bool = True
    kept: str = ""

    @property
    def sentence(self) -> str:
        """What is free, with how many changes were tried of it, and the conditions on what is not: in one sentence."""
        if self.kept:
            return f"nothing was varied: {self.kept}"
        free = [one for one in self.free if one.is_given]
        parts = []
        if free:
            limits = {
                "always": "",
                "sometimes": ", each by itself, not always all at once",
                "never": ", each by itself but not all at once",
                None: ", each by itself" if len(free) > 1 else "",
            }
            values = [f"{one.name} ({len(one.still)} tried)" for one in free if one.what in _VALUES]
            others = [f"any {one.title} ({len(one.still)} tried)" for one in free if one.what not in _VALUES]
            anything = [f"any values of {series(values)}", *others] if values else others
            parts.append(f"fails for {series(anything)}{limits[self.together]}")
        if self.fixed:
            only = series([_required(one) for one in self.fixed])
            parts.append(f"only if {only}" if free else f"fails only if {only}")
        return "; ".join(parts) or "nothing can be said of what may vary"

    def __repr__(self) -> str:
        return f"<Variation: {printable(self.sentence)}; {count(self.checks, 'check')}>"

    def _repr_html_(self) -> str:
        rows = [
            (claim, one.title, one.text)
            for claim, findings in (("free", self.free), ("fixed", self.fixed), ("unknown", self.unknown))
            for one in findings
        ]
        return html_table(self.sentence, ["", "what", "as far as tried"], rows, 60)

    def as_json(self) -> dict[str, Any]:
        """The object of the key ``variation`` in a report."""
        findings = {"free": self.free, "fixed": self.fixed, "unknown": self.unknown}
        return {
            "checks": self.checks,
            "complete": self.complete,
            **{claim: [one.as_json() for one in some] for claim, some in findings.items()},
            "together": self.together,
            "sentence": self.sentence,
        }


def claim_of(examination: ExaminedFeature) -> Claim:
    """What may be said of a feature: "free" only after several changes of different kinds that still failed."""
    failing, passing = examination.that("fails"), examination.that("passes")
    if passing:
        return "fixed"
    return "free" if kinds(failing) >= _LEAST_KINDS else "open"


def finding_of(examination: ExaminedFeature) -> Finding:
    """A feature in words, as far as it was tried."""
    feature = examination.feature
    failing, passing = examination.that("fails"), examination.that("passes")
    still, gone = (tuple(dict.fromkeys(one.text for one in some)) for some in (failing, passing))
    some_still, some_gone = first_of(still, _MOST_SHOWN), first_of(gone, _MOST_SHOWN)
    claim, short = claim_of(examination), ""
    if claim == "free":
        text = f"any of {len(failing)} tried ({some_still})"
    elif claim == "open":
        tried = f"only {some_still} still failed" if failing else "no change gave a model that fails or passes"
        text = f"not known: {tried}"
    else:
        short = _condition(examination)
        if not short and kinds(failing) >= _KINDS_FOR_ANY_BUT and len(passing) < len(failing):
            short = f"any but {series(gone, 'or')}"
        short = short or series([*filter(None, [feature.present]), *still], "or") or "as they are"
        answers = [f"{some_still} still fail{'s' if len(failing) == 1 else ''}"] if failing else []
        answers.append(f"{some_gone} pass{'es' if len(passing) == 1 else ''}")
        text = f"{short} ({'; '.join(answers)})"
    return Finding(
        what=feature.what,
        name=feature.name,
        text=text,
        short=short,
        is_given=feature.is_given,
        still=still,
        gone=gone,
    )


def _condition(examination: ExaminedFeature) -> str:
    """The one simple condition on a number that agrees with every answer; "" if there is none, or more than one."""
    numbers = examination.feature.numbers
    others = [one for one in (*examination.that("fails"), *examination.that("passes")) if one.value is None]
    if numbers is None or others or is_ambiguous(examination):
        return ""
    failing, passing = examination.numbers_that("fails"), examination.numbers_that("passes")
    forms = consistent_forms(failing, passing, numbers.named)
    return forms[0].text if forms and forms[0].is_supported(failing, passing) else ""


def _required(one: Finding) -> str:
    """A condition in words: "axis of Softmax = 1", "the length of x is odd", "the values of w are any but zeros"."""
    if one.what == "attribute" and not one.short[:1].isalpha():
        return f"{one.title} = {one.short}"
    return f"the {one.title} {'are' if one.what in _VALUES else 'is'} {one.short}"
