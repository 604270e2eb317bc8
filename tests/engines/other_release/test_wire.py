"""Values travel unchanged between two interpreters; what is not a message is refused before there is memory for it."""

import json
import os
import socket
import struct
import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from biopsy.engines.other_release import wire

PLAIN = sorted(wire._PLAIN)
ML_DTYPES = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "int4", "float4_e2m1fn"]
SHAPES = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)

PLAIN_ARRAYS = st.sampled_from(PLAIN).flatmap(lambda name: arrays.arrays(name, SHAPES))
ODD_ARRAYS = st.sampled_from(ML_DTYPES).flatmap(
    lambda name: arrays.arrays("uint8", SHAPES).map(lambda bits: np.asarray(bits % 8).astype(getattr(ml_dtypes, name)))
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
VALUES = st.recursive(
    SCALARS | PLAIN_ARRAYS | ODD_ARRAYS,
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=4,
)


def no_object(value: Any) -> Any:
    raise wire.WireError(str(value))


def travelled(value: Any) -> Any:
    """A value, once it has gone through a socket."""
    here, there = socket.socketpair()
    with here, there:
        outgoing = wire.Outgoing(no_object)
        tree = {"value": outgoing.value(value)}
        sender = threading.Thread(target=outgoing.write_to, args=(here, tree))
        sender.start()
        incoming = wire.Incoming(there, no_object)
        sender.join()
        return incoming.value(incoming.tree["value"])


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return [*one] == [*other] and all(map(same, one.values(), other.values()))
    return type(one) is type(other) and bool(one == other)


@given(value=VALUES)
@settings(max_examples=60, deadline=None)
def test_a_value_arrives_as_it_was_sent(value: Any) -> None:
    assert same(value, travelled(value))


@pytest.mark.parametrize("kind", [str, object])
def test_strings_arrive_with_their_shape_and_kind(kind: type) -> None:
    sent = np.array([["a", "böse"], ["", "\ud800 x"]], dtype=kind)
    arrived = travelled(sent)
    assert arrived.dtype.kind == sent.dtype.kind
    assert arrived.tolist() == sent.tolist()


def test_a_large_array_arrives_whole() -> None:
    sent = np.arange(3 << 20, dtype=np.int32)
    np.testing.assert_array_equal(travelled(sent), sent)


def test_bits_of_an_older_onnx_arrive_as_the_type_that_they_are() -> None:
    old = np.dtype((np.uint16, {"bfloat16": (np.uint16, 0)}))
    assert travelled(np.array([0x3F80, 0x4000], dtype=old)).astype(np.float32).tolist() == [1, 2]


@pytest.mark.parametrize("value", [object(), np.array([object()]), np.array(["2020"], "datetime64[D]"), b"".join])
def test_what_is_no_value_cannot_be_sent(value: Any) -> None:
    with pytest.raises(wire.WireError):
        wire.Outgoing(no_object).value(value)


def understood(text: bytes, *buffers: bytes) -> Any:
    """What a message of these bytes is understood as."""
    here, there = socket.socketpair()
    with here, there:
        here.sendall(struct.pack("<I", len(text)) + text + b"".join(buffers))
        here.shutdown(socket.SHUT_WR)
        incoming = wire.Incoming(there, no_object)
        return incoming.value(incoming.tree.get("value"))


def message(value: Any, *sizes: object) -> bytes:
    return json.dumps({"value": value, "sizes": sizes}).encode()


PHYSICAL = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    "text",
    [
        b"no JSON",
        b"[1]",
        b"{}",
        b"[" * 100_000,
        message(None, -1),
        message(None, True),
        message(None, PHYSICAL + 1),
        message({"array": 0, "dtype": "float32", "shape": [3]}, 8),
        message({"array": 0, "dtype": "float32", "shape": [-2]}, 8),
        message({"array": 0, "dtype": "float32", "shape": [1 << 62, 1 << 62]}, 8),
        message({"array": 0, "dtype": "object", "shape": [1]}, 8),
        message({"array": 0, "dtype": "float32", "shape": [1] * 100}, 4),
        message({"array": 1, "dtype": "float32", "shape": [2]}, 8),
        message({"array": "0", "dtype": "float32", "shape": [2]}, 8),
        message({"strings": 0, "shape": [1], "objects": True}, 8),
        message([1, 2]),
        message({"dict": [1]}),
        message({"set": [{"list": []}]}),
        message({"object": 1}),
    ],
)  # fmt: skip
def test_what_is_no_message_is_refused(text: bytes) -> None:
    with pytest.raises(wire.WireError):
        understood(text, b"[1, 2]  ")


@pytest.mark.parametrize("count", [0, 3, 7])
def test_a_message_that_ends_early_is_none(count: int) -> None:
    text = message({"bytes": 0}, 8)
    with pytest.raises(wire.GoneError):
        understood(text, b"12345678"[:count])
