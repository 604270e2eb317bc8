"""``biopsy debug reduce`` from the command line: the seeds' sequence, files of iterations, and bad input.

Checks are real processes.
"""

import argparse
import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from biopsy.cli.app import main
from biopsy.cli.arguments import checks
from biopsy.cli.debug.reduce import configure
from biopsy.session.files import Resume
from support.models import chain, info, model, save, seeds_example, weight
from support.predicates import names
from support.scripts import NAMES

BIN = Path(sys.executable).parent
LOADED = "import onnx\nmodel = onnx.load(sys.argv[1])\n"
LOOK = ("biopsy", "inspect", "model", "{}", "--mode=basic")

SIMULATED = """
{tool} run model.onnx --onnxrt
    --save-inputs inputs.json
    --onnx-outputs mark all --save-outputs layerwise_golden.json
{tool} data to-input inputs.json layerwise_golden.json -o layerwise_inputs.json
{tool} debug reduce model.onnx -o initial_reduced.onnx --mode=bisect
    --fail-regex "Op: Mul"
    --check {tool} inspect model polygraphy_debug.onnx --mode=basic
{tool} inspect model initial_reduced.onnx --mode=basic
{tool} debug reduce initial_reduced.onnx -o final_reduced.onnx --mode=linear
    --fail-regex "Op: Mul"
    --check {tool} inspect model polygraphy_debug.onnx --mode=basic
{tool} inspect model final_reduced.onnx --mode=basic
"""
"""The commands of the seeds' example, with its simulated failure. Continued lines are indented."""

REAL = """
{tool} run wrong.onnx --onnxrt
    --save-inputs inputs.json
    --onnx-outputs mark all --save-outputs layerwise_golden.json
{tool} data to-input inputs.json layerwise_golden.json -o layerwise_inputs.json
{tool} debug reduce model.onnx -o initial_reduced.onnx --mode=bisect
    --check {tool} run polygraphy_debug.onnx --onnxrt
            --load-inputs layerwise_inputs.json --load-outputs layerwise_golden.json
{tool} debug reduce initial_reduced.onnx -o final_reduced.onnx --mode=linear
    --check {tool} run polygraphy_debug.onnx --onnxrt
            --load-inputs layerwise_inputs.json --load-outputs layerwise_golden.json
"""
"""The real form: golden values come from a variant of the model in which one layer computes something else."""


