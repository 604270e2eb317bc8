"""An engine that is run from another release of its package: which release is asked for, how its interpreter is
started, its objects, used as if they were those of this one, and what becomes of us if it dies there.
"""

from __future__ import annotations

import builtins
import json
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from biopsy import errors, events
from biopsy.engines.base import RELEASE_SETTINGS, Engine, Imports
from biopsy.engines.other_release import wire
from biopsy.engines.other_release.wire import GoneError, Incoming, Outgoing, WireError
from biopsy.processes import forks, own_process
from biopsy.processes.process import CannotStartError, Process, undisturbed
from biopsy.processes.reaper import VERDICT_VARIABLE
from biopsy.processes.warm import Connection, ServerGoneError
from biopsy.processes.watch import signal_name
from biopsy.text import first_line, normalized, printable

_SECONDS_OF_TRIAL = 20.0


class OtherImports(Imports):
    """Modules of the interpreter that has a release. It is started when the first one is asked for.

    One serves all engines of this process that have the same release, until it ends; a fork gets one of its own.
    """

    is_here = False

    def __init__(self, release: EngineRelease) -> None:
        self.release = release
        self._held = ExitStack()
        self.environment: OpenEnvironment | None = None
        """The environment that is open; None before it was asked for."""
        self._open: RemoteInterpreter | None = None
        self._server: RunnerProcess | None = None

    def module(self, name: str) -> Any:
        """A module by its full name. Raises ImportError, and EngineMissing for a package that is not there at all."""
        try:
            return self._interpreter().module(name)
        except ImportError as error:
            if "." in name:
                raise
            raise errors.EngineMissing(f"{name} cannot be imported in {self.release.place}: {error}") from error

    def gathered(self, objects: Sequence[Any], *steps: str) -> list[Any]:
        """What stands at the end of some steps from each object, all in one list, for one question."""
        return self._interpreter().gathered(objects, *steps)

    def packages(self) -> Mapping[str, str]:
        """The versions of all packages in the environment; of one that the user has made, ``facts``."""
        self.install(events.ignore)
        if self.environment is not None and self.environment.packages:
            return self.environment.packages
        was_open = self._open is not None
        found = self.facts()
        if not was_open:
            self.close()
        return found

    def facts(self) -> Mapping[str, str]:
        """The versions of ``python``, of the release and of NumPy, as that interpreter tells them."""
        return self._interpreter().facts([self.release.distribution, "numpy"])

    def install(self, listener: events.Listener) -> None:
        """Have an environment that holds the release, unless one is open. Raises CannotInstall, UsageError."""
        if self.environment is None:
            self.environment = opened(self.release, self._held, listener)

    def warm(self) -> None:
        """Start an interpreter that can be forked later, where this platform allows that."""
        if sys.platform == "linux":
            self._server = self._process("warm")
            self._open = RemoteInterpreter(self._server, str(self.release))

    def serve(self, trial: Callable[[], None]) -> None:
        """Have the warm interpreter serve forks. If it cannot, it is ended, and each fork starts its own interpreter.

        Threads of a release may not survive a fork, and whatever needs them would hang. So ``trial`` runs in the first
        fork.
        """
        server, is_warm = self._server, self._open
        self._open = None
        if server is None or is_warm is None:
            return
        try:
            is_warm.say_serve()
            if not server.is_ready_to_fork():
                raise GoneError
            fork = RunnerFork(server.inviting)
            fork.connection.settimeout(_SECONDS_OF_TRIAL)
            self._open = RemoteInterpreter(fork, str(self.release))
            trial()
        except (errors.BiopsyError, GoneError):
            self._server = None
            server.close()
        finally:
            self.close()

    def close(self) -> None:
        """End the interpreter that answers this process; the next thing that is asked starts another."""
        is_open, self._open = self._open, None
        if is_open is not None:
            is_open.close()

    def _interpreter(self) -> RemoteInterpreter:
        if self._open is None or not self._open.is_ours:
            runner: RunnerProcess | RunnerFork | None = None
            if self._server is not None:
                try:
                    runner = RunnerFork(self._server.inviting)
                except errors.BiopsyError:
                    self._server = None  # it has ended: a process of our own is started
            self._open = RemoteInterpreter(runner or self._process("once"), str(self.release))
        return self._open

    def _process(self, mode: str) -> RunnerProcess:
        self.install(events.ignore)
        assert self.environment is not None
        return RunnerProcess(self.environment.python, mode)


