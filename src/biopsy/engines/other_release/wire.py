"""Messages between this program and an interpreter with another release: JSON, with arrays as raw bytes.

A message is the length of its JSON (4 bytes, little-endian), the JSON, and buffers whose lengths are in its ``sizes``.
Reading one executes nothing, and checks the sizes before it takes memory.

The other interpreter imports this file, too: it must not import biopsy and must run in Python 3.8 or newer. Callers say
how an object that stays at one end is represented in a message.
"""

from __future__ import annotations

import json
import math
import os
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

TYPE_CHECKING = False

_LENGTH = struct.Struct("<I")
_LONGEST_JSON = 256 << 20
_MOST_AT_ONCE = 1 << 20
_MOST_DIMENSIONS = 64

_PLAIN = frozenset({
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "complex64", "complex128",
})  # fmt: skip
_BITS = {
    "bfloat16": 2, "float8_e4m3fn": 1, "float8_e4m3fnuz": 1, "float8_e5m2": 1, "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1, "int4": 1, "uint4": 1, "int2": 1, "uint2": 1, "float4_e2m1fn": 1,
}  # fmt: skip
"""Types that NumPy lacks -> bytes of an element; they come as types of ml_dtypes, or as bits if that is missing."""

_OF_OLD_ONNX = {
    "bfloat16": "bfloat16", "e4m3fn": "float8_e4m3fn", "e4m3fnuz": "float8_e4m3fnuz", "e5m2": "float8_e5m2",
    "e5m2fnuz": "float8_e5m2fnuz", "int4": "int4", "uint4": "uint4",
}  # fmt: skip
"""The field by which onnx before 1.19 marks the bits of a type -> the type."""


def gathered(objects: Sequence[Any], steps: Sequence[str]) -> list[Any]:
    """Follow the same steps from each object, and return all results in one list.

    A step is an attribute, or a method if its name ends with ``()``; a step that gives a list goes on from each of its
    items.
    """
    results = list(objects)
    for step in steps:
        values = [getattr(each, step[:-2])() if step.endswith("()") else getattr(each, step) for each in results]
        results = [each for value in values for each in (value if isinstance(value, list) else [value])]
    return results


class WireError(Exception):
    """A message is invalid, or a value cannot be sent."""


class GoneError(Exception):
    """The other end has closed the connection."""


class Outgoing:
    """A message to send: values as JSON, and the buffers that they refer to.

    ``of_object`` gives the JSON that represents an object which stays here; it raises WireError if it cannot.
    """

    def __init__(self, of_object: Callable[[Any], dict[str, Any]]) -> None:
        self._of_object = of_object
        self._buffers: list[Any] = []

    def value(self, value: Any) -> Any:
        """A value as JSON; its buffers are added to the message."""
        if value is None or type(value) in (bool, int, float, str):
            return value
        if type(value) in (list, tuple, set, frozenset):
            kind = "list" if isinstance(value, list) else "tuple" if isinstance(value, tuple) else "set"
            return {kind: [self.value(each) for each in value]}
        if type(value) is dict:
            return {"dict": [[self.value(key), self.value(held)] for key, held in value.items()]}
        if type(value) in (bytes, bytearray):
            return {"bytes": self._buffer(value)}
        if isinstance(value, (np.ndarray, np.generic)):
            return self._array(np.asarray(value))
        return self._of_object(value)

    def _array(self, array: np.ndarray[Any, Any]) -> dict[str, Any]:
        shape = list(array.shape)
        if array.dtype.kind in "UO":
            items = array.reshape(-1).tolist()
            if not all(isinstance(item, str) for item in items):
                raise WireError("an array of objects that are not strings cannot be sent")
            data = json.dumps(items).encode()  # with lone surrogates, which have no UTF-8
            return {"strings": self._buffer(data), "shape": shape, "objects": array.dtype.kind == "O"}
        name = _name_of(array.dtype)
        plain = np.ascontiguousarray(array).reshape(-1)
        plain = plain.astype(plain.dtype.newbyteorder("<"), copy=False) if name in _PLAIN else plain
        return {"array": self._buffer(plain.view("u1").data), "dtype": name, "shape": shape}

    def _buffer(self, data: Any) -> int:
        self._buffers.append(data)
        return len(self._buffers) - 1

    def write_to(self, connection: socket.socket, tree: dict[str, Any]) -> None:
        """Send ``tree`` with the buffers of its values. Raises GoneError."""
        sizes = [memoryview(data).nbytes for data in self._buffers]
        text = json.dumps(dict(tree, sizes=sizes)).encode()
        if len(text) > _LONGEST_JSON:
            raise WireError("a message is too long")
        try:
            connection.sendall(_LENGTH.pack(len(text)) + text)
            for data in self._buffers:
                connection.sendall(data)
        except OSError as error:
            raise GoneError from error


