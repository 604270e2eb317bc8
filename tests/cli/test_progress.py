"""What listens to long work shows each event by its type, and logs all of them."""

import io
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from biopsy import errors, events
from biopsy.cli.arguments.checks import ShownChecks
from biopsy.cli.console import Console
from biopsy.cli.debug.build import BuildProgress
from biopsy.cli.debug.layers_report import LayersReport
from biopsy.cli.debug.precision_search import PrecisionReport
from biopsy.cli.debug.reduction_report import ReductionReport
from biopsy.cli.debug.repeat import RepeatProgress
from biopsy.cli.debug.transform import TransformProgress
from biopsy.cli.debug.version import VersionProgress
from biopsy.cli.debug.workaround import WorkaroundProgress
from biopsy.cli.diagnose import DiagnosisProgress
from biopsy.cli.progress import CheckProgress, Progress, in_flight_text, time_left
from biopsy.reduction.schedule import MODEL_PASSES, PASSES


class StoppedByUser(events.Stopped, kw_only=False):
    """A kind of event that nobody shows by itself."""


class Stages(Progress):
    """Shows why a search stopped, and nothing else."""

    def show(self, event: events.Event) -> None:
        if isinstance(event, events.Stopped):
            self.line("stopped", event.reason)
        else:
            super().show(event)


class QuietStages(Stages):
    """Shows the same in its own way."""

    def show(self, event: events.Event) -> None:
        if isinstance(event, events.Stopped):
            self.line("", event.reason)


def shown_by(listener: Callable[..., Progress], *told: events.Event, log: Path | None = None) -> list[str]:
    out, err = io.StringIO(), io.StringIO()
    with listener(Console(out, err), log) as progress:
        for event in told:
            progress(event)
    return [*out.getvalue().splitlines(), *err.getvalue().splitlines()]


def test_an_event_is_shown() -> None:
    assert shown_by(Stages, events.Stopped("--max-checks")) == ["stopped    --max-checks"]


def test_an_event_of_a_type_that_nobody_shows_is_shown_as_the_type_that_it_derives_from() -> None:
    assert shown_by(Stages, StoppedByUser("by hand")) == ["stopped    by hand"]


def test_an_event_of_a_type_that_nobody_shows_is_only_logged(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    assert shown_by(Stages, events.Abandoned(7), events.Stopped("--max-time"), log=log) == ["stopped    --max-time"]
    logged = [json.loads(line) for line in log.read_text().splitlines()]
    times = [event.pop("at") for event in logged]
    assert 0 <= times[0] <= times[1] <= times[2] < 60
    assert logged == [
        {"event": "Abandoned", "number": 7},
        {"event": "Stopped", "reason": "--max-time"},
        {"event": "CommandEnded", "status": 0, "nodes": []},
    ]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.OriginalPasses("it passes"), 3),
        (errors.Interrupted("stopped"), 5),
        (KeyboardInterrupt(), 5),
        (OSError("no space"), 4),
    ],
)
def test_the_last_event_tells_the_status_of_an_error_too(tmp_path: Path, error: BaseException, status: int) -> None:
    log = tmp_path / "events.jsonl"
    with pytest.raises(type(error)), Stages(Console(io.StringIO()), log):
        raise error
    assert json.loads(log.read_text())["status"] == status


def test_a_derived_listener_replaces_how_a_type_is_shown() -> None:
    assert shown_by(QuietStages, events.Stopped("--max-checks")) == ["           --max-checks"]


def test_every_listener_shows_remarks_and_warnings() -> None:
    told = events.Remark("one sample is enough"), events.Remark("values are random", warning=True)
    assert shown_by(Stages, *told) == ["one sample is enough", "warning: values are random"]


SEARCHES = [
    partial(ReductionReport, shown="none"),
    partial(PrecisionReport, shown="none"),
    lambda console, _: TransformProgress(console, None),
    lambda console, _: CheckProgress(console, ShownChecks(), head="check", needs="a setting switches it off"),
    lambda console, _: VersionProgress(console, ShownChecks()),
    lambda console, _: WorkaroundProgress(console, ShownChecks()),
]


@pytest.mark.parametrize(
    "listener",
    [
        *SEARCHES,
        LayersReport,
        DiagnosisProgress,
        lambda console, _: BuildProgress(console, SimpleNamespace(events=None), None),
        lambda console, _: RepeatProgress(console, SimpleNamespace(events=None), 1),
    ],
)
def test_every_listener_of_a_command_shows_what_it_does_not_show_in_its_own_way(
    listener: Callable[..., Progress],
) -> None:
    assert shown_by(listener, events.Remark("one sample is enough")) == ["one sample is enough"]


@pytest.mark.parametrize("listener", SEARCHES)
def test_a_flaky_failure_is_shown_by_every_search_with_a_check(listener: Callable[..., Progress]) -> None:
    flaky = events.FlakyFailure(failed=1, runs=3, needed=9, confidence=0.99)
    assert shown_by(listener, flaky)[0].startswith("flaky      ")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "about 1 s left"), (89, "about 89 s left"), (180, "about 3 min left"), (9000, "about 2.5 h left")],
)
def test_time_left_is_a_rough_number_with_its_unit(seconds: float, text: str) -> None:
    assert time_left(seconds) == text


def test_what_passes_did_and_what_that_cost_stands_in_columns() -> None:
    passes = [
        events.PassDone(stage=named.name, before=6, after=6, checks=1, seconds=0.3)
        for named in (*PASSES, *MODEL_PASSES)
    ]
    lines = shown_by(partial(ReductionReport, shown="none"), *passes)
    assert len({(line.index("6 -> 6"), line.index("1 check")) for line in lines}) == 1


def test_packages_that_are_installed_are_shown_and_those_of_the_cache_are_not() -> None:
    started = events.InstallationStarted(requirements=("bolt==1.0",), python="3.11.7", installer="uv")
    done = events.InstallationDone(
        requirements=("bolt==1.0",),
        added=("numpy<2",),
        python="3.11.7",
        packages={"bolt": "1.0"},
        bytes=1_200_000,
        seconds=2.5,
        cached=False,
    )
    assert shown_by(Progress, started, done) == [
        "install    bolt==1.0 for Python 3.11.7 with numpy<2, which it needs · 1.2 MB · 2.5 s"
    ]
    assert shown_by(Progress, replace(done, cached=True)) == []


@pytest.mark.parametrize(
    ("running", "machines", "waiting", "cancelled", "expected"),
    [
        (14, None, 0, 0, "14 running"),
        (14, None, 0, 5, "14 running, 5 cancelled"),
        (14, 1, 0, 0, "14 running on 1 machine"),
        (14, 3, 2, 5, "14 running on 3 machines, 2 waiting, 5 cancelled"),
        (0, 0, 2, 0, "2 waiting"),
        (0, 3, 0, 4, "4 cancelled"),
        (0, 0, 0, 0, "0 running"),
    ],
)
def test_checks_in_flight_are_told_without_what_is_none(
    running: int, machines: int | None, waiting: int, cancelled: int, expected: str
) -> None:
    event = events.ChecksInFlight(running=running, waiting=waiting, ending=0, cancelled=cancelled, machines=machines)
    assert in_flight_text(event) == expected
