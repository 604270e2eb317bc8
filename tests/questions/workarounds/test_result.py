"""Which workarounds are the best, and what is told of them."""

import pytest

from biopsy.engines.latency import Latency
from biopsy.questions.workarounds.question import FailureRate, Kind, Trust, VerifiedChange, Workarounds


def change(kind: Kind, ratio: float = 1.0, nodes: int = 0) -> VerifiedChange:
    latency = Latency(after=ratio, before=1.0, ratio=ratio, low=ratio, high=ratio)
    model = None if kind in ("setting", "release") else b"model"
    return VerifiedChange(
        kind=kind, text=f"{kind} {ratio}", engine="onnxrt", nodes=("n",) * nodes, latency=latency, model=model
    )


def result(*found: VerifiedChange) -> Workarounds:
    return Workarounds(
        model="model.onnx",
        engine="onnxrt",
        failure=FailureRate(text="mismatch", failed=3, runs=3),
        trust=Trust(reference="reference", confirmed_by=None, samples=1, fresh=2),
        found=found,
    )


def texts(found: tuple[VerifiedChange, ...]) -> list[str]:
    return [one.text for one in found]


def test_what_costs_the_user_less_comes_first_then_fewer_nodes_then_what_is_faster() -> None:
    slow, fast = change("mark", 1.5, nodes=1), change("mark", 1.1, nodes=1)
    assert texts(result(change("mark", 1.0, nodes=2), slow, fast).best) == ["mark 1.1", "mark 1.5", "mark 1.0"]


def test_what_is_as_fast_as_the_fastest_as_far_as_was_measured_stays_in_its_order() -> None:
    def measured(ratio: float) -> VerifiedChange:
        latency = Latency(after=ratio, before=1.0, ratio=ratio, low=ratio - 0.1, high=ratio + 0.1)
        return VerifiedChange(kind="setting", text=f"{ratio}", engine="onnxrt", latency=latency)

    assert texts(result(measured(1.4), measured(1.15), measured(1.0)).best) == ["1.15", "1.0", "1.4"]


def test_what_could_not_be_measured_beside_the_original_stays_in_its_order() -> None:
    def alone(after: float) -> VerifiedChange:
        return VerifiedChange(kind="setting", text=f"{after}", engine="onnxrt", latency=Latency(after=after))

    assert texts(result(alone(2.0), alone(1.0)).best) == ["2.0", "1.0"]


def test_one_of_each_cost_is_among_the_best_before_a_second_one() -> None:
    found = (change("setting"), change("setting", 1.2), change("release", 1.3), change("spelling", nodes=1))
    assert texts(result(*found).best) == ["setting 1.0", "release 1.3", "spelling 1.0"]


def test_a_mark_and_a_barrier_cost_the_same() -> None:
    found = (change("mark", 1.2, nodes=1), change("barrier", 1.1, nodes=1), change("precision", nodes=1))
    assert texts(result(*found).best) == ["barrier 1.1", "mark 1.2", "precision 1.0"]


def test_the_patched_model_is_that_of_the_best_change_of_the_model() -> None:
    assert result(change("setting")).patched is None
    patched = result(change("setting"), change("spelling", nodes=1), change("mark", nodes=1)).patched
    assert patched is not None and patched.kind == "mark"


@pytest.mark.parametrize("shown", [repr, lambda found: found._repr_html_(), lambda found: str(found.as_json())])
def test_what_is_shown_names_the_best(shown) -> None:
    assert "setting 1.0" in shown(result(change("setting")))


def test_what_is_equally_fast_stays_in_its_order_also_where_it_is_slower_than_the_fastest() -> None:
    def measured(ratio: float) -> VerifiedChange:
        latency = Latency(after=ratio, before=1.0, ratio=ratio, low=ratio - 0.1, high=ratio + 0.1)
        return VerifiedChange(kind="setting", text=f"{ratio}", engine="onnxrt", latency=latency)

    assert texts(result(measured(2.05), measured(2.0), measured(1.0)).ordered) == ["1.0", "2.05", "2.0"]


def test_a_latency_is_claimed_only_if_it_differs() -> None:
    equal = Latency(after=2.0, before=1.9, ratio=1.05, low=0.98, high=1.1)
    assert (equal.differs, equal.text, equal.sentence) == (False, "no difference measured", "no difference measured")
    slower = Latency(after=2.0, before=1.9, ratio=1.05, low=1.01, high=1.1)
    assert slower.differs and slower.sentence == "it takes 1.05 times as long (1.01 to 1.10)"


def test_a_latency_is_told_with_its_spread_and_without_the_original_in_milliseconds() -> None:
    assert Latency(after=2.0, before=1.0, ratio=2.0, low=1.9, high=2.1).text == "2.00 times as long (1.90 to 2.10)"
    assert Latency(after=2.0).text == "2 ms"
