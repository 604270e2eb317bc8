"""Python scripts in forks of their own interpreter say what processes say; every process here is real."""

import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from biopsy.checks.command import CommandCheck
from biopsy.checks.outcome import Evidence
from biopsy.checks.warm import ScriptStarter, command_check, difference
from biopsy.processes import warm as script_server
from biopsy.processes.watch import Stop
from support.command_line import is_alive, wait_until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="scripts are kept warm on Linux only")

NAME = "polygraphy_debug.onnx"


@pytest.fixture
def candidate(tmp_path: Path) -> Path:
    path = tmp_path / NAME
    path.write_bytes(b"a model, to whoever does not look")
    return path


@contextmanager
def script(
    folder: Path, text: str | bytes, *words: str, options: tuple[str, ...] = (), **more: object
) -> Iterator[CommandCheck]:
    """A check that runs a script of this text, with the candidate and these words."""
    (folder / "check.py").write_bytes(text if isinstance(text, bytes) else text.encode())
    check = command_check([sys.executable, *options, str(folder / "check.py"), "{}", *words], NAME, **more)
    assert isinstance(check.starter, ScriptStarter)
    with closing(check):
        yield check


def said(evidence: Evidence) -> tuple[object, ...]:
    return evidence.status, evidence.output, evidence.timed_out, evidence.remark


def warmed(check: CommandCheck, candidate: Path) -> CommandCheck:
    """The check, once its forks are believed."""
    for _ in range(50):  # until then the server may still be starting
        check.run(candidate)
        if check.starter._believed_generation is not None:
            return check
    pytest.fail("its forks are not believed")


def server_of(check: CommandCheck) -> int:
    assert check.starter._server is not None
    return check.starter._server.pid


