"""The side of the other release: does in its interpreter what ``classes`` tells, and says what came of it.

It is apart from the engines since no biopsy is installed there, and none could be: the interpreter may be older than
any that biopsy supports. So it knows nothing of engines either. It gets a module, an attribute or an element, sets one,
calls what it got, and hands back plain values; everything else stays here under a number. It imports the standard
library, NumPy, and two files that keep to the same (``wire`` and ``processes.forks``), and runs in any Python from 3.8
on.

Its words are a mode, the paths of these files, and descriptors. ``once`` talks over the first one until that ends.
``warm`` does so too, until it is told to serve: from then on it listens at the second one, and each connection gets a
fork of what has been loaded by then, as ``processes.forks`` says. The last descriptor is a pipe or socket that nobody
writes to: when its other end is gone, this process is killed.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import json
import os
import platform
import signal
import socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_HANDED_ON = "descriptors"
_FUNCTIONS: dict[str, Any] = {"str": str, "list": list, "len": len, "bool": bool}


def _file(name: str, path: str) -> ModuleType:
    """A module from a file that does not stand where modules are looked for."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Objects:
    """The values that stay here, by numbers, and what is done to them."""

    def __init__(self, wire: ModuleType) -> None:
        self._wire = wire
        self._held: dict[int, Any] = {}
        self._given: dict[int, Any] = {}  # what an object was made from: it may share the memory of an array
        self._count = 0

    def serve(self, connection: socket.socket) -> str:
        """Do what is told until somebody says ``serve``, or has gone: "serve" or "gone"."""
        while True:
            try:
                message = self._wire.Incoming(connection, self._known)
            except self._wire.GoneError:
                return "gone"
            tree = message.tree
            for number in tree.get("free", ()):
                self._held.pop(number, None)
                self._given.pop(number, None)
            if tree["do"] == "serve":
                return "serve"
            outgoing = self._wire.Outgoing(self._reference)
            try:
                done, given = self._done(tree, message)
                told = outgoing.value(done)
                if given is not None and isinstance(told, dict) and "object" in told:
                    self._given[told["object"]] = given
                answer = {"value": told}
            except Exception as error:
                outgoing = self._wire.Outgoing(self._reference)
                answer = {"error": {"type": type(error).__name__, "text": _text_of(error)}}
            try:
                outgoing.write_to(connection, answer)
            except self._wire.GoneError:
                return "gone"

    def forget(self) -> None:
        """Hold nothing any more."""
        self._held.clear()
        self._given.clear()
        gc.collect()

    def _done(self, tree: dict[str, Any], message: Any) -> tuple[Any, Any]:
        """What came of something; and what a call was given, which the object that it gave holds."""
        action = tree["do"]
        if action == "module":
            return Kept(importlib.import_module(tree["name"])), None
        if action == "facts":
            return _facts(tree["packages"]), None
        if action == "gather":
            return self._wire.gathered(message.value(tree["objects"]), tree["steps"]), None
        target = message.value(tree["on"])
        if action == "get":
            return self._attribute(target, tree["name"]), None
        if action == "set":
            setattr(target, tree["name"], message.value(tree["value"]))
            return None, None
        if action in ("call", "method"):
            called = target if action == "call" else getattr(target, tree["name"])
            given = message.value(tree["args"]), message.value(tree["named"])
            return called(*given[0], **given[1]), given
        if action == "item":
            return target[message.value(tree["key"])], None
        return _FUNCTIONS[action](target), None

    def _attribute(self, target: Any, name: str) -> Any:
        """An attribute; of a method it is only said that it is one, which holds for all objects of this type."""
        found = getattr(target, name)
        of_type = getattr(type(target), name, None)
        own = getattr(target, "__dict__", None) or {}
        if callable(of_type) and callable(found) and not isinstance(of_type, type) and name not in own:
            return Method()
        return found

    def _known(self, tree: dict[str, Any]) -> Any:
        if "built_in" in tree:
            return {"str": str, "int": int, "float": float, "bool": bool}[tree["built_in"]]
        return self._held[tree["object"]]

    def _reference(self, value: Any) -> dict[str, Any]:
        """A value that stays here, as it is told of."""
        if isinstance(value, Method):
            return {"method": True}
        held = value.value if isinstance(value, Kept) else value
        self._count += 1
        self._held[self._count] = held
        return {"object": self._count, "type": type(held).__module__ + "." + type(held).__name__}


class Method:
    """Stands for a method of what was asked: it is called by its name."""


class Kept:
    """A value that stays here whatever it is."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _facts(packages: list[str]) -> dict[str, str]:
    from importlib import metadata

    found = {"python": platform.python_version()}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _text_of(error: Exception) -> str:
    try:
        return str(error)
    except Exception:
        return type(error).__name__


def _work_for(session: int) -> None:
    """Say in the name of this process for which session it works: the memory of that one includes it."""
    try:
        with open("/proc/self/comm", "w") as name:
            name.write(f"for {session}")
    except OSError:
        pass


def main() -> None:
    """Serve, and end: at once, since taking apart what is loaded takes a while."""
    mode, wire, forks_file, talking, listening, lifeline, session = sys.argv[1:]
    forks = _file("biopsy_forks", forks_file)
    forks.end_with(int(lifeline))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who asks hears of it, and ends this process
    _work_for(int(session))
    connection = socket.socket(fileno=int(talking))
    try:
        objects = Objects(_file("biopsy_wire", wire))
    except Exception as error:  # NumPy is missing, or is broken
        connection.sendall(json.dumps({"problem": _text_of(error)}).encode() + b"\n")
        os._exit(1)
    connection.sendall(b'{"works": true}\n')
    if objects.serve(connection) == "serve" and mode == "warm":
        # Each connection gets a fork, which ends here with its work.
        objects.forget()
        gc.freeze()
        loop = forks.ForkLoop([connection.detach()], listening=int(listening))
        request = loop.next_request()
        _work_for(request["session"])
        os.chdir(request["folder"])
        objects.serve(socket.socket(fileno=request[_HANDED_ON][0]))
    os._exit(0)


main()
