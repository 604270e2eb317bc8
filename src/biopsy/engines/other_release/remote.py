"""An interpreter with another release, from here: how it is started, and its objects, used as if they were those of
this one.
"""

from __future__ import annotations

import builtins
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from biopsy import errors
from biopsy.engines.other_release import wire
from biopsy.engines.other_release.wire import GoneError, Incoming, Outgoing, WireError
from biopsy.processes import forks
from biopsy.processes.process import CannotStartError, Process, undisturbed
from biopsy.processes.warm import Connection, ServerGoneError
from biopsy.text import first_line, printable

_RUNNER = Path(__file__).with_name("runner.py")
_SECONDS_TO_END = 10.0
_SECONDS_TO_FORK = 120.0
_SECONDS_TO_START = 120.0


class RunnerProcess:
    """A runner that was started for this process: ``connection`` leads to it.

    ``mode`` is "once", or "warm" for one that can serve forks afterwards; see ``runner``. Raises EngineMissing.
    """

    def __init__(self, python: Path, mode: str) -> None:
        self.connection, theirs = socket.socketpair()
        self.inviting, listening = socket.socketpair(type=socket.SOCK_DGRAM)
        self._lifeline, their_lifeline = socket.socketpair()
        handed_on = [theirs.fileno(), listening.fileno(), their_lifeline.fileno()]
        files = (str(_RUNNER), mode, str(wire.__file__), str(forks.__file__))
        words = [str(python), "-I", *files, *map(str, handed_on), str(os.getsid(0))]
        try:
            self._process = Process(
                words, stdout=2, stderr=2, environment=undisturbed(), descriptors=handed_on, patient=False
            )
        except CannotStartError as error:
            raise errors.EngineMissing(f"the interpreter {python} cannot be started: {error.reason}") from error
        finally:
            for end in (theirs, listening, their_lifeline):
                end.close()
        said = _told(Connection(self.connection), _SECONDS_TO_START)
        self.connection.settimeout(None)
        if said.get("works") is not True:
            problem = said.get("problem")
            reason = first_line(problem) if isinstance(problem, str) else "it is no Python that works"
            self.close()
            raise errors.EngineMissing(
                f"the interpreter {printable(str(python))} cannot run an engine: {reason}",
                next_steps=["python=/path/of/an/environment/bin/python, of one that holds the package and NumPy"],
            )

    def status(self) -> int:
        """How it has ended, once its connection has: negative for a signal."""
        status = self._process.wait(_SECONDS_TO_END)
        return self._process.kill() if status is None else status

    def is_ready_to_fork(self) -> bool:
        """Whether it serves forks now, which it was told to."""
        return _told(Connection(self.connection), _SECONDS_TO_FORK).get("ready") is True

    def close(self) -> None:
        """End it."""
        self.connection.close()
        self.inviting.close()
        self._process.kill()
        self._process.close()
        self._lifeline.close()


class RunnerFork:
    """A fork of a warm runner, for this process: ``connection`` leads to it. Raises BiopsyError if there can be none.

    ``inviting`` is the socket that belongs to the warm one.
    """

    def __init__(self, inviting: socket.socket) -> None:
        self.connection, theirs = socket.socketpair()
        ours, asked = socket.socketpair()
        self._asking = Connection(ours)
        try:
            socket.send_fds(inviting, [b"+"], [asked.fileno()])
            self._asking.ask({"session": os.getsid(0), "folder": str(Path.cwd())}, 2, theirs.fileno())
        except (OSError, ServerGoneError) as error:
            raise errors.BiopsyError("the warm interpreter of the other release does not answer") from error
        finally:
            theirs.close()
            asked.close()

    def status(self) -> int:
        """How it has ended, once its connection has: negative for a signal."""
        status = _told(self._asking, _SECONDS_TO_END).get("status")
        return status if isinstance(status, int) else 4

    def close(self) -> None:
        """End it."""
        self.connection.close()
        self._asking.close()


def _told(connection: Connection, seconds: float) -> dict[str, Any]:
    """The next object that comes, in so many seconds; an empty one if there is none."""
    try:
        return connection.answer(seconds)
    except (TimeoutError, ServerGoneError):
        return {}


# An interpreter with another release, from here: its modules and objects, used as if they were those of this one.
#
# ``runner`` is its side. What an engine does to its package is done there: an attribute is got, a method called, an
# array handed over. Plain values and arrays come here as they are; of everything else a ``RemoteObject`` stands here.

_LONGEST_NAME = 200
_FACTS = ("__version__", "__file__")
"""What is asked of a module there. Other names of this form are asked by Python itself, of what stands here."""


