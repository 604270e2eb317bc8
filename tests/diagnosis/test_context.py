"""What ends a step of a diagnosis: its time, or a person."""

import pytest

from biopsy import errors
from biopsy.diagnosis.context import TimeUpError, limit_as_time_up


def stopped_by(cause: BaseException | None) -> None:
    with limit_as_time_up():
        raise errors.Interrupted("stopped") from cause


def test_a_search_that_its_limit_ends_has_no_time_left() -> None:
    with pytest.raises(TimeUpError):
        stopped_by(None)


def test_a_search_that_a_person_ends_is_interrupted() -> None:
    with pytest.raises(errors.Interrupted):
        stopped_by(KeyboardInterrupt())
