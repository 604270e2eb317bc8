import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as stn

from biopsy.comparison.differences import differences_between

SHAPES = stn.array_shapes(min_dims=0, max_dims=4, max_side=5)
PAIRS = SHAPES.flatmap(
    lambda shape: st.tuples(*(stn.arrays(np.float32, shape, elements=st.floats(width=32)) for _ in range(2)))
)


@given(PAIRS)
def test_every_element_is_counted_once_and_no_block_is_forgotten(pair) -> None:
    actual, expected = pair
    found = differences_between(actual, expected)
    histogram = found.histogram
    assert sum(histogram.counts) + histogram.zero + histogram.infinite == actual.size
    assert len(histogram.edges) == (len(histogram.counts) + 1 if histogram.counts else 0)
    greatest = max(max(row) for row in found.heat.rows)
    assert greatest == (found.worst[0].error if found.worst else 0)
    errors = [one.error for one in found.worst]
    assert errors == sorted(errors, reverse=True)


def test_the_histogram_is_logarithmic() -> None:
    expected = np.zeros(6)
    actual = np.array([0, 1e-6, 1.5e-6, 2e-3, 5, np.nan])
    found = differences_between(actual, expected).histogram
    assert (found.zero, found.infinite) == (1, 1)
    counted = {edge: count for edge, count in zip(found.edges, found.counts, strict=False) if count}
    assert counted == {1e-06: 2, 1e-03: 1, 3.16228: 1}


def test_the_map_shows_where_the_error_is_in_at_most_64_by_64_blocks() -> None:
    expected = np.zeros((2, 1, 100, 300), np.float32)
    actual = expected.copy()
    actual[1, 0, 99, 150] = 7
    heat = differences_between(actual, expected).heat
    assert (heat.axes, heat.shape) == ((2, 3), (2, 1, 100, 300))
    assert (len(heat.rows), len(heat.rows[0])) == (64, 64)
    assert np.argwhere(np.array(heat.rows)).tolist() == [[63, 32]]


def test_a_list_is_one_row_and_a_number_one_block() -> None:
    row = differences_between(np.arange(3.0), np.zeros(3)).heat
    assert (row.rows, row.axes) == (((0, 1, 2),), (0,))
    assert differences_between(np.array(2.0), np.array(0.5)).heat.rows == ((1.5,),)
