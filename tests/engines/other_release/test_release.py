"""The settings of a spec that ask for another release."""

import pytest

from biopsy import errors
from biopsy.engines.other_release.classes import EngineRelease, release_of
from biopsy.engines.registry import class_of, create, engines_of_distribution, find_class, parse_spec

ORT = ("onnxruntime", "onnxruntime-gpu")


def asked(text: str) -> EngineRelease:
    return release_of(parse_spec(f"onnxrt:{text}").settings, ORT, "onnxrt")


@pytest.mark.parametrize(
    ("text", "requirements", "python"),
    [
        ("release=1.20.1", ("onnxruntime==1.20.1",), None),
        ("release=1.20.1,with=numpy<2+protobuf<4", ("onnxruntime==1.20.1", "numpy<2", "protobuf<4"), None),
        ("release=1.20.1,with=numpy>=1.21\\,<2,python=3.11", ("onnxruntime==1.20.1", "numpy>=1.21,<2"), "3.11"),
        ("release=onnxruntime_GPU==1.20.1", ("onnxruntime-gpu==1.20.1",), None),
        ("release=1.20.0rc1,python=/usr/bin/python3", ("onnxruntime==1.20.0rc1",), "/usr/bin/python3"),
    ],
)
def test_a_release_is_asked_for(text: str, requirements: tuple[str, ...], python: str | None) -> None:
    found = asked(text)
    assert (found.requirements, found.python) == (requirements, python)


def test_an_environment_of_the_user_is_taken_as_it_is() -> None:
    assert asked("python=/opt/old/bin/python") == EngineRelease(
        distribution="onnxruntime", python="/opt/old/bin/python"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("release", "release needs a value"),
        ("release=", "release needs a value"),
        ("with=numpy<2", "with=numpy<2 asks for no release: release=VERSION is missing"),
        ("python=3.11", "python=3.11 asks for no release: release=VERSION is missing"),
        ("with=numpy<2,python=/a/python", "nothing is installed into the environment of /a/python"),
        ("release=--index-url", "release=--index-url is not a release"),
        ("release=1.0 --pre", "release=1.0 --pre is not a release"),
        ("release=https://host/x.whl", "release=https://host/x.whl is not a release"),
        ("release=openvino==2025.1", "it is run from onnxruntime or onnxruntime-gpu"),
        ("release=1.0,with=-r file", "with=-r file is not a package"),
        ("release=1.0,with=a@https://host/x.whl", "is not a package, nor a range of its releases"),
        ("release=1.0,with=./folder", "with=./folder is not a package"),
    ],
)
def test_what_is_no_release_is_said_in_a_line(text: str, said: str) -> None:
    with pytest.raises(errors.UsageError) as raised:
        asked(text)
    assert said in raised.value.message
    assert "\n" not in raised.value.message


def test_an_engine_without_releases_says_so() -> None:
    with pytest.raises(errors.UsageError, match="engine 'fake' cannot be run from another release") as raised:
        create("fake:release=1.0")
    assert "onnxrt" in raised.value.next_steps[0]


def test_an_engine_of_another_release_has_the_options_and_the_name_of_the_engine() -> None:
    engine = create("onnxrt:release=1.20.1,optimization=none")
    assert engine.options == create("onnxrt:optimization=none").options
    assert (engine.name, engine.label) == ("onnxrt", "onnxrt:release=1.20.1,optimization=none")
    with pytest.raises(errors.UsageError, match="has no option 'optimisation'"):
        create("onnxrt:release=1.20.1,optimisation=none")


def test_engines_of_the_same_release_have_one_class() -> None:
    def made(text: str) -> type:
        return class_of(parse_spec(text))

    assert made("onnxrt:release=1.20.1") is made("onnxrt:release=1.20.1,threads=1")
    assert made("onnxrt:release=1.20.1") is not made("onnxrt:release=1.20.0")
    assert made("onnxrt:threads=1") is find_class("onnxrt")


def test_engines_are_found_by_the_distribution_that_they_come_from() -> None:
    assert engines_of_distribution("onnxruntime-gpu") == ["onnxrt"]
    assert engines_of_distribution("openvino") == ["openvino"]
    assert engines_of_distribution("onnx") == ["reference"]
    assert engines_of_distribution("six") == []
