"""A module that a command line names, and what it is called with.

``PKG.MOD:FACTORY`` is imported as Python would import it in the current folder, and called without arguments: the code
of a person who named it. Files of tensors are not code: what would have to run something to be read is refused.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from biopsy import errors
from biopsy.tensors.files import read_feeds
from biopsy.text import did_you_mean
from biopsy.torch.arrays import as_tensor, imported
from biopsy.torch.calls import Arguments, ModuleExitsError, persons_code, require_evaluation, said

_PLACE = "PKG.MOD:FACTORY"


@dataclass(frozen=True, kw_only=True)
class NamedModule:
    """What a factory gave: the module, and arguments to call it with, None if it gave none."""

    module: Any
    given: Arguments | None


def named_call(text: str, file: Path | None) -> tuple[Any, Arguments]:
    """The module that ``PKG.MOD:FACTORY`` names, and what it is called with: what a file holds, or else FACTORY gives.

    Raises what ``named_module`` and ``arguments_in`` raise, and UsageError if there are no arguments.
    """
    named = named_module(text)
    given = named.given if file is None else arguments_in(file, named.module)
    if given is None:
        raise errors.UsageError(
            f"{text} gives a module and nothing to call it with",
            next_steps=["--args FILE", "return module, (x,)    in the factory"],
        )
    return named.module, given


def named_module(text: str) -> NamedModule:
    """Import the function that ``PKG.MOD:FACTORY`` names, call it, and take what it gives: a module, or a module with
    a tuple of arguments, or with that and a dictionary of keyword arguments. A module may stand there itself.

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
    return NamedModule(module=module, given=_given(text, rest))


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


def _given(text: str, rest: list[Any]) -> Arguments | None:
    if not rest:
        return None
    args, kwargs = rest[0], rest[1] if len(rest) == 2 else {}
    if isinstance(args, imported().Tensor):
        args = (args,)
    if len(rest) > 2 or not isinstance(args, tuple | list) or not isinstance(kwargs, Mapping):
        raise errors.UsageError(f"{text} gives more than (module, args) or (module, args, kwargs)")
    return Arguments(args=tuple(args), kwargs=dict(kwargs))


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
    place, trace = "", error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file.startswith(folder):
            place = f" in {Path(file).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


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
