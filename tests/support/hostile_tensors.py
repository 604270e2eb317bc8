"""Files of tensors that somebody made in order to hang, exhaust or crash whoever opens them: name -> their bytes."""

from __future__ import annotations

import base64
import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from typing import Any

# .npy, which is what .npz and Polygraphy's JSON hold


def npy(header: str | bytes, data: bytes = b"", *, version: int = 1, length: int | None = None) -> bytes:
    """A .npy file of this header."""
    text = header if isinstance(header, bytes) else header.encode("latin-1")
    width = "<H" if version == 1 else "<I"
    return (
        b"\x93NUMPY" + bytes((version, 0)) + struct.pack(width, len(text) if length is None else length) + text + data
    )


def described(descr: str, shape: str, data: bytes = b"", **more: Any) -> bytes:
    """A .npy file of this type and shape, both as they stand in the header."""
    return npy(f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n", data, **more)


NPY: dict[str, Callable[[], bytes]] = {
    "no byte": lambda: b"",
    "only the beginning": lambda: b"\x93NUMPY",
    "a header that is a list": lambda: npy("[1, 2]"),
    "a header that is a number": lambda: npy("17"),
    "a header that is a text": lambda: npy("'descr'"),
    "a header that is a set": lambda: npy("{'descr', 'shape', 'fortran_order'}"),
    "a header that is code": lambda: npy("__import__('os').system('touch made')"),
    "a header with keys that have no hash": lambda: npy("{[]: 1}"),
    "a header of brackets": lambda: npy("(" * 9000),
    "a header of minus signs": lambda: npy("-" * 9000 + "1"),
    "a header of a long number": lambda: npy("9" * 9000),
    "a header that warns": lambda: npy("{'descr': 1if 2else 3}"),
    "a header with zeros": lambda: npy("{'descr': '<f4'\0}"),
    "a header of 4 GB": lambda: described("'<f4'", "(2,)", bytes(8), version=2, length=0xFFFFFFFF),
    "a header that is not text": lambda: npy(b"{'descr': '\xff\xfe'}", version=3),
    "a header of surrogates": lambda: npy("{'descr': '\\ud800', 'fortran_order': False, 'shape': (2,)}", bytes(8)),
    "version 9": lambda: described("'<f4'", "(2,)", bytes(8), version=9),
    "a shape that is not a tuple": lambda: described("'<f4'", "2", bytes(8)),
    "a shape of texts": lambda: described("'<f4'", "('2',)", bytes(8)),
    "a shape of true": lambda: described("'<f4'", "(True,)", bytes(8)),
    "a shape of fractions": lambda: described("'<f4'", "(2.5,)", bytes(8)),
    "a negative shape": lambda: described("'<f4'", "(-2,)", bytes(8)),
    "a shape of 2^62": lambda: described("'<f4'", "(4611686018427387904,)", bytes(8)),
    "a shape that overflows": lambda: described("'<f4'", "(4294967296, 4294967296)", bytes(8)),
    "a shape of 10^4000": lambda: described("'<f4'", f"({'9' * 4000},)", bytes(8)),
    "a shape of 0 times 2^62": lambda: described("'<f4'", "(0, 4611686018427387904, 4611686018427387904)"),
    "a shape of 0 times 10^30": lambda: described("'<f4'", f"(0, {10**30})"),
    "rank 100": lambda: described("'<f4'", f"({'1,' * 100})", bytes(4)),
    "rank 4,000": lambda: described("'<f4'", f"({'1,' * 4000})", bytes(4)),
    "objects": lambda: described("'|O'", "(2,)", bytes(16)),
    "records": lambda: described("[('a', '<f4'), ('b', '<i4')]", "(1,)", bytes(8)),
    "records in a text": lambda: described("'<f4,<i4'", "(1,)", bytes(8)),
    "records of objects": lambda: described("'O,O'", "(1,)", bytes(16)),
    "arrays of arrays": lambda: described("'(2,3)<f4'", "(1,)", bytes(24)),
    "arrays of 2^31 in a text": lambda: described("'(2147483647,)<f4'", "(0,)"),
    "a type that is not text": lambda: described("17", "(2,)", bytes(8)),
    "a type of commas": lambda: described("',,,'", "(2,)", bytes(8)),
    "a type of brackets": lambda: described(f"'{'(' * 3000}'", "(2,)", bytes(8)),
    "dates": lambda: described("'<M8[ns]'", "(1,)", bytes(8)),
    "elements of no byte": lambda: described("'|V0'", "(4611686018427387904,)"),
    "2^62 texts of no character": lambda: described("'<U0'", "(4611686018427387904,)"),
    "2^40 bytes of no byte": lambda: described("'|S0'", "(1099511627776,)"),
    "texts of 2^29 characters, none of them there": lambda: described("'<U536870911'", "(0,)"),
    "texts of 2^40 characters": lambda: described("'<U1099511627776'", "(0,)"),
    "characters that do not exist": lambda: described("'<U1'", "(2,)", b"\xff\xff\xff\xff" * 2),
    "characters that are half a pair": lambda: described("'<U1'", "(2,)", b"\x00\xd8\x00\x00" * 2),
    "other bytes than it says": lambda: described("'<f4'", "(1000,)", bytes(8)),
    "an order that is not a word": lambda: npy("{'descr': '<f4', 'fortran_order': [], 'shape': (2,)}", bytes(8)),
    "the other order of bytes": lambda: described("'>f8'", "(1,)", bytes(8)),
}


# .npz


def packed(*members: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip archive of these members; the same name may come again."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, data in members:
            info = zipfile.ZipInfo(name)
            info.compress_type = method
            archive.writestr(info, data)
    return stream.getvalue()


def zeros_deflated(size: int) -> bytes:
    """What ``size`` zeros, whole megabytes, are when deflated."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    piece = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)  # refers to nothing before it
    return piece * (size >> 20) + packer.flush()


def bomb(
    size: int, *, said: int | None = None, beginning: bytes = b"", names: tuple[str, ...] = ("x.npy",), method: int = 8
) -> bytes:
    """An archive of one member, deflated, of ``beginning`` and ``size`` zeros; the directory says ``said`` bytes.

    Several names stand for the same bytes: they overlap.
    """
    start = zlib.compressobj(9, zlib.DEFLATED, -15)
    head = start.compress(beginning) + start.flush(zlib.Z_FULL_FLUSH)
    data = head + zeros_deflated(size)
    whole = len(beginning) + size if said is None else said
    big = whole >= 0xFFFFFFFF
    shown = 0xFFFFFFFF if big else whole
    extra = struct.pack("<HHQ", 1, 8, whole) if big else b""
    name = names[0].encode()
    local = struct.pack("<4s5H3I2H", b"PK\3\4", 45, 0, method, 0, 33, 0, len(data), shown, len(name), 0) + name + data
    directory = b"".join(
        struct.pack(
            "<4s6H3I5H2I", b"PK\1\2", 45, 45, 0, method, 0, 33, 0, len(data), shown,
            len(other.encode()), len(extra), 0, 0, 0, 0, 0,
        )
        + other.encode()
        + extra
        for other in names
    )  # fmt: skip
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, len(names), len(names), len(directory), len(local), 0)
    return local + directory + end


def index(tree: object) -> bytes:
    """A .npz file with one array and this index."""
    return packed(("biopsy.json", json.dumps(tree).encode()), ("x.npy", described("'|V8'", "(2,)", bytes(16))))


def _tensors(*tensors: object) -> dict[str, object]:
    runners = [{"name": "r", "iterations": [{"runtime": None, "tensors": list(tensors)}]}]
    return {"biopsy": 1, "kind": "feeds", "runners": runners}


_FLOATS = described("'<f4'", "(2,)", bytes(8))

NPZ: dict[str, Callable[[], bytes]] = {
    "no zip": lambda: b"PK" + bytes(100),
    "an empty archive": packed,
    "4.3 GB that a header of two floats stands before": lambda: bomb(4352 << 20, beginning=_FLOATS),
    "1 GB that a header of two floats stands before": lambda: bomb(1 << 30, beginning=_FLOATS),
    "4.3 GB that the directory hides": lambda: bomb(4352 << 20, said=len(_FLOATS), beginning=_FLOATS),
    "4.3 GB that all agree on": lambda: bomb(4352 << 20, beginning=described("'|u1'", f"({4352 << 20},)")),
    "4.3 GB of no .npy": lambda: bomb(4352 << 20),
    "4.3 GB of an index": lambda: bomb(4352 << 20, names=("biopsy.json",)),
    "4.3 GB of an index that the directory hides": lambda: bomb(4352 << 20, said=100, names=("biopsy.json",)),
    "1,000 names for one gigabyte": lambda: bomb(
        1 << 30,
        beginning=described("'|u1'", f"({1 << 30},)"),
        names=tuple(f"{number}.npy" for number in range(1000)),
    ),
    "60,000 names for one array": lambda: bomb(0, beginning=_FLOATS, names=tuple(f"{n}.npy" for n in range(60_000))),
    "less than the directory says": lambda: bomb(0, said=1 << 20, beginning=described("'|u1'", f"({1 << 20 },)")),
    "one name twice": lambda: _quietly(lambda: packed(("x.npy", _FLOATS), ("x.npy", _FLOATS))),
    "names that lead away": lambda: packed(("../../../tmp/x.npy", _FLOATS), ("/etc/x.npy", _FLOATS)),
    "a name without text": lambda: packed((".npy", _FLOATS)),
    "a method that nobody knows": lambda: bomb(0, beginning=_FLOATS, method=77),
    "LZMA": lambda: packed(("x.npy", _FLOATS), method=zipfile.ZIP_LZMA),
    "an index that is a list": lambda: index([]),
    "an index without anything": lambda: index({}),
    "an index of the version true": lambda: index({"biopsy": "1"}),
    "an index that is nested 10,000 deep": lambda: packed(("biopsy.json", b"[" * 10_000), ("x.npy", _FLOATS)),
    "an index that is not text": lambda: packed(("biopsy.json", b"\xff\xfe"), ("x.npy", _FLOATS)),
    "an index with a type that is a class": lambda: index(_tensors(["x", "x", "finfo"])),
    "an index with a type that is none": lambda: index(_tensors(["x", "x", "nothing"])),
    "an index with objects": lambda: index(_tensors(["x", "x", "O"])),
    "an index with a type that is a number": lambda: index(_tensors(["x", "x", 7])),
    "an index with a key that is a list": lambda: index(_tensors(["x", [], None])),
    "an index with a name that is a list": lambda: index(_tensors([[], "x", None])),
    "an index with 10^5 times one tensor": lambda: index(
        _tensors(*[[str(n), "x", "complex64"] for n in range(100_000)])
    ),
    "an index with a time that is text": lambda: index(
        {"biopsy": 1, "kind": "results", "runners": [{"name": "r", "iterations": [
            {"runtime": "soon", "tensors": [["x", "x", "complex64"]]}]}]}
    ),
}  # fmt: skip


def _quietly(make: Callable[[], bytes]) -> bytes:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make()


# .json


def array(data: bytes = _FLOATS, **more: object) -> dict[str, object]:
    """An array as Polygraphy writes it."""
    return {"array": base64.b64encode(data).decode(), "polygraphy_class": "ndarray", **more}


def _json(tree: object) -> Callable[[], bytes]:
    return lambda: json.dumps(tree).encode()


def _results(*runners: object) -> dict[str, object]:
    return {"lst": list(runners), "polygraphy_class": "RunResults"}


def _iteration(**values: object) -> dict[str, object]:
    return {"runtime": 1.0, "runner_name": "r", "polygraphy_class": "IterationResult", **values}


JSON: dict[str, Callable[[], bytes]] = {
    "no JSON": lambda: b"import os",
    "bytes that are not text": lambda: b'{"\xff\xfe": 1}',
    "10,000 lists": lambda: b"[" * 10_000,
    "200,000 lists": lambda: b"[" * 200_000 + b"]" * 200_000,
    "200,000 objects": lambda: b'{"a":' * 200_000 + b"1" + b"}" * 200_000,
    "a number of 10^5 digits": lambda: b"[" + b"9" * 100_000 + b"]",
    "not a number": lambda: b"[NaN, Infinity]",
    "a number": lambda: b"17",
    "a text": lambda: b'"text"',
    "nothing": lambda: b"null",
    "a list of numbers": lambda: b"[1, 2, 3]",
    "a feed of numbers": _json([{"x": 17}]),
    "an array that is a number": _json([{"x": array() | {"array": 17}}]),
    "an array in the place of a feed": _json([array()]),
    "an array at the top": _json(array()),
    "an iteration at the top": _json(_iteration(outputs={"x": array()})),
    "results in results": _json(_results(["r", [_results()]])),
    "an iteration in an iteration": _json(_results(["r", [_iteration(outputs=_iteration(outputs={}))]])),
    "a runner that is a list": _json(_results([["r"], [_iteration(outputs={"x": array()})]])),
    "a runner without iterations": _json(_results(["r", []])),
    "no runner": _json(_results()),
    "runners that are a number": _json({"lst": 17, "polygraphy_class": "RunResults"}),
    "a time of 10^400": lambda: json.dumps(
        _results(["r", [_iteration(outputs={"x": array()}, runtime="TIME")]])
    ).replace('"TIME"', "1e400").encode(),
    "a time of 400 digits": lambda: json.dumps(
        _results(["r", [_iteration(outputs={"x": array()}, runtime="TIME")]])
    ).replace('"TIME"', "9" * 400).encode(),
    "names that are half a pair": _json([{"\ud800": array()}]),
    "a name of a megabyte": _json([{"n" * (1 << 20): array()}]),
    "a name that is empty": _json([{"": array()}]),
    "a type that is a class": _json([{"x": array(biopsy_dtype="finfo")}]),
    "a type that is a list": _json([{"x": array(biopsy_dtype=["int4"])}]),
    "text of a type that it is not": _json([{"x": array(biopsy_dtype="text<U8")}]),
    "base64 that is none": _json([{"x": array() | {"array": "=" * 1000}}]),
    "an unknown class": _json([{"x": {"polygraphy_class": "\x1b[31mTensor" * 100}}]),
    "a torch tensor": _json([{"x": {"polygraphy_class": "Tensor", "array": ""}}]),
    "an old archive of 4.3 GB": _json([{"x": "BOMB"}]),
    "an old archive of 4.3 GB in an array": lambda: json.dumps(
        [{"x": array(bomb(4352 << 20, said=len(_FLOATS), beginning=_FLOATS))}]
    ).encode(),
    "an old archive of two names": lambda: json.dumps([{"x": array(packed(("a", _FLOATS), ("b", b"")))}]).encode(),
    "an old archive of nothing": lambda: json.dumps([{"x": array(packed())}]).encode(),
}  # fmt: skip


# .safetensors


def safetensors(header: object, data: bytes = b"", *, length: int | None = None) -> bytes:
    """A .safetensors file of this header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def _entry(start: int = 0, end: int = 8, shape: tuple[object, ...] = (2,), dtype: object = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}


def _indexed(*tensors: object, entry: Mapping[str, object] | None = None, size: int = 8) -> bytes:
    metadata = {"biopsy": json.dumps(_tensors(*tensors))}
    return safetensors({"__metadata__": metadata, "x": entry or _entry()}, bytes(size))


SAFETENSORS: dict[str, Callable[[], bytes]] = {
    "seven bytes": lambda: bytes(7),
    "a header of 2^63": lambda: safetensors({"x": _entry()}, bytes(8), length=1 << 63),
    "a header of 2^64": lambda: safetensors({"x": _entry()}, bytes(8), length=(1 << 64) - 1),
    "a header of nothing": lambda: safetensors(b""),
    "a header that is a list": lambda: safetensors([]),
    "a header nested 10,000 deep": lambda: safetensors(b'{"a":' * 10_000),
    "metadata nested 100 deep": lambda: safetensors(b'{"__metadata__":' * 100 + b"{}" + b"}" * 100),
    "overlapping tensors": lambda: safetensors({"x": _entry(), "y": _entry()}, bytes(8)),
    "a gap": lambda: safetensors({"x": _entry(), "y": _entry(16, 24)}, bytes(24)),
    "a tensor that ends before it begins": lambda: safetensors({"x": _entry(8, 0)}, bytes(8)),
    "one name twice": lambda: safetensors(
        b'{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"x":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}}',
        bytes(12),
    ),
    "one key twice": lambda: safetensors(
        b'{"x":{"dtype":"F32","dtype":"F64","shape":[2],"shape":[1],"data_offsets":[0,8],"data_offsets":[0,8]}}',
        bytes(8),
    ),
    "an unknown type": lambda: safetensors({"x": _entry(dtype="F7")}, bytes(8)),
    "a type that is a number": lambda: safetensors({"x": _entry(dtype=7)}, bytes(8)),
    "half bytes": lambda: safetensors({"x": _entry(0, 1, dtype="F4")}, bytes(1)),
    "a shape of 2^62": lambda: safetensors({"x": _entry(shape=(HUGE, HUGE))}, bytes(8)),
    "a shape of 2^64": lambda: safetensors({"x": _entry(shape=(1 << 64,))}, bytes(8)),
    "a negative shape": lambda: safetensors({"x": _entry(shape=(-2,))}, bytes(8)),
    "a shape of fractions": lambda: safetensors({"x": _entry(shape=(2.5,))}, bytes(8)),
    "a shape of 0 times 2^62": lambda: safetensors({"x": _entry(0, 0, shape=(0, HUGE))}),
    "rank 10^5": lambda: safetensors({"x": _entry(0, 4, shape=(1,) * 100_000)}, bytes(4)),
    "not a number in the metadata": lambda: safetensors(b'{"__metadata__":{"biopsy":NaN}}'),
    "metadata that are a list": lambda: safetensors({"__metadata__": [], "x": _entry()}, bytes(8)),
    "metadata that are numbers": lambda: safetensors({"__metadata__": {"biopsy": 7}, "x": _entry()}, bytes(8)),
    "an index that is not JSON": lambda: safetensors(
        {"__metadata__": {"biopsy": "[" * 10_000}, "x": _entry()}, bytes(8)
    ),
    "an index with a type that is a class": lambda: _indexed(
        ["x", "x", "finfo"], entry=_entry(shape=(1, 8), dtype="U8")
    ),
    "an index with text of no length": lambda: _indexed(
        ["x", "x", "<U0"], entry=_entry(0, 0, (HUGE // 2, 0), "U8"), size=0
    ),
    "an index with objects": lambda: _indexed(["x", "x", "O"], entry=_entry(shape=(1, 8), dtype="U8")),
    "an index with characters that do not exist": lambda: safetensors(
        {"__metadata__": {"biopsy": json.dumps(_tensors(["x", "x", "<U1"]))}, "x": _entry(0, 4, (4,), "U8")},
        b"\xff" * 4,
    ),
    "5,000 tensors": lambda: safetensors(
        {f"x{number}": _entry(4 * number, 4 * number + 4, (1,)) for number in range(5_000)}, bytes(20_000)
    ),
}

HUGE = 1 << 62


# All of them


def _in_archive(data: Callable[[], bytes]) -> Callable[[], bytes]:
    return lambda: packed(("x.npy", data()))


def _in_json(data: Callable[[], bytes]) -> Callable[[], bytes]:
    return lambda: json.dumps([{"x": array(data())}]).encode()


HOSTILE: dict[str, tuple[str, Callable[[], bytes]]] = {
    **{f"npz: {name}": (".npz", make) for name, make in NPZ.items()},
    **{f"npy in npz: {name}": (".npz", _in_archive(make)) for name, make in NPY.items()},
    **{f"npy in json: {name}": (".json", _in_json(make)) for name, make in NPY.items()},
    **{f"json: {name}": (".json", make) for name, make in JSON.items()},
    **{f"safetensors: {name}": (".safetensors", make) for name, make in SAFETENSORS.items()},
}
"""Name -> (extension, what makes the bytes)."""
