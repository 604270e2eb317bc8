"""Calling a module: with copies of its arguments, and with its state restored after each run; and the modules and
arguments that a command line names.
"""

from __future__ import annotations

import copy
import inspect
import os
import random
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from traceback import walk_tb
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from biopsy import errors
from biopsy.tensors.files import read_feeds
from biopsy.text import did_you_mean, first_line, first_of, shortened
from biopsy.torch.arrays import Leaf, as_tensor, imported, leaves_of
from biopsy.torch.facts import place_of_exception

_LONGEST = 500


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """The arguments of a module."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def copied(self) -> Arguments:
        """Copies of the arguments, since a module may change them."""
        args, kwargs = imported("torch.utils._pytree").tree_map(_copied, (self.args, dict(self.kwargs)))
        return Arguments(args=args, kwargs=kwargs)


def _copied(value: Any) -> Any:
    """A copy of a tensor or of an object with tensors, such as a dataclass; the value itself if it cannot be copied."""
    if isinstance(value, imported().Tensor):
        return value.detach().clone()
    try:
        with imported().no_grad():
            return copy.deepcopy(value)
    except Exception:
        return value


class ModuleExitsError(Exception):
    """The code of a module calls ``sys.exit``. It stands for SystemExit, which would end biopsy."""


@contextmanager
def user_code() -> Iterator[None]:
    """Run the user's code, and restore the current folder. Raises ModuleExitsError if the code calls ``sys.exit``."""
    folder = Path.cwd()
    try:
        yield
    except SystemExit as error:
        raise ModuleExitsError(f"this code ends Python: sys.exit({error.code!r})") from error
    finally:
        os.chdir(folder)


def arguments_of(args: Any, kwargs: Mapping[str, Any] | None = None) -> Arguments:
    """The arguments of ``module(*args, **kwargs)``; ``args`` that is not a tuple or list is the only argument."""
    return Arguments(args=tuple(args) if isinstance(args, tuple | list) else (args,), kwargs=dict(kwargs or {}))


def require_evaluation(module: Any, name: str = "the module", hint: str = "module.eval()") -> None:
    """Raise UsageError unless this is a module in evaluation mode. ``name`` and ``hint`` are for the message."""
    if not isinstance(module, imported().nn.Module):
        raise errors.UsageError(f"module={type(module).__name__}: it is a torch.nn.Module")
    if module.training:
        raise errors.UsageError(
            f"{name} is in training mode, in which dropout and BatchNorm give other values than an ONNX model",
            next_steps=[hint],
        )


def leaves_of_call(function: Callable[..., Any], given: Arguments) -> list[Leaf]:
    """The values that a module or program returns, without gradients and in tensors of their own.

    Warnings are silenced, since the module is called many times. Raises what the module raises, and ModuleExitsError if
    it calls ``sys.exit``.
    """
    fresh = given.copied()
    with imported().no_grad(), user_code(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        leaves = leaves_of(function(*fresh.args, **fresh.kwargs))
        return [
            Leaf(each.path, each.value.detach().clone() if isinstance(each.value, imported().Tensor) else each.value)
            for each in leaves
        ]


def eager_leaves(module: Any, state: ModuleState, given: Arguments) -> list[Leaf]:
    """The values that the module returns in PyTorch; its state is restored. Raises CannotCompare if it raises."""
    try:
        return leaves_of_call(module, given)
    except Exception as error:
        raise errors.CannotCompare(
            f"the module itself raises {exception_text(error)}",
            details=[f"at {place_of_exception(error, module).with_code}"],
            next_steps=["run module(*args, **kwargs) by hand"],
        ) from error
    finally:
        state.restore()


def exception_text(error: BaseException) -> str:
    """An exception in one line: its type, and the first line of its message."""
    message = shortened(first_line(str(error)), _LONGEST)
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


_PIECE = 1 << 20
_INTEGERS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}


