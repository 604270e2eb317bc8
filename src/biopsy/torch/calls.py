"""A module and what it is called with, as a command line names them too: every run gets arguments and a module that no
other run has touched, and whatever it changes is put back.
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

_LONGEST = 500


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What a module is called with; ``kwargs`` by name."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def copied(self) -> Arguments:
        """The same values in tensors of their own, for a module may change what it is given."""
        args, kwargs = imported("torch.utils._pytree").tree_map(_copied, (self.args, dict(self.kwargs)))
        return Arguments(args=args, kwargs=kwargs)


def _copied(value: Any) -> Any:
    """A tensor, or an object that holds some, such as a dataclass; what cannot be copied is given as it is."""
    if isinstance(value, imported().Tensor):
        return value.detach().clone()
    try:
        with imported().no_grad():
            return copy.deepcopy(value)
    except Exception:
        return value


class ModuleExitsError(Exception):
    """The code of a module ends Python. As an exception like others it cannot end biopsy, with a status of its own."""


@contextmanager
def persons_code() -> Iterator[None]:
    """Run a person's code; the current folder is the same afterwards.

    Raises ModuleExitsError where that code would end Python.
    """
    folder = Path.cwd()
    try:
        yield
    except SystemExit as error:
        raise ModuleExitsError(f"this code ends Python: sys.exit({error.code!r})") from error
    finally:
        os.chdir(folder)


def arguments_of(args: Any, kwargs: Mapping[str, Any] | None = None) -> Arguments:
    """The arguments of ``module(*args, **kwargs)``; what is neither a tuple nor a list is the only one."""
    return Arguments(args=tuple(args) if isinstance(args, tuple | list) else (args,), kwargs=dict(kwargs or {}))


def require_evaluation(module: Any, called: str = "the module", hint: str = "module.eval()") -> None:
    """Raise UsageError unless this is a module in evaluation mode; ``hint`` is what to type then."""
    if not isinstance(module, imported().nn.Module):
        raise errors.UsageError(f"module={type(module).__name__}: it is a torch.nn.Module")
    if module.training:
        raise errors.UsageError(
            f"{called} is in training mode, in which dropout and BatchNorm give other values than an ONNX model",
            next_steps=[hint],
        )


def called(function: Callable[..., Any], given: Arguments) -> list[Leaf]:
    """What a module or program gives, without gradients, in tensors of its own. Raises what it raises.

    It is called many times: what it warns of, its author has seen before. Raises ModuleExitsError if it ends Python.
    """
    fresh = given.copied()
    with imported().no_grad(), persons_code(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        leaves = leaves_of(function(*fresh.args, **fresh.kwargs))
        return [
            Leaf(each.path, each.value.detach().clone() if isinstance(each.value, imported().Tensor) else each.value)
            for each in leaves
        ]


def eager(module: Any, state: ModuleState, given: Arguments) -> list[Leaf]:
    """What the module itself gives; it is as before afterwards. Raises CannotCompare if it raises."""
    try:
        return called(module, given)
    except Exception as error:
        raise errors.CannotCompare(
            f"the module itself raises {said(error)}", next_steps=["run module(*args, **kwargs) by hand"]
        ) from error
    finally:
        state.restore()


def said(error: BaseException) -> str:
    """An exception in one line: its type, and the first line of its message."""
    message = shortened(first_line(str(error)), _LONGEST)
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


# A module as it was: whatever running it changes is put back.
#
# That is its buffers (statistics of BatchNorm, caches, counters), plain attributes and what they hold, gradients,
# whether its parts are in training mode, and the generators of random numbers. Parameters are not copied, since they
# may be all of the memory; that they stay as they are is made sure of.

_PIECE = 1 << 20
_INTEGERS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}


class ModuleState:
    """What a module was when this was made. ``restore`` puts it back."""

    def __init__(self, module: Any) -> None:
        self._buffers = [(name, buffer, buffer.detach().clone()) for name, buffer in module.named_buffers()]
        self._parameters = [
            (name, parameter, parameter._version, _digest(parameter)) for name, parameter in module.named_parameters()
        ]
        self._are_sure = False
        parts = list(module.modules())
        self._plain = PlainState(map(vars, parts), (*parts, *(buffer for _, buffer, _ in self._buffers)))
        self.changed: set[str] = set()
        """Names of the buffers that runs have changed, as far as ``restore`` has seen."""

    def restore(self) -> None:
        """Put everything back. Raises CannotCompare if the module has changed its own parameters: they are lost."""
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
            # What writes into ``.data`` counts no versions: so parameters are read, once.
            self._are_sure = True
            changed = [name for name, parameter, _, digest in self._parameters if _digest(parameter) != digest]
        if changed:
            raise errors.CannotCompare(
                f"the module changes its own parameters when it runs ({changed[0]}): no two runs can be compared"
            )


def _digest(parameter: Any) -> int | None:
    """The sum of its elements as integers, which does not depend on their order; None for what has no such form."""
    integers = _INTEGERS.get(parameter.element_size())
    try:
        flat = parameter.detach().view(getattr(imported(), integers or "")).reshape(-1)
        return sum(int(part.sum()) for part in flat.split(_PIECE))  # a sum is made of 64-bit copies
    except (AttributeError, RuntimeError):
        return None


def in_training(module: Any) -> str:
    """Which parts of a module are in training mode, as a sentence with a space before it; nothing if none is."""
    names = [name for name, part in module.named_modules() if name and part.training]
    if not names:
        return ""
    return f" In training mode: {first_of(names, 3)}; module.eval() puts every part into evaluation mode."


@contextmanager
def kept(module: Any) -> Iterator[ModuleState]:
    """Keep a module, its gradients and the generators of random numbers as they are, whatever happens inside."""
    torch = imported()
    state = ModuleState(module)
    gradients = [(parameter, parameter.grad) for parameter in module.parameters()]
    ours, numpys = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng():
            yield state
    finally:
        random.setstate(ours)
        np.random.set_state(numpys)
        for parameter, gradient in gradients:
            parameter.grad = gradient
        state.restore()


# What a module keeps, in its registers and in plain attributes: lists, dictionaries, tensors, objects.

_MOST = 100_000
"""Objects that are looked at: what a module merely refers to, such as a data set, may be without end."""

_NOT_KEPT = (str, bytes, int, float, complex, bool, type, FunctionType, ModuleType)


class PlainState:
    """The content of everything that can be reached from some objects. ``restore`` puts it back, in the same objects.

    ``others`` are objects that somebody else keeps. Parameters are not copied, nor what stands behind a function.
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
        """What can be reached from an object; its content is remembered."""
        torch = imported()
        if isinstance(value, torch.Tensor):
            # Tracing leaves stand-ins without values behind, of classes of their own.
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
        """Put everything back."""
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


