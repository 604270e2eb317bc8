"""The section of a page that tells what makes a model right."""

from typing import Any

import pytest

from biopsy.findings.page.document import page_of
from support.hostile_names import HOSTILE


def report(**more: Any) -> dict[str, Any]:
    latency = {"before": 1.0, "after": 1.2, "ratio": 1.2, "low": 1.1, "high": 1.3}
    best = {
        "kind": "mark",
        "text": f"its result marked {HOSTILE}",
        "engine": "onnxrt",
        "difference": [f"+ output {HOSTILE}"],
        "python": [],
        "latency": latency,
    }
    tried = [{"kind": "setting", "text": "threads=1", "right": False, "reason": HOSTILE}]
    found = {"reference": "reference", "confirmed_by": None, "samples": 1, "fresh_samples": 3, "best": [best]}
    return {"biopsy_report": 2, "command": "debug workaround", "workaround": {**found, "tried": tried, **more}}


def test_a_report_of_another_command_has_no_such_section() -> None:
    pytest.importorskip("jinja2")
    assert "What makes the model right" not in page_of({"biopsy_report": 2, "command": "run"})


def test_the_page_tells_the_best_their_latency_and_their_differences() -> None:
    pytest.importorskip("jinja2")
    page = page_of(report())
    assert "What makes the model right" in page and "1.20 times as long (1.10 to 1.30)" in page
    assert "no engine of another package confirms that" in page
    assert HOSTILE not in page and "<x" not in page


def test_the_page_says_where_nothing_helps() -> None:
    pytest.importorskip("jinja2")
    assert "Nothing that was tried makes the model right." in page_of(report(best=[]))
