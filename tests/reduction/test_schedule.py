"""Which passes run, and which wishes are refused."""

import pytest

from biopsy import errors
from biopsy.reduction.schedule import MODEL_PASSES, PASSES, Passes, schedule_of
from support.models import chain
from support.predicates import has


@pytest.mark.parametrize("option", ["simplify", "anonymize"])
@pytest.mark.parametrize("mode", ["bisect", "linear"])
def test_a_mode_that_runs_no_pass_over_the_model_refuses_what_would_need_one(mode, option: str) -> None:
    with pytest.raises(errors.UsageError, match=f"--{option} needs --mode=minimal"):
        schedule_of(mode, Passes(**{option: True}))


@pytest.mark.parametrize("kept", ["keep_inputs", "keep_outputs"])
def test_names_of_the_original_cannot_be_both_kept_and_replaced(kept: str) -> None:
    with pytest.raises(errors.UsageError, match="--anonymize cannot be combined with --no-reduce"):
        schedule_of("minimal", Passes(anonymize=True), **{kept: True})


def test_a_passing_model_is_not_written_beside_an_anonymized_one(reducer) -> None:
    with pytest.raises(errors.UsageError, match="--anonymize cannot be combined with --min-good"):
        reducer(chain(4), has("n1"), anonymize=True, min_good=reducer.folder / "good.onnx")
    assert list(reducer.folder.iterdir()) == []


def test_an_unknown_pass_is_refused_with_the_names_of_all() -> None:
    with pytest.raises(errors.UsageError, match="no pass 'no-such'") as refused:
        schedule_of("minimal", Passes(skip=("no-such",)))
    assert all(named.name in str(refused.value.next_steps) for named in (*PASSES, *MODEL_PASSES))
