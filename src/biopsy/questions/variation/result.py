"""The result of varying a failing model: which features may vary and which may not, and a sentence that says so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from biopsy.questions.variation.features import ExaminedFeature, What, consistent_forms, count_kinds, is_ambiguous
from biopsy.records import plain
from biopsy.text import count, first_of, html_table, printable, series

Claim: TypeAlias = Literal["free", "fixed", "open"]
"""A feature may vary, must stay or satisfy a condition, or nothing can be said about it."""

Together: TypeAlias = Literal["always", "sometimes", "never"]
"""How often the model still fails if all free features are changed at once."""

_LEAST_KINDS = 2
_KINDS_FOR_ANY_BUT = 3
_MOST_SHOWN = 8


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result for one feature: ``text`` in one line, ``short`` its condition in a few words.

    ``is_explicit``: the model states it. ``still`` are the changes that still failed in the same way, ``gone`` those
    that passed.
    """

    what: What
    name: str
    text: str
    short: str = ""
    is_explicit: bool = True
    still: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The feature in words: "values of x", "keepdims of ReduceMean"."""
        return f"{_TITLES.get(self.what, '')}{self.name}"

    @property
    def requirement(self) -> str:
        """The condition as a clause: "axis of Softmax = 1", "the values of w are any but zeros"."""
        if self.what == "attribute" and not self.short[:1].isalpha():
            return f"{self.title} = {self.short}"
        return f"the {self.title} {'are' if self.what in _VALUES else 'is'} {self.short}"

    def as_json(self) -> dict[str, Any]:
        """The finding as plain values for a report."""
        tree = {"what": self.what, "name": self.name, "text": self.text, "tried": self.gone or self.still}
        return {key: plain(value) for key, value in {**tree, "still": self.still, "gone": self.gone}.items()}


_VALUES = {"input", "weight"}

_TITLES = {"input": "values of ", "weight": "values of ", "dtype": "type of "}


@dataclass(frozen=True, kw_only=True)
class Variation:
    """Which features of a model may vary so that it still fails in the same way.

    ``free``: changes of several kinds still failed, and none passed. ``fixed``: some change passed, so it must stay or
    satisfy a simple condition. ``unknown``: neither is known. ``together``: whether it still fails if all free features
    are changed at once; None if not tried. ``checks`` counts runs of the check. ``complete``: the budget sufficed.
    ``kept`` says why nothing was varied at all, else "".
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
        """The free features with the number of changes tried, and the conditions on fixed ones, in one sentence."""
        if self.kept:
            return f"nothing was varied: {self.kept}"
        free = [finding for finding in self.free if finding.is_explicit]
        parts = []
        if free:
            limits = {
                "always": "",
                "sometimes": ", each by itself, not always all at once",
                "never": ", each by itself but not all at once",
                None: ", each by itself" if len(free) > 1 else "",
            }
            values = [f"{finding.name} ({len(finding.still)} tried)" for finding in free if finding.what in _VALUES]
            others = [
                f"any {finding.title} ({len(finding.still)} tried)" for finding in free if finding.what not in _VALUES
            ]
            anything = [f"any values of {series(values)}", *others] if values else others
            parts.append(f"fails for {series(anything)}{limits[self.together]}")
        if self.fixed:
            only = series([finding.requirement for finding in self.fixed])
            parts.append(f"only if {only}" if free else f"fails only if {only}")
        return "; ".join(parts) or "nothing can be said of what may vary"

    def __repr__(self) -> str:
        return f"<Variation: {printable(self.sentence)}; {count(self.checks, 'check')}>"

    def _repr_html_(self) -> str:
        rows = [
            (claim, finding.title, finding.text)
            for claim, findings in (("free", self.free), ("fixed", self.fixed), ("unknown", self.unknown))
            for finding in findings
        ]
        return html_table(self.sentence, ["", "what", "as far as tried"], rows, 60)

    def as_json(self) -> dict[str, Any]:
        """The object of the key ``variation`` in a report."""
        findings = {"free": self.free, "fixed": self.fixed, "unknown": self.unknown}
        return {
            "checks": self.checks,
            "complete": self.complete,
            **{claim: [finding.as_json() for finding in of_claim] for claim, of_claim in findings.items()},
            "together": self.together,
            "sentence": self.sentence,
        }


def claim_of(examination: ExaminedFeature) -> Claim:
    """The claim about a feature; "free" only if changes of several kinds still failed and none passed."""
    failing, passing = examination.with_answer("fails"), examination.with_answer("passes")
    if passing:
        return "fixed"
    return "free" if count_kinds(failing) >= _LEAST_KINDS else "open"


def finding_of(examination: ExaminedFeature) -> Finding:
    """The answers about a feature in words."""
    feature = examination.feature
    failing, passing = examination.with_answer("fails"), examination.with_answer("passes")
    still, gone = (tuple(dict.fromkeys(change.text for change in changes)) for changes in (failing, passing))
    some_still, some_gone = first_of(still, _MOST_SHOWN), first_of(gone, _MOST_SHOWN)
    claim, short = claim_of(examination), ""
    if claim == "free":
        text = f"any of {len(failing)} tried ({some_still})"
    elif claim == "open":
        tried = f"only {some_still} still failed" if failing else "no change gave a model that fails or passes"
        text = f"not known: {tried}"
    else:
        short = _condition(examination)
        if not short and count_kinds(failing) >= _KINDS_FOR_ANY_BUT and len(passing) < len(failing):
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
        is_explicit=feature.is_explicit,
        still=still,
        gone=gone,
    )


def _condition(examination: ExaminedFeature) -> str:
    """The only simple condition on a number that agrees with every answer; "" if there is none or more than one."""
    numbers = examination.feature.numbers
    tried = [*examination.with_answer("fails"), *examination.with_answer("passes")]
    if numbers is None or any(change.value is None for change in tried) or is_ambiguous(examination):
        return ""
    failing, passing = examination.numbers_with("fails"), examination.numbers_with("passes")
    forms = consistent_forms(failing, passing, numbers.named)
    return forms[0].text if forms and forms[0].is_supported(failing, passing) else ""
