"""An error that a child process raises is raised by the one that started it."""

import json

import pytest

from biopsy import errors
from biopsy.processes.server import as_json, from_json
from biopsy.processes.watch import StillRunningError


def carried(error: Exception) -> errors.BiopsyError:
    return from_json(json.loads(json.dumps(as_json(error))))


@pytest.mark.parametrize("error_class", [errors.BiopsyError, errors.UsageError, errors.DoesNotFit, errors.CheckError])
def test_an_error_is_the_same_with_all_that_it_says(error_class: type[errors.BiopsyError]) -> None:
    error = carried(error_class("no", details=["line"], kept="a file", next_steps=["another"]))
    assert type(error) is error_class
    assert (error.summary, error.details, error.message) == ("no", ("line",), "no\nline")
    assert (error.kept, error.next_steps) == ("a file", ("another",))


def test_a_failure_of_an_engine_says_where() -> None:
    error = carried(errors.EngineFailure("no", engine="e", stage="build", kind="Refused", next_steps=["another"]))
    assert isinstance(error, errors.EngineFailure)
    assert (error.engine, error.stage, error.kind, error.next_steps) == ("e", "build", "Refused", ("another",))


def test_a_crash_is_the_failure_that_it_is() -> None:
    error = carried(errors.EngineCrash("died", label="e:1", stage="run", kind="SIGSEGV"))
    assert type(error) is errors.EngineFailure
    assert (error.message, error.engine, error.stage, error.kind) == ("died", "e", "run", "SIGSEGV")


def test_an_interruption_says_what_is_kept() -> None:
    error = carried(errors.Interrupted("stopped", kept="a file", resume="again"))
    assert type(error) is errors.Interrupted
    assert error.kept == "a file"


def test_an_error_of_another_module_and_one_that_nobody_foresaw_are_told() -> None:
    assert type(carried(StillRunningError(7))) is errors.BiopsyError
    assert carried(KeyError("x")).message == "KeyError: 'x'"


@pytest.mark.parametrize("name", ["Sequence", "annotations", "Stage", "nothing"])
def test_what_is_no_error_becomes_one(name: str) -> None:
    assert type(from_json({**as_json(errors.CheckError("no")), "error": name})) is errors.BiopsyError


def test_an_installation_that_is_impossible_says_why() -> None:
    error = carried(errors.CannotInstall("no", kind="yanked", details=["line"], next_steps=["another"]))
    assert isinstance(error, errors.CannotInstall)
    assert (error.kind, error.message, error.next_steps) == ("yanked", "no\nline", ("another",))
