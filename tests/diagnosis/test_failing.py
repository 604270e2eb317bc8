"""A failure that was seen once is told, whatever runs after it say. The answers of the check are given here."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import onnxruntime
import pytest

from biopsy import events
from biopsy.checks.outcome import Evidence, Judged, Outcome
from biopsy.checks.verdict import VerdictFile
from biopsy.comparison.mismatch import Rounding
from biopsy.diagnosis.context import StepContext
from biopsy.diagnosis.facts import KnownFacts
from biopsy.diagnosis.question import Words
from biopsy.diagnosis.steps.failing import failing
from biopsy.diagnosis.verdict import verdict_of
from support.diagnoses import SUSPECT, TRUSTED, question

PASSES = VerdictFile(outcome="passes")
CRASH = VerdictFile(outcome="fails", stage="run", kind="RuntimeError", engine=SUSPECT)
DIFFERS = VerdictFile(outcome="fails", stage="compare", kind="mismatch", engine=SUSPECT)


class Runs(StepContext):
    """The runs with these numbers end so; all others pass."""

    def __init__(self, folder: Path, ends: dict[int, VerdictFile], engines: Words = (SUSPECT,)) -> None:
        super().__init__(replace(question(folder), engines=engines), events.ignore)
        self._ends = ends
        self.asked: list[list[str]] = []

    def run(self, words: Words, model: Path, *, description: str = "", share: float = 1.0) -> Judged:
        said = self._ends.get(len(self.asked), PASSES)
        self.asked.append([word for before, word in pairwise(words) if before == "--engine"])
        fails = said.outcome == "fails"
        outcome = Outcome.REPRODUCES if fails else Outcome.PASSES
        evidence = Evidence(status=int(fails), verdict=said)
        return Judged(outcome, said.kind, evidence)


class SlowRuns(Runs):
    """Each run takes a tenth of the time."""

    @property
    def seconds_left(self) -> float:
        return 100.0 - 10 * len(self.asked)


def text_of(runs: Runs) -> tuple[str, str]:
    facts = failing.answer(KnownFacts(), runs).facts
    found = verdict_of(facts, (), runs.question)
    return found.kind, found.text


def test_a_crash_that_no_engine_shows_when_it_is_asked_alone_is_a_failure(tmp_path: Path) -> None:
    kind, text = text_of(Runs(tmp_path, {0: CRASH}))
    assert (kind, text) == (
        "fails",
        f"ONNX Runtime {onnxruntime.__version__} cannot run the model (run · RuntimeError · onnxrt).",
    )


def test_a_crash_that_names_no_engine_is_that_of_the_run(tmp_path: Path) -> None:
    died = VerdictFile(outcome="fails", stage="", kind="")
    kind, text = text_of(Runs(tmp_path, {0: died}))
    assert kind == "fails"
    assert text.startswith(f"A run of {TRUSTED} and {SUSPECT} fails on the model:")


def test_one_of_an_engine_that_nobody_asked_about_is_told_and_is_no_failure(tmp_path: Path) -> None:
    named = VerdictFile(outcome="fails", stage="run", kind="RuntimeError", engine=TRUSTED)
    runs = Runs(tmp_path, {0: named})
    facts = failing.answer(KnownFacts(), runs).facts
    assert facts.failure is None and facts.compared is not None
    assert facts.compared.not_compared == (f"{TRUSTED} failed once, and not when it was run again: RuntimeError",)


def test_a_crash_while_values_are_looked_at_is_not_taken_for_infinity(tmp_path: Path) -> None:
    kind, text = text_of(Runs(tmp_path, {2: CRASH}))  # after two comparisons that pass
    assert kind == "fails" and "infinity" not in text


def test_a_failure_of_the_last_run_counts(tmp_path: Path) -> None:
    assert text_of(Runs(tmp_path, {5: CRASH}))[0] == "fails"


def test_a_difference_of_three_engines_that_does_not_come_again_keeps_its_words(tmp_path: Path) -> None:
    runs = Runs(tmp_path, {0: DIFFERS}, engines=("reference", TRUSTED, SUSPECT))
    facts = failing.answer(KnownFacts(), runs).facts
    assert facts.failure is not None and facts.failure.report.kind == "mismatch"
    assert "--engine reference --engine onnxrt:optimization=none" in " ".join(facts.failure.check)


@pytest.mark.parametrize(("words", "suspect"), [(("c.py", "{}"), None), (("c.py", "{}", "{engine}"), SUSPECT)])
def test_an_engine_is_accused_only_by_a_script_that_was_told_to_run_it(
    tmp_path: Path, words: Words, suspect: str | None
) -> None:
    runs = Runs(tmp_path, {0: VerdictFile(outcome="fails")})
    template = words if "{engine}" in words else None
    runs.question = replace(runs.question, check=words, template=template)
    failure = failing.answer(KnownFacts(), runs).facts.failure
    assert failure is not None and failure.suspect == suspect


def test_engines_that_agree_do_not_pass_if_float64_contradicts_them(tmp_path: Path) -> None:
    runs = Runs(tmp_path, {10: replace(DIFFERS, rounding=Rounding("bug"))})
    kind, text = text_of(runs)
    assert runs.asked[10:] == [["reference:float64", SUSPECT]]
    assert kind == "unknown" and text.startswith("The engines agree, but float64 contradicts them: ")


@pytest.mark.parametrize(("kind", "is_said"), [(Runs, False), (SlowRuns, True)])
def test_a_model_that_passes_in_few_runs_is_not_said_to_be_free_of_flaky_failures(
    tmp_path: Path, kind: type[Runs], is_said: bool
) -> None:
    assert ("runs pass, too few to notice a flaky failure" in text_of(kind(tmp_path, {}))[1]) == is_said
