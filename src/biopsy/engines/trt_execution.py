"""Runs a TensorRT engine on the first GPU, by its execution context and a few calls to NVIDIA's driver: memory, copies
and a stream (CUDA Driver API). Every machine with such a GPU has the driver's library, so nothing has to be installed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import numpy as np

from biopsy import errors
from biopsy.engines.trt_settings import ENGINE, Package, build_failure
from biopsy.tensors.results import Array
from biopsy.tensors.types import dtype_named


class Execution:
    """An engine with its execution context and memory. Raises EngineFailure with stage "run"."""

    def __init__(self, package: Package, engine: Any) -> None:
        self._package = package
        self._engine = engine
        self._allocator = _allocator_class(package.module)
        package.logged.clear()
        try:
            self._memory = Memory()
            self._context = engine.create_execution_context()
        except Exception as error:
            raise self._failure(str(error)) from error
        if self._context is None:
            raise self._failure(None)

    def run(self, feed: Mapping[str, Array], outputs: Sequence[str]) -> dict[str, Array]:
        """Run once; returns the outputs by name, in the order of ``outputs``."""
        self._package.logged.clear()
        try:
            with ExitStack() as blocks:
                self._choose_profile(feed)
                arrays = self._feed(feed, blocks)
                places = {name: self._place(name, blocks) for name in outputs if name in self._names}
                if not self._context.execute_async_v3(self._memory.stream):
                    raise self._failure(None)
                self._memory.wait()
                del arrays  # kept until here, since the engine reads their memory
                return {name: place.value() for name, place in places.items()}
        except errors.BiopsyError:
            raise
        except Exception as error:
            raise self._failure(str(error)) from error

    @property
    def _names(self) -> list[str]:
        return [self._engine.get_tensor_name(number) for number in range(self._engine.num_io_tensors)]

    def _choose_profile(self, feed: Mapping[str, Array]) -> None:
        """Use the first optimization profile for these shapes; keep the present one if there is none."""
        engine = self._engine
        for number in range(engine.num_optimization_profiles if engine.num_optimization_profiles > 1 else 0):
            if all(self._is_within(name, feed[name], number) for name in self._names if name in feed):
                if not self._context.set_optimization_profile_async(number, self._memory.stream):
                    raise self._failure(None)
                self._memory.wait()
                return

    def _is_within(self, name: str, value: Array, profile: int) -> bool:
        """Whether a profile allows the shape of an input; its values instead, if the input is a shape tensor."""
        engine, sizes = self._engine, tuple(value.shape)
        bounds = engine.get_tensor_profile_shape(name, profile)
        if engine.is_shape_inference_io(name):
            bounds, sizes = engine.get_tensor_profile_values(profile, name), tuple(value.ravel().tolist())
        if not bounds:
            return True
        least, _, most = bounds
        return len(least) == len(sizes) and all(
            low <= size <= high for low, size, high in zip(least, sizes, most, strict=True)
        )

    def _feed(self, feed: Mapping[str, Array], blocks: ExitStack) -> list[Array]:
        """Set the inputs; returns arrays that must live until the engine has run."""
        arrays = []
        for name in self._names:
            if name not in feed:
                continue
            array = np.ascontiguousarray(feed[name], self._dtype(name)).reshape(feed[name].shape)
            arrays.append(array)
            on_host = self._on_host(name)
            address = array.ctypes.data if on_host else blocks.enter_context(self._memory.block()).put(array)
            is_shape_set = self._context.set_input_shape(name, array.shape)
            if not is_shape_set or not self._context.set_tensor_address(name, address):
                raise self._failure(None)
        return arrays

    def _place(self, name: str, blocks: ExitStack) -> _OnGpu | _OnHost:
        dtype = self._dtype(name)
        if self._on_host(name):
            place = _OnHost(self._context, name, dtype)
            self._context.set_tensor_address(name, place.address)
            return place
        block = blocks.enter_context(self._memory.block())
        allocator = self._allocator(block)
        self._context.set_tensor_address(name, block.grow(1))
        self._context.set_output_allocator(name, allocator)
        return _OnGpu(self._context, name, dtype, block, allocator)

    def _on_host(self, name: str) -> bool:
        return bool(self._engine.get_tensor_location(name) == self._package.module.TensorLocation.HOST)

    def _dtype(self, name: str) -> np.dtype[Any]:
        dtype = numpy_type(self._engine.get_tensor_dtype(name))
        if dtype is None:
            kind = self._engine.get_tensor_dtype(name).name
            raise errors.EngineFailure(
                f"{name!r} is {kind}, which cannot be handed over", engine=ENGINE, stage="run", kind="UnsupportedType"
            )
        return dtype

    def _failure(self, message: str | None) -> errors.EngineFailure:
        """A failure with this message, or with the first error that TensorRT logged."""
        logged = build_failure(self._package)
        text = message if message is not None else logged.message.partition(": ")[2]
        kind = logged.kind if logged.kind != "BuildFailure" else "RunFailure"
        return errors.EngineFailure(
            f"{self._package.name} does not run it: {text}", engine=ENGINE, stage="run", kind=kind
        )


class _OnGpu:
    """An output in the GPU's memory, whose size is known after the run."""

    def __init__(self, context: Any, name: str, dtype: np.dtype[Any], block: Block, allocator: Any) -> None:
        self._context, self._name, self._dtype = context, name, dtype
        self._block, self._allocator = block, allocator

    def value(self) -> Array:
        shape = self._allocator.shape
        return self._block.get(
            tuple(self._context.get_tensor_shape(self._name) if shape is None else shape), self._dtype
        )


