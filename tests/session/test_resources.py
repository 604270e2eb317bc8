"""What a check has for itself: how many have room, and how that is told."""

from hypothesis import given
from hypothesis import strategies as st

from biopsy.cli.debug.other_machines import resources
from biopsy.session.ray_cluster import Resources

NUMBERS = st.integers(0, 64)


@given(NUMBERS, NUMBERS, st.dictionaries(st.sampled_from(["h100", "node1"]), NUMBERS))
def test_it_is_told_as_it_is_typed(cpus: int, gpus: int, others: dict[str, int]) -> None:
    told = str(Resources(cpus=cpus, gpus=gpus, others=others))
    typed = resources(told) if told else {}
    assert typed == {name: n for name, n in {"CPU": cpus, "GPU": gpus, **others}.items() if n}


def test_a_machine_has_room_for_as_many_as_the_scarcest_allows() -> None:
    assert Resources(cpus=2, gpus=1).places({"CPU": 16, "GPU": 3}) == 3
    assert Resources(cpus=1, gpus=1).places({"CPU": 16}) == 0


def test_the_most_that_any_machine_has_is_told() -> None:
    assert Resources(gpus=1, others={"cpu": 1}).most([{"CPU": 2}, {"CPU": 4, "GPU": 1}]) == "CPU=4,GPU=1,cpu=0"
