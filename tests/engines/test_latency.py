"""Latencies that are measured side by side in a real engine: a model against itself, and against a slower one; and what
is said of times that are uneven."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from biopsy.engines.base import LayerRecord, ModelInput
from biopsy.engines.latency import (
    Side,
    Timer,
    decided,
    in_memory,
    measurable_alike,
    side_by_side,
    slow_nodes,
    timer,
)
from biopsy.engines.registry import create
from biopsy.tensors.files import write_feeds
from support.models import chain, info, model, save


@pytest.fixture
def feeds(tmp_path: Path) -> Path:
    [given] = chain(1).graph.input
    shape = [dimension.dim_value for dimension in given.type.tensor_type.shape.dim]
    write_feeds(tmp_path / "feeds.json", [{given.name: np.ones(shape, np.float32)}])
    return tmp_path / "feeds.json"


def side(model: Path, feeds: Path, **environment: str) -> Side:
    engine = "onnxrt:threads=1,optimization=none"
    return Side(engine=engine, model=model, folder=model.parent, feeds=feeds, environment=environment)


def test_a_model_is_not_called_faster_or_slower_than_itself(tmp_path: Path, feeds: Path) -> None:
    one, other = save(chain(60), tmp_path / "one.onnx"), save(chain(60), tmp_path / "other.onnx")
    measured = [side_by_side(side(one, feeds), side(other, feeds)) for _ in range(3)]
    assert sum(latency is not None and latency.text == "no difference measured" for latency in measured) >= 2


@pytest.mark.parametrize("environment", [{}, {"SOME_SETTING": "1"}], ids=["one process", "two processes"])
def test_a_model_that_takes_far_longer_is_called_slower(environment: dict, tmp_path: Path, feeds: Path) -> None:
    fast, slow = save(chain(3), tmp_path / "fast.onnx"), save(chain(600), tmp_path / "slow.onnx")
    latency = side_by_side(side(fast, feeds), side(slow, feeds, **environment))
    assert latency is not None and latency.differs and latency.low is not None and latency.low > 2


def test_a_model_beside_an_original_that_cannot_be_run_is_told_in_milliseconds(tmp_path: Path, feeds: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    good = save(chain(3), tmp_path / "good.onnx")
    latency = side_by_side(side(tmp_path / "broken.onnx", feeds), side(good, feeds))
    assert latency is not None and latency.ratio is None and latency.text.endswith(" ms")
    assert side_by_side(side(good, feeds), side(tmp_path / "broken.onnx", feeds)) is None


LIMIT = 1.3


def uneven(
    seed: int, ratio: float = 1.0, seconds: float = 1e-3, spread: float = 0.25
) -> Callable[[bool], tuple[Timer, Timer]]:
    """Loads of two engines that differ by ``ratio``, on a machine that is busy: its speed drifts and has gaps."""
    random = np.random.default_rng(seed)
    drift = [0.0]

    def load(_: bool) -> tuple[Timer, Timer]:
        places = random.lognormal(0, 0.04, 2)

        def timer(place: float, times: float) -> Timer:
            def measured(_: int) -> float:
                drift[0] += random.normal(0, 0.05)
                burst = 4.0 if random.random() < 0.1 else 1.0
                return float(seconds * times * place * burst * np.exp(drift[0]) * random.lognormal(0, spread))

            return measured

        return timer(places[0], 1.0), timer(places[1], ratio)

    return load


def test_no_engine_is_called_slower_than_itself_however_uneven_the_times_are() -> None:
    sides = [decided(uneven(seed), LIMIT, 0.05).side_of(LIMIT) for seed in range(100)]
    assert "slower" not in sides and "not slower" in sides


def test_an_engine_that_takes_twice_as_long_is_never_passed() -> None:
    sides = [decided(uneven(seed, ratio=2), LIMIT, 0.05).side_of(LIMIT) for seed in range(100)]
    assert "not slower" not in sides and sides.count("slower") > 50


def test_times_that_never_settle_are_no_answer_and_end_at_the_limit_of_time() -> None:
    assert decided(uneven(0, ratio=LIMIT), LIMIT, 0.05).side_of(LIMIT) == "unknown"


def test_microseconds_more_say_nothing_of_the_model() -> None:
    assert decided(uneven(0, ratio=3, seconds=4e-6, spread=0.01), LIMIT).side_of(LIMIT) == "cost of a call"


def test_both_orders_of_loading_are_measured() -> None:
    orders = []

    def load(is_second_first: bool) -> tuple[Timer, Timer]:
        orders.append(is_second_first)
        return (lambda _: 1.0), (lambda _: 1.0)

    assert decided(load, LIMIT).side_of(LIMIT) == "not slower"
    assert orders == [False, True]


def test_engines_are_measured_with_one_thread_and_at_like_places() -> None:
    labels = ("onnxrt:threads=4", f"onnxrt:python={sys.executable}", "fake")
    four, other, fake = measurable_alike(labels)
    assert (four.options["threads"], four.imports.is_here) == (4, False)
    assert (other.options["threads"], other.imports.is_here) == (1, False)
    assert fake.imports.is_here
    [here] = measurable_alike(["onnxrt"])
    assert (here.options["threads"], here.imports.is_here) == (1, True)


def test_nodes_are_slow_by_the_layers_that_they_share(tmp_path: Path) -> None:
    before = [layer("a", 5), layer("b", 90), layer("c", 10), layer("d", 50), layer("e", 1), layer("f", None)]
    after = [layer("a b", 100), layer("c", 60), layer("e", 5.5), layer("f", 500), layer("", 900)]
    assert slow_nodes(before, after) == ["f", "c"]  # "a b" takes 5 longer together, less than a tenth of 500
    assert slow_nodes(after, before) == ["d"]
    assert slow_nodes(before, before) == slow_nodes([], []) == []


def layer(nodes: str, microseconds: float | None) -> LayerRecord:
    return LayerRecord(f"layer of {nodes}", nodes=tuple(nodes.split()), time_us=microseconds)


def test_in_another_interpreter_only_the_calls_of_the_package_count() -> None:
    size = 4_000_000
    there = create(f"onnxrt:threads=1,python={sys.executable}")
    made = model([helper.make_node("Identity", ["x"], ["y"])], [info("x", (size,))], [info("y", (size,))])
    session = there.build(ModelInput(made.SerializeToString(), Path()))
    measured = timer(there, session, in_memory([{"x": np.ones(size, np.float32)}]))
    started = time.perf_counter()
    assert 0 < measured(1) < time.perf_counter() - started - 0.005  # 32 MB were sent
    assert measured(5) > 0