class RemoteInterpreter:
    """The asking end of a runner. ``gone`` is called when the runner has ended, and raises what is to be raised."""

    def __init__(self, connection: socket.socket, gone: Callable[[], NoReturn]) -> None:
        self._connection = connection
        self._gone = gone
        self.is_open = True
        """Whether it can be asked: nothing has come between a question and its answer."""
        self._freed: list[int] = []
        self.methods: set[tuple[str, str]] = set()

    def module(self, name: str) -> Any:
        """A module by its full name. Raises ImportError."""
        return self.ask({"do": "module", "name": name})

    def facts(self, packages: list[str]) -> Mapping[str, str]:
        """The version of ``python`` there, and those of the packages that are installed."""
        told = self.ask({"do": "facts", "packages": packages})
        return {str(name): str(version) for name, version in told.items()} if isinstance(told, dict) else {}

    def gathered(self, objects: Sequence[Any], *steps: str) -> list[Any]:
        """What stands at the end of some steps from each object, for one question; see ``wire.gathered``."""
        found: list[Any] = self.ask({"do": "gather", "steps": steps}, objects=list(objects))
        return found

    def say_serve(self) -> None:
        """Have the runner serve forks from now on: this conversation is over. Raises GoneError."""
        self.is_open = False
        Outgoing(_no_object).write_to(self._connection, {"do": "serve", "free": []})

    def forget(self, number: int) -> None:
        """Have the runner forget an object, with the next thing that it is told."""
        self._freed.append(number)

    def ask(self, tree: Mapping[str, Any], **values: Any) -> Any:
        """What comes of something that is done there. Raises what it raises there."""
        free, self._freed = self._freed, []
        try:
            outgoing = Outgoing(self._reference)
            sent = {name: outgoing.value(value) for name, value in values.items()}
            outgoing.write_to(self._connection, {**tree, **sent, "free": free})
            answer = Incoming(self._connection, self._object)
            if "error" not in answer.tree:
                return answer.value(answer.tree.get("value"))
            error = answer.tree["error"]
        except GoneError:
            self.is_open = False
            self._gone()
        except KeyboardInterrupt:
            self.is_open = False  # its answer would be taken for that to the next question
            raise
        except WireError as wrong:
            raise errors.BiopsyError(f"the interpreter of the other release cannot be understood: {wrong}") from wrong
        if not isinstance(error, dict):
            raise errors.BiopsyError("the interpreter of the other release cannot be understood")
        raise raised_there(str(error.get("type")), str(error.get("text")))

    def _reference(self, value: Any) -> dict[str, Any]:
        if isinstance(value, RemoteObject):
            return {"object": object.__getattribute__(value, "_number")}
        if value in (str, int, float, bool):
            return {"built_in": value.__name__}
        return _no_object(value)

    def _object(self, tree: dict[str, Any]) -> Any:
        if tree.get("method") is True:
            return _IS_METHOD
        number = tree["object"]
        if not isinstance(number, int):
            raise WireError("an object has no number")
        return RemoteObject(self, number, str(tree["type"]))


_IS_METHOD = object()


def _no_object(value: Any) -> dict[str, Any]:
    raise WireError(f"a {type(value).__name__} cannot be sent")


class RemoteObject:
    """Stands for an object in the other interpreter."""

    __slots__ = ("__weakref__", "_interpreter", "_kind", "_number")

    def __init__(self, interpreter: RemoteInterpreter, number: int, kind: str) -> None:
        object.__setattr__(self, "_interpreter", interpreter)
        object.__setattr__(self, "_number", number)
        object.__setattr__(self, "_kind", kind)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in _FACTS:
            raise AttributeError(name)
        if (self._kind, name) not in self._interpreter.methods:
            value = self._interpreter.ask({"do": "get", "name": name}, on=self)
            if value is not _IS_METHOD:
                return value
            self._interpreter.methods.add((self._kind, name))
        return RemoteMethod(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._interpreter.ask({"do": "set", "name": name}, on=self, value=value)

    def __call__(self, *args: Any, **named: Any) -> Any:
        """What a call gives there."""
        return self._interpreter.ask({"do": "call"}, on=self, args=args, named=named)

    def __getitem__(self, key: Any) -> Any:
        return self._interpreter.ask({"do": "item"}, on=self, key=key)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._interpreter.ask({"do": "list"}, on=self))

    def __len__(self) -> int:
        return int(self._interpreter.ask({"do": "len"}, on=self))

    def __bool__(self) -> bool:
        return bool(self._interpreter.ask({"do": "bool"}, on=self))

    def __str__(self) -> str:
        return str(self._interpreter.ask({"do": "str"}, on=self))

    def __del__(self) -> None:
        self._interpreter.forget(self._number)


class RemoteMethod:
    """A method of an object in the other interpreter."""

    __slots__ = ("_name", "_object")

    def __init__(self, object_: RemoteObject, name: str) -> None:
        self._object = object_
        self._name = name

    def __call__(self, *args: Any, **named: Any) -> Any:
        """What the method gives there."""
        interpreter: RemoteInterpreter = self._object._interpreter
        return interpreter.ask({"do": "method", "name": self._name}, on=self._object, args=args, named=named)


def raised_there(kind: str, text: str) -> Exception:
    """An exception that was raised in the other interpreter: of the class of that name, with its text.

    Of a class that is not built in, only the name is the same.
    """
    built_in = getattr(builtins, kind, None)
    name = kind[:_LONGEST_NAME] if kind.isidentifier() else "Exception"
    parent = built_in if isinstance(built_in, type) and issubclass(built_in, Exception) else Exception
    made: Any = type(name, (parent,), {"__str__": lambda _: text, "__module__": parent.__module__})
    exception: Exception = made.__new__(made)  # some classes want more than a text
    return exception
