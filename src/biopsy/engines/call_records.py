"""Every call of an engine or a session is recorded while it lasts (``EngineCall``): a crash can then be told of.

It is done once, where the classes are made, so that neither an engine nor who calls one can forget it. So is what a
session may do with its inputs and must give (``run_contract``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from biopsy.isolation.engine_call import EngineCall

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


def record_calls_of_engine(engine_class: type) -> None:
    """Have calls of the methods that a class of engines defines recorded."""
    for name, (stage, description) in OF_ENGINES.items():
        found = engine_class.__dict__.get(name)
        if isinstance(found, classmethod):
            setattr(engine_class, name, classmethod(_recorded(found.__func__, stage, description, _name_of_class)))
        elif callable(found):
            wrapped = _recorded(found, stage, description, _label_of_engine)
            setattr(engine_class, name, _signing(wrapped) if name in {"build", "load"} else wrapped)


def record_calls_of_session(session_class: type) -> None:
    """Have calls of the methods that a class of sessions defines recorded."""
    for name, (stage, description) in OF_SESSIONS.items():
        found = session_class.__dict__.get(name)
        if callable(found):
            method = _recorded(found, stage, description, _label_of_session)
            setattr(session_class, name, _held_to_contract(method) if name == "run" else method)


def _recorded(method: _Method, stage: str, description: str, name_of: Callable[[Any], str]) -> _Method:
    @wraps(method)
    def recorded(self: Any, *args: Any, **kwargs: Any) -> Any:
        with EngineCall(name_of(self), stage, description):
            return method(self, *args, **kwargs)

    return recorded


def _signing(method: _Method) -> _Method:
    """Write into each session that a method returns which engine has made it, if it is one for the model."""
    from biopsy.engines.run_contract import require_session

    @wraps(method)
    def signed(self: Any, *args: Any, **kwargs: Any) -> Any:
        session = method(self, *args, **kwargs)
        model = next((one for one in (*args, *kwargs.values()) if hasattr(one, "data")), None)
        require_session(session, _label_of_engine(self), model, self.capabilities)
        session.made_by = _label_of_engine(self)
        return session

    return signed


def _held_to_contract(method: _Method) -> _Method:
    from biopsy.engines.run_contract import run_by_contract

    @wraps(method)
    def run(self: Any, feed: Any) -> Any:
        return run_by_contract(self, _label_of_session(self), lambda fed: method(self, fed), feed)

    return run


def _name_of_class(engine_class: Any) -> str:
    return str(getattr(engine_class, "name", engine_class.__name__))


def _label_of_engine(engine: Any) -> str:
    return str(getattr(engine, "label", "") or _name_of_class(type(engine)))


def _label_of_session(session: Any) -> str:
    return str(session.made_by or type(session).__name__)
