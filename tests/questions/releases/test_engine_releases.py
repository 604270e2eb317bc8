"""Releases of an engine, for a diagnosis and from Python: what is known stays known when the time is up."""

from pathlib import Path

import pytest

import biopsy
from biopsy import errors, events
from biopsy.engines.registry import parse_spec
from biopsy.questions.releases.find import search_of_engine
from biopsy.questions.releases.question import NamedReleases
from support.models import chain, save

CHECK = ("biopsy", "run", "{}", "--engine", "fake:offset.Relu=1", "--engine", "{engine}")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save(chain(2), tmp_path / "model.onnx")


@pytest.mark.parametrize(
    ("engine", "check", "said"),
    [
        ("fake", CHECK, "is not a package with releases"),
        ("onnxrt", ("biopsy", "run", "{}", "--onnxrt"), "does not say where the engine belongs"),
    ],
)
def test_what_has_no_releases_or_no_place_for_them_is_refused(
    model: Path, engine: str, check: tuple[str, ...], said: str
) -> None:
    with pytest.raises(errors.UsageError, match=said):
        search_of_engine(model, parse_spec(engine), check)


def test_a_check_from_python_says_where_the_release_belongs(model: Path) -> None:
    with pytest.raises(biopsy.UsageError, match="nothing in it says where the release belongs"):
        biopsy.releases(model, "onnxruntime", ["biopsy", "run", "{}", "--onnxrt"])


@pytest.mark.slow
def test_the_settings_of_the_engine_stay_and_what_was_asked_is_known_when_the_time_is_up(model: Path) -> None:
    class TimeUpError(Exception):
        pass

    lines: list[str] = []

    def listener(event: events.Event) -> None:
        if isinstance(event, events.Checking):
            lines.append(event.line)
        if isinstance(event, events.ReleaseTried) and event.version == "1.25.1":
            raise TimeUpError

    named = NamedReleases(versions="1.24.4,1.25.1,1.26.0", bad="1.26.0")
    search = search_of_engine(model, parse_spec("onnxrt:threads=1"), CHECK, listener, named=named)
    with pytest.raises(TimeUpError):
        search.run()
    assert "onnxrt:threads=1,release=1.26.0" in lines[0]
    assert [(one.release.version, one.words) for one in search.findings.tried] == [("1.26.0", "fails")]


@pytest.mark.slow
def test_the_same_from_python(model: Path) -> None:
    found = biopsy.releases(model, "onnxruntime", list(CHECK), versions="1.25.1,1.26.0", every=True)
    assert isinstance(found, biopsy.ReleaseFindings)
    assert repr(found).startswith("<ReleaseFindings: onnxruntime: every release tried fails (2 of 2, 1.25.1 to 1.26.0)")
    assert "1.25.1" in found._repr_html_()
