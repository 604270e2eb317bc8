"""A task host does what it is told, below its folder and nowhere else."""

import sys
from pathlib import Path

import pytest

from biopsy.checks.command import CommandCheck
from biopsy.checks.portable import PortableTask, TaskPacker
from biopsy.checks.task import Task
from biopsy.checks.task_host import TaskHost


def packed(words: list[str], candidate: Path) -> PortableTask:
    return TaskPacker().packed(Task(CommandCheck(words, "c.onnx"), candidate, [b"model"]))[0]


def host(folder: Path) -> TaskHost:
    folder.mkdir()
    return TaskHost(folder)


def test_a_task_leaves_no_candidate(tmp_path: Path) -> None:
    answer = host(tmp_path / "host").run(0, packed(["test", "-s", "{}"], tmp_path / "c.onnx"), lambda _: [])
    assert answer.evidence is not None
    assert answer.evidence.status == 0
    assert list((tmp_path / "host" / "0").iterdir()) == []
    assert not (tmp_path / "c.onnx").exists()


def test_a_task_that_was_stopped_before_it_came_says_nothing(tmp_path: Path) -> None:
    here = host(tmp_path / "host")
    here.stop(4)
    waits = packed([sys.executable, "-c", "import time; time.sleep(600)", "{}"], tmp_path / "c.onnx")
    answer = here.run(4, waits, lambda _: [])
    assert answer.evidence is not None
    assert answer.evidence.status != 0
    quick = here.run(5, packed(["true", "{}"], tmp_path / "c.onnx"), lambda _: [])
    assert quick.evidence is not None
    assert quick.evidence.status == 0


@pytest.mark.parametrize("place", ["/etc/passwd", "../c.onnx", "0/../../c.onnx", ""])
def test_a_place_outside_of_the_folder_is_refused(tmp_path: Path, place: str) -> None:
    task = packed(["true", "{}"], tmp_path / "c.onnx")
    object.__setattr__(task, "candidate", place)
    answer = host(tmp_path / "host").run(0, task, lambda _: [])
    assert answer.error is not None
    assert "not a place" in answer.error["message"]


def test_what_a_file_holds_is_sent_anew_once_it_has_changed(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("0")
    check = CommandCheck(["sh", "-c", f"exit $(cat {tmp_path / 'data'})", "{}"], "c.onnx")
    packer, here, statuses = TaskPacker(), host(tmp_path / "host"), []
    for status in (0, 3):
        (tmp_path / "data").write_text(f"{status} ")
        task, files = packer.packed(Task(check, tmp_path / "c.onnx", [b"model"]))
        answer = here.run(status, task, lambda digest, files=files: [files[digest].read_bytes()])
        assert answer.evidence is not None
        statuses.append(answer.evidence.status)
    assert statuses == [0, 3]


@pytest.mark.parametrize("does", ["echo 5 >", "rm", "rm $1; mkdir", "rm $1; ln -s other"])
def test_what_a_check_does_to_its_files_is_undone_before_the_next(tmp_path: Path, does: str) -> None:
    (tmp_path / "data").write_text("3 ")
    words = ["sh", "-c", f'status=$(cat "$1"); {does} "$1"; exit $status', "sh"]
    task, files = TaskPacker().packed(
        Task(CommandCheck([*words, str(tmp_path / "data"), "{}"], "c.onnx"), tmp_path / "c.onnx", [b"model"])
    )
    here = host(tmp_path / "host")
    for number in range(3):
        answer = here.run(number, task, lambda digest: [files[digest].read_bytes()])
        assert answer.evidence is not None, answer.error
        assert answer.evidence.status == 3


@pytest.mark.parametrize("came", [b"", b"weight", b"weighty", b"weights, and more of it"])
def test_what_is_not_the_file_that_was_announced_is_neither_used_nor_kept(tmp_path: Path, came: bytes) -> None:
    (tmp_path / "data").write_bytes(b"weights")
    words = ["grep", "-q", "weights", str(tmp_path / "data"), "{}"]
    task, _ = TaskPacker().packed(Task(CommandCheck(words, "c.onnx"), tmp_path / "c.onnx", [b"model"]))
    here = host(tmp_path / "host")
    answer = here.run(0, task, lambda _: [came])
    assert answer.error is not None
    assert "was the file changed?" in answer.error["message"]
    assert not [path for path in (tmp_path / "host").rglob("*") if path.is_file()]
    answer = here.run(1, task, lambda _: [b"weig", b"hts"])
    assert answer.evidence is not None, answer.error
    assert answer.evidence.status == 0
