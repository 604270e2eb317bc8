"""The pytest plug-in: the fixture ``onnx_engines``, and the options that say what happens when engines disagree.

pytest loads this module at each start where biopsy is installed, so that it imports nothing else until a test asks for
the fixture.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from biopsy.api.engine_tests import OnnxEngines


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the plug-in."""
    group = parser.getgroup("biopsy", "models in several engines (fixture onnx_engines)")
    group.addoption(
        "--biopsy",
        choices=("off", "reduce", "diagnose"),
        default="diagnose",
        help="what to do with a model that fails: off: only say how it differs; reduce: find its smallest failing "
        "piece; diagnose: find out why it fails and what avoids it (default)",
    )
    group.addoption(
        "--biopsy-dir",
        metavar="DIR",
        help="where the evidence is kept, in a folder for each failing test (default: the test's tmp_path)",
    )
    group.addoption(
        "--biopsy-max-time",
        default="60s",
        metavar="TIME",
        help="the most time for each model that fails: 90s, 10m, 2h (default: 60s)",
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Collect nothing from the folder of kept evidence, whose bundles hold tests of their own."""
    folder = config.getoption("--biopsy-dir", None)
    kept = None if folder is None else config.invocation_params.dir / folder
    return True if kept is not None and collection_path == kept else None


@pytest.fixture
def onnx_engines(request: pytest.FixtureRequest, tmp_path: Path) -> OnnxEngines:
    """Compares engines on a model: ``onnx_engines.check("model.onnx", onnxrt=True, openvino={"precision": "f32"})``.

    Its failure is the verdict on the model; see the how-to "Test models with pytest" of biopsy's documentation.
    """
    from biopsy.api.engine_tests import OnnxEngines

    folder = request.config.getoption("--biopsy-dir")
    return OnnxEngines(
        root=request.config.rootpath,
        scratch=tmp_path,
        kept=None if folder is None else request.config.invocation_params.dir / folder,
        test=request.node.nodeid,
        effort=request.config.getoption("--biopsy"),
        max_time=request.config.getoption("--biopsy-max-time"),
    )