def type_in(script: str, tool: str, folder: Path) -> list[subprocess.CompletedProcess[str]]:
    """Run the lines of a script as a shell would, in a folder, with our commands on the PATH."""
    done = []
    for line in script.format(tool=tool).strip().replace("\n   ", "").splitlines():
        environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
        done.append(
            subprocess.run(
                ["bash", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, check=False
            )
        )
        assert done[-1].returncode == 0, f"{line}\n{done[-1].stdout}{done[-1].stderr}"
    return done


@pytest.mark.parametrize("tool", ["polygraphy", pytest.param("biopsy", marks=pytest.mark.slow)])
def test_the_seeds_sequence_ends_at_the_one_mul(tmp_path: Path, tool: str) -> None:
    save(seeds_example(), tmp_path / "model.onnx")
    *_, shown = type_in(SIMULATED, tool, tmp_path)
    assert "[Op: Mul]" in shown.stdout
    final = onnx.load(tmp_path / "final_reduced.onnx")
    assert [node.op_type for node in final.graph.node] == ["Mul"]
    onnx.checker.check_model(final, full_check=True)
    assert not (tmp_path / "polygraphy_debug.onnx").exists()


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["polygraphy", "biopsy"])
def test_the_layer_that_computes_something_else_is_all_that_is_left(tmp_path: Path, tool: str) -> None:
    save(seeds_example(), tmp_path / "model.onnx")
    wrong = seeds_example()
    wrong.graph.node[3].op_type = "Max"  # the Add
    save(wrong, tmp_path / "wrong.onnx")
    type_in(REAL, tool, tmp_path)
    assert names(onnx.load(tmp_path / "final_reduced.onnx")) == ["onnx_graphsurgeon_node_7"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{BIN}:{os.environ['PATH']}")
    return tmp_path


def reduce(*words: str) -> int:
    return main(["debug", "reduce", *words])


def script(folder: Path, code: str) -> tuple[str, ...]:
    """A check written in Python: its words. ``names`` are the candidate's nodes; the code may exit with any status."""
    path = folder / "check.py"
    path.write_text(f"{NAMES}{LOADED if 'model.' in code else ''}{code}")
    return (sys.executable, str(path), "polygraphy_debug.onnx")


def test_options_of_the_check_that_look_like_our_own_are_the_checks(here: Path) -> None:
    save(chain(4), here / "m.onnx")
    check = script(
        here,
        "assert sys.argv[2:] == ['-o', 'x', '--mode=linear', '--check', '--', '-v'], sys.argv\nsys.exit('n2' in names)",
    )
    assert reduce("m.onnx", "-o", "r.onnx", "--check", *check, "-o", "x", "--mode=linear", "--check", "--", "-v") == 0
    assert names(onnx.load("r.onnx")) == ["n2"]


@pytest.mark.slow
def test_fail_codes_and_ignored_codes_choose_among_statuses(here: Path) -> None:
    save(chain(8), here / "m.onnx")
    check = script(here, "sys.exit(3 if 'n6' in names else 5 if 'n2' in names else 0)")
    assert reduce("m.onnx", "-o", "a.onnx", "--fail-code", "3", "--check", *check) == 0
    assert names(onnx.load("a.onnx")) == ["n6"]
    assert reduce("m.onnx", "-o", "b.onnx", "--ignore-fail-returncode", "5", "--check", *check) == 0
    assert names(onnx.load("b.onnx")) == ["n6"]


def test_several_regular_expressions_any_of_which_is_the_failure(here: Path) -> None:
    save(chain(8), here / "m.onnx")
    check = script(here, "print('wrong value' if 'n1' in names else 'no NaN')")
    assert reduce("m.onnx", "-o", "r.onnx", "--fail-regex", "Inf", "wrong v.lue", "--check", *check) == 0
    assert names(onnx.load("r.onnx")) == ["n1"]


def test_artifacts_are_sorted_by_outcome_and_named_by_iteration(here: Path) -> None:
    save(chain(8), here / "m.onnx")
    check = script(here, "open('log.txt', 'w').write(str(names)); sys.exit('n5' in names)")
    status = reduce(
        "m.onnx", "-o", "r.onnx", "--artifacts", "polygraphy_debug.onnx", "log.txt", "--art-dir", "sorted",
        "--iter-info", "iteration.json", "--check", *check,
    )  # fmt: skip
    assert status == 0
    good = sorted((here / "sorted" / "good").glob("polygraphy_debug_*.onnx"))
    bad = sorted((here / "sorted" / "bad").glob("polygraphy_debug_*.onnx"))
    assert good
    assert all("n5" not in names(onnx.load(path)) for path in good if "identity" not in path.name)
    assert bad
    assert all("n5" in names(onnx.load(path)) for path in bad)
    numbers = sorted(int(path.stem.split("_N")[1].split("_")[0]) for path in (*good, *bad))
    assert numbers == list(range(len(numbers)))
    assert (
        len(list((here / "sorted").glob("*/log_*.txt")))
        == json.loads((here / "iteration.json").read_text())["iteration"] + 1
    )


def test_what_is_checked_only_to_see_if_the_check_is_any_good_is_no_artifact(here: Path, capsys) -> None:
    save(chain(8), here / "m.onnx")
    check = script(here, "sys.exit('n5' in names)")
    assert reduce("m.onnx", "-o", "r.onnx", "--artifacts", "polygraphy_debug.onnx", "--check", *check) == 0
    sorted_ = [path.name for path in (here / "polygraphy_artifacts").glob("*/*")]
    assert sorted_
    assert not any("identity" in name or "final" in name for name in sorted_)
    assert "was not there" not in told(capsys)


@pytest.mark.parametrize("harm", ["open(sys.argv[1], 'w').write('rubbish')", "import os; os.remove(sys.argv[1])"])
def test_a_check_that_rewrites_or_deletes_the_model_does_not_harm_the_result(here: Path, harm: str) -> None:
    save(chain(8), here / "m.onnx")
    check = (*script(here, f"{harm}\nsys.exit('n5' in names)")[:2], "{}")
    assert reduce("m.onnx", "-o", "r.onnx", "--check", *check) == 0
    assert names(onnx.load("r.onnx")) == ["n5"]
    assert sorted(path.name for path in here.iterdir()) == ["check.py", "m.onnx", "r.onnx"]


def test_inputs_that_cannot_be_written_make_a_candidate_invalid_and_no_more(here: Path) -> None:
    """A sequence is not a tensor that a file of inputs can hold."""
    nodes = [
        helper.make_node("SplitToSequence", ["x"], ["parts"], name="split", axis=0),
        helper.make_node("ConcatFromSequence", ["parts"], ["j"], name="concat", axis=0),
        helper.make_node("Mul", ["j", "j"], ["y"], name="mul"),
    ]
    save(model(nodes, [info("x")], [info("y")]), here / "m.onnx")
    check = script(here, "sys.exit(b'mul' in data)")
    assert reduce("m.onnx", "-o", "r.onnx", "--iter-inputs", "in.npz", "--check", *check) == 0
    assert "mul" in names(onnx.load("r.onnx"))


def test_recorded_inputs_of_every_sample_are_written_for_each_candidate(here: Path) -> None:
    save(chain(6, ("Neg",)), here / "m.onnx")
    np.savez("a.npz", t0=np.full((2, 2), 1, np.float32))
    np.savez("b.npz", t0=np.full((2, 2), 2, np.float32))
    code = "sys.exit('n4' in names)"
    status = reduce(
        "m.onnx",
        "-o",
        "r.onnx",
        "--load-inputs",
        "a.npz",
        "b.npz",
        "--iter-inputs",
        "in.json",
        "--check",
        *script(here, code),
    )
    assert status == 0
    from biopsy.tensors.files import read_feeds

    feeds = read_feeds(Path("in.json"))
    assert [{name: value.flat[0] for name, value in feed.items()} for feed in feeds] == [{"t4": 1.0}, {"t4": 2.0}]


def test_at_the_end_the_file_of_inputs_is_that_of_the_result(here: Path) -> None:
    """A check that loads them must also see the right ones when the result is checked for the last time."""
    save(chain(9, ("Neg",)), here / "m.onnx")
    code = """
fed = open("in.npz", "rb").read()
members = [f"t{i}" for i in range(10) if b"t%d.npy" % i in fed]
assert not names or members == ["t" + names[0][1:]], (names, members)  # a chain is fed what its first node reads
sys.exit('n2' in names)
"""
    np.savez("x.npz", t0=np.ones((2, 2), np.float32))
    given = ("--load-inputs", "x.npz", "--iter-inputs", "in.npz")
    assert reduce("m.onnx", "-o", "r.onnx", *given, "--check", *script(here, code)) == 0
    assert list(np.load("in.npz")) == [entry.name for entry in onnx.load("r.onnx").graph.input]


def test_a_failure_that_only_one_of_several_samples_shows_is_reduced_with_it(here: Path) -> None:
    """sqrt of a negative number: NaN in the second iteration alone."""
    nodes = [
        helper.make_node(op, [f"t{i}"], [f"t{i + 1}"], name=f"n{i}")
        for i, op in enumerate(["Abs", "Neg", "Neg", "Sqrt", "Identity"])
    ]
    nodes.insert(0, helper.make_node("Add", ["x", "b"], ["t0"], name="shift"))
    nodes[1].op_type = "Identity"
    save(model(nodes, [info("x")], [info("t5")], [weight("b", -1.0)]), here / "m.onnx")
    np.savez("a.npz", x=np.full((2, 2), 3, np.float32))
    np.savez("b.npz", x=np.full((2, 2), 0.5, np.float32))
    assert (
        main(
            [
                "run",
                "m.onnx",
                "--onnxrt",
                "--load-inputs",
                "a.npz",
                "b.npz",
                "--save-inputs",
                "inputs.json",
                "--onnx-outputs",
                "mark",
                "all",
                "--save-outputs",
                "golden.json",
            ]
        )
        == 0
    )
    assert main(["data", "to-input", "inputs.json", "golden.json", "-o", "layerwise.json"]) == 0
    assert (
        reduce(
            "m.onnx",
            "-o",
            "r.onnx",
            "--check",
            "biopsy",
            "run",
            "{}",
            "--onnxrt",
            "--validate",
            "--load-inputs",
            "layerwise.json",
        )
        == 0
    )
    assert [node.op_type for node in onnx.load("r.onnx").graph.node] == ["Sqrt"]


def test_shapes_are_frozen_for_candidates_and_result(here: Path) -> None:
    made = model(
        [helper.make_node("Relu", ["x"], ["y"], name="n0"), helper.make_node("Exp", ["y"], ["z"], name="n1")],
        [info("x", ("N", 2))],
        [info("z", ("N", 2))],
    )
    save(made, here / "m.onnx")
    check = script(here, r"sys.exit('n1' in names and b'\x0a\x02\x08\x07\x0a\x02\x08\x02' in data)")  # a shape [7, 2]
    assert reduce("m.onnx", "-o", "r.onnx", "--model-input-shapes", "x:[7,2]", "--check", *check) == 0
    assert names(onnx.load("r.onnx")) == ["n1"]


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--force-fallback-shape-inference", "--no-shape-inference"])
def test_types_come_from_where_the_user_says(here: Path, option: str) -> None:
    made = chain(4)
    save(made, here / "m.onnx")
    assert reduce("m.onnx", "-o", "r.onnx", option, "--check", *script(here, "sys.exit('n2' in names)")) == 0
    result = onnx.load("r.onnx")
    assert "n2" in names(result)
    assert all(entry.type.tensor_type.elem_type for entry in result.graph.input)


def test_external_weights_may_stand_elsewhere_and_be_saved_beside_the_result(here: Path) -> None:
    nodes = [helper.make_node("Add", [f"t{i}", f"w{i}"], [f"t{i + 1}"], name=f"n{i}") for i in range(4)]
    weights = [weight(f"w{i}", *([float(i)] * 1000), shape=(1000,)) for i in range(4)]
    (here / "data").mkdir()
    onnx.save(
        model(nodes, [info("t0", (1000,))], [info("t4", (1000,))], weights),
        here / "data" / "m.onnx",
        save_as_external_data=True,
        location="w.bin",
        size_threshold=10,
    )
    (here / "data" / "m.onnx").rename(here / "m.onnx")
    check = ("biopsy", "run", "{}", "--onnxrt", "--engine", "onnxrt")
    fails = script(here, "sys.exit('n2' in names and len(model.graph.initializer[0].raw_data) > 0)")
    assert (
        reduce(
            "m.onnx", "-o", "r.onnx", "--external-data-dir", "data", "--save-external-data", "r.bin", "--check", *fails
        )
        == 0
    )
    assert (here / "r.bin").stat().st_size >= 4000
    assert main([*check[1:2], "r.onnx", *check[3:]]) == 0
    assert sorted(path.name for path in (here / "data").iterdir()) == ["w.bin"]


def test_a_person_is_asked_and_may_skip_undo_and_mistype(here: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    save(chain(4), here / "m.onnx")
    questions: list[str] = []
    told = itertools.chain(["f", "what?", "p", "undo", "s", "f", "p"], itertools.repeat("f"))

    def answer(question: str) -> str:
        questions.append(question)
        assert Path("polygraphy_debug.onnx").exists()
        return next(told)

    monkeypatch.setattr("builtins.input", answer)
    assert reduce("m.onnx", "-o", "r.onnx") == 0
    assert "[p]ass or [f]ail" in questions[0]
    assert questions[0].startswith("polygraphy_debug.onnx")
    assert len(onnx.load("r.onnx").graph.node) < 4


def test_a_person_who_quits_keeps_the_best_so_far(here: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    save(chain(16), here / "m.onnx")
    told = iter(["f", "f", "q"])
    monkeypatch.setattr("builtins.input", lambda question: next(told))
    assert reduce("m.onnx", "-o", "r.onnx") == 5
    assert len(onnx.load("r.onnx").graph.node) == 8
    assert "r.onnx" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_with_the_best_so_far_written(here: Path, number: int) -> None:
    save(chain(16), here / "m.onnx")
    check = script(
        here,
        "import time\nif 1 < len(names) < 8: open('waiting', 'w').close(); time.sleep(60)\nsys.exit('n0' in names)",
    )
    words = [str(BIN / "biopsy"), "debug", "reduce", "m.onnx", "-o", "r.onnx", "--jobs", "1", "--check", *check]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    while not (here / "waiting").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    _, told = process.communicate(timeout=30)
    assert process.returncode == 5
    assert len(onnx.load("r.onnx").graph.node) == 8
    assert "kept  r.onnx" in told
    assert f"  resume  biopsy {shlex.join(words[1:])}\n" in told


@pytest.mark.parametrize(
    ("original_too", "told_of"), [(False, "no node was removed yet"), (True, "before the original")]
)
def test_a_signal_before_the_first_gain_says_so_and_how_to_go_on(here: Path, original_too: bool, told_of: str) -> None:
    save(chain(16), here / "m.onnx")
    waits = "True" if original_too else "3 < len(names) < 15"
    check = script(
        here, f"import time\nif {waits}: open('waiting', 'w').close(); time.sleep(60)\nsys.exit('n0' in names)"
    )
    words = [str(BIN / "biopsy"), "debug", "reduce", "m.onnx", "-o", "r.onnx", "--jobs", "1", "--check", *check]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    while not (here / "waiting").exists():
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(0.3)  # the check begins a moment before its caller waits for it
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=30)
    assert process.returncode == 5
    assert told.startswith(f"interrupted: {told_of}"), told
    assert not (here / "r.onnx").exists()
    assert (here / "r.onnx.journal").exists() is not original_too
    if original_too:
        assert "kept" not in told and "resume" not in told
    else:
        assert re.search(r"\n  kept  \d+ answers? in r\.onnx\.journal\n", told)
        assert f"  resume  biopsy {shlex.join(words[1:])}\n" in told


def told(capsys) -> str:
    shown = capsys.readouterr()
    assert "Traceback" not in shown.out + shown.err
    return shown.out + shown.err


def left_alone(folder: Path, *expected: str) -> bool:
    return sorted(path.name for path in folder.iterdir()) == sorted(expected)


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (("--jobs", "0"), "--jobs 0: must be a whole number from 1 to 1000000"),
        (("--max-checks", "many"), "--max-checks many: must be a whole number from 1 to 1000000"),
        (("--check-memory", "lots"), "--check-memory lots: not a valid size: write 500MB, 2GB or 1.5GiB"),
        (("--max-time", "soon"), "--max-time soon: not a valid time: write 90s, 10m or 1.5h"),
        (("--confidence", "1"), "--confidence 1: must be a number between 0 and 1"),
        (("--fail-code", "x"), "--fail-code x: must be an exit status from 0 to 255"),
        (("--fail-regex", "("), "--fail-regex (: not a valid regular expression: missing )"),
    ],
    ids=" ".join,
)
def test_a_wrong_value_is_told_with_its_option(here: Path, capsys, words: tuple[str, ...], wrong: str) -> None:
    save(chain(4), here / "m.onnx")
    assert reduce("m.onnx", *words, "--check", "false", "{}") == 2
    assert wrong in told(capsys)


