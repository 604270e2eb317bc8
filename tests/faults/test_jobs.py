"""However many checks run at once, and whoever runs them, the result is the same, byte for byte."""

import hashlib
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper

import biopsy
from biopsy.cli.app import main
from support.models import chain, info, model, save, weight
from support.scattered import Scattered

NEEDS_TWO = "sys.exit('n3' in names and 'n9' in names)"
LOT = """
import hashlib
lot = hashlib.blake2b(repr(sorted(names)).encode(), digest_size=1).digest()[0]
time.sleep(lot % 7 / 100)
sys.exit(len(names) == 12 or (len(names) > 1 and lot < 110))
"""
"""Whether it fails, and how long it takes, follows from the names of the nodes by no rule."""


def results(place, *words: str) -> dict[str, bytes]:
    """The result for one, two and four checks at once."""
    found = {}
    for jobs in ("1", "2", "4"):
        ran = place.reduce("m.onnx", "-o", "r.onnx", "--jobs", jobs, *words)
        assert ran.status == 0, ran.told
        found[jobs] = (place.folder / "r.onnx").read_bytes()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("code", [LOT, pytest.param(NEEDS_TWO, marks=pytest.mark.slow)], ids=["no rule", "two nodes"])
def test_of_a_script(place, code: str) -> None:
    place.model(12)
    assert len(set(results(place, "--check", *place.check(code)).values())) == 1


@pytest.mark.slow
def test_of_our_own_run_against_golden_values(place) -> None:
    made = chain(24, ("Neg", "Abs", "Exp", "Sigmoid"))
    save(made, place.folder / "m.onnx")
    wrong = chain(24, ("Neg", "Abs", "Exp", "Sigmoid"))
    wrong.graph.node[20].op_type = "Exp"
    save(wrong, place.folder / "wrong.onnx")
    for words in (
        ["run", "wrong.onnx", "--onnxrt", "--save-inputs", "in.json", "--onnx-outputs", "mark", "all",
         "--save-outputs", "golden.json"],
        ["data", "to-input", "in.json", "golden.json", "-o", "layerwise.json"],
    ):  # fmt: skip
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(place.folder)
            assert main(words) == 0
    check = ["biopsy", "run", "{}", "--onnxrt", "--load-inputs", "layerwise.json", "--load-outputs", "golden.json"]
    assert len(set(results(place, "--check", *check).values())) == 1
    assert place.nodes() == ["n20"]


EXECUTORS: dict[str, Callable[[], Executor]] = {
    "threads": lambda: ThreadPoolExecutor(3),
    "processes": lambda: ProcessPoolExecutor(3, mp_context=get_context("spawn")),
}


@pytest.mark.parametrize("executor", EXECUTORS.values(), ids=EXECUTORS)
def test_of_functions_that_an_executor_of_the_caller_runs(tmp_path: Path, executor: Callable[[], Executor]) -> None:
    (tmp_path / "r").mkdir()
    output = tmp_path / "r" / "r.onnx"
    with executor() as given_one:
        for seed in range(6):
            check = Scattered(20, seed, 0.4)
            alone = biopsy.reduce(chain(20), check, output)
            expected = output.read_bytes()
            for jobs in (2, 3):
                shared = biopsy.reduce(chain(20), check, output, jobs=jobs, executor=given_one)
                assert output.read_bytes() == expected
                assert shared.nodes == alone.nodes
    assert [path.name for path in (tmp_path / "r").iterdir()] == ["r.onnx"]


@pytest.mark.slow
def test_of_a_command_that_an_executor_of_the_caller_runs(place) -> None:
    place.model(12)
    words = place.check(NEEDS_TWO)
    words[3] = str(place.folder / words[3])
    output = place.folder / "r.onnx"
    biopsy.reduce(place.folder / "m.onnx", words, output)
    expected = output.read_bytes()
    with ThreadPoolExecutor(2) as threads:
        biopsy.reduce(place.folder / "m.onnx", words, output, jobs=2, executor=threads)
    assert output.read_bytes() == expected


@st.composite
def graphs(draw: st.DrawFn) -> onnx.ModelProto:
    """A few nodes of one or two inputs each, each reading anything before it; every end is an output."""
    count = draw(st.integers(2, 9))
    nodes, read = [], set()
    for number in range(count):
        inputs = draw(st.lists(st.integers(0, number), min_size=1, max_size=2))
        read |= set(inputs)
        op = "Add" if len(inputs) == 2 else "Neg"
        nodes.append(helper.make_node(op, [f"t{one}" for one in inputs], [f"t{number + 1}"], name=f"n{number}"))
    ends = [number for number in range(1, count + 1) if number not in read]
    return model(nodes, [info("t0")], [info(f"t{number}") for number in ends], [weight("unused", 1.0)])


@pytest.mark.slow
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    graphs(),
    st.integers(0, 1 << 16),
    st.sampled_from([0.2, 0.5, 0.8]),
    st.sampled_from(["minimal", "bisect", "linear"]),
)
def test_of_any_failure_in_any_small_graph(
    tmp_path: Path, made: onnx.ModelProto, seed: int, chance: float, mode
) -> None:
    check = Scattered(len(made.graph.node), seed, chance)
    found = {}
    for jobs in (1, 3):
        output = tmp_path / f"{jobs}.onnx"
        biopsy.reduce(made, check, output, mode=mode, jobs=jobs)
        found[jobs] = hashlib.sha256(output.read_bytes()).hexdigest()
    assert len(set(found.values())) == 1


def test_a_check_that_fails_on_anything_leaves_no_answers_of_a_search_that_had_begun(place) -> None:
    place.model(12)
    check = place.check("if not names: time.sleep(0.5)\nsys.exit(not names or 'n5' in names)")
    ran = place.reduce("m.onnx", "-o", "r.onnx", "--jobs", "4", "--check", *check)
    assert ran.status == 4
    assert "fails on anything" in ran.told
    assert place.files() == {"m.onnx"}
