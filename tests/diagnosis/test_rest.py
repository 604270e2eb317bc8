"""Whether the piece is all that fails, in an engine whose wrong nodes are known; and what is said of that."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import onnx
import pytest

from biopsy import errors, events
from biopsy.diagnosis.context import StepContext
from biopsy.diagnosis.facts import FurtherPiece, KnownFacts, RestFacts
from biopsy.diagnosis.question import DiagnosisQuestion, resolved_samples
from biopsy.diagnosis.steps.rest import rest_of_model
from biopsy.diagnosis.verdict import verdict_of
from biopsy.engines.runner import Inputs
from biopsy.model.index import index_file
from support.diagnoses import SUSPECT, TRUSTED, facts, failure, piece, question
from support.models import chain

Asked = Callable[..., tuple[RestFacts, int]]


@pytest.fixture
def asked(tmp_path: Path) -> Asked:
    """Ask about a chain of five nodes in an engine with faults, when one node is known to fail."""

    def ask(faults: str, known: int, *, stage: str = "compare", kind: str = "mismatch") -> tuple[RestFacts, int]:
        path, engine = tmp_path / "model.onnx", f"fake:{faults}"
        onnx.save(chain(5, ops=("Tanh", "Sigmoid")), path)
        index = index_file(path)
        samples = resolved_samples(index, Inputs(), tmp_path)
        asking = DiagnosisQuestion(index=index, model=path, folder=tmp_path, engines=(TRUSTED, engine), samples=samples)
        engines = (TRUSTED, engine) if stage == "compare" else (engine,)
        failing = failure(kind, stage)
        report = replace(failing.report, engine=engine)
        failing = replace(failing, check=asking.original_words(engines), report=report, suspect=engine)
        label = index.nodes[known].label
        found = replace(piece(label), kept=(known,))
        with StepContext(asking, events.ignore) as context:
            answer = rest_of_model.answer(KnownFacts(failure=failing, piece=found), context)
            assert answer.facts.rest is not None
            return answer.facts.rest, context.checks

    return ask


def nodes_of(rest: RestFacts) -> list[tuple[int, ...]]:
    return [other.kept for other in rest.others]


def test_one_check_shows_that_a_piece_is_all_that_fails_and_float64_is_asked_of_each_engine(asked: Asked) -> None:
    rest, checks = asked("scale.n2=1.5", 2)
    assert (rest.answer, rest.others, rest.fed_by) == ("passes", (), TRUSTED)
    assert (rest.wrong, len(rest.right)) == ((), 2)
    assert checks == 3


@pytest.mark.slow
def test_nodes_that_are_wrong_by_themselves_are_found_at_once(asked: Asked) -> None:
    rest, checks = asked("scale.n1=1.5,scale.n2=1.5,scale.n4=1.5", 2)
    assert (rest.answer, nodes_of(rest)) == ("passes", [(1,), (4,)])
    assert {other.by for other in rest.others} == {"layers"}
    assert checks == 2


@pytest.mark.slow
def test_a_node_whose_error_the_piece_hides_is_found(asked: Asked) -> None:
    rest, _ = asked("scale.n1=1.5,scale.n2=0", 2)
    assert (rest.answer, nodes_of(rest)) == ("passes", [(1,)])


def test_a_part_whose_reduction_has_no_time_to_end_is_not_called_a_part(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = replace(piece("Tanh 'a'"), kept=(0, 1, 2), stopped="the time limit")
    monkeypatch.setattr("biopsy.diagnosis.steps.rest.examined", Mock(side_effect=errors.CannotCompare("no layers")))
    monkeypatch.setattr("biopsy.diagnosis.steps.rest.reduce_to", lambda *_, **__: stopped)
    rest, _ = asked("scale.n1=1.5,scale.n2=0", 2)
    assert (rest.answer, rest.others, rest.reason) == ("fails", (), "the time for this question was over")


# What is said


def of_rest(**known: object) -> str:
    return verdict_of(facts(rest=RestFacts(**known), piece=piece("MatMul 'a'"), layers=None), (), question()).in_full  # type: ignore[arg-type]


MORE = tuple(FurtherPiece(nodes=(f"MatMul '{name}'",), kept=(at,), by="layers") for at, name in enumerate("bcde", 1))


def test_what_was_seen_of_the_rest_is_said_and_not_more() -> None:
    cut = "With that part cut out, and fed with what ONNX Runtime (all graph optimizations disabled) computes there, "
    agree = f"{cut}ONNX Runtime 9.9 and ONNX Runtime (all graph optimizations disabled) agree on the rest of the model"
    text = of_rest(answer="passes", fed_by=TRUSTED)
    assert f"{agree}." in text and "whole" not in text
    assert f"{agree}; float64 agrees with both." in of_rest(answer="passes", fed_by=TRUSTED, right=(TRUSTED, SUSPECT))
    assert "passes" not in text


def test_two_engines_that_agree_on_the_rest_are_not_said_to_be_right_where_float64_is_against_them() -> None:
    text = of_rest(answer="passes", fed_by=TRUSTED, wrong=(TRUSTED, SUSPECT))
    both = "ONNX Runtime (all graph optimizations disabled) and ONNX Runtime"
    assert f"; but float64 gives other values there than {both}." in text


def test_where_no_other_node_is_left_nothing_is_said_of_the_rest() -> None:
    text = of_rest(answer="passes", reason="no other node is left")
    assert "There is no other node in the model." in text and "rest" not in text


def test_the_other_parts_are_counted_by_their_operators() -> None:
    text = of_rest(answer="passes", fed_by=TRUSTED, others=MORE)
    assert "one of at least 5 that fail in this way, each by itself (MatMul: 5 nodes)." in text
    mixed = (*MORE, FurtherPiece(nodes=("Pow 'p'", "Add 'q'"), kept=(7, 8), by="reduction"))
    assert "at least 6" in of_rest(answer="passes", others=mixed)
    assert "(MatMul: 5 nodes; Pow, Add: 1 piece)" in of_rest(answer="passes", others=mixed)


def test_each_part_is_given_to_the_engine_that_is_wrong_on_it() -> None:
    others = (replace(MORE[0], wrong=(SUSPECT,)), replace(MORE[1], wrong=(TRUSTED,)), MORE[2])
    tanh = replace(piece("Tanh 'a'"), wrong=(SUSPECT,))
    text = verdict_of(facts(rest=RestFacts(answer="passes", others=others), piece=tanh), (), question()).in_full
    assert (
        "By float64, ONNX Runtime is wrong on 2 of these parts (Tanh: 1 node; MatMul: 1 node) and ONNX Runtime "
        "(all graph optimizations disabled) on 1 (MatMul: 1 node); which engine is wrong on the other (MatMul: 1 node) "
        "is not known."
    ) in text
    one = (replace(MORE[0], wrong=(SUSPECT,)), MORE[1])
    assert (
        "of these parts"
        not in verdict_of(facts(rest=RestFacts(answer="passes", others=one), piece=tanh), (), question()).in_full
    )


def test_what_nothing_was_fed_to_is_no_whole_model() -> None:
    text = of_rest(answer="passes")
    assert "With that part cut out, ONNX Runtime 9.9 and" in text and "fed" not in text and "whole" not in text


@pytest.mark.parametrize(("answer", "what"), [("fails", "Where else"), ("unknown", "Whether more of")])
def test_a_question_without_a_full_answer_is_left_open(answer: str, what: str) -> None:
    rest = RestFacts(answer=answer, reason="no time")  # type: ignore[arg-type]
    found = verdict_of(facts(rest=rest), (), question())
    assert f"{what} the model fails is not known: no time." in found.not_tried
    assert ("still fails" in found.in_full) == (answer == "fails")
    assert "passes" not in found.in_full