# A module that a command line names, and what it is called with.
#
# ``PKG.MOD:FACTORY`` is imported as Python would import it in the current folder, and called without arguments: the
# code of a person who named it. Files of tensors are not code: what would have to run something to be read is refused.

_PLACE = "PKG.MOD:FACTORY"


def named_call(text: str, file: Path | None) -> tuple[Any, Arguments]:
    """The module that ``PKG.MOD:FACTORY`` names, and what it is called with: what a file holds, or else FACTORY gives.

    Raises what ``named_module`` and ``arguments_in`` raise, and UsageError if there are no arguments.
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
    """Import the function that ``PKG.MOD:FACTORY`` names, call it, and take what it gives: a module, or a module with
    a tuple of arguments, or with that and a dictionary of keyword arguments. A module may stand there itself.

    Returns the module, and what it is called with, None if that is not given.

    Raises UsageError if there is no such function, if it raises anything or gives something else, and if the module is
    in training mode; EngineMissing without PyTorch.
    """
    package, name = _parts(text)
    torch = imported()
    with _own_code(text):
        found = getattr(import_module(package), name, None)
        if found is None:
            near = did_you_mean(name, (one for one in vars(import_module(package)) if not one.startswith("_")))
            hint = f"{_PLACE}    a function in a module"
            raise errors.UsageError(f"{package} has no {name!r}", next_steps=[*near, hint])
        if not isinstance(found, torch.nn.Module):
            if not callable(found):
                raise errors.UsageError(f"{text} is no function, but a {type(found).__name__}")
            found = found()
    module, *rest = found if isinstance(found, tuple) else (found,)
    if not isinstance(module, torch.nn.Module):
        raise errors.UsageError(f"{text} gives no torch.nn.Module, but a {type(module).__name__}")
    require_evaluation(module, f"the module of {text}", "return module.eval()")
    if not rest:
        return module, None
    args, kwargs = rest[0], rest[1] if len(rest) == 2 else {}
    if isinstance(args, torch.Tensor):
        args = (args,)
    if len(rest) > 2 or not isinstance(args, tuple | list) or not isinstance(kwargs, Mapping):
        raise errors.UsageError(f"{text} gives more than (module, args) or (module, args, kwargs)")
    return module, Arguments(args=tuple(args), kwargs=dict(kwargs))


def _parts(text: str) -> tuple[str, str]:
    package, _, name = text.partition(":")
    if text.endswith((".pt2", ".pt", ".pth", ".ckpt")):
        raise errors.UsageError(
            f"{text} is not loaded: reading a saved program or module executes code that the file holds",
            next_steps=[f"{_PLACE}    a function that makes the module"],
        )
    if package.endswith(".py") and name:  # a file
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
    """While a person's code may run: what it imports late is found in the current folder, as in ``python -m``.

    ``is_stdout_ours``: what it prints goes to stderr, since another program reads what we print.
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
def _own_code(text: str) -> Iterator[None]:
    """Run a person's code: the current folder can be imported from, and stays the current one."""
    folder = str(Path.cwd())
    with _importable(folder):
        try:
            with persons_code():
                yield
        except errors.BiopsyError:
            raise
        except ModuleNotFoundError as error:
            if error.name is None or error.name != text.partition(":")[0].partition(".")[0]:
                raise errors.UsageError(f"{text} failed{_line(error, folder)}: {said(error)}") from error
            raise errors.UsageError(
                f"there is no Python module {error.name!r} in {folder}, nor is one installed",
                next_steps=["cd to the folder that it is imported from", "PYTHONPATH=FOLDER biopsy ..."],
            ) from error
        except Exception as error:
            cause = error.__cause__ if isinstance(error, ModuleExitsError) else error
            raise errors.UsageError(f"{text} failed{_line(cause or error, folder)}: {said(error)}") from error


