"""Which releases are looked at, by what a person said of them."""

import datetime
from importlib.metadata import version

import pytest

from biopsy import errors
from biopsy.processes.environments.releases import Release
from biopsy.questions.releases.question import NamedReleases, span_of

KNOWN = [
    Release(version=text, date=datetime.date(2026, 1, 1))
    for text in ("1.9.0", "1.10.0", "1.20.0", "1.20.1", "1.21.0", "2.0")
]


def looked_at(**asked: str) -> list[str]:
    return [one.version for one in span_of("thing", KNOWN, NamedReleases(**asked)).releases]


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        ("1.10..1.20.1", ["1.10.0", "1.20.0", "1.20.1"]),
        ("1.20.1..", ["1.20.1", "1.21.0", "2.0"]),
        ("..1.10.0", ["1.9.0", "1.10.0"]),
        ("2.0, 1.9", ["1.9.0", "2.0"]),
        (">=1.20,!=1.20.1,<2", ["1.20.0", "1.21.0"]),
        ("~=1.20.0", ["1.20.0", "1.20.1"]),
    ],
)
def test_versions_are_a_range_a_list_or_a_specifier(versions: str, expected: list[str]) -> None:
    assert looked_at(versions=versions) == expected


def test_the_two_ends_that_were_named_are_the_ends_of_the_search_whichever_is_newer() -> None:
    broke = span_of("thing", KNOWN, NamedReleases(good="1.10", bad="1.21.0"))
    assert [one.version for one in broke.releases] == ["1.10.0", "1.20.0", "1.20.1", "1.21.0"]
    assert (broke.start, broke.end) == (3, 0)
    mended = span_of("thing", KNOWN, NamedReleases(good="2.0", bad="1.20.1"))
    assert [one.version for one in mended.releases] == ["1.20.1", "1.21.0", "2.0"]
    assert (mended.start, mended.end) == (0, 2)


def test_it_begins_with_the_installed_release_else_with_the_newest() -> None:
    assert span_of("thing", KNOWN, NamedReleases()).start == len(KNOWN) - 1
    known = [Release(version=text, date=None) for text in ("0.1", version("pytest"), "999")]
    assert span_of("pytest", known, NamedReleases()).start == 1
    assert span_of("thing", KNOWN, NamedReleases(good="1.20.1")).start == 2
    assert span_of("pytest", known, NamedReleases(good=version("pytest"))).start == 1


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"bad": "1.20.2"}, "its neighbours: 1.9.0, 1.10.0, 1.20.0, 1.20.1, 1.21.0, 2.0"),
        ({"good": "newest"}, "'newest' is not a version"),
        ({"versions": "3..4"}, "there are 1.9.0, ..., 2.0"),
        ({"versions": ">=x"}, "is not a specifier"),
        ({"good": "1.9", "bad": "1.9.0"}, "the same release"),
        ({"good": "2.0"}, "--good says it is without"),
    ],
)
def test_what_is_not_there_is_named_with_what_is(asked: dict[str, str], said: str) -> None:
    with pytest.raises(errors.UsageError, match=said):
        span_of("thing", KNOWN, NamedReleases(**asked))


def test_a_package_without_a_release_for_this_python_is_no_search() -> None:
    with pytest.raises(errors.UsageError, match="no release with a wheel for this Python"):
        span_of("thing", [], NamedReleases())