class Incoming:
    """A received message. ``object_of`` gives the stand-in for an object of the other end, from its JSON."""

    def __init__(self, connection: socket.socket, object_of: Callable[[dict[str, Any]], Any]) -> None:
        """Wait for a message. Raises GoneError, and WireError for an invalid one."""
        self._object_of = object_of
        length = _LENGTH.unpack(_received(connection, _LENGTH.size))[0]
        if length > _LONGEST_JSON:
            raise WireError("a message is too long")
        try:
            self.tree: dict[str, Any] = json.loads(bytes(_received(connection, length)))
        except (ValueError, RecursionError) as error:
            raise WireError("a message is not JSON") from error
        if not isinstance(self.tree, dict):
            raise WireError("a message is not an object")
        sizes = self.tree.pop("sizes", None)
        if not isinstance(sizes, list) or not all(type(size) is int and size >= 0 for size in sizes):
            raise WireError("a message lacks the sizes of its buffers")
        if sum(sizes) > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
            raise WireError("a message is larger than the memory of this machine")
        self._buffers = [_received(connection, size) for size in sizes]

    def value(self, tree: Any) -> Any:
        """The value that JSON in the message represents. Raises WireError."""
        try:
            return self._value(tree)
        except (KeyError, IndexError, TypeError, ValueError, RecursionError) as error:
            raise WireError("a value is not understood: " + type(error).__name__) from error

    def _value(self, tree: Any) -> Any:
        if not isinstance(tree, dict):
            if isinstance(tree, list):
                raise WireError("a list is where a value is wanted")
            return tree
        if "list" in tree:
            return [self._value(each) for each in tree["list"]]
        if "tuple" in tree:
            return tuple(self._value(each) for each in tree["tuple"])
        if "set" in tree:
            return {self._value(each) for each in tree["set"]}
        if "dict" in tree:
            return {self._value(key): self._value(held) for key, held in tree["dict"]}
        if "bytes" in tree:
            return bytes(self._buffers[tree["bytes"]])
        if "array" in tree or "strings" in tree:
            return self._array(tree)
        return self._object_of(tree)

    def _array(self, tree: dict[str, Any]) -> np.ndarray[Any, Any]:
        shape = tree["shape"]
        if len(shape) > _MOST_DIMENSIONS or not all(type(size) is int and size >= 0 for size in shape):
            raise WireError("a shape is invalid")
        if "strings" in tree:
            items = json.loads(bytes(self._buffers[tree["strings"]]))
            if len(items) != math.prod(shape) or not all(isinstance(item, str) for item in items):
                raise WireError("an array of strings holds something else")
            array: np.ndarray[Any, Any] = np.empty(len(items), dtype=object)
            array[:] = items
            return (array if tree["objects"] else array.astype(str)).reshape(shape)
        data, dtype = self._buffers[tree["array"]], _dtype_of(str(tree["dtype"]))
        if math.prod(shape) * dtype.itemsize != len(data):
            raise WireError("an array has not the size that its shape says")
        return np.frombuffer(data, dtype).reshape(shape)


def _name_of(dtype: np.dtype[Any]) -> str:
    """The name of a type in messages. Raises WireError for a type that cannot be sent."""
    fields = list(dtype.fields or ())
    if len(fields) == 1 and fields[0] in _OF_OLD_ONNX:
        return _OF_OLD_ONNX[fields[0]]
    if dtype.name not in _PLAIN and dtype.name not in _BITS:
        raise WireError("values of type " + dtype.name + " cannot be sent")
    return str(dtype.name)


def _dtype_of(name: str) -> np.dtype[Any]:
    if name in _PLAIN:
        return np.dtype(name).newbyteorder("<")
    try:
        import ml_dtypes

        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return dtype
    except (ImportError, AttributeError):
        return np.dtype(f"u{_BITS[name]}")


def _received(connection: socket.socket, size: int) -> bytearray:
    """Receive ``size`` bytes; the memory for them grows as they arrive. Raises GoneError."""
    data = bytearray(min(size, _MOST_AT_ONCE))
    place = 0
    while place < size:
        if place == len(data):
            data.extend(bytes(min(size - place, max(_MOST_AT_ONCE, place))))
        try:
            with memoryview(data) as view:
                count = connection.recv_into(view[place:])
        except OSError as error:
            raise GoneError from error
        if not count:
            raise GoneError
        place += count
    return data
