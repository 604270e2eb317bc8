"""The exception that a Python program died of, from all the ways in which it is printed."""

import subprocess
import sys
from pathlib import Path

import pytest

from biopsy.checks.message import Death, Raised, death_in
from support.measured import cpu_seconds

SCRIPT = "/home/me/check.py"


def death(text: str, status: int = 1, scripts: tuple[str, ...] = (SCRIPT,)) -> Death | None:
    return death_in(text, status, scripts)


def printed(*frames: tuple[str, str, str], says: str = "ValueError: no") -> str:
    shown = "".join(f'  File "{file}", line 3, in {function}\n    {text}\n' for file, function, text in frames)
    return f"Traceback (most recent call last):\n{shown}{says}\n"


MAIN = (SCRIPT, "<module>", "main()")
COMPARE = (SCRIPT, "compare", "assert close(a, b)")
LIBRARY = ("/usr/lib/python3.11/json/__init__.py", "loads", "raise JSONDecodeError")
INSTALLED = ("/home/me/.venv/lib/python3.11/site-packages/onnx/__init__.py", "load", "raise")


def ran(code: str, tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "check.py").write_text(code)
    command = [sys.executable, *(words or ("check.py",))]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)


def test_the_deepest_frame_in_the_users_script_counts_not_what_it_calls() -> None:
    found = death(printed(MAIN, COMPARE, INSTALLED, LIBRARY))
    assert found is not None
    assert found.chain == (Raised("ValueError", "compare", "assert close(a, b)"),)
    assert str(found.chain[0]) == "ValueError in compare: assert close(a, b)"


def test_without_a_script_among_the_words_it_is_what_is_not_installed() -> None:
    found = death(printed(("/work/tool/cli.py", "run", "go()"), INSTALLED, LIBRARY), scripts=())
    assert found is not None
    assert found.chain == (Raised("ValueError", "run", "go()"),)
    nobodys = death(printed(("<frozen runpy>", "_run_module_as_main", "x"), INSTALLED), scripts=())
    assert nobodys is not None
    assert nobodys.chain == (Raised("ValueError"),)


def test_colours_of_newer_pythons_change_nothing() -> None:
    coloured = (
        "Traceback (most recent call last):\n"
        f'  File \x1b[35m"{SCRIPT}"\x1b[0m, line \x1b[35m3\x1b[0m, in \x1b[35mcompare\x1b[0m\n'
        "    assert \x1b[31mclose\x1b[0m\x1b[1;31m(a, b)\x1b[0m\n"
        "           \x1b[31m~~~~~\x1b[0m\x1b[1;31m^^^^^^\x1b[0m\n"
        "\x1b[1;35mValueError\x1b[0m: \x1b[35mno\x1b[0m\n"
    )
    plain = printed(COMPARE)
    assert death(coloured) is not None
    assert death(coloured).chain == death(plain).chain  # type: ignore[union-attr]


def test_carets_and_repeated_lines_are_no_text_of_a_line() -> None:
    text = (
        f'Traceback (most recent call last):\n  File "{SCRIPT}", line 9, in f\n'
        "  [Previous line repeated 973 more times]\nRecursionError: maximum recursion depth exceeded\n"
    )
    assert death(text).chain == (Raised("RecursionError", "f", "line 9"),)  # type: ignore[union-attr]


def test_a_message_of_several_lines_belongs_to_the_exception() -> None:
    found = death(
        printed(MAIN, COMPARE, says="AssertionError: \nNot equal to tolerance\n\nMismatched elements: 1 / 2\n x: 1")
    )
    assert found is not None
    assert found.certain
    assert found.message.startswith("Not equal to tolerance")


def test_what_is_printed_after_a_traceback_that_was_caught_is_the_end() -> None:
    caught = printed(("/home/me/check.py", "try_it", "load()"))
    assert death(caught + "FAILED: the values differ\n") is None
    assert death(printed(MAIN) + "FAILED: the values differ\n", status=3) is None
    assert death(caught) is not None  # print_exc() and then sys.exit(1)
    assert death("no traceback at all\n") is None
    assert death("") is None


def test_where_nobody_can_tell_the_end_is_part_of_what_it_says() -> None:
    found = death(printed(MAIN) + "FAILED: the values differ\n")
    assert found is not None
    assert not found.certain
    assert found.message.endswith("FAILED: the values differ")


def test_only_the_last_one_of_several_tracebacks_counts() -> None:
    found = death(printed(MAIN, says="KeyError: 1") + "going on\n" + printed(MAIN, COMPARE))
    assert found is not None
    assert [one.kind for one in found.chain] == ["ValueError"]