class _OnHost:
    """An output in main memory, such as a shape."""

    def __init__(self, context: Any, name: str, dtype: np.dtype[Any]) -> None:
        self._context, self._name = context, name
        most = max(int(context.get_max_output_size(name)), dtype.itemsize)
        self._buffer = np.zeros(-(-most // dtype.itemsize), dtype)
        self.address = self._buffer.ctypes.data

    def value(self) -> Array:
        shape = tuple(self._context.get_tensor_shape(self._name))
        array: Array = self._buffer[: int(np.prod(shape))].reshape(shape).copy()
        return array


def _allocator_class(trt: Any) -> Any:
    class Allocator(trt.IOutputAllocator):  # type: ignore[misc]
        """Allocates an output's memory once its size is known."""

        def __init__(self, block: Block) -> None:
            trt.IOutputAllocator.__init__(self)
            self._block = block
            self.shape: tuple[int, ...] | None = None

        def reallocate_output(self, name: str, memory: int, size: int, alignment: int) -> int:
            """TensorRT calls this before it writes the output."""
            del name, memory, alignment
            return self._block.grow(size)

        def reallocate_output_async(self, name: str, memory: int, size: int, alignment: int, stream: int) -> int:
            """Newer versions call this instead."""
            del stream
            return self.reallocate_output(name, memory, size, alignment)

        def notify_shape(self, name: str, shape: Any) -> None:
            """TensorRT calls this once the shape is known."""
            del name
            self.shape = tuple(shape)

    return Allocator


_LIBRARIES = ("libcuda.so.1", "nvcuda.dll")
_Pointer = ctypes.c_uint64


class NoGpuError(Exception):
    """The machine has no driver or no GPU; the text says which."""


@cache
def _driver() -> Any:
    """The driver's library, initialized. Raises NoGpuError."""
    driver = None
    for name in _LIBRARIES:
        try:
            driver = ctypes.CDLL(name)
            break
        except OSError:
            continue
    if driver is None:
        raise NoGpuError(f"there is no NVIDIA driver here ({_LIBRARIES[0]} cannot be loaded)")
    status = driver.cuInit(0)
    if status:
        raise NoGpuError(f"NVIDIA's driver does not start: {_error_name(driver, status)}")
    return driver


def _error_name(driver: Any, status: int) -> str:
    text = ctypes.c_char_p()
    driver.cuGetErrorName(status, ctypes.byref(text))
    return text.value.decode() if text.value else f"error {status}"


def _call(name: str, *arguments: Any) -> None:
    driver = _driver()
    status = getattr(driver, name)(*arguments)
    if status:
        raise RuntimeError(f"{name}: {_error_name(driver, status)}")


def gpu_names() -> list[str]:
    """Names of this machine's GPUs."""
    try:
        count, names = ctypes.c_int(), []
        _call("cuDeviceGetCount", ctypes.byref(count))
        for number in range(count.value):
            device, text = ctypes.c_int(), ctypes.create_string_buffer(128)
            _call("cuDeviceGet", ctypes.byref(device), number)
            _call("cuDeviceGetName", text, len(text), device)
            names.append(text.value.decode())
        return names
    except (NoGpuError, RuntimeError):
        return []


def require_gpu(wanted: str, *next_steps: str) -> None:
    """Raise EngineMissing unless there is a GPU; ``wanted`` says what needs it."""
    try:
        _driver()
        problem = "" if gpu_names() else "the driver finds none"
    except NoGpuError as error:
        problem = str(error)
    if problem:
        raise errors.EngineMissing(f"{wanted} needs an NVIDIA GPU: {problem}", next_steps=next_steps)


class Memory:
    """Memory of the first GPU and a stream on it, for one engine. Raises RuntimeError if a call to the driver fails."""

    def __init__(self) -> None:
        device, context, stream = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        _call("cuDeviceGet", ctypes.byref(device), 0)
        _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        _call("cuCtxSetCurrent", context)
        _call("cuStreamCreate", ctypes.byref(stream), 0)
        self.stream = int(stream.value or 0)

    @contextmanager
    def block(self) -> Iterator[Block]:
        """A block of memory that is freed at the end."""
        block = Block()
        try:
            yield block
        finally:
            block.free()

    def wait(self) -> None:
        """Wait until the stream has done everything."""
        _call("cuStreamSynchronize", ctypes.c_void_p(self.stream))


class Block:
    """A block of the GPU's memory that can grow; growing loses its content."""

    def __init__(self) -> None:
        self.address = 0
        self._size = 0

    def grow(self, size: int) -> int:
        """Make the block at least ``size`` bytes; returns its address, which is never 0."""
        if not self.address or size > self._size:
            self.free()
            pointer = _Pointer()
            _call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(max(size, 1)))
            self.address, self._size = int(pointer.value), max(size, 1)
        return self.address

    def put(self, array: Array) -> int:
        """Copy an array into the block; returns the address."""
        plain = np.ascontiguousarray(array)
        self.grow(plain.nbytes)
        if plain.nbytes:
            _call("cuMemcpyHtoD_v2", _Pointer(self.address), plain.ctypes.data_as(ctypes.c_void_p), _size(plain))
        return self.address

    def get(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Copy the block's content into an array."""
        array: Array = np.empty(shape, dtype)
        if array.nbytes:
            _call("cuMemcpyDtoH_v2", array.ctypes.data_as(ctypes.c_void_p), _Pointer(self.address), _size(array))
        return array

    def free(self) -> None:
        """Free the memory."""
        if self.address:
            _call("cuMemFree_v2", _Pointer(self.address))
            self.address = self._size = 0


def _size(array: Array) -> ctypes.c_size_t:
    return ctypes.c_size_t(array.nbytes)


_NUMPY_NAMES = {
    "FLOAT": "float32", "HALF": "float16", "BF16": "bfloat16", "INT8": "int8", "INT32": "int32", "INT64": "int64",
    "BOOL": "bool", "UINT8": "uint8", "FP8": "float8_e4m3fn", "E8M0": "float8_e8m0fnu", "INT4": "int4",
    "FP4": "float4_e2m1fn",
}  # fmt: skip
"""TensorRT's name of a type -> the name in NumPy or ml_dtypes."""


def numpy_name(dtype: Any) -> str:
    """The name in NumPy or ml_dtypes of one of TensorRT's types; empty if there is none."""
    return _NUMPY_NAMES.get(dtype.name, "")


def numpy_type(dtype: Any) -> np.dtype[Any] | None:
    """NumPy's type for one of TensorRT's; None if there is none, or if TensorRT packs several elements in a byte."""
    name = numpy_name(dtype)
    return None if name in {"", "int4", "float4_e2m1fn"} else dtype_named(name)
