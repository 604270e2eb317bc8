"""What a person is told of a process that an engine worked in."""

import signal

import pytest

from biopsy import errors
from biopsy.processes.watch import Cause, Ended, engine_death


@pytest.mark.parametrize(
    ("cause", "status", "kind", "text"),
    [
        ("itself", -signal.SIGSEGV, "SIGSEGV", "onnxrt:a=b ended its process with SIGSEGV; it printed:\nlast words"),
        ("time", -signal.SIGKILL, "Timeout", "onnxrt:a=b took too long to build"),
    ],
)
def test_an_engine_that_was_given_the_model_has_failed_on_it(cause: Cause, status: int, kind: str, text: str) -> None:
    error = engine_death("onnxrt:a=b", "build", Ended(status=status, cause=cause, output=b"last words\n"))
    assert isinstance(error, errors.EngineFailure)
    assert (error.engine, error.stage, error.kind, error.message) == ("onnxrt", "build", kind, text)


@pytest.mark.parametrize(
    ("cause", "status", "text"),
    [
        ("itself", -signal.SIGABRT, "the process of onnxrt ended with SIGABRT, before it looked at the model"),
        ("itself", 7, "the process of onnxrt ended with status 7, before it looked at the model"),
        ("time", -signal.SIGKILL, "the process of onnxrt took too long to start, before it looked at the model"),
        ("answer", -signal.SIGKILL, "the process of onnxrt gave an answer that is not understood"),
    ],
)
def test_an_engine_that_was_not_given_the_model_says_nothing_of_it(cause: Cause, status: int, text: str) -> None:
    error = engine_death("onnxrt", None, Ended(status=status, cause=cause, output=b""))
    assert type(error) is errors.BiopsyError
    assert (error.message, error.status) == (text, 4)


@pytest.mark.parametrize(("cause", "status"), [("itself", 7), ("itself", 0), ("answer", -9)])
def test_an_end_that_is_no_failure_of_an_engine_concludes_nothing(cause: Cause, status: int) -> None:
    assert type(engine_death("onnxrt", "run", Ended(status=status, cause=cause, output=b""))) is errors.BiopsyError


def test_of_what_was_printed_the_end_is_told_whatever_bytes_it_has() -> None:
    message = engine_death(
        "onnxrt", "run", Ended(status=-signal.SIGABRT, cause="itself", output=b"a" * 100_000 + b"\xff the end")
    ).message
    assert message.endswith("\ufffd the end")
    assert len(message) < 2200