class ModuleState:
    """The state of a module when this was made: its buffers and plain attributes.

    Parameters are not copied, since they may fill the memory; ``restore`` checks that they have not changed.
    """

    def __init__(self, module: Any) -> None:
        self._buffers = [(name, buffer, buffer.detach().clone()) for name, buffer in module.named_buffers()]
        self._parameters = [
            (name, parameter, parameter._version, _digest(parameter)) for name, parameter in module.named_parameters()
        ]
        self._are_sure = False
        parts = list(module.modules())
        self._plain = PlainState(map(vars, parts), (*parts, *(buffer for _, buffer, _ in self._buffers)))
        self._numbers = [
            (f"{name}.{key}".lstrip("."), vars(part), key, value)
            for name, part in module.named_modules()
            for key, value in vars(part).items()
            if type(value) in (int, float)
        ]
        self.changed: set[str] = set()
        """Names of the buffers and numbers that runs have changed, as far as ``restore`` has seen."""

    def restore(self) -> None:
        """Restore the module. Raises CannotCompare if it has changed its own parameters, which are lost."""
        self.changed |= {name for name, now, key, value in self._numbers if now.get(key) not in (value,)}
        self._plain.restore()
        torch = imported()
        with torch.no_grad():
            for name, buffer, before in self._buffers:
                is_same = buffer.shape == before.shape and (
                    torch.equal(buffer, before)
                    or (buffer.is_floating_point() and torch.allclose(buffer, before, rtol=0, atol=0, equal_nan=True))
                )
                if not is_same:
                    self.changed.add(name)
                    buffer.resize_(before.shape).copy_(before)
        changed = [name for name, parameter, version, _ in self._parameters if parameter._version != version]
        if not changed and not self._are_sure:
            # Writing into ``.data`` increases no version, so the parameters themselves are read, once.
            self._are_sure = True
            changed = [name for name, parameter, _, digest in self._parameters if _digest(parameter) != digest]
        if changed:
            raise errors.CannotCompare(
                f"the module changes its own parameters when it runs ({changed[0]}): no two runs can be compared"
            )


def _digest(parameter: Any) -> int | None:
    """The sum of the elements' bit patterns; None for types without any."""
    integers = _INTEGERS.get(parameter.element_size())
    try:
        flat = parameter.detach().view(getattr(imported(), integers or "")).reshape(-1)
        if flat.device.type == "cpu":
            data = flat.numpy().view(np.uint8)
            rest = data.size % 8
            # Words of 64 bits, which overflow, since that is ten times as fast.
            return int(np.add.reduce(data[: data.size - rest].view(np.uint64))) + int(data[data.size - rest :].sum())
        return sum(int(part.sum()) for part in flat.split(_PIECE))  # in pieces, since a sum makes 64-bit copies
    except (AttributeError, RuntimeError):
        return None


def training_hint(module: Any) -> str:
    """A sentence, after a space, on the parts of a module that are in training mode; "" if none is."""
    names = [name for name, part in module.named_modules() if name and part.training]
    if not names:
        return ""
    return f" In training mode: {first_of(names, 3)}; module.eval() puts every part into evaluation mode."


@contextmanager
def preserved(module: Any) -> Iterator[ModuleState]:
    """Restore a module, its gradients and the random number generators at the end."""
    torch = imported()
    state = ModuleState(module)
    gradients = [(parameter, parameter.grad) for parameter in module.parameters()]
    python_random, numpy_random = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng():
            yield state
    finally:
        random.setstate(python_random)
        np.random.set_state(numpy_random)
        for parameter, gradient in gradients:
            parameter.grad = gradient
        state.restore()


_MOST = 100_000
"""The most objects that are looked at, since a module may refer to a data set without end."""

_NOT_KEPT = (str, bytes, int, float, complex, bool, type, FunctionType, ModuleType)


class PlainState:
    """The contents of all lists, dictionaries, sets and tensors that can be reached from some objects.

    ``others`` are objects that are restored elsewhere. Parameters are not copied, and functions are not followed.
    """

    def __init__(self, objects: Iterable[Any], others: Iterable[Any]) -> None:
        self._contents: list[tuple[Any, Any]] = []
        seen = {id(other) for other in others}
        self._kept: list[Any] = []
        waiting = deque(objects)
        while waiting and len(self._kept) < _MOST:
            value = waiting.popleft()
            if id(value) not in seen and not isinstance(value, _NOT_KEPT):
                seen.add(id(value))
                self._kept.append(value)  # as long as it lives, nothing else has its id
                waiting.extend(self._inside(value))

    def _inside(self, value: Any) -> Iterable[Any]:
        """The objects that an object refers to; its content is recorded."""
        torch = imported()
        if isinstance(value, torch.Tensor):
            # Tracing leaves fake tensors, of other classes, behind.
            if type(value) is torch.Tensor and value.layout == torch.strided and not value.is_meta:
                self._contents.append((value, value.detach().clone()))
            return ()
        if isinstance(value, list | deque | set | dict):
            before = dict(value) if isinstance(value, dict) else list(value)
            self._contents.append((value, before))
            return list(before.values()) if isinstance(before, dict) else before
        if isinstance(value, tuple):
            return value
        return [vars(value)] if isinstance(getattr(value, "__dict__", None), dict) else ()

    def restore(self) -> None:
        """Restore the contents, in the same objects."""
        torch = imported()
        for value, before in self._contents:
            if isinstance(value, torch.Tensor):
                if value.shape != before.shape:
                    value.resize_(before.shape)
                if not torch.equal(value, before):
                    with torch.no_grad():
                        value.copy_(before)
            elif list(map(id, _entries(value))) != list(map(id, _entries(before))):
                value.clear()
                value.extend(before) if isinstance(value, list | deque) else value.update(before)


