"""What goes along with a script to another machine."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from biopsy.checks.command import CommandCheck
from biopsy.checks.portable import SentAlong, TaskPacker, variables_of
from biopsy.checks.task import Task
from biopsy.checks.task_host import TaskHost

READS = {
    "a module": ("from rule import STATUS", {"rule.py": "STATUS = 7"}),
    "a package": ("from rules import STATUS", {"rules/__init__.py": "STATUS = 7"}),
    "a module of a package": (
        "from rules.deep import STATUS",
        {"rules/__init__.py": "", "rules/deep.py": "STATUS = 7"},
    ),
    "a package without a file of its own": ("from rules.deep import STATUS", {"rules/deep.py": "STATUS = 7"}),
    "data of a package": (
        "import pkgutil, rules; STATUS = int(pkgutil.get_data('rules', 'status'))",
        {"rules/__init__.py": "", "rules/status": "7"},
    ),
    "data beside it": (
        "from pathlib import Path; STATUS = int(Path(__file__).with_name('status.txt').read_text())",
        {"status.txt": "7"},
    ),
    "data of a module beside it": (
        "from rule import STATUS",
        {
            "rule.py": "import os; STATUS = int(open(os.path.dirname(__file__) + '/data/status').read())",
            "data/status": "7",
        },
    ),
    "another script": (
        "import subprocess, sys; STATUS = subprocess.call([sys.executable, sys.path[0] + '/other.py'])",
        {"other.py": "raise SystemExit(7)"},
    ),
    "data of the current folder": (
        "STATUS = int(open('../current/status').read() if 0 else open('status').read())",
        {},
    ),
    "a variable": ("import os; STATUS = int(os.environ['STATUS_OF_MINE'])", {}),
}
FALLS_BACK = "import sys\ntry:\n    {}\nexcept Exception:\n    STATUS = 0\nsys.exit(STATUS)\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for scripts, beside the current one."""
    for name in ("scripts", "current"):
        (tmp_path / name).mkdir()
    (tmp_path / "current" / "status").write_text("7")
    monkeypatch.chdir(tmp_path / "current")
    return tmp_path / "scripts"


def written(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


def status_elsewhere(words: list[str], folder: Path) -> int:
    """What a check ends with that sees only what is sent, in an environment without our variables."""
    task, files = TaskPacker().packed(Task(CommandCheck(words, "c.onnx"), folder.parent / "c.onnx", [b"model"]))
    before = Path.cwd()
    elsewhere = folder.parent / "elsewhere"
    elsewhere.mkdir()
    ours = os.environ.pop("STATUS_OF_MINE", None)
    os.chdir(elsewhere)  # as a place for checks does
    try:
        host = TaskHost(elsewhere)
        answer = host.run(0, task, lambda digest: sent(before / files[digest]))
    finally:
        os.chdir(before)
        if ours is not None:
            os.environ["STATUS_OF_MINE"] = ours
    assert answer.evidence is not None, answer.error
    return answer.evidence.status


def sent(path: Path) -> Iterator[bytes]:
    yield path.read_bytes()


@pytest.mark.parametrize("reads", READS)
@pytest.mark.parametrize("is_link", [False, True])
def test_a_script_that_does_without_what_it_misses_misses_nothing_elsewhere(
    folder: Path, monkeypatch: pytest.MonkeyPatch, reads: str, is_link: bool
) -> None:
    line, files = READS[reads]
    if is_link and "__file__" in line:
        pytest.skip("the name of a link is that of the link for the script too")
    monkeypatch.setenv("STATUS_OF_MINE", "7")
    script = folder / "check.py"
    written(folder, {**files, "check.py": FALLS_BACK.format(line)})
    if is_link:
        script = folder.parent / "check.py"
        script.symlink_to(folder / "check.py")
    words = [sys.executable, str(script), "{}"]
    assert subprocess.run([*words[:2], "c.onnx"], check=False).returncode == 7
    assert status_elsewhere(words, folder) == 7


@pytest.mark.parametrize("call", ['"$(dirname "$0")"/rule.sh', "$HERE/rule.sh", '"${HERE}/rule.sh"'])
def test_a_shell_script_has_the_scripts_that_it_calls(folder: Path, call: str) -> None:
    written(folder, {"rule.sh": "exit 7", "check.sh": f'HERE=$(dirname "$0")\ntest -f {call} || exit 0\nsh {call}'})
    assert status_elsewhere(["sh", str(folder / "check.sh"), "{}"], folder) == 7


def test_nothing_outside_of_the_folder_goes_along(folder: Path) -> None:
    (folder.parent / "secret").write_text("")
    text = f"'../secret', '{folder.parent}/secret', '/etc/passwd', 'rule.py', 'no/such', '{'x' * 5000}', 'a\0b'"
    written(folder, {"rule.py": "", "check.py": text})
    assert list(SentAlong.of(folder / "check.py").beside) == []  # a text with a null byte is none
    (folder / "check.py").write_text(text.replace("\0", ""))
    along = SentAlong.of(folder / "check.py")
    assert (list(along.beside), dict(along.here)) == (["rule.py"], {})


def test_a_machine_keeps_its_own_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LIMIT_OF_MINE", "SECRET", "OMP_NUM_THREADS", "NVIDIA_TF32_OVERRIDE", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "1")
    found = dict(variables_of(["sh", "-c", 'test "$LIMIT_OF_MINE" -lt "$HOME"'], {"PATH", "CUDA_VISIBLE_DEVICES"}))
    assert {"LIMIT_OF_MINE", "OMP_NUM_THREADS", "NVIDIA_TF32_OVERRIDE"} <= set(found)
    assert not {"HOME", "PATH", "SECRET", "CUDA_VISIBLE_DEVICES"} & set(found)
