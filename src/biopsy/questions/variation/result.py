"""The result of varying a failing model: which features may vary and which may not, and a sentence that says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from biopsy.questions.variation.features import (
    Alternative,
    ExaminedFeature,
    Feature,
    FedModel,
    What,
    consistent_forms,
    count_kinds,
    is_ambiguous,
)
from biopsy.questions.variation.values import value_condition
from biopsy.records import plain, plain_of
from biopsy.text import count, first_of, html_table, printable, series

Claim: TypeAlias = Literal["free", "fixed", "open"]
"""A feature may vary, must stay or satisfy a condition, or nothing can be said about it."""

Together: TypeAlias = Literal["always", "sometimes", "never"]
"""How often the model still fails if all free features are changed at once."""

_LEAST_KINDS = 2
_KINDS_TO_BE_ALONE = 3
_LEAST_OTHERS = 5
_LEAST_DENIED = 2
"""Values that pass, or others that still fail, for a condition that denies the former."""

_LEFT_OUT = "left out"
"""The change that removes an attribute without a default."""

_MOST_SHOWN = 8
_MOST_IN_BRIEF = 3


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result for one feature: ``text`` in one line, ``short`` its condition in a few words, "" if none is known.

    ``is_explicit``: the model states it. ``is_plural``: its name is a plural. ``still`` are the changes that still
    failed in the same way, ``gone`` those that passed. ``exceptions`` are the values that passed, in words, where they
    tell no condition.
    """

    what: What
    name: str
    text: str
    short: str = ""
    exceptions: str = ""
    is_explicit: bool = True
    is_plural: bool = False
    still: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The feature in words: "values of x", "keepdims of ReduceMean"."""
        return f"{_TITLES.get(self.what, '')}{self.name}"

    @property
    def condition(self) -> str:
        """The condition in a few words: "keepdims of ReduceMean = 0", "length of w at least 2"."""
        return f"{self.title} {'' if self.short[:1].isalpha() else '= '}{self.short}"

    @property
    def requirement(self) -> str:
        """The condition as a clause: "axis of Softmax = 1", "the values of w are not all zeros"."""
        tried = f" ({len(self.still) + len(self.gone)} tried)"
        if self.what == "attribute" and not self.short[:1].isalpha():
            return f"{self.title} = {self.short}{tried}"
        return f"{self.subject} {self.short}{tried}"

    @property
    def subject(self) -> str:
        """The feature with its verb: "the values of x are", "the type of x is"."""
        return f"the {self.title} {'are' if self.is_plural or self.what in _VALUES else 'is'}"

    def as_json(self) -> dict[str, Any]:
        """The finding as plain values for a report."""
        tried = {"tried": plain(self.gone or self.still)}
        return {**plain_of(self, "what name text"), **tried, **plain_of(self, "still gone")}


_VALUES = {"input", "weight"}

_TITLES = {"input": "values of ", "weight": "values of ", "dtype": "type of "}


@dataclass(frozen=True, kw_only=True)
class Variation:
    """Which features of a model may vary so that it still fails in the same way.

    ``free``: changes of several kinds still failed, and none passed. ``fixed``: some change passed, so it must stay or
    satisfy a simple condition. ``unknown``: neither is known. ``together``: whether it still fails if all free features
    are changed at once; None if not tried. ``checks`` counts runs of the check. ``complete``: the budget sufficed.
    ``kept`` says why nothing was varied at all, else "". ``plain`` is the model with the least sizes and the simplest
    values with which it still fails; None if it got no plainer. ``of_plain`` is ``brief`` of that; "" if not asked.
    """

    free: tuple[Finding, ...] = ()
    fixed: tuple[Finding, ...] = ()
    unknown: tuple[Finding, ...] = ()
    together: Together | None = None
    checks: int = 0
    complete: bool = True
    kept: str = ""
    plain: FedModel | None = None
    of_plain: str = ""

    @property
    def in_brief(self) -> Sequence[Finding]:
        """The features that ``brief`` is about."""
        free = [finding for finding in self.free if finding.is_explicit]
        fixed = [finding for finding in self.fixed if finding.short or finding.exceptions]
        return [*free[:_MOST_IN_BRIEF], *fixed[:_MOST_IN_BRIEF]]

    @property
    def sentence(self) -> str:
        """The free features with the number of changes tried, and the conditions on fixed ones, in one sentence."""
        return self._sentence_of(most=None) or "nothing can be said of what may vary"

    @property
    def brief(self) -> str:
        """The same with a few of each; "" if it is not known for what it fails."""
        return self._sentence_of(most=_MOST_IN_BRIEF) if self.in_brief else ""

    def _sentence_of(self, most: int | None) -> str:
        def listed(texts: Sequence[str]) -> str:
            shown = list(texts[:most])
            return series([*shown, f"{len(texts) - len(shown)} more"] if len(shown) < len(texts) else shown)

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
            anything = [f"any values of {listed(values)}", *others] if values else others
            parts.append(f"fails for {listed(anything)}{limits[self.together]}")
        only = listed([finding.requirement for finding in self.fixed if finding.short])
        passing = [f"{finding.subject} {finding.exceptions}" for finding in self.fixed if finding.exceptions]
        unclear = listed(
            [f"the {finding.title}" for finding in self.fixed if not (finding.short or finding.exceptions)]
        )
        if only:
            parts.append(f"only if {only}" if free else f"fails only if {only}")
        if passing:
            parts.append(f"it passes if {series(passing[:most], 'or if')}")
        if unclear:
            parts.append(f"it depends on {unclear}{' too' if only or passing else ''}, it is not known how")
        return "; ".join(parts)

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
            **plain_of(self, "checks complete"),
            **{claim: [finding.as_json() for finding in of_claim] for claim, of_claim in findings.items()},
            **plain_of(self, "together sentence"),
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
    claim, short, exceptions = claim_of(examination), "", ""
    if claim == "free":
        text = f"any of {len(failing)} tried ({some_still})"
    elif claim == "open":
        tried = f"only {some_still} still failed" if failing else "no change gave a model that fails or passes"
        text = f"not known: {tried}"
    else:
        short = condition_of(examination)
        if not short and feature.values is None and feature.numbers is None:
            exceptions = series(_values_in_words(passing, failing), "or")
        answers = [f"{some_still} still fail{'s' if len(failing) == 1 else ''}"] if failing else []
        answers.append(f"{some_gone} pass{'es' if len(passing) == 1 else ''}")
        text = f"{short or UNCLEAR} ({'; '.join(answers)})"
    return Finding(
        what=feature.what,
        name=feature.name,
        text=text,
        short=short,
        exceptions=exceptions,
        is_explicit=feature.is_explicit,
        is_plural=_is_list(feature) and feature.name.partition(" of ")[0].endswith("s"),
        still=still,
        gone=gone,
    )


def _is_list(feature: Feature) -> bool:
    return feature.what == "attribute" and feature.present.startswith("[")


UNCLEAR = "some only"
"""What is said of a feature that the failure depends on, if it is not known how."""


def condition_of(examination: ExaminedFeature) -> str:
    """The only simple condition that agrees with every answer about a feature that some change of lets pass.

    "" if there is none, more than one, or too little was tried. It denies nothing that was not tried, but by a form.
    """
    feature = examination.feature
    failing, passing = examination.with_answer("fails"), examination.with_answer("passes")
    are_given = count_kinds(failing) >= _LEAST_KINDS and {change.text for change in passing} == {_LEFT_OUT}
    if are_given and not examination.is_entangled:
        return "given"
    if feature.values is not None:
        return _condition_on_values(examination)
    if feature.numbers is not None:
        return _condition_on_number(examination)
    is_all = feature.is_closed and len(examination.answers) == len(feature.alternatives)
    if is_all or (not failing and count_kinds(passing) >= _KINDS_TO_BE_ALONE):
        stated = [change for change in failing if change.kind not in _RESTATED]  # a default is one of the values
        return series(list(dict.fromkeys([feature.present, *_values_in_words(stated, passing)])), "or")
    some_passing, some_failing = _values_in_words(passing, failing), _values_in_words(failing, passing)
    if _is_list(feature) or max(len({*some_passing} - {_LEFT_OUT}), len(some_failing)) < _LEAST_DENIED:
        return ""  # one list tells nothing of others
    return f"not {series(some_passing, 'or')}"


_RESTATED = ("left out", "written out")
"""The kinds of change that state a value otherwise."""


def _values_in_words(changes: Sequence[Alternative], others: Sequence[Alternative]) -> list[str]:
    """Each new value once, with how it was made where ``others`` have the same value and another answer."""
    ambiguous = {change.text.partition(" (")[0] for change in others}
    short = ((change.text, change.text.partition(" (")[0]) for change in changes)
    return list(dict.fromkeys(text if value in ambiguous else value for text, value in short))


def _condition_on_values(examination: ExaminedFeature) -> str:
    feature, present = examination.feature, examination.feature.values
    if present is None or not feature.is_measured or examination.is_entangled:
        return ""
    failing, passing = (
        [change.change(present) for change in examination.with_answer(answer) if change.change is not None]
        for answer in ("fails", "passes")
    )
    around = {change.kind for change in examination.with_answer("passes")} & {"a little more", "a little less"}
    if present.size == 1 and not failing and len(passing) >= _LEAST_OTHERS and len(around) > 1:
        return feature.present
    return value_condition([present, *failing], passing)


def _condition_on_number(examination: ExaminedFeature) -> str:
    numbers = examination.feature.numbers
    tried = [*examination.with_answer("fails"), *examination.with_answer("passes")]
    if numbers is None or any(change.value is None for change in tried) or is_ambiguous(examination):
        return ""
    failing, passing = examination.numbers_with("fails"), examination.numbers_with("passes")
    forms = consistent_forms(failing, passing, numbers.named)
    if forms and forms[0].is_supported(failing, passing):
        return forms[0].text
    invalid = examination.numbers_with("invalid")
    are_all_tried = set(range(numbers.least, numbers.most + 1)) <= failing | passing | invalid
    is_all = are_all_tried and {numbers.least, numbers.most} <= invalid
    return series([str(number) for number in sorted(failing)], "or") if is_all else ""