class _FromOtherRelease(Engine):
    """What engines of other releases have besides: their interpreter is warmed up, too."""

    def warm_up(self) -> None:
        """Warm up an interpreter of the release, for forks of this process to have a fork of."""
        imports = type(self).imports
        imports.warm()
        try:
            super().warm_up()
        finally:
            imports.serve(lambda: Engine.warm_up(self))


def variables_of(engines: Iterable[type[Engine]]) -> dict[str, str]:
    """The environment variables by which checks find the releases again that this process holds open."""
    imports = [engine.imports for engine in engines if isinstance(engine.imports, OtherImports)]
    known = {each.release: each.environment for each in imports if each.release.version and each.environment}
    # Finding an environment again costs a check some tenths of a second.
    told = {str(release): [str(each.python), dict(each.packages)] for release, each in known.items()}
    return {OPEN_VARIABLE: json.dumps(told)} if known else {}


@cache
def class_from(engine: type[Engine], release: EngineRelease) -> type[Engine]:
    """The class of an engine that is run from a release: always the same one. Its interpreter is not started yet."""
    attributes = {"imports": OtherImports(release), "__module__": engine.__module__, "__doc__": engine.__doc__}
    made: type[Engine] = type(engine.__name__, (_FromOtherRelease, engine), attributes)
    return made


# Which release of an engine's package is asked for: the settings that every such engine takes besides its own.

RELEASE, WITH, PYTHON = RELEASE_SETTINGS

_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.!+_-]*")
_NAMED = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)==(?P<version>.*)")
_REQUIREMENT = re.compile(r"[A-Za-z0-9][\w.-]*(\[[\w.,-]*\])?\s*([<>=!~][^;@]*)?")
_EXAMPLE = "onnxrt:release=1.20.1,with=numpy<2,python=3.11"


@dataclass(frozen=True, kw_only=True)
class EngineRelease:
    """A release of a distribution, what is installed with it, and the Python that it is for.

    ``version`` None: what is there in the environment of the interpreter ``python``, into which nothing is installed.
    """

    distribution: str
    version: str | None = None
    others: tuple[str, ...] = ()
    python: str | None = None

    @property
    def requirements(self) -> tuple[str, ...]:
        """What is installed."""
        return (f"{self.distribution}=={self.version}", *self.others)

    @property
    def place(self) -> str:
        """Where it stands, in words."""
        return f"the environment of {self.python}" if self.version is None else f"the environment with {self}"

    def __str__(self) -> str:
        if self.version is None:
            return f"{self.distribution} of {self.python}"
        python = f" on Python {self.python}" if self.python else ""
        return f"{' with '.join(self.requirements)}{python}"


def release_of(settings: Mapping[str, str | None], distributions: tuple[str, ...], engine: str) -> EngineRelease:
    """The release that settings ask for, of one of these distributions. Raises UsageError."""
    version, others, python = (_text(settings, key, engine) for key in RELEASE_SETTINGS)
    if version is None:  # what is there in an environment of the user's own
        if python is None or "/" not in python:
            asked = f"{PYTHON}={python}" if others is None else f"{WITH}={others}"
            raise _wrong(engine, f"{asked} asks for no release: {RELEASE}=VERSION is missing")
        if others is not None:
            raise _wrong(engine, f"{WITH}={others}: nothing is installed into the environment of {python}")
        return EngineRelease(distribution=distributions[0], python=python)
    distribution, named = distributions[0], _NAMED.fullmatch(version)
    if named is not None:  # as in onnxruntime-gpu==1.20.1
        distribution = normalized(named["name"])
        if distribution not in distributions:
            raise _wrong(engine, f"{RELEASE}={version}: it is run from {' or '.join(distributions)}")
        version = named["version"]
    if not _VERSION.fullmatch(version):
        raise _wrong(engine, f"{RELEASE}={version} is no release")
    wanted = tuple(filter(None, (each.strip() for each in (others or "").split("+"))))
    for each in wanted:
        if not _REQUIREMENT.fullmatch(each):
            raise _wrong(engine, f"{WITH}={each} is no package, and no range of its releases")
    return EngineRelease(distribution=distribution, version=version, others=wanted, python=python)


def _text(settings: Mapping[str, str | None], key: str, engine: str) -> str | None:
    if key in settings and not settings[key]:
        raise _wrong(engine, f"{key} needs a value")
    return settings.get(key)


def _wrong(engine: str, problem: str) -> errors.UsageError:
    return errors.UsageError(f"engine {engine!r}: {problem}", next_steps=[f"such as {_EXAMPLE}"])