def test_a_check_in_quotes_is_told_to_lose_them(here: Path, capsys) -> None:
    save(chain(4), here / "m.onnx")
    assert reduce("m.onnx", "--check", "biopsy run {} --onnxrt", "--fail-fast") == 4
    assert "remove the quotes: --check biopsy run {} --onnxrt --fail-fast" in told(capsys)


def test_no_model(here: Path, capsys) -> None:
    assert reduce("missing.onnx", "-o", "r.onnx", "--check", *LOOK) == 2
    assert "there is no model missing.onnx" in told(capsys)
    assert left_alone(here)


def test_a_directory_for_a_model(here: Path, capsys) -> None:
    (here / "m.onnx").mkdir()
    assert reduce("m.onnx", "--check", *LOOK) == 2
    assert "is a directory" in told(capsys)


def test_a_truncated_model(here: Path, capsys) -> None:
    (here / "m.onnx").write_bytes(seeds_example().SerializeToString()[:200])
    assert reduce("m.onnx", "-o", "r.onnx", "--check", *LOOK) == 4
    assert "m.onnx is damaged" in told(capsys)
    assert left_alone(here, "m.onnx")


def test_missing_external_data(here: Path, capsys) -> None:
    made = model(
        [helper.make_node("Add", ["x", "w"], ["y"])], [info("x", (9,))], [info("y", (9,))], [weight("w", *range(9))]
    )
    onnx.save(made, here / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=1)
    (here / "w.bin").unlink()
    assert reduce("m.onnx", "-o", "r.onnx", "--check", *LOOK) == 4
    message = told(capsys)
    assert "w.bin" in message
    assert "--external-data-dir" in message
    assert left_alone(here, "m.onnx")