SAME = {
    "what a script is called": "import sys\n"
    "print(sys.argv, __file__, __name__, sys.path, sys.orig_argv, sys.executable)",
    "what stands in its module": "import sys\n"
    "print({n: str(v) for n, v in globals().items() if n not in ('__builtins__', '__loader__')})\n"
    "print(__loader__.path, type(__builtins__), sys.modules['__main__'].__dict__ is globals())",
    "what is loaded": "import sys; print(sorted(set(sys.modules)))",
    "what is loaded by what it imports": "import json, sys\n"
    "print(sorted(set(sys.modules)), [type(f) for f in sys.meta_path])",
    "its environment": "import os\n"
    "print({n: v for n, v in os.environ.items() if n != 'BIOPSY_VERDICT'}, list(os.environ)[-1])",
    "the environment of what it starts": "import os, subprocess\n"
    "del os.environ['BIOPSY_VERDICT']\nprint(subprocess.run(['env'], capture_output=True, text=True).stdout)",
    "its settings": "import gc, sys, signal, locale, threading, os\n"
    "print(sys.flags, sys.getrecursionlimit(), gc.get_threshold(), locale.setlocale(0), sys.warnoptions, os.getcwd())\n"
    "print([signal.getsignal(n) for n in (2, 13, 15)], threading.current_thread() is threading.main_thread())\n"
    "print(sys.stdin, sys.stdout, sys.stderr, sys.stdout.line_buffering, sys.stdout.seekable())\n"
    "print(os.getpid() == os.getsid(0), os.getpgrp() == os.getpid())",
    "the end of its words": "import sys; print(sys.stdin.read() == '', sys.argv[2:])",
    "if __name__ == '__main__'": "import sys\nif __name__ == '__main__':\n    sys.exit(3)",
    "sys.exit(None)": "import sys; sys.exit(None)",
    "sys.exit(7)": "import sys; sys.exit(7)",
    "sys.exit('text')": "import sys; sys.exit('text')",
    "an exception": "def f():\n    raise ValueError('wrong')\n"
    "try:\n    f()\nexcept ValueError as e:\n    raise KeyError(1) from e",
    "an exception of a note and a group": "e = ValueError(1)\n"
    "if hasattr(e, 'add_note'):\n    e = ExceptionGroup('g', [e, OSError(2)])\n    e.add_note('n')\nraise e",
    "KeyboardInterrupt": "raise KeyboardInterrupt",
    "no recursion without end": "def f():\n    f()\nf()",
    "its stack": "import traceback, sys; traceback.print_stack(); print(sys._getframe().f_back)",
    "wrong syntax": "print('never')\nif x\n",
    "a warning of the syntax": r"print('\d')",
    "no script of this encoding": b"# coding: latin-1\nprint('\xe4')",
    "a mark of the order of bytes": "\ufeffprint('x')",
    "the order of what is printed": "import sys\n"
    "for i in range(5):\n    print(i)\n    sys.stderr.write(f'e{i}\\n')\nprint('no end', end='')",
    "os._exit": "import os\nprint('a')\nos._exit(5)",
    "atexit": "import atexit, sys\n"
    "atexit.register(print, 'last')\natexit.register(print, 'first')\nsys.exit(2)",
    "threads": "import threading, time, sys\n"
    "t = threading.Thread(target=lambda: (time.sleep(0.05), print('thread')))\nt.start()\nsys.exit(3)",
    "a daemon": "import threading, time\n"
    "threading.Thread(target=time.sleep, args=(99,), daemon=True).start()\nprint('done')",
    "multiprocessing by fork": "import multiprocessing as m\n"
    "with m.get_context('fork').Pool(2) as p:\n    print(p.map(abs, [-1, -2]), m.current_process().name)",
    "multiprocessing by spawn": "import multiprocessing as m\ndef f(x):\n    return x + 1\n"
    "if __name__ == '__main__':\n    with m.get_context('spawn').Pool(1) as p:\n        print(p.map(f, [1, 2]))",
    "what a fork of it leaves": "import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\nprint(pid == 0)",
    "output that cannot be written": "import sys, os\nos.close(1)\nsys.stdout.write('x')",
    "a module beside it": "import sys, beside\nfrom folder import inner\nprint(beside.x, inner.__file__)",
    "a module beside it that hides one of ours": "import json, socket\nprint(json.x)",
    "a module that is not there": "import sys\nimport no_such_module",
}  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [pytest.param(text, marks=[pytest.mark.slow] if "multiprocessing" in name else []) for name, text in SAME.items()],
    ids=SAME,
)
def test_a_fork_says_what_a_process_says(text: str | bytes, tmp_path: Path, candidate: Path) -> None:
    (tmp_path / "beside.py").write_text("import json\nx = 1\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "__init__.py").touch()
    (tmp_path / "folder" / "inner.py").write_text("from . import __name__ as outer\n")
    if "json.x" in str(text):
        (tmp_path / "json.py").write_text("x = 'mine'\n")
    with script(tmp_path, text, "--", "") as check:
        cold = said(check.cold().run(candidate))
        warmed(check, candidate)
        assert [said(check.run(candidate)) for _ in range(2)] == [cold] * 2
        assert is_alive(server_of(check))


@pytest.mark.parametrize("options", [("-u",), ("-O", "-B"), ("-W", "error"), ("-Xdev",), ("-bb", "-s"), ("-P",)])
def test_options_of_the_interpreter_hold_in_forks(options: tuple[str, ...], tmp_path: Path, candidate: Path) -> None:
    text = "import sys, warnings\nprint(sys.flags, sys.orig_argv, sys._xoptions, sys.path)\nwarnings.warn('w')\n"
    with script(tmp_path, text, options=options) as check:
        cold = said(check.cold().run(candidate))
        assert said(warmed(check, candidate).run(candidate)) == cold


def test_a_script_is_run_by_its_first_line_too(tmp_path: Path, candidate: Path) -> None:
    path = tmp_path / "check"
    path.write_text(f"#!{sys.executable} -u\nimport sys\nprint(sys.argv, sys.orig_argv, __file__)\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    with closing(command_check([str(path), "{}"], NAME)) as check:
        assert isinstance(check.starter, ScriptStarter)
        assert said(warmed(check, candidate).run(candidate)) == said(check.cold().run(candidate))


def test_the_modules_of_libraries_are_imported_once_and_those_of_the_user_in_each_fork(
    tmp_path: Path, candidate: Path
) -> None:
    (tmp_path / "counted.py").write_text("import os\nos.write(2, b'imported ')\n")
    text = (
        "import sys, json\ndef late():\n    import decimal\nimport counted\nlate()\n"
        "print('loaded', 'decimal' in sys.modules)"
    )
    with script(tmp_path, text) as check:
        warmed(check, candidate)
        for _ in range(2):
            assert check.run(candidate).output == b"imported loaded True\n"
        (tmp_path / "counted.py").write_text("import os\nos.write(2, b'changed, and longer ')\n")
        assert check.run(candidate).output == b"changed, and longer loaded True\n"
        maps = Path(f"/proc/{server_of(check)}/maps").read_text()
        assert "_json" in maps  # by the first imports
        assert wait_until(lambda: "_decimal" in Path(f"/proc/{server_of(check)}/maps").read_text())  # noted


@pytest.fixture
def library(tmp_path: Path) -> Callable[[str], tuple[str, ...]]:
    """Makes an environment that has a module ``lib`` of this code among its libraries: the words of its interpreter."""

    def made(code: str) -> tuple[str, ...]:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
        (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
        (site / "lib.py").write_text(code)
        return (str(tmp_path / "venv" / "bin" / "python"),)

    return made


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        (
            "import threading, time\nt = threading.Thread(target=time.sleep, args=(99,), daemon=True)\nt.start()",
            "lib.t.is_alive()",
        ),
        ("import os\nos.environ['CHANGED'] = 'x'", "'CHANGED' in __import__('os').environ"),
        ("print('imported')", "1"),
        ("f = open(__file__)\nf.readline()", "lib.f.readline()"),
        ("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)", "__import__('signal').getsignal(15)"),
        ("import sys\nsys.setrecursionlimit(5000)", "__import__('sys').getrecursionlimit()"),
        ("import sys\nsys.excepthook = print", "__import__('sys').excepthook"),
        ("import os\nos.umask(0o77)", "oct(__import__('os').umask(0))"),
        ("raise ImportError('not here')", "1"),
        ("import tempfile\nd = tempfile.TemporaryDirectory()", "__import__('os').path.isdir(lib.d.name)"),
        ("import random\nrandom.seed(3)", "__import__('random').random() < 0.3"),
    ],
    ids=["threads", "environment", "prints", "files", "signals", "limits", "hooks", "umask", "raises",
         "folders", "seeds"],
)  # fmt: skip
def test_a_module_that_does_more_than_be_imported_is_left_to_the_forks(
    code: str, shown: str, library: Callable[[str], tuple[str, ...]], tmp_path: Path, candidate: Path
) -> None:
    python = library(code)
    (tmp_path / "leading.py").write_text(f"import lib\nprint({shown})\n")
    (tmp_path / "later.py").write_text(
        "import os, decimal\nprint('before', 'CHANGED' in os.environ)\n"
        f"try:\n    import lib\nexcept ImportError as e:\n    print(e)\nelse:\n    print({shown})\n"
    )
    for name in ("leading.py", "later.py"):
        with closing(command_check([*python, str(tmp_path / name), "{}"], NAME)) as check:
            assert isinstance(check.starter, ScriptStarter)
            cold = said(check.cold().run(candidate))
            warmed(check, candidate)
            assert [said(check.run(candidate)) for _ in range(2)] == [cold] * 2


def test_a_module_that_reads_a_file_of_the_user_is_left_to_the_forks(
    library: Callable[[str], tuple[str, ...]], tmp_path: Path, candidate: Path
) -> None:
    settings = tmp_path / "settings"
    python = library(f"with open({str(settings)!r}) as f:\n    x = f.read()\n")
    (tmp_path / "check.py").write_text(
        f"import shutil, sys\nshutil.copy(sys.argv[1], {str(settings)!r})\nimport lib\nprint(lib.x == 'one')\n"
    )
    with closing(command_check([*python, str(tmp_path / "check.py"), "{}"], NAME)) as check:
        assert isinstance(check.starter, ScriptStarter)
        candidate.write_text("one")
        warmed(check, candidate)
        for _ in range(2):
            for text in ("one", "two"):
                candidate.write_text(text)
                assert said(check.run(candidate)) == (0, f"{text == 'one'}\n".encode(), False, "")


def test_a_sitecustomize_that_starts_a_thread_keeps_checks_cold(
    library: Callable[[str], tuple[str, ...]], tmp_path: Path, candidate: Path
) -> None:
    python = library("import threading, time\nthreading.Thread(target=time.sleep, args=(99,), daemon=True).start()\n")
    (lib,) = (tmp_path / "venv").glob("lib/python*/site-packages/lib.py")
    lib.rename(lib.with_name("sitecustomize.py"))
    (tmp_path / "check.py").write_text("import os\nprint(len(os.listdir('/proc/self/task')))\n")
    with closing(command_check([*python, str(tmp_path / "check.py"), "{}"], NAME)) as check:
        assert [check.run(candidate).output for _ in range(4)] == [b"2\n"] * 4


def test_random_numbers_of_numpy_are_new_in_each_fork(tmp_path: Path, candidate: Path) -> None:
    text = "import numpy, random, sys\nprint(numpy.random.rand())\nprint(random.random())\n"
    with script(tmp_path, text) as check:
        warmed(check, candidate)
        assert len({line for _ in range(3) for line in check.run(candidate).output.splitlines()}) == 6


def test_a_script_that_dies_of_a_signal_is_asked_again_as_a_process(tmp_path: Path, candidate: Path) -> None:
    text = (
        "import os, sys\n"
        f"with open({str(tmp_path / 'runs')!r}, 'a') as runs: runs.write('x')\n"
        "if 'crash' in open(sys.argv[1]).read(): os.kill(os.getpid(), 11)\n"
    )
    with script(tmp_path, text) as check:
        warmed(check, candidate)
        before = len((tmp_path / "runs").read_text())
        candidate.write_text("crash")
        assert check.run(candidate).status == -signal.SIGSEGV
        assert len((tmp_path / "runs").read_text()) == before + 2
        candidate.write_text("none")
        assert check.run(candidate).status == 0
        assert len((tmp_path / "runs").read_text()) == before + 3


def test_a_fork_that_hangs_is_ended_and_asked_again_as_a_process(tmp_path: Path, candidate: Path) -> None:
    """A fork can lack a thread that a process would have, and wait for it."""
    text = (
        "import os, sys, time\n"
        f"if os.getppid() != {os.getpid()} and 'hang' in open(sys.argv[1]).read(): time.sleep(99)\n"
    )
    with script(tmp_path, text, timeout=2) as check:
        warmed(check, candidate)
        candidate.write_text("hang")
        assert said(check.run(candidate)) == (0, b"", False, "")


def test_where_a_fork_says_something_else_checks_stay_cold_and_a_line_says_why(tmp_path: Path, candidate: Path) -> None:
    ended = "ended with exit status 0, a process of its own with exit status 1"
    for text, why in (
        ("import os, sys\nsys.exit(os.getppid() == {0})", ended),
        ("import os\nprint('one' if os.getppid() == {0} else 'two')", "said something else than a process of its own"),
    ):
        with script(tmp_path, text.format(os.getpid())) as check:
            cold = said(check.cold().run(candidate))
            answers = [check.run(candidate)]
            while check.starter._server is not None:
                answers.append(check.run(candidate))
            answers.append(check.run(candidate))
            assert {said(replace(answer, remark="")) for answer in answers} == {cold}
            assert [answer.remark for answer in answers if answer.remark] == [
                f"checks     run cold: a warm run of check.py {why}"
            ]
            assert check.starter._server is None


def test_no_fork_is_believed_before_a_process_was_compared_with_one(tmp_path: Path, candidate: Path) -> None:
    """Where no model is checked twice, one is: after the third process."""
    runs = tmp_path / "runs"
    with script(tmp_path, f"import os\nwith open({str(runs)!r}, 'a') as f: f.write(f'{{os.getppid()}} ')\n") as check:
        check.start()
        server = server_of(check)
        assert check.starter._server is not None
        check.starter._server.is_warm(60)
        for number in range(5):
            candidate.write_text(str(number))
            assert check.run(candidate).status == 0
        asked = [int(parent) == server for parent in runs.read_text().split()]
    assert asked == [False, False, False, True, True, True]


def test_forks_that_find_more_loaded_are_compared_again(tmp_path: Path, candidate: Path) -> None:
    """What the first forks have imported is imported ahead from then on; this script takes note of that."""
    with script(tmp_path, "import sys\nsys.exit('decimal' in sys.modules)\n") as check:
        warmed(check, candidate)
        assert [check.run(candidate).remark for _ in range(4)] == [""] * 4
    with script(tmp_path, "import sys\nwas = 'decimal' in sys.modules\nimport decimal\nsys.exit(was)\n") as check:
        warmed(check, candidate)
        answers = [check.run(candidate) for _ in range(4)]
    assert {answer.status for answer in answers} == {0}
    assert [answer.remark for answer in answers if answer.remark] == [
        "checks     run cold: a warm run of check.py ended with exit status 1, a process of its own with exit status 0"
    ]


@pytest.mark.parametrize("what", ["script", "environment", "folder"])
def test_what_has_changed_since_the_server_began_is_seen(
    what: str, tmp_path: Path, candidate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "import os; print(os.environ.get('NEW'), os.getcwd())"
    with script(tmp_path, text) as check:
        warmed(check, candidate)
        if what == "script":
            (tmp_path / "check.py").write_text("print('new')")
        elif what == "environment":
            monkeypatch.setenv("NEW", "1")
        else:
            monkeypatch.chdir(tmp_path)
        first, second = check.run(candidate), check.run(candidate)
        assert first.output == second.output == check.cold().run(candidate).output
        told = "checks     run cold: check.py or its interpreter has been written to"
        assert (first.remark.partition(": if")[0], second.remark) == ((told, "") if what == "script" else ("", ""))


def test_a_script_that_changes_itself_is_seen(tmp_path: Path, candidate: Path) -> None:
    text = "import sys\nwith open(__file__, 'a') as f: f.write('print(1)\\n')\n"
    with script(tmp_path, text) as check:
        answers = [check.run(candidate) for _ in range(3)]
    assert [answer.output for answer in answers] == [b"", b"1\n", b"1\n1\n"]
    assert [bool(answer.remark) for answer in answers] == [False, True, False]


def test_without_a_server_checks_are_cold(tmp_path: Path, candidate: Path) -> None:
    with script(tmp_path, "import sys; sys.exit(3)") as check:
        warmed(check, candidate)
        server = server_of(check)
        os.kill(server, signal.SIGKILL)
        assert [check.run(candidate).status for _ in range(2)] == [3, 3]
        assert check.starter._server is None


def test_nothing_is_left_after_the_last_check(tmp_path: Path, candidate: Path) -> None:
    with script(tmp_path, "") as check:
        check.run(candidate)
        server = server_of(check)
    assert wait_until(lambda: not is_alive(server))
    assert not list(Path(shutil.__file__).parent.glob("biopsy*"))


TWICE = """
import os, sys, time
if os.path.exists("hang"):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            with open("pid.new", "w") as file:
                file.write(str(os.getpid()))
            os.replace("pid.new", "pid")
            time.sleep(99)
        os._exit(0)
    time.sleep(99)
"""


@pytest.mark.parametrize("warm", [True, False])
def test_of_a_check_that_hangs_nobody_is_left_whom_it_forked_and_who_left_its_group(
    warm: bool, tmp_path: Path, candidate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with script(tmp_path, TWICE) as check:
        warmed(check, candidate)
        (tmp_path / "hang").touch()
        tested = check if warm else check.cold()
        with closing(Stop()) as stop:
            seen = threading.Thread(target=lambda: (wait_until((tmp_path / "pid").exists), stop.set()))
            seen.start()
            tested.run(candidate, stop)
            seen.join()
    left = int((tmp_path / "pid").read_text())
    assert wait_until(lambda: not is_alive(left))


def test_interpreters_write_nothing_into_the_folder_of_biopsy(
    tmp_path: Path, candidate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    folder = Path(script_server.__file__).with_name("script_start")
    tag = "opt-2.pyc"  # compiled as no installer does it
    with script(tmp_path, "", options=("-OO",)) as check:
        warmed(check, candidate)
    assert not list(folder.rglob(f"*.{tag}"))


def test_what_counts_as_the_same_answer() -> None:
    one = Evidence(status=1, output=b"took 1.2 ms\nValueError: at node_12\n")
    assert not difference(one, replace(one, output=b"took 3.4 ms\nValueError: at node_7\n"), "c.py")
    assert difference(one, replace(one, output=b"took 3.4 ms\nTypeError: at node_7\n"), "c.py")
    assert difference(one, replace(one, status=2), "c.py")
    assert difference(one, replace(one, timed_out=True), "c.py")
