"""What a person and a file of events see of a search on a Ray cluster, while it runs."""

import json
from pathlib import Path

from support.models import chain, save
from support.pseudo_terminal import seen
from support.ray_nodes import MARKS, RayNodes
from support.scripts import script_check

pytestmark = MARKS


def test_machines_and_checks_are_told_while_they_run(tmp_path: Path, ray_nodes: RayNodes) -> None:
    save(chain(40), tmp_path / "m.onnx")
    check = script_check(tmp_path / "check")
    with (tmp_path / "check" / "rule.py").open("a") as rule:
        rule.write("import time; time.sleep(0.7)\n")
    words = ["debug", "reduce", "m.onnx", "-o", "r.onnx", "--on", ray_nodes.address, "--events", "events.jsonl"]
    shown, status = seen([*words, "--mode", "bisect", "--check", *check], tmp_path, columns=120)
    assert status == 0
    assert " running on 3 machines" in shown
    assert " cancelled" in shown
    assert "dashboard" not in shown  # this cluster has none
    told = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    loads = [event for event in told if event["event"] == "ChecksInFlight"]
    assert max(load["machines"] for load in loads) == 3
    assert max(load["running"] for load in loads) == 3
    assert max(load["running"] + load["ending"] for load in loads) <= 6
    assert [loads[-1][key] for key in ("running", "waiting", "ending")] == [0, 0, 0]
    assert 0 < loads[-1]["cancelled"] <= sum(event["event"] == "Abandoned" for event in told)