def test_an_unknown_option(here: Path, capsys) -> None:
    assert reduce("m.onnx", "--no-such-option", "--check", *LOOK) == 2
    assert "--no-such-option" in told(capsys)


def test_no_regular_expression(here: Path, capsys) -> None:
    assert reduce("m.onnx", "--fail-regex", "(", "--check", *LOOK) == 2
    assert "--fail-regex (" in told(capsys)


def test_a_check_program_that_does_not_exist(here: Path, capsys) -> None:
    save(chain(4), here / "m.onnx")
    assert reduce("m.onnx", "-o", "r.onnx", "--check", "no-such-program", "{}") == 4
    assert "no program 'no-such-program'" in told(capsys)
    assert left_alone(here, "m.onnx")


def test_a_check_of_ours_with_a_wrong_option_or_a_missing_engine_stops_at_once(here: Path, capsys) -> None:
    save(chain(4), here / "m.onnx")
    for words in (("--onnxrt", "--no-such-option"), ("--engine", "no-such-engine")):
        assert reduce("m.onnx", "-o", "r.onnx", "--check", "biopsy", "run", "{}", *words) == 4
        assert "could not be run" in told(capsys)
    assert left_alone(here, "m.onnx")


def test_a_check_that_never_fails(here: Path, capsys) -> None:
    save(chain(4), here / "m.onnx")
    assert reduce("m.onnx", "-o", "r.onnx", "--repeat", "2", "--check", "true", "{}") == 3
    message = told(capsys)
    assert "does not fail this check" in message
    assert "true m.onnx" in message
    assert left_alone(here, "m.onnx")


