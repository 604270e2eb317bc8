"""Commands as checks, each a real process."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from biopsy import errors
from biopsy.checks import verdict
from biopsy.checks.command import ARBITER, PROFILER, CommandCheck
from biopsy.checks.command_line import OwnRun, parse
from biopsy.checks.words import start_words
from biopsy.processes.reaper import VERDICT_VARIABLE
from support.models import chain, save

NAME = "polygraphy_debug.onnx"


def python(code: str, *words: str, timeout: float | None = None) -> CommandCheck:
    return CommandCheck([sys.executable, "-c", code, *words], NAME, timeout)


def test_the_candidate_stands_for_braces_and_for_the_default_name(tmp_path: Path) -> None:
    path = tmp_path / "c.onnx"
    evidence = python("import sys; print(sys.argv[1:])", "{}", NAME, "--model={}", "other").run(path)
    assert evidence.output.decode().strip() == str([str(path), str(path), f"--model={path}", "other"])


def test_a_command_that_names_no_candidate_is_noticed() -> None:
    assert CommandCheck(["true", "{}"], NAME).names_candidate
    assert CommandCheck(["true", NAME], NAME).names_candidate
    assert not CommandCheck(["true", "model.onnx"], NAME).names_candidate


def test_no_shell_looks_at_the_words(tmp_path: Path) -> None:
    evidence = python("import sys; print(sys.argv[1])", "$HOME; rm -rf * | `id`").run(tmp_path)
    assert evidence.output.decode().strip() == "$HOME; rm -rf * | `id`"


@pytest.mark.parametrize(("code", "status"), [("exit(7)", 7), ("import os; os.kill(os.getpid(), 11)", -11)])
def test_status_and_signal_are_kept(tmp_path: Path, code: str, status: int) -> None:
    assert python(code).run(tmp_path).status == status


def test_output_of_any_bytes_is_kept(tmp_path: Path) -> None:
    evidence = python(r"import sys; sys.stdout.buffer.write(b'\xff\x00\x80'); sys.stderr.write('e')").run(tmp_path)
    assert evidence.output.startswith(b"\xff\x00\x80")


def test_very_long_output_keeps_its_both_ends(tmp_path: Path) -> None:
    evidence = python("print('first'); print('x' * 40_000_000); print('last')").run(tmp_path)
    assert len(evidence.output) < 20_000_000
    assert evidence.output.startswith(b"first")
    assert evidence.output.endswith(b"last\n")


@pytest.mark.slow
@pytest.mark.parametrize("stubborn", ["", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);"])
def test_a_hang_is_ended_with_all_that_it_started(tmp_path: Path, stubborn: str) -> None:
    mark = tmp_path / "mark"
    child = f"import time\nwhile True:\n open({str(mark)!r}, 'w').write(str(time.time())); time.sleep(0.05)"
    code = (
        f"{stubborn}import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(60)"
    )
    evidence = python(code, timeout=1.0).run(tmp_path)
    assert evidence.timed_out
    time.sleep(0.2)
    last = mark.read_text()
    time.sleep(0.3)
    assert mark.read_text() == last


def test_nothing_can_be_read_from_the_terminal(tmp_path: Path) -> None:
    assert python("print(repr(input()))").run(tmp_path).status == 1


def test_a_verdict_file_is_read_and_one_of_another_form_is_an_error(tmp_path: Path) -> None:
    write = "import os; open(os.environ['BIOPSY_VERDICT'], 'w').write({!r}); exit(1)"
    told = python(write.format('{"stage": "run", "kind": "Overflow", "outputs": ["y"]}')).run(tmp_path).verdict
    assert (told.stage, told.kind, told.outputs) == ("run", "Overflow", ("y",))
    for text in ("no json", "[]", '{"outcome": "maybe"}', '{"kind": 3}'):
        with pytest.raises(errors.CheckError, match="verdict file"):
            python(write.format(text)).run(tmp_path)


@pytest.mark.parametrize(
    ("command", "outcome"),
    [
        ("! biopsy run '{}' --onnxrt", ""),  # turned round: the script's own status tells
        ("biopsy run '{}' --onnxrt; exit 1", ""),  # it has another reason to fail
        ("biopsy run '{}' --no-such-option || true", ""),
        ("biopsy run '{}' --engine nosuch || exit 1", "infrastructure"),  # a missing engine is no fault of the model
        ("biopsy run '{}' --onnxrt && exit 0", "passes"),
    ],
)
def test_a_script_that_runs_biopsy_is_believed_where_it_passes_the_answer_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, outcome: str
) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    candidate = save(chain(1), tmp_path / "c.onnx")
    assert CommandCheck(["bash", "-c", command], NAME).run(candidate).verdict.outcome == outcome


def test_a_verdict_file_that_cannot_be_written_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VERDICT_VARIABLE, "/no/such/folder/verdict.json")
    verdict.report_pass()


@pytest.mark.parametrize(
    ("word", "step"),
    [
        ("no-such-program", "write the path to the program, as in --check ./check.sh {}: it is not on PATH"),
        ("my-programm", "did you mean 'my-program'?"),
        ("chek.sh", "did you mean './check.sh'?"),
        ("./chek.sh", "did you mean './check.sh'?"),
        ("./something-else", "ls .    there are no files without an ending in that folder itself"),
        ("./something-else.sh", "files named *.sh there: check.sh"),
        ("folder/check.sh", "there is no folder folder"),
    ],
)
def test_what_a_program_that_does_not_exist_may_mean_is_told(
    word: str, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "check.sh").touch()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "my-program").touch()
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/no/such/folder:{os.environ['PATH']}")
    with pytest.raises(errors.CheckError, match=f"no program '{word}'") as refused:
        CommandCheck([word], NAME).run(tmp_path)
    assert refused.value.next_steps == (step,)


def test_a_python_script_that_does_not_exist_is_told_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("check.py").touch()
    with pytest.raises(errors.UsageError, match=r"there is no file chek\.py") as refused:
        CommandCheck([sys.executable, "-u", "chek.py", "{}"], NAME)
    assert refused.value.next_steps == ("did you mean 'check.py'?",)


@pytest.mark.parametrize("words", [["check.py"], ["-c", "pass"], ["-m", "gone"], ["-"], ["{}"], [NAME], ["."], []])
def test_python_is_given_a_script_only_where_it_would_look_for_a_file(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("check.py").touch()
    assert CommandCheck([sys.executable, *words], NAME).words == (sys.executable, *words)


def test_a_program_that_may_not_run_is_told_with_what_to_do(tmp_path: Path) -> None:
    script = tmp_path / "check.sh"
    script.write_text("#!/bin/sh\n")
    with pytest.raises(errors.CheckError, match="may not be executed") as refused:
        CommandCheck([str(script)], NAME).run(tmp_path)
    assert f"chmod +x {script}" in refused.value.next_steps


@pytest.mark.parametrize(
    ("name", "text", "mode", "told", "step"),
    [
        ("crlf.sh", "#!/bin/bash\r\nexit 1\r\n", 0o755, r"names '/bin/bash\r', which is not there (Windows", "sed -i"),
        ("gone.sh", "#! /no/such/sh -e\n", 0o755, "names '/no/such/sh', which is not there", None),
        ("bare.sh", "exit 1\n", 0o755, "has no #! line", "--check bash ./bare.sh {}"),
        ("bare.py", "import sys\n", 0o644, "has no #! line", "--check python ./bare.py {}"),
    ],
)
def test_what_is_wrong_with_a_script_is_told_by_its_first_line(
    name: str, text: str, mode: int, told: str, step: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(text, newline="")
    Path(name).chmod(mode)
    with pytest.raises(errors.CheckError) as refused:
        CommandCheck([f"./{name}", "{}"], NAME).run(tmp_path)
    assert told in refused.value.message
    assert [one.startswith(step or "") for one in refused.value.next_steps] == [True] * (step is not None)
    if step == "sed -i":
        subprocess.run(["bash", "-c", refused.value.next_steps[0].partition("    ")[0]], check=True)
        assert CommandCheck([f"./{name}", "{}"], NAME).run(tmp_path).status == 1


def test_our_own_command_is_this_installation_however_it_is_typed() -> None:
    assert start_words("biopsy")[0] == sys.executable
    for name in ("biopsy", "polygraphy"):
        command = parse([name, "run", "{}"])
        assert isinstance(command, OwnRun)
        assert command.arguments == ("run", "{}")
    assert not isinstance(parse(["./check.sh", "run"]), OwnRun)


def test_our_own_command_imports_nothing_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "argparse.py").write_text("raise SystemExit('a file of the user was imported')")
    monkeypatch.chdir(tmp_path)
    evidence = CommandCheck(["biopsy", "--version"], NAME).run(tmp_path)
    assert (evidence.status, evidence.output.split()[0]) == (0, b"biopsy")


def test_a_limit_follows_from_the_time_that_the_original_took_unless_the_user_gave_one() -> None:
    check = CommandCheck(["true"], NAME)
    check.expect(0.1)
    assert check.timeout == 60
    check = CommandCheck(["true"], NAME)
    check.expect(10)
    assert check.timeout == 200
    check = CommandCheck(["true"], NAME, timeout=5)
    check.expect(10)
    assert check.timeout == 5


RUNS = [
    (["biopsy", "run", "--onnxrt", "--load-inputs", "a.json", "--", "{}"], ["--", "{}"]),
    (["biopsy", "run", "--load-inputs=a.json", "--onnxrt", "--", "--load-inputs"], ["--", "--load-inputs"]),
    (["biopsy", "run", "{}", "--onnxrt", "--load-inputs", "a.json"], []),
]


@pytest.mark.parametrize(("words", "operands"), RUNS)
def test_options_that_are_added_stand_before_two_dashes(words: list[str], operands: list[str]) -> None:
    check = CommandCheck(words, NAME)
    end = -len(operands) or None
    fed = check.fed(Path("b.json")).words
    assert list(fed[:end])[-2:] == ["--load-inputs", "b.json"]
    assert "a.json" not in fed and "--load-inputs=a.json" not in fed
    for more, option in (
        (check.telling(ARBITER), "--tell-rounding"),
        (check.telling(PROFILER), "--tell-slow-tensors"),
        (check.glance(), "--fail-fast"),
    ):
        assert more is not None and list(more.words[:end])[-1] == option
        assert list(more.words[len(more.words) - len(operands) :]) == operands