def _entries(value: Any) -> Iterable[Any]:
    return (*value, *value.values()) if isinstance(value, dict) else value


_PLACE = "PKG.MOD:FACTORY"


def named_call(text: str, file: Path | None) -> tuple[Any, Arguments]:
    """The module that ``PKG.MOD:FACTORY`` names, and its arguments: those in ``file``, else those that FACTORY gives.

    The user's code is run, but a file may not hold code. Raises what ``named_module`` and ``arguments_in`` raise, and
    UsageError if there are no arguments.
    """
    module, given = named_module(text)
    given = given if file is None else arguments_in(file, module)
    if given is None:
        raise errors.UsageError(
            f"{text} gives a module and nothing to call it with",
            next_steps=["--args FILE", "return module, (x,)    in the factory"],
        )
    return module, given


def named_module(text: str) -> tuple[Any, Arguments | None]:
    """Import and call the function that ``PKG.MOD:FACTORY`` names, from the current folder as Python would.

    FACTORY returns a module, or a tuple of a module, its arguments, and perhaps its keyword arguments; it may also be a
    module itself. Returns the module and its arguments, or None for the latter if FACTORY gives none.

    Raises UsageError if there is no such function, if it raises anything or returns something else, or if the module is
    in training mode; EngineMissing without PyTorch.
    """
    package, name = _parts(text)
    torch = imported()
    with _factory_code(text):
        value = getattr(import_module(package), name, None)
        if value is None:
            near = did_you_mean(name, (other for other in vars(import_module(package)) if not other.startswith("_")))
            hint = f"{_PLACE}    a function in a module"
            raise errors.UsageError(f"{package} has no {name!r}", next_steps=[*near, hint])
        if not isinstance(value, torch.nn.Module):
            if not callable(value):
                raise errors.UsageError(f"{text} is not a function, but a {type(value).__name__}")
            value = value()
    module, *arguments = value if isinstance(value, tuple) else (value,)
    if not isinstance(module, torch.nn.Module):
        raise errors.UsageError(f"{text} gives no torch.nn.Module, but a {type(module).__name__}")
    require_evaluation(module, f"the module of {text}", "return module.eval()")
    if not arguments:
        return module, None
    args, kwargs = arguments[0], arguments[1] if len(arguments) == 2 else {}
    if isinstance(args, torch.Tensor):
        args = (args,)
    if len(arguments) > 2 or not isinstance(args, tuple | list) or not isinstance(kwargs, Mapping):
        raise errors.UsageError(f"{text} gives more than (module, args) or (module, args, kwargs)")
    return module, Arguments(args=tuple(args), kwargs=dict(kwargs))


def _parts(text: str) -> tuple[str, str]:
    package, _, name = text.partition(":")
    if text.endswith((".pt2", ".pt", ".pth", ".ckpt")):
        raise errors.UsageError(
            f"{text} is not loaded: reading a saved program or module executes code that the file holds",
            next_steps=[f"{_PLACE}    a function that makes the module"],
        )
    if package.endswith(".py") and name:
        module = ".".join(Path(package).with_suffix("").parts).lstrip("/.")
        raise errors.UsageError(f"{text!r} is not {_PLACE}", next_steps=[f"{module}:{name}"])
    if not name or not all(part.isidentifier() for part in (*package.split("."), name)):
        hint = (
            "a file is named without .py, and with dots for its folders"
            if "/" in text or text.endswith(".py")
            else "a function in a module"
        )
        raise errors.UsageError(f"{text!r} is not {_PLACE}", next_steps=[f"{_PLACE}    {hint}"])
    return package, name