@pytest.mark.slow
def test_a_failure_that_is_masked_later_is_noticed_and_can_be_reduced(here: Path, capsys) -> None:
    """exp overflows in the middle; what follows makes a finite number of it."""
    nodes = [
        helper.make_node("Mul", ["x", "big"], ["a"], name="n0"),
        helper.make_node("Exp", ["a"], ["b"], name="n1"),
        helper.make_node("Sigmoid", ["b"], ["c"], name="n2"),
        helper.make_node("Neg", ["c"], ["d"], name="n3"),
    ]
    save(model(nodes, [info("x")], [info("d")], [weight("big", 1e6)]), here / "m.onnx")
    check = ("--check", "biopsy", "run", "polygraphy_debug.onnx", "--onnxrt", "--validate")
    assert reduce("m.onnx", "-o", "r.onnx", *check) == 3
    assert "--mark-intermediate" in told(capsys)
    assert reduce("m.onnx", "-o", "r.onnx", "--mark-intermediate", *check) == 0
    assert names(onnx.load("r.onnx"))[-1] == "n1"


def test_a_check_that_fails_on_anything_is_told_loudly(here: Path, capsys) -> None:
    save(chain(4), here / "m.onnx")
    assert reduce("m.onnx", "-o", "r.onnx", "--allow-vacuous-check", "--check", "false", "{}") == 0
    assert "warning: a one-node Identity model fails this check" in told(capsys)
    assert len(onnx.load("r.onnx").graph.node) == 1


