"""The engine with planted bugs, installed for a test and for the processes that it starts."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.plug_ins import install

_SOURCE = Path(__file__).with_name("planted_engine.py")


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Make the spec of an engine with the bugs that rules describe."""
    site = tmp_path / "planted"
    install(site, "biopsy-planted", _SOURCE.read_text(), "planted = biopsy_planted:Planted")
    monkeypatch.setenv("PYTHONPATH", f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}".rstrip(os.pathsep))
    monkeypatch.syspath_prepend(str(site))

    def engine(*rules: dict[str, Any], **options: str) -> str:
        path = site / f"rules{len(list(site.glob('rules*.json')))}.json"
        path.write_text(json.dumps(rules))
        return ",".join([f"planted:rules={path}", *(f"{key}={value}" for key, value in options.items())])

    return engine
