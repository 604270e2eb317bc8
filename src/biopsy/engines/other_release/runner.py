"""The script that runs in the interpreter of another release: it works on the package's objects as ``classes`` asks.

That interpreter has no biopsy and may be older than any Python that biopsy supports. So this script knows nothing of
engines: it imports modules, gets and sets attributes, calls objects, and returns plain values; other values stay here
and are known by numbers. It imports the standard library, NumPy, ``wire`` and ``processes.forks``, which all run in
Python 3.8 or newer.

Its arguments are a mode, the paths of these two files, descriptors, and a session. In mode ``once`` it answers over the
first descriptor until that is closed. In mode ``warm`` it does so until it is asked to serve: then it listens at the
second one, and each connection gets a fork of this process (see ``processes.forks``). The last one is a lifeline: when
its other end is closed, this process is killed.
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
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_HANDED_ON = "descriptors"
_FUNCTIONS: dict[str, Any] = {"str": str, "list": list, "len": len, "bool": bool}


def _file(name: str, path: str) -> ModuleType:
    """Import a module from a file outside the import path."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Objects:
    """The objects that stay here, by number, and the operations on them."""

    def __init__(self, wire: ModuleType) -> None:
        self._wire = wire
        self._objects: dict[int, Any] = {}
        self._arguments: dict[int, Any] = {}  # of the call that made an object, which may share an array's memory
        self._count = 0
        self._seconds = 0.0  # the median time of the last call

    def serve(self, connection: socket.socket) -> str:
        """Answer until a message says ``serve`` or the connection is closed; returns "serve" or "gone"."""
        while True:
            try:
                message = self._wire.Incoming(connection, self._object)
            except self._wire.GoneError:
                return "gone"
            tree = message.tree
            for number in tree.get("free", ()):
                self._objects.pop(number, None)
                self._arguments.pop(number, None)
            if tree["do"] == "serve":
                return "serve"
            outgoing = self._wire.Outgoing(self._reference)
            self._seconds = 0.0
            try:
                result, arguments = self._perform(tree, message)
                value = outgoing.value(result)
                if arguments is not None and isinstance(value, dict) and "object" in value:
                    self._arguments[value["object"]] = arguments
                answer = {"value": value, "seconds": self._seconds}
            except Exception as error:
                outgoing = self._wire.Outgoing(self._reference)
                answer = {"error": {"type": type(error).__name__, "text": _text_of(error)}}
            try:
                outgoing.write_to(connection, answer)
            except self._wire.GoneError:
                return "gone"

    def forget(self) -> None:
        """Drop all objects."""
        self._objects.clear()
        self._arguments.clear()
        gc.collect()

    def _perform(self, tree: dict[str, Any], message: Any) -> tuple[Any, Any]:
        """The result of an operation, and the arguments if it is a call."""
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
            function = target if action == "call" else getattr(target, tree["name"])
            arguments = message.value(tree["args"]), message.value(tree["named"])
            return self._timed(function, arguments, tree.get("times", 1)), arguments
        if action == "item":
            return target[message.value(tree["key"])], None
        return _FUNCTIONS[action](target), None

    def _timed(self, function: Any, arguments: Any, times: int) -> Any:
        """The result of a call, which is made some times."""
        seconds = []
        for _ in range(times):
            started = time.perf_counter()
            result = function(*arguments[0], **arguments[1])
            seconds.append(time.perf_counter() - started)
        self._seconds = sorted(seconds)[times // 2]
        return result

    def _attribute(self, target: Any, name: str) -> Any:
        """An attribute; ``Method()`` for a method, which all objects of the type then have."""
        value = getattr(target, name)
        of_type = getattr(type(target), name, None)
        own = getattr(target, "__dict__", None) or {}
        if callable(of_type) and callable(value) and not isinstance(of_type, type) and name not in own:
            return Method()
        return value

    def _object(self, tree: dict[str, Any]) -> Any:
        if "built_in" in tree:
            return {"str": str, "int": int, "float": float, "bool": bool}[tree["built_in"]]
        return self._objects[tree["object"]]

    def _reference(self, value: Any) -> dict[str, Any]:
        """The JSON that represents an object which stays here."""
        if isinstance(value, Method):
            return {"method": True}
        kept = value.value if isinstance(value, Kept) else value
        self._count += 1
        self._objects[self._count] = kept
        return {"object": self._count, "type": type(kept).__module__ + "." + type(kept).__name__}


class Method:
    """Represents a method of an object, which is called by its name."""


class Kept:
    """Wraps a value that must stay here although it could be sent."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _facts(packages: list[str]) -> dict[str, str]:
    from importlib import metadata

    versions = {"python": platform.python_version()}
    for name in packages:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _text_of(error: Exception) -> str:
    try:
        return str(error)
    except Exception:
        return type(error).__name__


def _work_for(session: int) -> None:
    """Write the session that this process works for into its name: its memory counts as that session's."""
    try:
        with open("/proc/self/comm", "w") as name:
            name.write(f"for {session}")
    except OSError:
        pass


def main() -> None:
    """Serve, then end at once, since a regular exit would take a while to free what is loaded."""
    mode, wire, forks_file, talking, listening, lifeline, session = sys.argv[1:]
    forks = _file("biopsy_forks", forks_file)
    forks.end_with(int(lifeline))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the asking process gets it, too, and ends this one
    _work_for(int(session))
    connection = socket.socket(fileno=int(talking))
    try:
        objects = Objects(_file("biopsy_wire", wire))
    except Exception as error:  # NumPy is missing, or is broken
        connection.sendall(json.dumps({"problem": _text_of(error)}).encode() + b"\n")
        os._exit(1)
    connection.sendall(b'{"works": true}\n')
    if objects.serve(connection) == "serve" and mode == "warm":
        # From here on this runs in a fork, one for each connection.
        objects.forget()
        gc.freeze()
        loop = forks.ForkLoop([connection.detach()], listening=int(listening))
        request = loop.next_request()
        _work_for(request["session"])
        os.chdir(request["folder"])
        objects.serve(socket.socket(fileno=request[_HANDED_ON][0]))
    os._exit(0)


main()
