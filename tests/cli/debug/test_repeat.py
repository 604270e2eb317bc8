"""``biopsy debug repeat`` from the command line: how often, which outcomes, whose files, and how it ends.

Commands are real processes.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from biopsy.cli.app import main
from support.models import chain, save

BIN = Path(sys.executable).parent


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{BIN}:{os.environ['PATH']}")
    return tmp_path


def repeat(*words: str) -> int:
    return main(["debug", "repeat", *words])


@pytest.mark.parametrize(
    ("check", "told"),
    [("true", "Passed: 2/2 | Pass Rate: 100.0%"), ("false", "Passed: 0/2 | Pass Rate: 0.0%")],
)
def test_the_last_line_of_polygraphy_is_said_too(here: Path, capsys, check: str, told: str) -> None:
    assert repeat("--until", "2", "--check", check) == 0
    assert f"Finished 2 iteration(s) | {told}" in capsys.readouterr().out.splitlines()


def script(folder: Path, code: str) -> tuple[str, ...]:
    """A command written in Python: its words. ``n`` is how often it was run before, also where several run at once."""
    path = folder / "command.py"
    path.write_text(
        "import os, pathlib, signal, sys, time\n"
        "counter = os.open('count', os.O_WRONLY | os.O_CREAT | os.O_APPEND)\n"
        "os.write(counter, b'.')\n"
        f"n = os.lseek(counter, 0, os.SEEK_CUR) - 1\n{code}\n"
    )
    return (sys.executable, str(path))


def told(capsys: pytest.CaptureFixture[str]) -> str:
    shown = capsys.readouterr()
    assert "Traceback" not in shown.out + shown.err
    return shown.out + shown.err


def runs(folder: Path) -> int:
    return (folder / "count").stat().st_size


def names_in(folder: Path) -> list[str]:
    return sorted(path.name.split("_N")[1] for path in folder.glob("*"))


# How often


def test_it_is_run_as_often_as_asked_and_failing_runs_are_counted_and_no_error(here: Path, capsys) -> None:
    assert repeat("--until", "6", "--check", *script(here, "sys.exit(n % 3 == 2)")) == 0
    assert runs(here) == 6
    shown = told(capsys)
    assert "6 iterations   4 passed · 2 failed" in shown
    assert "pass rate  4 of 6, 67 % (95 % sure: 30 to 90.3 %)" in shown


def test_until_bad_ends_with_the_first_run_that_fails(here: Path, capsys) -> None:
    assert repeat("--until=bad", "--check", *script(here, "sys.exit(n == 3)")) == 0
    assert runs(here) == 4
    assert "4 iterations   3 passed · 1 failed" in told(capsys)


def test_until_good_ends_with_the_first_run_that_passes(here: Path, capsys) -> None:
    assert repeat("--until", "good", "--check", *script(here, "sys.exit([1, 125, -9, 0][n])")) == 0
    assert runs(here) == 4


@pytest.mark.parametrize("until", ["0", "-1", "2.5", "maybe", ""])
def test_what_is_no_number_above_0_nor_good_or_bad_is_wrong_usage(until: str, capsys) -> None:
    assert repeat(f"--until={until}", "--check", "true") == 2
    assert f"--until {until}: must be a whole number from 1 to 1000000, or good or bad" in told(capsys)


def test_how_often_must_be_said(capsys) -> None:
    assert repeat("--check", "true") == 2
    assert "--until" in told(capsys)


@pytest.mark.parametrize("check", [(), ("--check",)])
def test_a_command_must_be_given(check: tuple[str, ...], capsys) -> None:
    assert repeat("--until", "3", *check) == 2
    assert "there is no command to run" in told(capsys)


def test_the_command_is_the_whole_rest_of_the_line_and_braces_in_it_mean_nothing(here: Path) -> None:
    words = ["{}", "x{}y", "--until", "9", "--check", "--", "-v", "polygraphy_debug.onnx"]
    command = script(here, f"assert sys.argv[1:] == {words!r}, sys.argv")
    assert repeat("--until", "1", "--save-report", "r.json", "--check", *command, *words) == 0
    assert json.loads(Path("r.json").read_text())["repeat"]["passed"] == 1


# Outcomes


def test_runs_that_cannot_say_or_end_out_of_time_are_neither_passed_nor_failed(here: Path, capsys) -> None:
    code = "n == 3 and time.sleep(60)\nsys.exit([0, 125, 1, 0][n])"
    assert repeat("--until", "4", "--check-timeout", "1", "--check", *script(here, code)) == 0
    shown = told(capsys)
    assert "4 iterations   1 passed · 1 failed · 1 cannot say · 1 timed out" in shown
    assert "1 of 2, 50 % (95 % sure: 9.5 to 90.5 %), the 2 others left out" in shown


def test_a_run_that_hangs_is_no_failing_one_that_ends_until_bad(here: Path) -> None:
    code = "n == 0 and time.sleep(60)\nsys.exit(n == 2)"
    assert repeat("--until", "bad", "--check-timeout", "1", "--check", *script(here, code)) == 0
    assert runs(here) == 3


def test_kinds_of_failures_are_told_apart_and_counted(here: Path, capsys) -> None:
    code = "n in (4, 5) and os.kill(os.getpid(), signal.SIGSEGV)\nprint('wrong', n)\nsys.exit([0, 1, 1, 3, 0, 0, 1][n])"
    assert repeat("--until", "7", "--check", *script(here, code)) == 0
    lines = told(capsys).splitlines()
    at = lines.index("failures   3 x exit status 1, first in iteration 1")
    assert lines[at + 1 : at + 3] == [
        "           2 x signal SIGSEGV, first in iteration 4",
        "           1 x exit status 3, first in iteration 3",
    ]


def test_match_tells_kinds_apart_by_what_was_printed_last(here: Path, capsys) -> None:
    command = script(here, "print(['disk full', 'no memory'][n % 2], n)\nsys.exit(1)")
    for match, kinds in (("status", ["4 x"]), ("message", ["2 x", "2 x"])):
        assert repeat("--until", "4", "--match", match, "--check", *command) == 0
        lines = told(capsys).splitlines()
        assert [line[11:14] for line in lines if "first in iteration" in line] == kinds


def test_what_our_own_run_reports_is_the_kind_of_failure(here: Path, capsys) -> None:
    save(chain(3, ("NoSuchOperator",)), here / "m.onnx")
    assert repeat("--until", "2", "--check", "biopsy", "run", "m.onnx", "--onnxrt") == 0
    assert "failures   2 x load · " in told(capsys)


def test_our_own_run_that_could_not_begin_concludes_nothing(here: Path, capsys) -> None:
    assert repeat("--until", "2", "--check", "biopsy", "run", "missing.onnx", "--onnxrt") == 4
    assert "there is no model missing.onnx" in told(capsys)


def test_codes_and_expressions_decide_alone(here: Path, capsys) -> None:
    command = script(here, "print('value', n)\nsys.exit([0, 1, 2, 3][n % 4])")
    for options, counted in (
        (("--fail-code", "2", "3"), "2 passed · 2 failed"),
        (("--ignore-fail-returncode", "1"), "2 passed · 2 failed"),
        (("--fail-regex", "value [13]", "nothing"), "2 passed · 2 failed"),
        (("--fail-code", "3", "--fail-regex", "value 1"), "4 passed · 0 failed"),
    ):
        (here / "count").unlink(missing_ok=True)
        assert repeat("--until", "4", *options, "--check", *command) == 0
        assert counted in told(capsys)


def test_the_output_of_the_first_failure_of_each_kind_is_shown_unless_hidden(here: Path, capsys) -> None:
    command = script(here, "print('output of', n)\nsys.exit([0, 1, 1, 2][n % 4])")
    for options, shown in (((), [1, 3]), (("--hide-fail-output",), []), (("--show-output",), [0, 1, 2, 3])):
        (here / "count").unlink(missing_ok=True)
        assert repeat("--until", "4", *options, "--check", *command) == 0
        lines = told(capsys).splitlines()
        assert [int(line.rpartition(" ")[2]) for line in lines if line.startswith("  | output of")] == shown


def test_verbose_tells_of_each_run_and_quiet_only_the_result(here: Path, capsys) -> None:
    command = script(here, "sys.exit(n % 2)")
    assert repeat("--until", "4", "-v", "--check", *command) == 0
    shown = told(capsys)
    assert [f"run {n}  {what}" in shown for n, what in enumerate(["passed", "failed"] * 2)] == [True] * 4
    assert repeat("--until", "4", "-q", "--check", *command) == 0
    assert told(capsys).startswith("4 iterations")
    assert repeat("--until", "4", "-qq", "--check", *command) == 0
    assert told(capsys) == ""


# Files


def test_artifacts_are_sorted_by_outcome_and_named_by_iteration(here: Path, capsys) -> None:
    command = script(here, "open('log.txt', 'w').write(str(n))\nsys.exit([0, 1, 125, 0][n])")
    assert repeat("--until", "4", "--artifacts", "log.txt", "--art-dir", "sorted", "--check", *command) == 0
    kept = {folder: names_in(here / "sorted" / folder) for folder in ("good", "bad", "other")}
    assert kept == {"good": ["0.txt", "3.txt"], "bad": ["1.txt"], "other": ["2.txt"]}
    for path in (here / "sorted").glob("*/*"):
        assert path.stem.endswith(f"_N{path.read_text()}")
    assert not (here / "log.txt").exists()
    assert "artifacts  sorted" in told(capsys)


def test_a_second_measurement_overwrites_nothing(here: Path) -> None:
    command = script(here, "open('log.txt', 'w').write(str(n))")
    for _ in range(2):
        assert repeat("--until", "2", "--artifacts", "log.txt", "--check", *command) == 0
    kept = (here / "polygraphy_artifacts" / "good").iterdir()
    assert sorted(path.read_text() for path in kept) == ["0", "1", "2", "3"]


def test_the_number_of_the_iteration_is_there_before_each_run(here: Path) -> None:
    command = script(here, "import json\nsys.exit(json.load(open('i.json')) != {'iteration': n})")
    assert repeat("--until", "3", "--iter-info", "i.json", "--save-report", "r.json", "--check", *command) == 0
    assert json.loads(Path("r.json").read_text())["repeat"]["passed"] == 3


def test_an_artifact_that_is_missing_or_was_there_before_is_told_once(here: Path, capsys) -> None:
    (here / "old.txt").write_text("of yesterday")
    assert repeat("--until", "3", "--artifacts", "old.txt", "no.txt", "--check", "true") == 0
    shown = told(capsys)
    assert "old.txt exists already" in shown
    assert shown.count("no.txt was not there after iteration 0") == 1
    assert shown.count("was not there") == 2


def test_the_report_holds_what_was_measured(here: Path) -> None:
    command = script(here, "sys.exit([0, 1, 125, 1, 2][n])")
    assert repeat("--until", "5", "--save-report", "rate.json", "--check", *command) == 0
    whole = json.loads(Path("rate.json").read_text())
    assert whole["seconds"] > 0
    assert (whole["command"], whole["verdict"]["kind"], len(whole["search"]["checks"])) == ("debug repeat", "flaky", 5)
    report = whole["repeat"]
    lower, upper = report.pop("pass_rate_interval")
    assert 0 < lower < 0.25 < upper < 1
    assert report == {
        "command": list(command),
        "until": 5,
        "interrupted": False,
        "iterations": 5,
        "passed": 1,
        "failed": 3,
        "others": {"cannot say": 1},
        "pass_rate": 0.25,
        "failures": [
            {"reason": "exit status 1", "times": 2, "first": 1},
            {"reason": "exit status 2", "times": 1, "first": 4},
        ],
    }


def test_where_no_run_passes_or_fails_nothing_is_concluded(here: Path, capsys) -> None:
    assert repeat("--until", "2", "--check", *script(here, "sys.exit(125)")) == 4
    assert "none of the runs passed or failed (2 cannot say)" in capsys.readouterr().err


def test_events_tell_of_each_run(here: Path) -> None:
    command = script(here, "sys.stdout.buffer.write(b'\\xff')\nsys.exit(n)")
    assert repeat("--until", "2", "--events", "e.jsonl", "--check", *command) == 0
    *found, last = [json.loads(line) for line in Path("e.jsonl").read_text().splitlines()]
    assert (last["event"], last["status"]) == ("CommandEnded", 0)
    assert [(one["event"], one["number"]) for one in found] == [
        ("Checking", 0), ("Checked", 0), ("Checking", 1), ("Checked", 1),
    ]  # fmt: skip
    assert [(one["outcome"], one["output"]) for one in found[1::2]] == [("passed", "\\xff"), ("reproduced", "\\xff")]


@pytest.mark.parametrize(
    "options",
    [
        ("--events", "a", "--save-report", "./a"),
        ("--artifacts", "a", "--events", "a"),
        ("--save-report", "/dev/null/a"),
        ("--iter-info", "/dev/null/a"),
    ],
)
def test_files_that_would_be_lost_or_cannot_be_written_are_refused_before_the_first_run(
    here: Path, options: tuple[str, ...], capsys
) -> None:
    assert repeat("--until", "2", *options, "--check", *script(here, "")) == 2
    told(capsys)
    assert sorted(path.name for path in here.iterdir()) == ["command.py"]


# Several at once


def test_several_run_at_once(here: Path, capsys) -> None:
    """Each waits for the other: alone it would wait for ever."""
    code = (
        "open(f'{os.getpid()}.here', 'w').close()\nwhile len(list(pathlib.Path().glob('*.here'))) < 2: time.sleep(0.01)"
    )
    assert repeat("--until", "2", "--jobs", "2", "--check-timeout", "20", "--check", *script(here, code)) == 0
    assert "2 passed" in told(capsys)


def test_runs_at_once_are_as_many_as_asked_and_each_is_counted_once(here: Path) -> None:
    options = ("--jobs", "5", "--events", "e.jsonl", "--save-report", "r.json")
    assert repeat("--until", "23", *options, "--check", "sh", "-c", "exit $(($$ % 2))") == 0
    report = json.loads(Path("r.json").read_text())["repeat"]
    assert report["passed"] + report["failed"] == report["iterations"] == 23
    found = [json.loads(line) for line in Path("e.jsonl").read_text().splitlines()]
    assert sorted(one["number"] for one in found if one["event"] == "Checked") == list(range(23))


def test_what_still_runs_when_the_first_one_fails_is_ended_and_not_counted(here: Path, capsys) -> None:
    command = ("sh", "-c", """grep -q '"iteration": 0' "$0" && exit 1; sleep 60""", "i.json")
    started = time.monotonic()
    assert repeat("--until", "bad", "--jobs", "2", "--iter-info", "i.json", "--check", *command) == 0
    assert time.monotonic() - started < 20
    assert "1 iteration   0 passed · 1 failed" in told(capsys)


@pytest.mark.parametrize("options", [("--artifacts", "a"), ("--iter-info", "i.json")])
def test_runs_at_once_may_not_share_files(here: Path, options: tuple[str, ...], capsys) -> None:
    assert repeat("--until", "4", "--jobs", "2", *options, "--check", "true") == 2
    assert f"would share the files of {options[0]}" in told(capsys)
    assert repeat("--until", "4", "--jobs", "1", *options, "--check", "true") == 0


def test_runs_at_once_have_a_file_each_where_the_check_names_it(here: Path, capsys) -> None:
    code = "import json, time\nfirst = open(sys.argv[1]).read()\ntime.sleep(0.3)\n"
    code += "assert open(sys.argv[1]).read() == first\nopen('seen.txt', 'a').write(f'{json.loads(first)}\\n')"
    check = script(here, "import sys\n" + code)
    options = ("--jobs", "3", "--iter-info", "i.json", "--save-report", "r.json")
    (here / "i.1.json").write_text("mine")
    assert repeat("--until", "6", *options, "--check", *check, "i.json") == 0
    assert json.loads(Path("r.json").read_text())["repeat"]["passed"] == 6
    assert sorted(Path("seen.txt").read_text().splitlines()) == [str({"iteration": number}) for number in range(6)]
    assert json.loads(Path("i.json").read_text())["iteration"] in range(6)
    assert {path.name for path in here.glob("i.*")} == {"i.json", "i.1.json"}
    assert (here / "i.1.json").read_text() == "mine"


# How it ends


def test_a_program_that_does_not_exist_concludes_nothing(here: Path, capsys) -> None:
    assert repeat("--until", "3", "--check", "no-such-program") == 4
    shown = told(capsys)
    assert "no program 'no-such-program'" in shown
    assert "kept" not in shown


@pytest.mark.parametrize("status", [126, 127])
@pytest.mark.parametrize("jobs", ["1", "3"])
def test_a_command_that_could_not_be_run_stops_everything(here: Path, status: int, jobs: str, capsys) -> None:
    command = script(here, f"sys.exit({status} if n else 0)")
    assert repeat("--until", "1000", "--jobs", jobs, "--check", *command) == 4
    shown = told(capsys)
    assert f"exit status {status}: a program could not be run" in shown
    assert "iterations " not in shown
    assert runs(here) < 100


def test_127_may_be_the_failure_that_is_looked_for(here: Path, capsys) -> None:
    assert repeat("--until", "2", "--fail-code", "127", "--check", "sh", "-c", "exit 127") == 0
    assert "0 passed · 2 failed" in told(capsys)


@pytest.mark.parametrize(
    ("number", "jobs"),
    [
        (signal.SIGINT, "2"),
        (signal.SIGTERM, "1"),
        pytest.param(signal.SIGINT, "1", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, "2", marks=pytest.mark.slow),
    ],
)
def test_a_signal_ends_with_what_was_measured_and_leaves_no_process(here: Path, number: int, jobs: str) -> None:
    code = "open(f'{os.getpid()}.pid', 'w').close()\nimport json\n"
    code += "time.sleep(60 if json.load(open(sys.argv[1]))['iteration'] > 3 else 0)"
    words = ["debug", "repeat", "--until", "99", "--jobs", jobs, "--iter-info", "i.json", "--save-report", "r.json"]
    process = subprocess.Popen(
        [str(BIN / "biopsy"), *words, "--check", *script(here, code), "i.json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while len(list(here.glob("*.pid"))) < 4 + int(jobs):  # those before the sleepers have ended
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 5
    assert "iterations   " in out
    assert err.startswith("interrupted: runs in progress were ended, and are not counted")
    report = json.loads((here / "r.json").read_text())["repeat"]
    assert report["interrupted"]
    assert report["passed"] == report["iterations"] >= 3
    for started in here.glob("*.pid"):
        with pytest.raises(ProcessLookupError):
            os.kill(int(started.stem), 0)


def test_on_a_terminal_a_live_line_tells_how_far_it_is(here: Path) -> None:
    screen, terminal = os.openpty()
    words = [str(BIN / "biopsy"), "debug", "repeat", "--until", "3", "--check", "sleep", "0.3"]
    environment = {**os.environ, "TERM": "vt100", "COLUMNS": "100"}
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=terminal, text=True, env=environment)
    os.close(terminal)
    shown = b""
    with contextlib.suppress(OSError):  # how Linux tells that nobody writes any more
        while data := os.read(screen, 1 << 16):
            shown += data
    os.close(screen)
    out, _ = process.communicate()
    assert re.search(r"2 of 3 · 2 passed · 0 failed · about \d+ s left", shown.decode())
    assert "of 3 ·" not in out


# What to do next


def test_a_flaky_failure_is_to_be_repeated_as_often_as_makes_a_wrong_pass_rare(here: Path, capsys) -> None:
    assert repeat("--until", "20", "--check", *script(here, "sys.exit(n < 7)")) == 0
    shown = told(capsys)
    assert "passes 24 times in a row is 99 % sure not to pass by luck" in shown
    assert "(11 times would do if the true rate is the one measured" in shown
    assert "biopsy debug reduce MODEL --repeat 24 --check" in shown


def test_the_line_that_reduces_names_the_model_of_the_command(here: Path, capsys) -> None:
    Path("a model.onnx").touch()
    assert repeat("--until", "3", "--check", "false", "a model.onnx") == 0
    assert "biopsy debug reduce 'a model.onnx' -o reduced.onnx --check false {}" in told(capsys)


def test_the_line_that_reduces_never_writes_over_the_model(here: Path, capsys) -> None:
    Path("reduced.onnx").touch()
    assert repeat("--until", "3", "--check", "false", "reduced.onnx") == 0
    assert "biopsy debug reduce reduced.onnx -o reduced_2.onnx --check false {}" in told(capsys)


def test_a_failure_that_was_not_seen_may_still_be_there(here: Path, capsys) -> None:
    assert repeat("--until", "10", "--check", "true") == 0
    shown = told(capsys)
    assert "in up to 28 % of runs" in shown
    assert "biopsy debug repeat --until bad --check true" in shown


def test_a_failure_that_was_always_seen_can_be_reduced(here: Path, capsys) -> None:
    assert repeat("--until", "3", "--check", "false") == 0
    shown = told(capsys)
    assert "may pass in up to 56 % of runs" in shown
    assert "biopsy debug reduce MODEL --check" in shown


def test_the_alias_of_the_command_is_the_same() -> None:
    done = subprocess.run(
        [str(BIN / "polygraphy"), "debug", "repeat", "--until=2", "--check", "true"], capture_output=True, text=True
    )
    assert done.returncode == 0
    assert "2 iterations   2 passed" in done.stdout


def test_a_debug_replay_is_saved_as_polygraphys_and_its_iterations_are_not_run_again(here: Path, capsys) -> None:
    command = script(here, "sys.exit(n % 2)")
    assert repeat("--until", "3", "--save-debug-replay", "r.json", "--check", *command) == 0
    saved = json.loads(Path("r.json").read_text())
    assert [(key, entry["success"]) for key, entry in saved.items()] == [("_N0", True), ("_N1", False), ("_N2", True)]
    assert saved["_N1"]["polygraphy_class"] == "IterationContext"
    capsys.readouterr()
    words = ["--load-debug-replay", "r.json", "--save-debug-replay", "r.json"]
    assert repeat("--until", "4", *words, "--check", *command) == 0
    assert Path("count").stat().st_size == 4
    assert "Passed: 2/4 | Pass Rate: 50.0%" in capsys.readouterr().out
    assert len(json.loads(Path("r.json").read_text())) == 4


@pytest.mark.parametrize("text", ["no JSON", "[]", '{"_N0": {"success": 1}}', '{"a": 1}', '{"_N1": {"success": true}}'])
def test_what_is_no_debug_replay_is_refused(here: Path, capsys, text: str) -> None:
    Path("r.json").write_text(text)
    assert repeat("--until", "1", "--load-debug-replay", "r.json", "--check", "true") == 4
    assert "r.json cannot be loaded" in capsys.readouterr().err
