"""Trials: models to be checked, told apart by their bytes."""

from dataclasses import replace

from support.session import Answers, trial


def test_the_same_bytes_in_other_pieces_are_the_same_model() -> None:
    whole = trial("model")
    assert replace(whole, parts=[b"mo", b"del"]).digest == whole.digest
    assert replace(whole, parts=[b"other"]).digest != whole.digest


def test_a_run_answers_another_trial_only_if_the_same_check_is_asked() -> None:
    one = trial("model")
    assert one.asks_the_same(replace(one, description="once more"))
    assert not one.asks_the_same(replace(one, check=Answers()))
    assert not one.asks_the_same(trial("other"))