def test_causes_belong_to_the_failure(tmp_path: Path) -> None:
    code = """
def inner():
    raise KeyError("a")
try:
    inner()
except KeyError as error:
    raise RuntimeError("the check failed") from error
"""
    found = death(ran(code, tmp_path).stderr, scripts=(str(tmp_path / "check.py"),))
    assert found is not None
    assert [one.kind for one in found.chain] == ["KeyError", "RuntimeError"]
    assert found.chain[0].function == "inner"
    found = death(ran(code.replace(" from error", ""), tmp_path).stderr, scripts=("check.py",))
    assert found is not None
    assert [one.kind for one in found.chain] == ["KeyError", "RuntimeError"]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exception groups came with Python 3.11")
def test_the_exceptions_of_a_group_are_its_parts(tmp_path: Path) -> None:
    code = """
def f(n):
    if n:
        raise TypeError("two")
    raise ValueError("one")
found = []
for n in (0, 1):
    try:
        f(n)
    except Exception as error:
        found.append(error)
raise ExceptionGroup("several", [*found, ExceptionGroup("inner", [KeyError(3)])])
"""
    found = death(ran(code, tmp_path).stderr, scripts=("check.py",))
    assert found is not None
    assert [one.kind for one in found.chain] == ["ExceptionGroup"]
    assert [one.kind for one in found.parts] == ["ValueError", "TypeError", "ExceptionGroup", "KeyError"]
    assert found.parts[1].line == 'raise TypeError("two")'


@pytest.mark.parametrize("words", [("-m", "check"), ("check.py",)])
def test_a_module_and_a_script_tell_the_same_place(tmp_path: Path, words: tuple[str, ...]) -> None:
    found = death(ran("def f():\n    assert 1 == 2\nf()\n", tmp_path, *words).stderr, scripts=("check.py",))
    assert found is not None
    assert found.chain == (Raised("AssertionError", "f", "assert 1 == 2"),)


def test_code_on_the_command_line_is_the_users_too(tmp_path: Path) -> None:
    code = "import json\ndef f():\n    json.loads('')\nf()\n"
    found = death(ran("", tmp_path, "-c", code).stderr, scripts=("<string>",))
    assert found is not None
    assert (found.chain[-1].kind, found.chain[-1].function) == ("json.decoder.JSONDecodeError", "f")
    assert found.chain[-1].line in {"line 3", "json.loads('')"}  # newer Pythons show the text


def test_a_script_that_is_no_python_has_a_place_too(tmp_path: Path) -> None:
    found = death(ran("x = = 1\n", tmp_path).stderr, scripts=("check.py",))
    assert found is not None
    assert found.chain == (Raised("SyntaxError", "", "x = = 1"),)
    (tmp_path / "other.py").write_text("x = = 1\n")
    found = death(ran("", tmp_path, "-c", "import other").stderr, scripts=("<string>",))
    assert found is not None
    assert found.chain[0].kind == "SyntaxError"


def test_an_exception_of_another_process_is_a_cause(tmp_path: Path) -> None:
    code = """
import multiprocessing
def f(n):
    raise KeyError(n)
if __name__ == "__main__":
    with multiprocessing.Pool(1) as pool:
        pool.map(f, [1])
"""
    found = death(ran(code, tmp_path).stderr, scripts=("check.py",))
    assert found is not None
    assert [one.kind for one in found.chain] == ["KeyError", "KeyError"]


def test_exceptions_that_python_ignores_at_its_end_are_not_what_it_died_of() -> None:
    ignored = printed((SCRIPT, "__del__", "self.close()"), says="TypeError: 'NoneType' object is not callable")
    found = death(f"{printed(MAIN, COMPARE)}Exception ignored in: <function A.__del__ at 0x7f00>\n{ignored}")
    assert found is not None
    assert [one.kind for one in found.chain] == ["ValueError"]


def test_a_thread_that_dies_last_is_how_it_ended() -> None:
    thread = printed(("/usr/lib/python3.11/threading.py", "_bootstrap_inner", "self.run()"), COMPARE)
    found = death(f"Exception in thread Thread-1 (work):\n{thread}")
    assert found is not None
    assert found.chain == (Raised("ValueError", "compare", "assert close(a, b)"),)


@pytest.mark.parametrize("piece", ["Traceback (most recent call last):\n", "  | ", "+-", '  File "x', " ", "a.", "~^ "])
def test_no_output_takes_long(piece: str) -> None:
    assert cpu_seconds(lambda: death(piece * (65_536 // len(piece)))) < 3
