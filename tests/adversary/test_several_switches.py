"""Failures that several settings switch off: all of the same length are named, not the one that is met first."""

import json
import os
import sys
from pathlib import Path

import pytest

from biopsy.cli.app import main
from support.models import chain, save

PREPACKING = "config.session.disable_prepacking=1"
DENORMAL = "config.session.set_denormal_as_zero=1"


def switches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, engine: str = "onnxrt") -> list[set[str]]:
    """What ``debug flags`` names for a check that fails unless ``code``, in which ``on`` are the settings."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    save(chain(2), tmp_path / "model.onnx")
    Path("check.py").write_text(
        f"import sys\non = set(sys.argv[1].partition(':')[2].split(','))\nsys.exit(not ({code}))"
    )
    check = (sys.executable, "-S", "check.py", "{engine}")
    assert main(["debug", "flags", "model.onnx", "-o", "r.json", "--engine", engine, "--check", *check]) == 0
    report = json.loads(Path("r.json").read_text())["settings"]
    assert report["complete"] and all(one["verified"] for one in report["switches"])
    return [{f"{key}={value}" for key, value in one["settings"].items()} for one in report["switches"]]


def test_every_single_setting_that_switches_the_failure_off_is_named(tmp_path, monkeypatch) -> None:
    found = switches(tmp_path, monkeypatch, f"{{'threads=1', 'execution=parallel', {PREPACKING!r}}} & on")
    assert found == [{"threads=1"}, {"execution=parallel"}, {PREPACKING}]


def test_every_level_that_switches_it_off_is_named_where_no_optimizer_can_be(tmp_path, monkeypatch) -> None:
    found = switches(tmp_path, monkeypatch, "{'optimization=none', 'optimization=basic', 'threads=1'} & on")
    assert found == [{"optimization=basic"}, {"optimization=none"}, {"threads=1"}]


def test_every_pair_of_settings_is_named_also_where_pairs_share_a_setting(tmp_path, monkeypatch) -> None:
    pairs = [{"threads=1", PREPACKING}, {"threads=1", DENORMAL}, {"execution=parallel", DENORMAL}]
    found = switches(tmp_path, monkeypatch, f"any(pair <= on for pair in {pairs!r})")
    assert sorted(map(sorted, found)) == sorted(map(sorted, pairs))


def test_other_values_of_the_settings_of_a_pair_are_named_too(tmp_path, monkeypatch) -> None:
    found = switches(tmp_path, monkeypatch, "'threads=1' in on and {'optimization=none', 'optimization=basic'} & on")
    expected = [{"threads=1", "optimization=basic"}, {"threads=1", "optimization=none"}]
    assert sorted(map(sorted, found)) == sorted(map(sorted, expected))


def test_a_longer_switch_is_not_named_beside_shorter_ones(tmp_path, monkeypatch) -> None:
    code = f"'threads=1' in on or {{'execution=parallel', {PREPACKING!r}}} <= on"
    assert switches(tmp_path, monkeypatch, code) == [{"threads=1"}]
