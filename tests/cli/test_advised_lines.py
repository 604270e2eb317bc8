"""The lines that commands advise can be typed in an installation without extras."""

import re
import subprocess
from pathlib import Path

import pytest

from support.models import chain, save
from support.without_extras import hide_extras

WRONG = "--onnxrt --engine fake:scale.Relu=1.1"
CHECK = f"--check biopsy run {{}} {WRONG}"
DONE, FAILS, NOT_POSSIBLE = 0, 1, 4


def typed(line: str) -> tuple[int, str]:
    """The exit status of a line, and what it prints."""
    ended = subprocess.run(
        line, shell=True, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    return ended.returncode, ended.stdout.decode()


def advised_in(text: str) -> list[str]:
    return re.findall(r"^(?:Next|  next)? +((?:biopsy|pip|cd) .+)$", text, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "status"),
    [
        (f"biopsy debug reduce model.onnx -o reduced.onnx {CHECK}", DONE),
        (f"biopsy debug flags model.onnx --engine onnxrt {CHECK}", DONE),
        (f"biopsy debug layers model.onnx {WRONG}", FAILS),
        (f"biopsy debug known model.onnx {CHECK}", DONE),
        (f"biopsy debug repeat --until 3 {CHECK.replace('{}', 'model.onnx')}", DONE),
        (f"biopsy debug version model.onnx --package onnxruntime {CHECK}", NOT_POSSIBLE),
        (f"biopsy hunt models {WRONG}", FAILS),
    ],
    ids=lambda value: value.split(" model")[0] if isinstance(value, str) else "",
)
def test_what_a_command_advises_works_where_no_extra_is_installed(
    line: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hide_extras(tmp_path / "without", monkeypatch)
    (tmp_path / "models").mkdir()
    for path in ("model.onnx", "models/model.onnx"):
        save(chain(3), tmp_path / path)
    ended, printed = typed(line)
    assert ended == status, printed
    advised = advised_in(printed)
    assert advised, printed
    answers = {each: typed(each) for each in advised if not each.startswith("pip install ")}
    assert {each: answer for each, answer in answers.items() if answer[0] not in (DONE, FAILS)} == {}
    assert answers or "[releases]" in advised[0]
