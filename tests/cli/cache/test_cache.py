"""``biopsy cache list`` and ``biopsy cache clear``."""

import json
import os
import re
import time
from pathlib import Path

import pytest

from biopsy.cli.app import main
from biopsy.processes.environments.cache import Cache, Record

DAY = 24 * 3600


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    monkeypatch.setenv("BIOPSY_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("BIOPSY_CACHE_LIMIT", raising=False)
    return Cache.of_user()


def kept(cache: Cache, name: str, *, days: int = 0, added: tuple[str, ...] = ()) -> str:
    """An environment that was last used so many days ago; its key."""
    key = f"{name}-{len(cache.entries()):016x}"
    with cache.locked(key, shared=False, patience=0):
        (cache.place(key)).mkdir(parents=True)
        record = Record(
            requirements=(f"{name}==1.0",),
            added=added,
            interpreter="/usr/bin/python3",
            python="3.11.7",
            packages={name: "1.0"},
            bytes=1_200_000,
            seconds=1.0,
        )
        cache.finish(key, record)
    used = time.time() - days * DAY
    os.utime(cache.whole(key) / "environment.json", (used, used))
    return key


def test_nothing_is_listed_and_nothing_made_where_nothing_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cache", "list"]) == main(["cache", "clear"]) == 0
    assert capsys.readouterr().out == f"no environments in {tmp_path}/environments\n0 environments removed, 0 bytes\n"
    assert list(tmp_path.iterdir()) == []


def test_environments_are_listed_the_last_used_at_the_end(cache: Cache, capsys: pytest.CaptureFixture[str]) -> None:
    key = kept(cache, "nut", added=("numpy<2",))
    kept(cache, "bolt", days=3)
    with cache.locked(key, shared=True, patience=0):
        assert main(["cache", "list"]) == 0
    shown = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d", "DATE", capsys.readouterr().out).splitlines()
    assert shown[1:] == [
        "   1.2 MB  DATE  bolt==1.0, Python 3.11.7",
        "   1.2 MB  DATE  nut==1.0 with numpy<2, Python 3.11.7 · in use",
        f"2 environments in {cache.folder}: 2.4 MB of at most 10.0 GB",
    ]


def test_what_is_being_made_and_what_was_left_are_told_apart(cache: Cache, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("bolt", "nut"):
        (cache.whole(kept(cache, name)) / "environment.json").unlink()
    with cache.locked("nut-0000000000000001", shared=False, patience=0):
        main(["cache", "list"])
    shown = capsys.readouterr().out
    assert re.search(r"0 bytes .* left by an installation that was interrupted$", shown, re.MULTILINE)
    assert re.search(r"0 bytes .* being installed$", shown, re.MULTILINE)


def test_clearing_tells_what_went_and_what_stays(cache: Cache, capsys: pytest.CaptureFixture[str]) -> None:
    kept(cache, "bolt", days=3)
    used, new = kept(cache, "nut", days=2), kept(cache, "washer")
    with cache.locked(used, shared=True, patience=0):
        assert main(["cache", "clear", "--older-than", "1"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "removed  bolt==1.0, Python 3.11.7 · 1.2 MB",
        "stays    nut==1.0, Python 3.11.7 · it is in use",
        "1 environment removed, 1.2 MB",
    ]
    assert [entry.key for entry in cache.entries()] == [used, new]


@pytest.mark.parametrize("days", ["-1", "1.5", "week"])
def test_days_are_a_whole_number(days: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "clear", f"--older-than={days}"]) == 2
    assert "--older-than" in capsys.readouterr().err


def test_what_a_record_of_somebody_else_says_does_nothing_to_the_terminal(
    cache: Cache, capsys: pytest.CaptureFixture[str]
) -> None:
    record = cache.whole(kept(cache, "bolt")) / "environment.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "requirements": ["\x1b[31m\nremoved"]}))
    main(["cache", "list"])
    assert "\\x1b[31m\\nremoved" in capsys.readouterr().out


def test_the_doctor_tells_what_there_is(cache: Cache, capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor"])
    kept(cache, "bolt")
    main(["doctor"])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("other releases")]
    assert lines[0].endswith(" · none yet")
    assert lines[1].endswith(f" · 1 environment in {cache.folder}, 1.2 MB")
