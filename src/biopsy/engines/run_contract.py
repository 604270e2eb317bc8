"""Wrappers around the methods of engines: they record each call while it lasts, so that a crash can be explained, and
check what ``build``, ``load`` and ``run`` return.

``Session.run`` must compute from the given inputs, and its outputs must not change later. Plug-ins break that by
mistake: they write into an array that the next engine reads, or return the same buffer twice.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from biopsy import errors
from biopsy.model.index import index_bytes
from biopsy.processes.engine_calls import EngineCall
from biopsy.slow_imports import np
from biopsy.tensors.results import Array, Feed
from biopsy.text import some_of

OF_ENGINES: Mapping[str, tuple[str, str]] = {
    "version": ("load", "its package was loaded"),
    "devices": ("load", "it looked for devices"),
    "build": ("build", "it built the model"),
    "load": ("load", "it loaded the model"),
    "refusals": ("build", "it told which nodes it refuses"),
}
"""Method of an engine -> its stage, and what the engine does, for the message about a crash."""

OF_SESSIONS: Mapping[str, tuple[str, str]] = {
    "run": ("run", "it ran the model"),
    "layers": ("build", "it told its layers"),
    "save": ("build", "it saved the model"),
}

_Method = Callable[..., Any]


def record_calls(kind: type, methods: Mapping[str, tuple[str, str]]) -> None:
    """Wrap those of the methods that a class of engines or sessions defines itself."""
    checks = {"build": _checking_session, "load": _checking_session, "run": _checking_run}
    for name, (stage, description) in methods.items():
        attribute: Any = kind.__dict__.get(name)
        is_class_method = isinstance(attribute, classmethod)
        if is_class_method or callable(attribute):
            method = _recorded(attribute.__func__ if is_class_method else attribute, stage, description)
            method = checks[name](method) if name in checks else method
            setattr(kind, name, classmethod(method) if is_class_method else method)


def _recorded(method: _Method, stage: str, description: str) -> _Method:
    @wraps(method)
    def recorded(self: Any, *args: Any, **kwargs: Any) -> Any:
        with EngineCall(_label_of(self), stage, description):
            return method(self, *args, **kwargs)

    return recorded


def _checking_session(method: _Method) -> _Method:
    @wraps(method)
    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        session = method(self, *args, **kwargs)
        model = next((argument for argument in (*args, *kwargs.values()) if hasattr(argument, "data")), None)
        require_session(session, _label_of(self), model, self.capabilities)
        session.made_by = _label_of(self)
        return session

    return checked


def _checking_run(method: _Method) -> _Method:
    @wraps(method)
    def run(self: Any, feed: Any) -> Any:
        return run_by_contract(self, _label_of(self), lambda fed: method(self, fed), feed)

    return run


def _label_of(called: Any) -> str:
    """The label of an engine or of a session's engine; else the name of the class."""
    kind = called if isinstance(called, type) else type(called)
    label = getattr(called, "made_by", "") or getattr(called, "label", "") or getattr(kind, "name", "")
    return label if isinstance(label, str) and label else kind.__name__


MISSING_OUTPUT = "missing output"
"""The kind of the EngineFailure of an engine that does not return an output of the model."""


def run_by_contract(session: Any, label: str, run: Callable[[Feed], Any], feed: Feed) -> dict[str, Array]:
    """Call ``run`` with read-only inputs; the outputs, in the model's order, are arrays that nothing else writes to.

    Raises EngineFailure with kind "missing output", BiopsyError for another breach of the contract, and what ``run``
    raises.
    """
    fed = dict(feed)
    for name, value in feed.items():
        if isinstance(value, np.ndarray) and value.flags.writeable:
            fed[name] = value.view()
            fed[name].flags.writeable = False
    checksums = {} if is_ours(type(session)) else _checksums(feed)
    try:
        outputs = run(fed)
    except (errors.BiopsyError, MemoryError):
        raise
    except Exception as error:
        if is_ours(type(session)):
            raise
        text = f"engine {label!r} raised {type(error).__name__} and no EngineFailure while it ran the model: {error}"
        writes = isinstance(error, ValueError) and "read-only" in str(error)
        details = ["its inputs are read-only: an engine that changes them must copy them first"] if writes else []
        raise errors.BiopsyError(text, details=details, next_steps=_steps(label)) from error
    checksums_after = _checksums(feed) if checksums else {}
    written = [name for name, checksum in checksums.items() if checksums_after[name] != checksum]
    if written:
        raise _broken(label, f"writes into its input {some_of(map(repr, written))}, past NumPy's protection")
    if not isinstance(outputs, Mapping):
        raise _broken(label, f"gives {_kind(outputs)} and no dictionary of outputs")
    place = _places(session, label, outputs)
    arrays = {name: _array(label, name, outputs[name]) for name in sorted(outputs, key=place.__getitem__)}
    inputs = {_address(value): value for value in fed.values() if hasattr(value, "__array_interface__")}
    return {
        name: np.array(array, order="K") if not session.gives_new_arrays or _is_input(array, inputs) else array
        for name, array in arrays.items()
    }


