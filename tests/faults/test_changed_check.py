"""A check that is edited while a search asks it: nothing is concluded, and the line that starts over works."""

import shlex
import sys

import pytest

EDITED = """
with open("count.txt", "a+") as count:
    count.write(".")
    count.seek(0)
    times = len(count.read())
if times == {times}:
    edited = open({file!r}).read()
    open({file!r}, "w").write(edited + {added!r})
"""
NEEDS = "sys.exit('n3' in names and 'n9' in names)"


def edited(place, file: str, added: str, times: int = 6) -> list[str]:
    place.model(12)
    (place.folder / "rule.py").write_text("LEAST = 1\n")
    first = "sys.path.insert(0, '.')\nimport rule\n"
    code = first + EDITED.format(file=file, added=added, times=times) + NEEDS
    return ["m.onnx", "-o", "r.onnx", "--jobs", "1", "--check", *place.check(code)]


@pytest.mark.parametrize(
    ("file", "times", "kept"),
    [
        ("check.py", 2, "nothing was written"),
        ("rule.py", 12, "r.onnx"),
        pytest.param("check.py", 22, "r.onnx", marks=pytest.mark.slow),
    ],
)
def test_a_check_that_is_edited_ends_the_search_and_says_how_to_start_over(
    place, file: str, times: int, kept: str
) -> None:
    ran = place.reduce(*edited(place, file, "# edited\n", times))
    assert ran.status == 4, ran.told
    assert "the check changed while it ran" in ran.told
    assert str(place.folder / file) in ran.told
    assert kept in next(line for line in ran.told.splitlines() if line.split()[:1] == ["kept"]), ran.told
    line = next(line for line in ran.told.splitlines() if "--fresh" in line)
    words = shlex.split(line.partition("biopsy debug reduce ")[2])
    assert words[0] == "--fresh"
    again = place.reduce(*words)
    assert again.status == 0, again.told
    assert {"n3", "n9"} <= set(place.nodes())


CHANGING = """
sys.path.insert(0, '.')
import rule
with open({file!r}, "a") as stream:
    stream.write("# again\\n")
"""


def changing(place, file: str, interpreter: list[str], more: str = "") -> list[str]:
    place.model(12)
    (place.folder / "rule.py").write_text("LEAST = 1\n")
    place.check(CHANGING.format(file=file) + more + NEEDS)
    return ["m.onnx", "-o", "r.onnx", "--check", *interpreter, "check.py", "{}"]


@pytest.mark.parametrize(("file", "options"), [("check.py", []), ("rule.py", []), ("check.py", ["-I", "-S"])])
def test_a_check_that_changes_itself_is_run_cold_and_the_search_goes_on(place, file: str, options: list[str]) -> None:
    ran = place.reduce(*changing(place, file, [sys.executable, *options]))
    assert ran.status == 0, ran.told
    assert ran.told.count("run cold") == ran.told.count(f"run cold: each run changes {file}, so") == 1, ran.told
    assert {"n3", "n9"} <= set(place.nodes())


def test_an_edit_of_another_file_ends_the_search_of_a_check_that_changes_itself(place) -> None:
    edit = EDITED.format(file="rule.py", added="# edited\n", times=6)
    ran = place.reduce("--jobs", "1", *changing(place, "check.py", [sys.executable], edit))
    assert ran.status == 4, ran.told
    assert str(place.folder / "rule.py") in ran.told
    (place.folder / "r.onnx.journal").unlink()  # it is kept for who goes on


def test_a_check_that_is_written_anew_as_it_was_goes_on(place) -> None:
    ran = place.reduce(*edited(place, "check.py", ""))
    assert ran.status == 0, ran.told
    assert {"n3", "n9"} <= set(place.nodes())


def test_a_data_file_that_a_check_makes_anew_is_none_of_its_programs(place) -> None:
    line = edited(place, "values.txt", "new\n")
    (place.folder / "values.txt").write_text("old\n")
    ran = place.reduce(*line, "values.txt")
    assert ran.status == 0, ran.told