def _line(error: BaseException, folder: str) -> str:
    """Where in the person's own files an exception came from, as `` in models.py:3``."""
    frames = ((Path(frame.f_code.co_filename), line) for frame, line in walk_tb(error.__traceback__))
    own = [f" in {file.name}:{line}" for file, line in frames if str(file).startswith(folder)]
    return own[-1] if own else ""


def arguments_in(path: Path, module: Any) -> Arguments:
    """What a file says that a module is called with.

    A .pt file, written by ``torch.save``, holds a tuple or list of arguments, a dictionary of keyword arguments, or one
    tensor; it is loaded with ``weights_only=True``. A .safetensors, .npz or .json file holds tensors named as the
    parameters of ``module.forward``, or by their places: 0, 1, ...

    Raises UsageError if it cannot be used, DataError if it is damaged or would run code.
    """
    if path.suffix.lower() == ".pt2":
        raise errors.UsageError(f"{path} is not loaded: reading a saved program executes code that the file holds")
    if path.suffix.lower() not in (".pt", ".pth"):
        return _of_tensors(path, module)
    if not path.is_file():
        raise errors.UsageError(f"cannot read {path}: there is no such file")
    try:
        held = imported().load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise errors.DataError(
            f"cannot read {path}: it is damaged, or holds more than tensors, numbers, texts, lists and dictionaries, "
            "which is not loaded because that can run code",
            next_steps=["torch.save((x, mask), 'inputs.pt')"],
        ) from error
    if isinstance(held, imported().Tensor):
        return Arguments(args=(held,))
    if isinstance(held, Mapping) and all(isinstance(name, str) for name in held):
        return Arguments(args=(), kwargs=dict(held))
    if isinstance(held, tuple | list):
        return Arguments(args=tuple(held))
    raise errors.DataError(f"{path} holds no arguments, but a {type(held).__name__}")


def _of_tensors(path: Path, module: Any) -> Arguments:
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