def require_session(session: Any, label: str, model: Any, capabilities: Any) -> None:
    """Raise unless an engine has returned a session that has every output of the model.

    Raises BiopsyError if it is not a session, EngineFailure with kind "missing output". Outputs are not checked for
    built-in engines, which leave out outputs on request, and for engines that only return the model's own outputs.
    """
    if not hasattr(session, "gives_new_arrays"):
        raise _broken(label, f"gives {_kind(session)} and no Session of what it has built")
    if model is None or is_ours(type(session)) or not capabilities.marks_any_tensor:
        return
    index = index_bytes(model.data, model.folder)
    missing = [name for name in (index.names[tensor] for tensor in index.outputs) if name not in session.outputs]
    if missing:
        raise _missing(label, "build", missing)


def is_ours(kind: type) -> bool:
    """Whether a class belongs to biopsy, not to a plug-in."""
    return kind.__module__.partition(".")[0] == "biopsy"


def _checksums(feed: Feed) -> dict[str, int]:
    """A checksum of each array, since native code can write to read-only arrays."""
    arrays = {name: value for name, value in feed.items() if isinstance(value, np.ndarray) and value.dtype.kind != "O"}
    return {name: zlib.crc32(np.ascontiguousarray(value).view(np.uint8).data) for name, value in arrays.items()}


def _places(session: Any, label: str, tensors: Mapping[Any, Any]) -> dict[str, int]:
    """Name of each returned tensor -> the place of its output. Raises for names that are missing or wrong."""
    from biopsy.tensors.types import item_of

    place_of = {name: place for place, name in enumerate(session.outputs)}
    places: dict[str, int] = {}
    unknown = []
    for name in tensors:
        if not isinstance(name, str):
            raise _broken(label, f"names an output {name!r:.80}, {_kind(name)} and no text")
        output = name if name in place_of else item_of(name, place_of)
        if output is None:
            unknown.append(name)
        else:
            places[name] = place_of[output]
    returned = set(places.values())
    missing = [name for name, place in place_of.items() if place not in returned]
    if missing:
        raise _missing(label, "run", missing)
    if unknown:
        raise _broken(label, f"gives {some_of(map(repr, unknown))}, no output of the model")
    return places


def _array(label: str, name: str, value: Any) -> Array:
    if not isinstance(value, np.ndarray | np.generic):
        raise _broken(label, f"gives {_kind(value)} as output {name!r}, and no array of NumPy")
    array: Array = np.asarray(value)
    if array.dtype.kind not in "OMm":
        return array
    from biopsy.tensors.types import is_text, text

    if not is_text(array) or not all(isinstance(element, str | bytes) for element in array.flat):
        raise _broken(label, f"gives an array of {array.dtype} as output {name!r}: no tensor has such elements")
    return text(array)


def _is_input(array: Array, inputs: Mapping[int, Array]) -> bool:
    """Whether an output shares the memory of an input, which its owner may change; ``inputs`` are by address.

    It is then a read-only view, or a new array that native code made at the address of the input.
    """
    if array.flags.writeable:
        return _address(array) in inputs
    return any(np.may_share_memory(array, value) for value in inputs.values())


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _kind(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def _missing(label: str, stage: errors.Stage, missing: list[str]) -> errors.EngineFailure:
    return errors.EngineFailure(  # what it gives instead differs from piece to piece
        f"it does not give output {some_of(map(repr, missing))} of the model",
        engine=label.partition(":")[0],
        stage=stage,
        kind=MISSING_OUTPUT,
    )


def _broken(label: str, breach: str) -> errors.BiopsyError:
    return errors.BiopsyError(f"engine {label!r} {breach}", next_steps=_steps(label))


def _steps(label: str) -> list[str]:
    return [f"from biopsy.testing import check_engine; check_engine({label!r})    in Python, shows all of its faults"]