@contextmanager
def surroundings(*, is_stdout_ours: bool = False) -> Iterator[None]:
    """Let the user's code import from the current folder at any time, as in ``python -m``.

    With ``is_stdout_ours``, what it prints goes to stderr, since another program reads biopsy's own output.
    """
    with _importable(str(Path.cwd())), redirect_stdout(sys.stderr) if is_stdout_ours else nullcontext():
        yield


@contextmanager
def _importable(folder: str) -> Iterator[None]:
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


@contextmanager
def _factory_code(text: str) -> Iterator[None]:
    """Run the code of ``PKG.MOD:FACTORY``, which may import from the current folder. Raises UsageError if it fails."""
    folder = str(Path.cwd())
    with _importable(folder):
        try:
            with user_code():
                yield
        except errors.BiopsyError:
            raise
        except ModuleNotFoundError as error:
            if error.name is None or error.name != text.partition(":")[0].partition(".")[0]:
                raise errors.UsageError(f"{text} failed{_line(error, folder)}: {exception_text(error)}") from error
            raise errors.UsageError(
                f"there is no Python module {error.name!r} in {folder}, nor is one installed",
                next_steps=["cd to the folder that it is imported from", "PYTHONPATH=FOLDER biopsy ..."],
            ) from error
        except Exception as error:
            cause = error.__cause__ if isinstance(error, ModuleExitsError) else error
            raise errors.UsageError(f"{text} failed{_line(cause or error, folder)}: {exception_text(error)}") from error


def _line(error: BaseException, folder: str) -> str:
    """The last line in the user's own files that an exception came through, as `` in models.py:3``; "" if none."""
    frames = ((Path(frame.f_code.co_filename), line) for frame, line in walk_tb(error.__traceback__))
    own = [f" in {file.name}:{line}" for file, line in frames if str(file).startswith(folder)]
    return own[-1] if own else ""


def arguments_in(path: Path, module: Any) -> Arguments:
    """The arguments of a module that a file holds.

    A .pt file, written by ``torch.save``, holds a tuple or list of arguments, a dictionary of keyword arguments, or one
    tensor; it is loaded with ``weights_only=True``. A .safetensors, .npz or .json file holds tensors that are named as
    the parameters of ``module.forward``, or numbered: 0, 1, ...

    Raises UsageError if it cannot be used, DataError if it is damaged or would run code.
    """
    if path.suffix.lower() == ".pt2":
        raise errors.UsageError(f"{path} is not loaded: reading a saved program executes code that the file holds")
    if path.suffix.lower() not in (".pt", ".pth"):
        return _arguments_of_tensors(path, module)
    if not path.is_file():
        raise errors.UsageError(f"cannot read {path}: there is no such file")
    try:
        content = imported().load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise errors.DataError(
            f"cannot read {path}: it is damaged, or holds more than tensors, numbers, texts, lists and dictionaries, "
            "which is not loaded because that can run code",
            next_steps=["torch.save((x, mask), 'inputs.pt')"],
        ) from error
    if isinstance(content, imported().Tensor):
        return Arguments(args=(content,))
    if isinstance(content, Mapping) and all(isinstance(name, str) for name in content):
        return Arguments(args=(), kwargs=dict(content))
    if isinstance(content, tuple | list):
        return Arguments(args=tuple(content))
    raise errors.DataError(f"{path} holds no arguments, but a {type(content).__name__}")


def _arguments_of_tensors(path: Path, module: Any) -> Arguments:
    feeds = read_feeds(path)
    if len(feeds) != 1:
        raise errors.UsageError(f"{path} holds {len(feeds)} samples: a module is called with one")
    tensors = {name: as_tensor(value) for name, value in feeds[0].items()}
    if set(tensors) == {str(place) for place in range(len(tensors))}:
        return Arguments(args=tuple(tensors[str(place)] for place in range(len(tensors))))
    signature = inspect.signature(module.forward)
    try:
        bound = signature.bind(**tensors)
    except TypeError as error:
        raise errors.UsageError(
            f"{path} does not fit {type(module).__name__}.forward{signature}: {error}",
            next_steps=["name the tensors as the parameters; or 0, 1, ... by their places"],
        ) from error
    return Arguments(args=bound.args, kwargs=bound.kwargs)
