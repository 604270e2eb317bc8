"""Features whose true condition is known, and what is said of them, read without the code that said it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from biopsy.questions.variation.features import Alternative, Answer, ExaminedFeature, Feature, Numbers, proposed_changes
from biopsy.search.drive import drive

Truth = Callable[[ExaminedFeature, Alternative], Answer]


def number(present: int, *, name: str = "n", most: int | None = None) -> Feature:
    """A feature that is a whole number of at least 1, with the alternatives that a size has."""

    def with_value(value: int, kind: str = "another") -> Alternative:
        return Alternative(kind=kind, text=str(value), edit=lambda fed: fed, value=value)

    wanted = {present + 1: "one more", 2 * present: "doubled", 1: "one", present + 2: "two more"}
    wanted |= {present - 1: "one less"} if present > 2 else {}
    return Feature(
        what="size",
        name=name,
        present=str(present),
        alternatives=[with_value(value, kind) for value, kind in wanted.items() if value != present],
        numbers=Numbers(present=present, with_value=with_value, least=1, most=most or max(8, 4 * present)),
    )


def choice(present: str, others: Sequence[str], *, name: str = "c") -> Feature:
    """A feature that is one of some words."""
    return Feature(
        what="attribute",
        name=name,
        present=present,
        alternatives=[Alternative(kind=word, text=word, edit=lambda fed: fed) for word in others],
    )


def examined(
    features: Sequence[Feature], truth: Callable[[ExaminedFeature, Alternative], Answer]
) -> list[ExaminedFeature]:
    """What is seen of features if changes are answered truly."""
    examinations = [ExaminedFeature(one) for one in features]

    def answer(tryings):
        answers = []
        for one in list(tryings):
            said = truth(one.examination, one.alternative)
            one.examination.answers.append((one.alternative, said))
            answers.append(said)
        return answers

    drive(proposed_changes(examinations), answer)
    return examinations


def says(short: str, value: int) -> bool:
    """Whether a condition in words holds of a number. Raises ValueError for words that are not a condition of these."""
    words = short.partition(" (")[0]
    if words in {"odd", "even"}:
        return value % 2 == (words == "odd")
    if words in {"a power of two", "no power of two"}:
        return (value in {2**exponent for exponent in range(40)}) == (words == "a power of two")
    if match := re.fullmatch(r"at (least|most) (-?\d+)", words):
        return value >= int(match[2]) if match[1] == "least" else value <= int(match[2])
    if match := re.fullmatch(r"(more|less) than (-?\d+)", words):
        return value > int(match[2]) if match[1] == "more" else value < int(match[2])
    numbers = [int(word) for word in re.findall(r"-?\d+", words)]
    if words.startswith("not "):
        return value not in numbers
    if re.fullmatch(r"-?\d+(?:(?:, | or )-?\d+)*", words):
        return value in numbers
    raise ValueError(short)