def test_output_that_is_no_utf8(here: Path, capsys) -> None:
    save(chain(4), here / "m.onnx")
    check = script(here, r"sys.stdout.buffer.write(b'\xff\xfebad\n'); sys.exit('n1' in names)")
    assert reduce("m.onnx", "-o", "r.onnx", "--show-output", "--check", *check) == 0
    assert r"\xff\xfebad" in told(capsys)
    assert names(onnx.load("r.onnx")) == ["n1"]


@pytest.mark.parametrize("output", ["m.onnx/folder/r.onnx", "."])
def test_an_output_path_that_cannot_be_written(here: Path, capsys, output: str) -> None:
    save(chain(4), here / "m.onnx")
    assert reduce("m.onnx", "-o", output, "--check", "false", "{}") == 2
    assert "cannot write" in told(capsys)
    assert left_alone(here, "m.onnx")


def test_an_artifact_that_is_the_result_is_refused(here: Path, capsys) -> None:
    save(chain(4), here / "m.onnx")
    assert reduce("m.onnx", "-o", "r.onnx", "--artifacts", "r.onnx", "--check", "false", "{}") == 2
    assert "moved away" in told(capsys)


@pytest.mark.slow
def test_a_hang_of_a_candidate_is_not_the_failure_of_the_original(here: Path) -> None:
    save(chain(8), here / "m.onnx")
    check = script(
        here, "import time\nif 'n3' not in names and len(names) > 1: time.sleep(60)\nsys.exit('n3' in names)"
    )
    assert reduce("m.onnx", "-o", "r.onnx", "--check-timeout", "3", "--check", *check) == 0
    assert names(onnx.load("r.onnx")) == ["n3"]


