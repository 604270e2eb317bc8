"""The oldest versions that may be installed; ``make test-lowest`` runs the tests with them."""

import re
from importlib.metadata import requires, version

from packaging.requirements import Requirement
from packaging.version import Version

from support.pages import ROOT

PAGE = ROOT / "docs" / "explanation" / "dependencies.md"


def declared() -> dict[str, str]:
    """Every package that pyproject.toml names, with the oldest version that it allows."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return dict(re.findall(r'^.*"([a-z][a-z0-9-]*)>=([\d.]+)["; ]', text, re.MULTILINE))


def test_every_lower_bound_stands_with_its_reason_in_the_explanation() -> None:
    rows = re.findall(r"^\| ([^|]+) \| ([\d.]+|[a-z ]+) \| ([^|]+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    told = {name: oldest for names, oldest, _ in rows for name in names.split(", ")}
    bounds = declared()
    assert {"numpy", "onnx", "onnxruntime", "openvino", "setuptools"} <= set(bounds)
    for name, oldest in bounds.items():
        assert name in told, name
        assert told[name] == oldest or not told[name][0].isdigit(), name


def test_what_is_installed_is_allowed() -> None:
    found = [Requirement(line) for line in requires("biopsy") or [] if "extra ==" not in line]
    assert len(found) > 4
    for one in [needed for needed in found if needed.marker is None or needed.marker.evaluate()]:
        assert one.specifier.contains(Version(version(one.name)), prereleases=True), one.name