OPEN_VARIABLE = "BIOPSY_OPEN_RELEASES"
"""Under this name, the environment of a check says which releases the process that asks it holds open, as JSON."""


class OpenEnvironment(NamedTuple):
    """The interpreter of an environment, and what it holds; nothing is known of one that the user has made."""

    python: Path
    packages: Mapping[str, str]


def opened(release: EngineRelease, held: ExitStack, listener: events.Listener) -> OpenEnvironment:
    """An environment that has a release, which ``held`` keeps from being removed.

    It is installed first if it is not there. Raises CannotInstall, and UsageError for an interpreter that is none.
    """
    if release.version is None:
        assert release.python is not None
        path = Path(release.python).expanduser()
        if not path.is_file():
            raise errors.UsageError(f"there is no interpreter {release.python}")
        return OpenEnvironment(path.absolute(), {})
    try:
        python, packages = json.loads(os.environ.get(OPEN_VARIABLE, "{}"))[str(release)]
        told = OpenEnvironment(Path(python), dict(packages))
    except (ValueError, TypeError, AttributeError, KeyError):
        told = None
    if told is not None and told.python.is_file():
        return told
    from biopsy.processes.environments.interpreter import interpreter_of
    from biopsy.processes.environments.prepared import prepared

    interpreter = interpreter_of(release.python)
    environment = held.enter_context(prepared(release.requirements, python=interpreter, listener=listener))
    return OpenEnvironment(environment.python, {"python": interpreter.version, **environment.packages})


# The interpreter of a release, from here.

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
    """The asking end of a ``runner`` of a ``release``."""

    def __init__(self, runner: RunnerProcess | RunnerFork, release: str) -> None:
        self._runner = runner
        self._release = release
        self._process = os.getpid()
        self._error: errors.BiopsyError | None = None
        self._is_waiting = True  # for a question: nothing has come between one and its answer
        self._freed: list[int] = []
        self.methods: set[tuple[str, str]] = set()

    @property
    def is_ours(self) -> bool:
        """Whether it still answers, and answers this process rather than the one that this is a fork of."""
        return self._process == os.getpid() and self._error is None and self._is_waiting

    def close(self) -> None:
        """End it."""
        self._runner.close()

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
        self._is_waiting = False
        Outgoing(_no_object).write_to(self._runner.connection, {"do": "serve", "free": []})

    def forget(self, number: int) -> None:
        """Have the runner forget an object, with the next thing that it is told."""
        self._freed.append(number)

    def ask(self, tree: Mapping[str, Any], **values: Any) -> Any:
        """What comes of something that is done there. Raises what it raises there."""
        free, self._freed = self._freed, []
        try:
            outgoing = Outgoing(self._reference)
            sent = {name: outgoing.value(value) for name, value in values.items()}
            outgoing.write_to(self._runner.connection, {**tree, **sent, "free": free})
            answer = Incoming(self._runner.connection, self._object)
            if "error" not in answer.tree:
                return answer.value(answer.tree.get("value"))
            error = answer.tree["error"]
        except GoneError:
            if self._error is None:
                status = self._runner.status()
                self._runner.close()
                self._error = ended_like(status, f"the interpreter of {self._release}")
            raise self._error from None
        except KeyboardInterrupt:
            self._is_waiting = False  # its answer would be taken for that to the next question
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
        """Call the object in the other interpreter; returns what the call returns there."""
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


# What becomes of this process when an engine has ended the interpreter of its release: the same, if somebody watches.
#
# A check, and a command that is watched, end just as that interpreter has: a crash there looks to them exactly as one
# here. Any other process goes on, and the crash is an error in it.


def ended_like(status: int, where: str) -> errors.BiopsyError:
    """End this process by this status, negative for a signal; or the error to raise, where nobody would see that.

    Its class has the name of the signal, which engines take for the kind of a failure. ``where`` names the interpreter.
    """
    if VERDICT_VARIABLE in os.environ or own_process.is_watched():
        if status >= 0:
            os._exit(status)
        with suppress(OSError, ValueError):
            signal.signal(-status, signal.SIG_DFL)
            os.kill(os.getpid(), -status)
            time.sleep(0.1)  # it comes at once, unless this is the first process of a container
        os._exit(128 - status)
    kind = signal_name(-status) if status < 0 else "ProcessEnded"
    how = kind if status < 0 else f"status {status}"
    made: type[errors.BiopsyError] = type(kind, (errors.BiopsyError,), {})
    return made(f"{where} ended with {how}")
