"""Scripts that complete the words of biopsy, in the shells themselves where they are installed."""

import shutil
import subprocess
from pathlib import Path

import pytest

from biopsy.cli.app import main
from biopsy.cli.completion import SHELLS


@pytest.fixture
def script(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Path:
    assert main(["completion", "bash"]) == 0
    path = tmp_path / "completion.bash"
    path.write_text(capsys.readouterr().out)
    for name in ("model.onnx", "mine.txt"):
        (tmp_path / name).touch()
    (tmp_path / "folder").mkdir()
    return path


ASKED = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
name=$(complete -p biopsy | sed 's/.*-F \\([^ ]*\\).*/\\1/')
"$name" biopsy "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}" 2> /dev/null
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["ru"], {"run"}),
        (["debug", "re"], {"reduce", "repeat"}),
        (["debug", "reduce", "--fail-re"], {"--fail-regex", "--fail-returncode"}),
        (["debug", "reduce", "--mode", ""], {"minimal", "bisect", "linear"}),
        (["run", "mo"], {"model.onnx"}),
        (["run", "model.onnx", "--load-inputs", "m"], {"model.onnx", "mine.txt"}),
        (["debug", "reduce", "model.onnx", "--art-dir", "f"], {"folder"}),
        (["completion", ""], {*SHELLS}),
    ],
)
def test_bash_completes_commands_options_values_and_files(words: list[str], expected: set[str], script: Path):
    done = subprocess.run(
        ["bash", "-c", ASKED, "bash", str(script), "biopsy", *words],
        cwd=script.parent,
        capture_output=True,
        text=True,
        timeout=30,
    )
    found = {line.strip().rstrip("/") for line in done.stdout.splitlines() if line.strip()}
    assert expected <= found
    assert not {word for word in found if not word.startswith(words[-1])}


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_is_sound_for_its_shell(shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    assert main(["completion", shell]) == 0
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out)
    assert "biopsy" in script.read_text()
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed here")
    done = subprocess.run([shell, "-n", str(script)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_shell_that_is_none_is_told_of(capsys: pytest.CaptureFixture[str]):
    assert main(["completion", "bsah"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: SHELL bsah: it must be one of") and "did you mean 'bash'?" in told
