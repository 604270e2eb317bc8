"""A journal as a JSON file, and back."""

import json
from pathlib import Path
from typing import Any

import pytest

from biopsy import errors
from biopsy.checks.journal import Journal, load_replay, save_polygraphy_replay, save_replay
from biopsy.checks.outcome import Evidence, Judged, Outcome
from biopsy.session.trial import PROBE_NAMES

IDENTITY = {"model": "abc", "check": "python check.py {}"}


def judged(outcome: Outcome, status: int = 1, *, timed_out: bool = False) -> Judged:
    return Judged(
        outcome, f"because of {outcome.value} \u2192 \x00", Evidence(status=status, seconds=0.125, timed_out=timed_out)
    )


def filled(path: Path, identity: dict[str, str] = IDENTITY) -> Journal:
    journal = Journal.open(path, identity)
    for number, (stage, outcome) in enumerate(
        [
            ("original", Outcome.REPRODUCES),
            ("identity", Outcome.PASSES),
            ("bisect", Outcome.PASSES),
            ("bisect", Outcome.OTHER_FAILURE),
            ("linear", Outcome.REPRODUCES),
            ("linear", Outcome.REPRODUCES),
            ("final", Outcome.REPRODUCES),
        ]
    ):
        digest = bytes([min(number, 4)])
        journal.add(digest, judged(outcome, timed_out=number == 3), stage=stage, description="half", nodes=10 - number)
    journal.note("signature", '{"status": 1}')
    return journal


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    journal = filled(tmp_path / "first")
    save_replay(tmp_path / "replay.json", journal)
    journal.close()
    return tmp_path / "replay.json"


def test_a_replay_says_of_every_run_what_the_journal_says(saved: Path) -> None:
    tree = json.loads(saved.read_bytes())
    assert (tree["biopsy_replay"], tree["identity"], tree["notes"]) == (1, IDENTITY, {"signature": '{"status": 1}'})
    assert len(tree["runs"]) == 7
    assert tree["runs"][3] == {
        "digest": "03",
        "outcome": "another failure",
        "reason": "because of another failure \u2192 \x00",
        "status": 1,
        "seconds": 0.125,
        "timed_out": True,
        "stage": "bisect",
        "description": "half",
        "nodes": 7,
    }


def test_a_journal_is_the_same_after_a_way_through_a_replay(saved: Path, tmp_path: Path) -> None:
    first = Journal.open(tmp_path / "first", IDENTITY)
    second = Journal.open(tmp_path / "second", IDENTITY)
    assert load_replay(saved, second) == 7
    assert list(second.entries()) == list(first.entries())
    assert second.notes() == first.notes()
    save_replay(tmp_path / "again.json", second)
    assert (tmp_path / "again.json").read_bytes() == saved.read_bytes()
    first.close()
    second.close()


def test_an_empty_journal_has_a_replay_too(tmp_path: Path) -> None:
    first, second = Journal.open(tmp_path / "first", {}), Journal.open(tmp_path / "second", {})
    save_replay(tmp_path / "replay.json", first)
    assert load_replay(tmp_path / "replay.json", second) == 0
    save_polygraphy_replay(tmp_path / "polygraphy.json", first, PROBE_NAMES)
    assert json.loads((tmp_path / "polygraphy.json").read_bytes()) == {}
    first.close()
    second.close()


def test_only_what_the_journal_does_not_hold_is_added_and_its_notes_stay(saved: Path, tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "second", IDENTITY)
    journal.note("signature", "its own")
    journal.add(bytes([4]), judged(Outcome.REPRODUCES), stage="linear", description="half", nodes=6)
    assert load_replay(saved, journal) == 6
    assert load_replay(saved, journal) == 0
    assert len(journal.runs(bytes([4]))) == 3
    assert journal.noted("signature") == "its own"
    journal.close()


def test_a_replay_of_another_reduction_is_refused_by_what_differs(saved: Path, tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "second", {**IDENTITY, "check": "python other.py {}"})
    with pytest.raises(
        errors.UsageError, match=r"check: 'python check.py \{\}' then, 'python other.py \{\}' now"
    ) as caught:
        load_replay(saved, journal)
    assert caught.value.message.startswith(f"the replay {saved} belongs to another reduction")
    assert list(journal.entries()) == []
    assert caught.value.kept
    assert caught.value.next_steps
    journal.close()