def test_what_happens_is_written_as_json_lines(here: Path) -> None:
    save(chain(8), here / "m.onnx")
    check = script(here, "sys.exit(len(names) > 0)")
    assert reduce("m.onnx", "-o", "r.onnx", "--events", "e.jsonl", "--check", *check) == 0
    events = [json.loads(line) for line in (here / "e.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events][:2] == ["ModelRead", "Checking"]
    begun = [event["number"] for event in events if event["event"] == "Checking"]
    ended = [event["number"] for event in events if event["event"] in {"Checked", "Abandoned"}]
    assert begun == sorted(ended) == list(range(len(begun)))
    assert {event["outcome"] for event in events if event["event"] == "Checked"} == {"reproduced", "passed"}
    assert [event["at"] for event in events] == sorted(event["at"] for event in events)
    last = events[-1]
    assert (last["event"], last["status"], last["nodes"]) == ("CommandEnded", 0, ["Relu 'n0'"])


def test_an_artifact_that_is_a_folder_already_is_not_moved_away(here: Path, capsys) -> None:
    save(chain(4), here / "m.onnx")
    (here / "precious").mkdir()
    assert reduce("m.onnx", "--artifacts", "precious", "--check", "false", "{}") == 2
    assert (here / "precious").is_dir()
    assert "is an existing folder" in told(capsys)


@pytest.mark.parametrize("seconds", ["-1", "0", "nan", "inf", "1e300", "9999999999h", "soon"])
def test_a_time_limit_is_a_time(here: Path, capsys, seconds: str) -> None:
    save(chain(4), here / "m.onnx")
    assert reduce("m.onnx", "--check-timeout", seconds, "--check", "false", "{}") == 2
    assert f"--check-timeout {seconds}: not a valid time" in told(capsys)


def test_a_replay_does_not_overwrite_the_model(here: Path, capsys) -> None:
    path = save(chain(4), here / "m.onnx")
    before = path.read_bytes()
    assert reduce("m.onnx", "-o", "r.onnx", "--save-debug-replay", "m.onnx", "--check", "false", "{}") == 2
    assert path.read_bytes() == before
    assert "m.onnx is given twice" in told(capsys)


@pytest.mark.slow
def test_a_log_that_the_check_writes_does_not_hinder_going_on(here: Path, capsys) -> None:
    save(chain(16), here / "m.onnx")
    check = script(here, "open('log.txt', 'a').write('x'); sys.exit('n3' in names and 'n9' in names)")
    words = ["m.onnx", "-o", "r.onnx", "--jobs", "1"]
    assert reduce(*words, "--max-checks", "9", "--check", *check, "log.txt") == 5
    assert reduce(*words, "--check", *check, "log.txt") == 0
    assert "remembered" in told(capsys)
    assert len(onnx.load("r.onnx").graph.node) == 2


READS_INPUTS = """
first = open(sys.argv[2], "rb").read()
time.sleep(0.02 * (len(names) % 3))
assert open(sys.argv[2], "rb").read() == first
assert not names or b"t%s.npy" % names[0][1:].encode() in first, names  # a chain is fed what its first node reads
sys.exit('n2' in names)
"""


def test_with_any_number_of_jobs_each_check_reads_the_inputs_of_its_own_candidate(here: Path, capsys) -> None:
    save(chain(5, ("Neg",)), here / "m.onnx")
    check = (*script(here, READS_INPUTS)[:2], "{}", "in.npz", "i.json")
    results = set()
    for jobs in ("1", "3"):
        files = ("--iter-inputs", "in.npz", "--iter-info", "i.json")
        assert reduce("m.onnx", "-o", f"r{jobs}.onnx", "--jobs", jobs, *files, "--check", *check) == 0
        assert "one check at a time" not in told(capsys)
        results.add((here / f"r{jobs}.onnx").read_bytes())
    assert len(results) == 1
    assert names(onnx.load("r1.onnx")) == ["n2"]
    left = {"check.py", "i.json", "in.npz", "m.onnx", "r1.onnx", "r3.onnx"}
    assert {path.name for path in here.iterdir()} == left


@pytest.mark.parametrize(("option", "file"), [("--iter-inputs", "in.npz"), ("--iter-info", "i.json")])
def test_a_check_that_knows_such_a_file_by_heart_runs_alone(here: Path, capsys, option: str, file: str) -> None:
    save(chain(4, ("Neg",)), here / "m.onnx")
    check = script(here, f"open({file!r})\nsys.exit('n1' in names)")
    assert reduce("m.onnx", "-o", "r.onnx", "--jobs", "2", option, file, "--check", *check) == 0
    assert f"one check at a time: the check does not name the file of {option} as {file}" in told(capsys)


@pytest.mark.parametrize(("option", "cold"), [((), 0), (("-I",), 1)])
def test_with_v_it_is_told_once_whether_checks_are_warm(here: Path, capsys, option: tuple[str, ...], cold: int) -> None:
    save(chain(2, ("Neg",)), here / "m.onnx")
    python, *rest = script(here, "sys.exit('n1' in names)")
    assert reduce("m.onnx", "-v", "-o", "r.onnx", "--check", python, *option, *rest) == 0
    said = capsys.readouterr().out
    assert said.count("run cold: each is a process of its own") == cold
    warm = "forks of your script's interpreter (warm) · the last one is a fresh process"
    assert said.count(warm) == 1 - cold


def test_with_v_each_check_that_is_told_of_has_an_answer_or_is_not_waited_for(here: Path, capsys) -> None:
    save(chain(12, ("Neg",)), here / "m.onnx")
    check = script(here, "import time\ntime.sleep(0.1 if 'n3' in names else 1)\nsys.exit('n3' in names)")
    assert reduce("m.onnx", "-v", "-o", "r.onnx", "--jobs", "3", "--check", *check) == 0
    said = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("  check ")]
    begun = [words[1] for words in said if words[2] not in ("not", "reproduced:", "passed:")]
    ended = [words[1] for words in said if words[2] in ("not", "reproduced:", "passed:")]
    assert "not" in {words[2] for words in said}
    assert sorted(begun) == sorted(ended)


def test_our_own_run_loads_the_inputs_of_its_own_candidate(here: Path, capsys) -> None:
    right = chain(8, ("Neg",))
    save(right, here / "m.onnx")
    np.savez("x.npz", t0=np.ones((2, 2), np.float32))
    every = ("--onnx-outputs", "mark", "all", "--save-outputs", "golden.json")
    assert main(["run", "m.onnx", "--onnxrt", "--load-inputs", "x.npz", *every]) == 0
    right.graph.node[4].op_type = "Abs"
    save(right, here / "wrong.onnx")
    check = ("biopsy", "run", "{}", "--onnxrt", "--load-inputs", "in.npz", "--load-outputs", "golden.json")
    given = ("--load-inputs", "x.npz", "--iter-inputs", "in.npz", "--jobs", "2")
    assert reduce("wrong.onnx", "-o", "r.onnx", *given, "--check", *check) == 0
    assert names(onnx.load("r.onnx")) == ["n4"]
    assert "one check at a time" not in told(capsys)


LOADER = """\
import numpy as np
def load_data():
    yield {name: np.full((1, 3, 8, 8), 2.0) for name in ("X0", "Y0")}
"""


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["--data-loader-script", "loader.py"], 2),
        pytest.param(["--val-range", "[5,5]", "--seed", "3"], 5, marks=pytest.mark.slow),
    ],
)
def test_values_are_recorded_with_inputs_of_a_script_or_in_a_range(here: Path, words: list[str], value: float) -> None:
    save(seeds_example(), here / "model.onnx")
    (here / "loader.py").write_text(LOADER)
    check = script(here, "sys.exit(b'Mul' in data)")
    assert reduce("model.onnx", "-o", "r.onnx", "--cut=constant", *words, "--check", *check) == 0
    weights = {one.name: onnx.numpy_helper.to_array(one) for one in onnx.load("r.onnx").graph.initializer}
    assert (weights["x"] == np.float32(value)).all()
    assert weights["x"].dtype == np.float32


