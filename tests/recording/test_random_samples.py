"""Samples to record with where the user gave none."""

import numpy as np
import pytest

from biopsy import errors
from biopsy.model.index import index_bytes
from biopsy.recording.reference_run import Draws, random_samples
from support.models import chain, info, model


def test_two_samples_differ_in_every_value_and_in_every_open_dimension() -> None:
    made = chain(2)
    made.graph.input[0].CopyFrom(info("t0", ("N", 3)))
    first, second = random_samples(index_bytes(made.SerializeToString()))
    assert (first["t0"].shape, second["t0"].shape) == ((2, 3), (3, 3))
    assert not np.isin(first["t0"], second["t0"]).any()


def test_the_same_seed_gives_the_same_samples() -> None:
    index = index_bytes(chain(2).SerializeToString())
    for seed in (1, 7):
        pairs = zip(random_samples(index, Draws(seed=seed)), random_samples(index, Draws(seed=seed)), strict=True)
        assert all(np.array_equal(left["t0"], right["t0"]) for left, right in pairs)


def test_there_are_as_many_as_asked_for_in_their_range_and_never_fewer_than_two() -> None:
    index = index_bytes(chain(2).SerializeToString())
    drawn = random_samples(index, Draws(count=5, val_range={"t0": (7, 8)}))
    assert len(drawn) == 5
    assert all(((sample["t0"] >= 7) & (sample["t0"] <= 8)).all() for sample in drawn)
    assert len(random_samples(index, Draws(count=1))) == 2
    with pytest.raises(errors.DoesNotFit, match="--val-range"):
        random_samples(index, Draws(val_range={"x": (7, 8)}))


def test_there_are_none_if_nobody_knows_the_rank_of_an_input() -> None:
    made = model(chain(1).graph.node, [info("t0", None)], [info("t1", None)])
    assert random_samples(index_bytes(made.SerializeToString())) == []
