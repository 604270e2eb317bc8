"""Searches for a release, with packages that are installed from an index and checks that are processes."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from biopsy import errors, events
from biopsy.checks.judge import Rules
from biopsy.processes.environments.releases import releases
from biopsy.questions.releases.find import ReleaseSearch, ReleaseSearchOptions
from biopsy.questions.releases.findings import ReleaseFindings
from biopsy.questions.releases.question import NamedReleases, ReleaseCheck, ReleaseQuestion, span_of
from biopsy.questions.releases.runs import RunsHere, installed
from support.models import chain, save
from support.package_index import PackageIndex
from support.releases_here import ReleasesHere

PASSES, FAILS = "def look(): pass", "def look(): raise SystemExit(1)"
OTHERWISE = "def look(): raise ValueError('something else')"
CANNOT_TELL = "def look(): raise SystemExit(125)"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "check.py").write_text("import thing\nthing.look()\n")
    return save(chain(1), tmp_path / "model.onnx")


def search(
    model: Path,
    here: ReleasesHere | None = None,
    *,
    asked: NamedReleases = NamedReleases(),  # noqa: B008
    words: Sequence[str] = ("{python}", "check.py", "{}"),
    listener: events.Listener = events.ignore,
    every: bool = False,
    allow_vacuous: bool = False,
    jobs: int = 1,
) -> ReleaseSearch:
    told = tuple(str(model.parent / word) if word == "check.py" else word for word in words)
    check = ReleaseCheck(package="thing", words=told)
    question = ReleaseQuestion(check=check, model=model, rules=Rules())
    span = span_of("thing", releases("thing") if here is None else here.known, asked)
    preparing = installed if here is None else here.preparing
    options = ReleaseSearchOptions(every=every, allow_vacuous=allow_vacuous)
    return ReleaseSearch(question, span, listener, options, runs=RunsHere(preparing, jobs))


def here(model: Path, *sources: str, **broken: errors.Obstacle) -> ReleasesHere:
    """Releases 1.0, 2.0, ... of one module; ``two="yanked"`` is one that cannot be installed."""
    numbers = {"one": "1.0", "two": "2.0", "three": "3.0"}
    return ReleasesHere(model.parent, sources, {numbers[name]: why for name, why in broken.items()})


def publish(index: PackageIndex, *sources: str) -> None:
    """Releases 1.0, 2.0, ... of one module."""
    for number, source in enumerate(sources, 1):
        index.add("thing", f"{number}.0", source, uploaded=f"2026-01-{number:02}T00:00:00Z")


def told(found: ReleaseFindings) -> dict[str, str]:
    return {one.release.version: one.words for one in found.tried}


def test_the_release_that_broke_it_is_found_with_its_day_and_the_line_to_pin(index: PackageIndex, model: Path) -> None:
    publish(index, PASSES, PASSES, FAILS, FAILS)
    found = search(model).run()
    (border,) = found.borders
    assert (border.before.version, border.after.version, border.change, border.verified) == (
        "2.0",
        "3.0",
        "broke",
        True,
    )
    assert str(border.after.date) == "2026-01-03"
    assert found.text == "thing: 3.0 broke it, 2.0 is right"
    assert found.pins == ("<3.0", "==2.0")
    assert (found.failure_of, found.failed, found.runs) == ("4.0", 3, 3)
    assert found.as_json()["answer"] == "changed"
    assert border.notes == "https://pypi.org/project/thing/3.0/"


def test_what_cannot_tell_is_between_the_ends_of_a_border_and_named(model: Path) -> None:
    releases_ = here(model, PASSES, PASSES, OTHERWISE, CANNOT_TELL, FAILS, two="import fails")
    found = search(model, releases_, asked=NamedReleases(good="1.0", bad="5.0")).run()
    assert told(found) == {
        "1.0": "passes", "2.0": "not installed", "3.0": "another failure", "4.0": "cannot tell", "5.0": "fails",
    }  # fmt: skip
    other = "another failure (exit status 1 · ValueError: thing.look())"
    assert [border.text for border in found.borders] == [
        f"broken between 1.0 and 3.0; 3.0 has {other}; could not test 2.0 (not installed)",
        f"changed between 3.0 and 5.0; 3.0 has {other}; could not test 4.0 (cannot tell)",
    ]
    assert found.pins == ("<2.0", "==1.0")
    assert found.tried[1].obstacle == "import fails"


def test_the_release_that_mended_it_is_found_from_a_newest_one_that_passes(model: Path) -> None:
    releases_ = here(model, PASSES, FAILS, PASSES)
    found = search(model, releases_).run()
    assert [(one.before.version, one.after.version, one.change) for one in found.borders] == [
        ("1.0", "2.0", "broke"),
        ("2.0", "3.0", "mended"),
    ]
    assert found.pins == (">=3.0", "<2.0", "==1.0")
    assert not found.as_json()["monotone"]


def test_releases_that_were_left_out_are_not_taken_for_those_beside_them(model: Path) -> None:
    """The second release broke it and the fifth mended it; neither is tried."""
    releases_ = here(model, PASSES, FAILS, FAILS, FAILS, PASSES, PASSES)
    found = search(model, releases_, asked=NamedReleases(versions="1.0,4.0,6.0")).run()
    assert [border.text for border in found.borders] == [
        "broken between 1.0 and 4.0; not tried: 2.0, 3.0",
        "mended between 4.0 and 6.0; not tried: 5.0",
    ]
    assert found.pins == (">=6.0", "<2.0", "==1.0")
    assert found.as_json()["borders"][0]["left_out"] == ["2.0", "3.0"]


CRASHES = "def look(): import os; os.abort()"


@pytest.mark.parametrize(
    "kinds",
    [
        *("ccceeerrr", "eeecccccc", "ceceeeeer"),
        *(pytest.param(kinds, marks=pytest.mark.slow) for kinds in ("rrrccceee", "rcccccccr", "cccrreeee")),
    ],
)
def test_each_border_between_crash_error_and_right_is_bisected(kinds: str, model: Path) -> None:
    sources = {"c": CRASHES, "e": OTHERWISE, "r": PASSES}
    releases_ = here(model, *(sources[kind] for kind in kinds))
    found = search(model, releases_, allow_vacuous=True, every=kinds.startswith("cec")).run()
    expected = [(place, place + 1) for place in range(1, len(kinds)) if kinds[place - 1] != kinds[place]]
    assert [(float(one.before.version), float(one.after.version)) for one in found.borders] == expected
    assert all(border.verified and not border.undecided for border in found.borders)
    mended = [border for border in found.borders if border.change == "mended"]
    assert all((border.right is None) == (border.change == "changed") for border in found.borders)
    assert (f">={mended[-1].after.version}" in found.pins) if mended and kinds[-1] == "r" else True


def test_a_crash_that_became_an_error_is_told_as_that(model: Path) -> None:
    found = search(model, here(model, CRASHES, OTHERWISE), allow_vacuous=True).run()
    assert found.text == "thing: 2.0 fails, 1.0 has another failure (signal SIGABRT)"
    found = search(model, here(model, CRASHES, OTHERWISE), allow_vacuous=True, asked=NamedReleases(bad="1.0")).run()
    assert found.text == "thing: 2.0 has another failure (exit status 1 · ValueError: thing.look()), 1.0 fails"
    assert (found.answer, found.pins, found.as_json()["borders"][0]["change"]) == ("changed", (), "changed")


def test_every_release_that_was_tried_fails_is_an_answer(model: Path) -> None:
    releases_ = here(model, FAILS, FAILS)
    with pytest.raises(errors.VacuousCheck, match="so does a model of one Identity node"):
        search(model, releases_).run()
    found = search(model, releases_, allow_vacuous=True).run()
    assert (found.answer, found.borders, found.pins) == ("every release tried fails", (), ())
    assert found.text == "thing: every release tried fails (2 of 2, 1.0 to 2.0)"


def test_none_fails_is_that_the_failure_is_not_there(model: Path) -> None:
    releases_ = here(model, PASSES, PASSES)
    known = (
        r"every release tried passes \(2 of 2, 1.0 to 2.0\): the failure did not show in 8 runs of 2.0 or in one run of"
    )
    with pytest.raises(errors.OriginalPasses, match=known):
        search(model, releases_).run()


def test_releases_that_were_left_out_are_named_where_none_fails(model: Path) -> None:
    releases_ = here(model, PASSES, FAILS, PASSES)
    with pytest.raises(
        errors.OriginalPasses, match=r"\(2 of 2, 1.0 to 3.0\); not tried: 2.0: the failure did not show"
    ):
        search(model, releases_, asked=NamedReleases(versions="1.0,3.0")).run()


def test_a_failure_that_does_not_show_at_once_is_waited_for(model: Path) -> None:
    """The second release fails from its third run on."""
    counted = "def look():\n  import pathlib; at = pathlib.Path(RUNS); at.open('a').write('.')\n"
    counted += "  if len(at.read_text()) > 2: raise SystemExit(1)"
    found = search(model, here(model, PASSES, counted.replace("RUNS", repr(str(model.parent / "runs"))))).run()
    assert (told(found), [border.change for border in found.borders]) == ({"1.0": "passes", "2.0": "fails"}, ["broke"])


def test_a_release_that_cannot_be_judged_does_not_make_the_others_right(model: Path) -> None:
    releases_ = here(model, PASSES, FAILS, two="import fails")
    with pytest.raises(errors.CheckError, match=r"thing 2\.0 could not be tested"):
        search(model, releases_, asked=NamedReleases(good="1.0", bad="2.0")).run()


def test_a_check_that_uses_no_release_proves_nothing(model: Path) -> None:
    releases_ = here(model, PASSES, FAILS)
    asking = search(model, releases_, words=(sys.executable, "-c", "raise SystemExit(1)"))
    with pytest.raises(errors.CheckError, match="it may use none of them"):
        asking.run()
    script = "import os, subprocess, sys; sys.exit(subprocess.call([os.environ['BIOPSY_PYTHON'], 'check.py']))"
    (model.parent / "through.py").write_text(script.replace("check.py", str(model.parent / "check.py")))
    found = search(model, releases_, words=(sys.executable, str(model.parent / "through.py"))).run()
    assert found.borders[0].text == "2.0 broke it, 1.0 is right"


def test_a_table_of_all_is_the_same_for_any_number_of_jobs(model: Path) -> None:
    releases_ = here(model, PASSES, FAILS, PASSES, FAILS)
    heard: list[str] = []

    def listener(event: events.Event) -> None:
        if isinstance(event, events.ReleaseTried):
            heard.append(f"{event.version} {event.date} {event.outcome}")

    one = search(model, releases_, every=True).run()
    two = search(model, releases_, every=True, jobs=3, listener=listener).run()
    assert told(one) == told(two) == {"1.0": "passes", "2.0": "fails", "3.0": "passes", "4.0": "fails"}
    assert [border.after.version for border in two.borders] == ["2.0", "3.0", "4.0"]
    assert sorted(heard)[0] == "1.0 2026-01-01 passes"


def test_a_flaky_failure_is_measured_and_a_release_that_shows_none_must_pass_often(model: Path) -> None:
    count = model.parent / "count"
    flaky = (
        "import os\n"
        f"def look():\n    runs = os.path.getsize({str(count)!r}) if os.path.exists({str(count)!r}) else 0\n"
        f"    open({str(count)!r}, 'ab').write(b'.')\n    raise SystemExit(runs % 2 == 0)"
    )
    releases_ = here(model, PASSES, flaky)
    found = search(model, releases_).run()
    assert (found.failed, found.runs) == (10, 20)
    assert found.borders[0].verified
    assert found.tried[0].runs >= 5


def in_runs(model: Path, name: str, *failing: int) -> str:
    """A release that fails in these runs only, counted from 0."""
    count = str(model.parent / name)
    return (
        "import os\n"
        f"def look():\n    runs = os.path.getsize({count!r}) if os.path.exists({count!r}) else 0\n"
        f"    open({count!r}, 'ab').write(b'.')\n    raise SystemExit(runs in {failing!r})"
    )


def test_a_pass_before_the_failure_was_met_is_asked_again_if_that_is_flaky(model: Path) -> None:
    every_other = range(0, 100, 2)
    sources = [in_runs(model, f"runs{number}", *every_other) for number in range(2)]
    lucky = in_runs(model, "lucky", *range(1, 100, 2))  # the newest one, asked first
    found = search(model, here(model, *sources, lucky), allow_vacuous=True).run()
    assert found.answer == "every release tried fails"
    assert told(found) == {"1.0": "fails", "2.0": "fails", "3.0": "fails"}


def test_a_release_that_fails_when_it_is_asked_again_is_on_the_side_of_those_that_fail(model: Path) -> None:
    seldom = in_runs(model, "seldom", *range(2, 400, 4))
    found = search(model, here(model, PASSES, seldom, FAILS, FAILS)).run()
    assert [border.text for border in found.borders if border.verified] == ["2.0 broke it, 1.0 is right"]
    assert found.tried[0].runs > 3


def test_a_failure_that_never_shows_again_is_no_answer(model: Path) -> None:
    once = in_runs(model, "once", 0, 1, 2)
    found = search(model, here(model, PASSES, FAILS)).run()
    assert found.borders[0].verified
    with pytest.raises(errors.CheckError, match="could not be tested"):
        search(model, here(model, PASSES, once), asked=NamedReleases(bad="2.0")).run()


def test_a_check_that_takes_the_package_from_elsewhere_proves_nothing(model: Path) -> None:
    (model.parent / "thing.py").write_text(FAILS)
    with pytest.raises(errors.VacuousCheck, match="not installed"):
        search(model, here(model, PASSES, FAILS)).run()


def test_a_flaky_check_that_fails_on_anything_is_vacuous_though_it_passes_once(model: Path) -> None:
    flaky = in_runs(model, "flaky", *range(0, 400, 3))
    with pytest.raises(errors.VacuousCheck):
        search(model, here(model, flaky)).run()


@pytest.mark.parametrize("obstacle", ["network", "disk full", "no cache folder"])
def test_what_is_known_is_kept_when_this_machine_can_install_nothing_more(
    model: Path, obstacle: errors.Obstacle
) -> None:
    releases_ = here(model, PASSES, PASSES, FAILS, two=obstacle)
    asking = search(model, releases_)
    with pytest.raises(errors.CannotInstall):
        asking.run()
    assert told(asking.findings) == {"3.0": "fails"}