def broken(**changes: Any) -> dict[str, Any]:
    run = {
        "digest": "00", "outcome": "passed", "reason": "", "status": 0, "seconds": 1, "timed_out": False,
        "stage": "", "description": "", "nodes": 1,
    }  # fmt: skip
    return {"biopsy_replay": 1, "identity": IDENTITY, "runs": [run, {**run, **changes}], "notes": {}}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        (b"\xff\xfe\xff", "not JSON"),
        ([], "no JSON object"),
        ({}, "it is not a replay: one looks like"),
        ({"a": 1}, "it is not a replay: one looks like"),
        ({"biopsy_replay": 2}, "of version '2', and this biopsy reads version 1"),
        ({"biopsy_replay": True}, "of version"),
        ({"biopsy_replay": 1}, "'identity' is not an object of texts"),
        ({"biopsy_replay": 1, "identity": {"model": 1}}, "'identity' is not an object of texts"),
        ({"biopsy_replay": 1, "identity": IDENTITY, "notes": []}, "'notes' is not an object of texts"),
        ({"biopsy_replay": 1, "identity": IDENTITY, "notes": {}, "runs": {}}, "'runs' are not a list"),
        ({"biopsy_replay": 1, "identity": IDENTITY, "notes": {}, "runs": [[]]}, "run 0 in it has no names and values"),
        (broken(digest="0g"), "run 1 in it has a 'digest' that is not hexadecimal"),
        (broken(digest=None), "run 1 in it has no 'digest'"),
        (broken(outcome="wonderful"), "the unknown outcome 'wonderful'"),
        (broken(outcome=["passed"]), "a 'outcome' of a wrong type"),
        (broken(status=True), "a 'status' of a wrong type"),
        (broken(status=1 << 64), "a number that is too large"),
        (broken(seconds=float("nan")), "a 'seconds' that is not a number"),
        (broken(seconds=10**400), "a 'seconds' of a wrong type"),
        (broken(timed_out=0), "a 'timed_out' of a wrong type"),
        (broken(nodes=1.0), "a 'nodes' of a wrong type"),
    ],
)
def test_a_damaged_replay_is_refused_and_nothing_of_it_is_added(tmp_path: Path, content: Any, said: str) -> None:
    path = tmp_path / "replay.json"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    journal = Journal.open(tmp_path / "journal", IDENTITY)
    with pytest.raises(errors.DataError) as caught:
        load_replay(path, journal)
    assert said in caught.value.message
    assert str(path) in caught.value.message
    assert caught.value.kept == "the journal, as it was"
    assert list(journal.entries()) == []
    journal.close()


def test_a_replay_that_is_missing_or_no_file_or_too_large_is_refused(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "journal", IDENTITY)
    with pytest.raises(errors.UsageError, match="there is no replay"):
        load_replay(tmp_path / "missing.json", journal)
    with pytest.raises(errors.UsageError, match="is not a file"):
        load_replay(tmp_path, journal)
    with (tmp_path / "large.json").open("wb") as stream:
        stream.truncate((256 << 20) + 1)  # a hole: it takes no room on the disk
    with pytest.raises(errors.UsageError, match="is larger than 256 MiB"):
        load_replay(tmp_path / "large.json", journal)
    journal.close()


def test_a_replay_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    journal = filled(tmp_path / "journal")
    with pytest.raises(errors.UsageError, match="is not a folder"):
        save_replay(journal.path / "replay.json", journal)
    save_replay(tmp_path / "made" / "replay.json", journal)
    assert (tmp_path / "made" / "replay.json").is_file()
    journal.close()


def test_polygraphys_form_counts_the_iterations_and_leaves_probes_out(tmp_path: Path) -> None:
    journal = filled(tmp_path / "journal")
    save_polygraphy_replay(tmp_path / "polygraphy_debug_replay.json", journal, PROBE_NAMES)
    tree = json.loads((tmp_path / "polygraphy_debug_replay.json").read_bytes())
    assert list(tree) == ["_N0_original", "_N1_bisect", "_N2_bisect", "_N3_linear", "_N4_linear"]
    assert tree["_N2_bisect"] == {
        "state": {"num_nodes": 7},
        "iteration_info": {"iteration": 2},
        "success": True,
        "polygraphy_class": "IterationContext",
    }
    assert [context["success"] for context in tree.values()] == [False, True, True, False, False]
    journal.close()


def test_a_replay_of_polygraphy_is_refused_with_the_reason(tmp_path: Path) -> None:
    journal = filled(tmp_path / "journal")
    save_polygraphy_replay(tmp_path / "p.json", journal, PROBE_NAMES)
    with pytest.raises(errors.UsageError, match=r"replay of Polygraphy.*does not say which model") as caught:
        load_replay(tmp_path / "p.json", journal)
    assert caught.value.next_steps
    journal.close()
