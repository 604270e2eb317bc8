"""Every call of an engine is recorded while it lasts, so that a crash can be told of, and ``Session.run`` is held to
its contract.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from biopsy import errors
from biopsy.model.index import index_bytes
from biopsy.processes.own_process import EngineCall
from biopsy.tensors.results import Array, Feed
from biopsy.text import some_of

OF_ENGINES: Mapping[str, tuple[str, str]] = {
    "version": ("load", "its package was loaded"),
    "devices": ("load", "it looked for devices"),
    "build": ("build", "it built the model"),
    "load": ("load", "it loaded the model"),
    "refusals": ("build", "it told which nodes it refuses"),
}
"""Method of an engine -> the stage that it is, and what is going on meanwhile."""

OF_SESSIONS: Mapping[str, tuple[str, str]] = {
    "run": ("run", "it ran the model"),
    "layers": ("build", "it told its layers"),
    "save": ("build", "it saved the model"),
}

_Method = Callable[..., Any]


def record_calls(kind: type, methods: Mapping[str, tuple[str, str]]) -> None:
    """Have calls of the methods that a class of engines or sessions defines recorded, and held to their contract."""
    around = {"build": _signing, "load": _signing, "run": _held_to_contract}
    for name, (stage, description) in methods.items():
        found: Any = kind.__dict__.get(name)
        is_of_class = isinstance(found, classmethod)
        if is_of_class or callable(found):
            method = _recorded(found.__func__ if is_of_class else found, stage, description)
            method = around[name](method) if name in around else method
            setattr(kind, name, classmethod(method) if is_of_class else method)


def _recorded(method: _Method, stage: str, description: str) -> _Method:
    @wraps(method)
    def recorded(self: Any, *args: Any, **kwargs: Any) -> Any:
        with EngineCall(_label_of(self), stage, description):
            return method(self, *args, **kwargs)

    return recorded


def _signing(method: _Method) -> _Method:
    """Write into each session that a method returns which engine has made it, if it is one for the model."""

    @wraps(method)
    def signed(self: Any, *args: Any, **kwargs: Any) -> Any:
        session = method(self, *args, **kwargs)
        model = next((one for one in (*args, *kwargs.values()) if hasattr(one, "data")), None)
        require_session(session, _label_of(self), model, self.capabilities)
        session.made_by = _label_of(self)
        return session

    return signed


def _held_to_contract(method: _Method) -> _Method:
    @wraps(method)
    def run(self: Any, feed: Any) -> Any:
        return run_by_contract(self, _label_of(self), lambda fed: method(self, fed), feed)

    return run


def _label_of(called: Any) -> str:
    """What a person calls an engine, or the one that has made a session; of a class, and in need, its name."""
    kind = called if isinstance(called, type) else type(called)
    own = getattr(called, "made_by", "") or getattr(called, "label", "") or getattr(kind, "name", "")
    return own if isinstance(own, str) and own else kind.__name__


# What ``Session.run`` may do with its inputs and must give, held where every call of it is made (see above).
#
# A comparison is only worth something if each engine computes from the values that were given, and if what it gave is
# still there when it is compared. Engines of others break that by mistake: they write into an array that the next
# engine reads, or give the same buffer twice.

MISSING_OUTPUT = "missing output"
"""The kind of the EngineFailure of an engine that does not give an output of the model."""


def run_by_contract(session: Any, label: str, run: Callable[[Feed], Any], feed: Feed) -> dict[str, Array]:
    """Run with inputs that cannot be written to; the outputs are arrays that nobody else writes to, in their order.

    Raises EngineFailure with kind "missing output" if one is not there, BiopsyError for what breaks the contract in
    another way, and what ``run`` raises.
    """
    import numpy as np

    fed = dict(feed)
    for name, value in feed.items():
        if isinstance(value, np.ndarray) and value.flags.writeable:
            fed[name] = value.view()
            fed[name].flags.writeable = False
    before = {} if is_ours(type(session)) else _checksums(feed)
    try:
        given = run(fed)
    except (errors.BiopsyError, MemoryError):
        raise
    except Exception as error:
        if is_ours(type(session)):
            raise
        text = f"engine {label!r} raised {type(error).__name__} and no EngineFailure while it ran the model: {error}"
        writes = isinstance(error, ValueError) and "read-only" in str(error)
        why = ["its inputs are read-only: an engine that changes them must copy them first"] if writes else []
        raise errors.BiopsyError(text, details=why, next_steps=_steps(label)) from error
    now = _checksums(feed) if before else {}
    written = [name for name, checksum in before.items() if now[name] != checksum]
    if written:
        raise _broken(label, f"writes into its input {some_of(map(repr, written))}, past NumPy's protection")
    if not isinstance(given, Mapping):
        raise _broken(label, f"gives {_kind(given)} and no dictionary of outputs")
    place = _places(session, label, given)
    arrays = {name: _array(label, name, given[name]) for name in sorted(given, key=place.__getitem__)}
    inputs = {_address(value): value for value in fed.values() if hasattr(value, "__array_interface__")}
    return {
        name: np.array(array, order="K") if not session.gives_new_arrays or _is_input(array, inputs) else array
        for name, array in arrays.items()
    }


def require_session(made: Any, label: str, model: Any, able: Any) -> None:
    """Raise unless an engine, ``able`` to do this and that, has built a session that gives every output of a model.

    Raises BiopsyError for what is no session, EngineFailure with kind "missing output". Not asked are the engines of
    biopsy itself, which leave out what they are told to, and those that give only outputs that the model had before.
    """
    if not hasattr(made, "gives_new_arrays"):
        raise _broken(label, f"gives {_kind(made)} and no Session of what it has built")
    if model is None or is_ours(type(made)) or not able.marks_any_tensor:
        return
    index = index_bytes(model.data, model.folder)
    missing = [name for name in (index.names[tensor] for tensor in index.outputs) if name not in made.outputs]
    if missing:
        raise _missing(label, "build", missing, made.outputs)


def is_ours(made: type) -> bool:
    """Whether a class is of biopsy itself, and of no plug-in."""
    return made.__module__.partition(".")[0] == "biopsy"


def _checksums(feed: Feed) -> dict[str, int]:
    """A number for the bytes of each array: native code heeds no protection."""
    import numpy as np

    arrays = {name: value for name, value in feed.items() if isinstance(value, np.ndarray) and value.dtype.kind != "O"}
    return {name: zlib.crc32(np.ascontiguousarray(value).view(np.uint8).data) for name, value in arrays.items()}


def _places(session: Any, label: str, given: Mapping[Any, Any]) -> dict[str, int]:
    """Name of each tensor that was given -> the place of its output. Raises for names that are missing or wrong."""
    from biopsy.tensors.types import item_of

    wanted = {name: place for place, name in enumerate(session.outputs)}
    found: dict[str, int] = {}
    strange = []
    for name in given:
        if not isinstance(name, str):
            raise _broken(label, f"names an output {name!r:.80}, {_kind(name)} and no text")
        output = name if name in wanted else item_of(name, wanted)
        if output is None:
            strange.append(name)
        else:
            found[name] = wanted[output]
    given_places = set(found.values())
    missing = [name for name, place in wanted.items() if place not in given_places]
    if missing:
        raise _missing(label, "run", missing, list(given))
    if strange:
        raise _broken(label, f"gives {some_of(map(repr, strange))}, no output of the model")
    return found


def _array(label: str, name: str, value: Any) -> Array:
    import numpy as np

    if not isinstance(value, np.ndarray | np.generic):
        raise _broken(label, f"gives {_kind(value)} as output {name!r}, and no array of NumPy")
    array: Array = np.asarray(value)
    if array.dtype.kind not in "OMm":
        return array
    from biopsy.tensors.types import is_text, text

    if not is_text(array) or not all(isinstance(one, str | bytes) for one in array.flat):
        raise _broken(label, f"gives an array of {array.dtype} as output {name!r}: no tensor has such elements")
    return text(array)


def _is_input(array: Array, inputs: Mapping[int, Array]) -> bool:
    """Whether an output is an input as it was fed, whose values its owner may change; ``inputs`` by their addresses.

    Such a view is read-only, but for one that native code has made anew from where the input begins.
    """
    import numpy as np

    if array.flags.writeable:
        return _address(array) in inputs
    return any(np.may_share_memory(array, value) for value in inputs.values())


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _kind(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def _missing(label: str, stage: errors.Stage, missing: list[str], given: Any) -> errors.EngineFailure:
    instead = some_of(map(repr, given)) or "nothing"
    return errors.EngineFailure(
        f"it does not give output {some_of(map(repr, missing))} of the model, but {instead}",
        engine=label.partition(":")[0],
        stage=stage,
        kind=MISSING_OUTPUT,
    )


def _broken(label: str, how: str) -> errors.BiopsyError:
    return errors.BiopsyError(f"engine {label!r} {how}", next_steps=_steps(label))


def _steps(label: str) -> list[str]:
    return [f"from biopsy.testing import check_engine; check_engine({label!r})    in Python, shows all of its faults"]