def test_what_cannot_be_recorded_with_is_told_before_anything_is_checked(here: Path, capsys) -> None:
    save(seeds_example(), here / "model.onnx")
    assert reduce("model.onnx", "--val-range", "Z:[5,5]", "--check", *LOOK) == 2
    assert "there is no input 'Z'" in capsys.readouterr().err
    assert reduce("model.onnx", "--data-loader-script", "missing.py", "--check", *LOOK) == 2
    assert "missing.py" in capsys.readouterr().err


def test_inputs_are_part_of_what_a_journal_answers_for() -> None:
    def resume(*words: str) -> Resume:
        parser = argparse.ArgumentParser()
        configure(parser)
        return checks.ResumedSearch.of(parser.parse_args(["model.onnx", *words])).resume(Path("journal"), "reduction")

    assert resume().about == {}
    assert resume("--seed", "0").about == {"option --seed": "0"}
    assert resume("--data-loader-script", "loader.py:make").files == (Path("loader.py"),)


def test_a_check_that_is_edited_during_the_preflight_ends_the_search(here: Path, capsys) -> None:
    save(chain(2), here / "m.onnx")
    (here / "check.py").write_text(
        "import sys, onnx\n"
        "operator = onnx.load(sys.argv[1]).graph.node[0].op_type\n"
        "open('runs', 'a').write(operator + ' ')\n"
        "if operator == 'Identity':\n    open(__file__, 'a').write('# edited')\n"
        "sys.exit(1)"
    )
    assert reduce("m.onnx", "-o", "r.onnx", "--check", sys.executable, "check.py", "polygraphy_debug.onnx") == 4
    assert "changed while it ran" in told(capsys)
    assert not (here / "r.onnx").exists()
    assert (here / "runs").read_text().endswith("Relu Identity ")  # no question was asked after it


def test_a_check_that_prints_no_nodes_is_told_of(here: Path, capsys) -> None:
    save(chain(2), here / "m.onnx")
    check = ["--check", "biopsy", "inspect", "model", "{}"]
    assert reduce("m.onnx", "-o", "r.onnx", "--repeat", "1", "--fail-regex", "Op: Relu", *check) == 3
    assert "prints no nodes" in told(capsys)
