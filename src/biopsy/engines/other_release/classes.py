"""Engines that are run from another release of their package: the settings that ask for it, the interpreter that
imports it, stand-ins for its objects, and what happens here if that interpreter dies.
"""

from __future__ import annotations

import builtins
import json
import os
import re
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from biopsy import errors, events
from biopsy.engines.base import RELEASE_SETTINGS, Engine, Imports, Result
from biopsy.engines.other_release import wire
from biopsy.engines.other_release.wire import GoneError, Incoming, Outgoing, WireError
from biopsy.processes import engine_calls, forks, own_process
from biopsy.processes.process import CannotStartError, Process, isolating_variables
from biopsy.processes.reading import files_meant
from biopsy.processes.reaper import VERDICT_VARIABLE
from biopsy.processes.warm import Connection, ServerGoneError
from biopsy.processes.watch import signal_name
from biopsy.text import first_line, normalized, printable

_SECONDS_OF_TRIAL = 20.0


class OtherImports(Imports):
    """Imports modules in an interpreter with a release, which is started for the first module.

    One interpreter serves all engines of this process with the same release; a fork gets one of its own.
    """

    is_here = False

    def __init__(self, release: EngineRelease) -> None:
        self.release = release
        self._leases = ExitStack()
        self.environment: OpenEnvironment | None = None
        """The open environment; None before ``install``."""
        self._interpreter: RemoteInterpreter | None = None
        self._server: RunnerProcess | None = None

    def module(self, name: str) -> Any:
        """A module by its full name. Raises ImportError; EngineMissing if the package is not installed there."""
        try:
            return self._started().module(name)
        except ImportError as error:
            if "." in name:
                raise
            raise errors.EngineMissing(f"{name} cannot be imported in {self.release.place}: {error}") from error

    def gathered(self, objects: Sequence[Any], *steps: str) -> list[Any]:
        """Follow steps from each object (see ``wire.gathered``), in one request."""
        return self._started().gathered(objects, *steps)

    def packages(self) -> Mapping[str, str]:
        """The versions of all packages in the environment; only ``facts`` for one that the user made."""
        self.install(events.ignore)
        if self.environment is not None and self.environment.packages:
            return self.environment.packages
        was_started = self._interpreter is not None
        versions = self.facts()
        if not was_started:
            self.close()
        return versions

    def facts(self) -> Mapping[str, str]:
        """The versions of ``python``, the release and NumPy in that interpreter."""
        return self._started().facts([self.release.distribution, "numpy"])

    def timed(self, run: Callable[[], Result], times: int = 1) -> tuple[Result, float]:
        """The result of a run, and its seconds there: the sum of the medians of its calls, each made so many times."""
        interpreter = self._started()
        before, interpreter.times = interpreter.seconds, times
        try:
            return run(), interpreter.seconds - before
        finally:
            interpreter.times = 1

    def install(self, listener: events.Listener) -> None:
        """Open an environment with the release, and install it if needed. Raises CannotInstall, UsageError."""
        if self.environment is None:
            self.environment = opened(self.release, self._leases, listener)

    def warm(self) -> None:
        """Start an interpreter that can be forked later, if this platform allows it."""
        if sys.platform == "linux":
            self._server = self._process("warm")
            self._interpreter = RemoteInterpreter(self._server, str(self.release))

    def serve(self, trial: Callable[[], None]) -> None:
        """Let the warm interpreter serve forks. If it cannot, it is ended, and each fork starts its own interpreter.

        ``trial`` runs in the first fork, since a release whose threads do not survive a fork would hang there.
        """
        server, interpreter = self._server, self._interpreter
        self._interpreter = None
        if server is None or interpreter is None:
            return
        try:
            interpreter.start_serving()
            if not server.is_ready_to_fork():
                raise GoneError
            fork = RunnerFork(server.inviting)
            fork.connection.settimeout(_SECONDS_OF_TRIAL)
            self._interpreter = RemoteInterpreter(fork, str(self.release))
            trial()
        except (errors.BiopsyError, GoneError):
            self._server = None
            server.close()
        finally:
            self.close()

    def close(self) -> None:
        """End the interpreter of this process; the next request starts another."""
        interpreter, self._interpreter = self._interpreter, None
        if interpreter is not None:
            interpreter.close()

    def _started(self) -> RemoteInterpreter:
        if self._interpreter is None or not self._interpreter.is_ours:
            runner: RunnerProcess | RunnerFork | None = None
            if self._server is not None:
                try:
                    runner = RunnerFork(self._server.inviting)
                except errors.BiopsyError:
                    self._server = None  # it has ended
            self._interpreter = RemoteInterpreter(runner or self._process("once"), str(self.release))
        return self._interpreter

    def _process(self, mode: str) -> RunnerProcess:
        self.install(events.ignore)
        assert self.environment is not None
        return RunnerProcess(self.environment.python, mode)


class _FromOtherRelease(Engine):
    """The base class of engines from other releases."""

    def warm_up(self) -> None:
        """Warm up an interpreter of the release, so that each fork of this process can use a fork of it."""
        imports = type(self).imports
        imports.warm()
        try:
            super().warm_up()
        finally:
            imports.serve(lambda: Engine.warm_up(self))


def variables_of(engines: Iterable[type[Engine]]) -> dict[str, str]:
    """Environment variables that tell a check where the releases of these engines are, which saves it some 0.1 s."""
    imports = [engine.imports for engine in engines if isinstance(engine.imports, OtherImports)]
    environments = {each.release: each.environment for each in imports if each.release.version and each.environment}
    values = {str(release): [str(each.python), dict(each.packages)] for release, each in environments.items()}
    return {OPEN_VARIABLE: json.dumps(values)} if values else {}


@cache
def class_from(engine: type[Engine], release: EngineRelease) -> type[Engine]:
    """The one class of an engine with a release. Its interpreter is not started yet."""
    attributes = {"imports": OtherImports(release), "__module__": engine.__module__, "__doc__": engine.__doc__}
    subclass: type[Engine] = type(engine.__name__, (_FromOtherRelease, engine), attributes)
    return subclass


RELEASE, WITH, PYTHON = RELEASE_SETTINGS

_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.!+_-]*")
_NAMED = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)==(?P<version>.*)")
_REQUIREMENT = re.compile(r"[A-Za-z0-9][\w.-]*(\[[\w.,-]*\])?\s*([<>=!~][^;@]*)?")
_EXAMPLE = "onnxrt:release=1.20.1,with=numpy<2,python=3.11"


@dataclass(frozen=True, kw_only=True)
class EngineRelease:
    """A release of a distribution, the requirements installed with it, and its Python.

    ``version`` is None for an environment that the user made: nothing is installed for the interpreter ``python``.
    """

    distribution: str
    version: str | None = None
    others: tuple[str, ...] = ()
    python: str | None = None

    @property
    def requirements(self) -> tuple[str, ...]:
        """The requirements to install."""
        return (f"{self.distribution}=={self.version}", *self.others)

    @property
    def place(self) -> str:
        """Its environment, in words."""
        return f"the environment of {self.python}" if self.version is None else f"the environment with {self}"

    def __str__(self) -> str:
        if self.version is None:
            return f"{self.distribution} of {self.python}"
        python = f" on Python {self.python}" if self.python else ""
        return f"{' with '.join(self.requirements)}{python}"


def release_of(settings: Mapping[str, str | None], distributions: tuple[str, ...], engine: str) -> EngineRelease:
    """The release that settings ask for, of one of these distributions. Raises UsageError."""
    version, others, python = (_text(settings, key, engine) for key in RELEASE_SETTINGS)
    if version is None:  # an environment that the user made
        if python is None or "/" not in python:
            setting = f"{PYTHON}={python}" if others is None else f"{WITH}={others}"
            raise _wrong(engine, f"{setting} asks for no release: {RELEASE}=VERSION is missing")
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
        raise _wrong(engine, f"{RELEASE}={version} is not a release")
    requirements = tuple(filter(None, (each.strip() for each in (others or "").split("+"))))
    for each in requirements:
        if not _REQUIREMENT.fullmatch(each):
            raise _wrong(engine, f"{WITH}={each} is not a package, nor a range of its releases")
    return EngineRelease(distribution=distribution, version=version, others=requirements, python=python)


def _text(settings: Mapping[str, str | None], key: str, engine: str) -> str | None:
    if key in settings and not settings[key]:
        raise _wrong(engine, f"{key} needs a value")
    return settings.get(key)


def _wrong(engine: str, problem: str) -> errors.UsageError:
    return errors.UsageError(f"engine {engine!r}: {problem}", next_steps=[f"such as {_EXAMPLE}"])


OPEN_VARIABLE = "BIOPSY_OPEN_RELEASES"
"""The environment variable by which a check learns which releases its parent has open, as JSON."""


class OpenEnvironment(NamedTuple):
    """The interpreter of an environment, and the versions of its packages; none are known if the user made it."""

    python: Path
    packages: Mapping[str, str]


def opened(release: EngineRelease, leases: ExitStack, listener: events.Listener) -> OpenEnvironment:
    """An environment with a release, installed if needed; ``leases`` keeps it from being removed.

    Raises CannotInstall, and UsageError for an invalid interpreter.
    """
    if release.version is None:
        assert release.python is not None
        path = Path(release.python).expanduser()
        if not path.is_file():
            raise errors.UsageError(f"there is no interpreter {release.python}", next_steps=files_meant(path))
        return OpenEnvironment(path.absolute(), {})
    try:
        python, packages = json.loads(os.environ.get(OPEN_VARIABLE, "{}"))[str(release)]
        inherited = OpenEnvironment(Path(python), dict(packages))
    except (ValueError, TypeError, AttributeError, KeyError):
        inherited = None
    if inherited is not None and inherited.python.is_file():
        return inherited
    from biopsy.processes.environments.interpreter import interpreter_of
    from biopsy.processes.environments.prepared import prepared

    interpreter = interpreter_of(release.python)
    environment = leases.enter_context(prepared(release.requirements, python=interpreter, listener=listener))
    return OpenEnvironment(environment.python, {"python": interpreter.version, **environment.packages})


_RUNNER = Path(__file__).with_name("runner.py")
_SECONDS_TO_END = 10.0
_SECONDS_TO_FORK = 120.0
_SECONDS_TO_START = 120.0


class RunnerProcess:
    """A new process with a ``runner``; ``connection`` is the socket to it.

    ``mode`` is "once", or "warm" for one that can serve forks later. Raises EngineMissing.
    """

    def __init__(self, python: Path, mode: str) -> None:
        self.connection, runner_end = socket.socketpair()
        self.inviting, listening = socket.socketpair(type=socket.SOCK_DGRAM)
        self._lifeline, runner_lifeline = socket.socketpair()
        inherited = [runner_end.fileno(), listening.fileno(), runner_lifeline.fileno()]
        files = (str(_RUNNER), mode, str(wire.__file__), str(forks.__file__))
        words = [str(python), "-I", *files, *map(str, inherited), str(os.getsid(0))]
        try:
            self._process = Process(
                words, stdout=2, stderr=2, environment=isolating_variables(), descriptors=inherited, patient=False
            )
        except CannotStartError as error:
            raise errors.EngineMissing(f"the interpreter {python} cannot be started: {error.reason}") from error
        finally:
            for end in (runner_end, listening, runner_lifeline):
                end.close()
        answer = _answer(Connection(self.connection), _SECONDS_TO_START)
        self.connection.settimeout(None)
        if answer.get("works") is not True:
            problem = answer.get("problem")
            reason = first_line(problem) if isinstance(problem, str) else "it is not a Python that works"
            self.close()
            raise errors.EngineMissing(
                f"the interpreter {printable(str(python))} cannot run an engine: {reason}",
                next_steps=["python=/path/of/an/environment/bin/python, of one that holds the package and NumPy"],
            )

    def status(self) -> int:
        """Its exit status, after its connection was closed; negative for a signal."""
        status = self._process.wait(_SECONDS_TO_END)
        return self._process.kill() if status is None else status

    def is_ready_to_fork(self) -> bool:
        """Whether it serves forks now, after it was asked to."""
        return _answer(Connection(self.connection), _SECONDS_TO_FORK).get("ready") is True

    def close(self) -> None:
        """End it."""
        self.connection.close()
        self.inviting.close()
        self._process.kill()
        self._process.close()
        self._lifeline.close()


class RunnerFork:
    """A fork of a warm runner, for this process; ``connection`` is the socket to it. Raises BiopsyError if it fails.

    ``inviting`` is the socket at which the warm runner listens.
    """

    def __init__(self, inviting: socket.socket) -> None:
        self.connection, fork_end = socket.socketpair()
        control, server_end = socket.socketpair()
        self._control = Connection(control)
        try:
            socket.send_fds(inviting, [b"+"], [server_end.fileno()])
            self._control.ask({"session": os.getsid(0), "folder": str(Path.cwd())}, 2, fork_end.fileno())
        except (OSError, ServerGoneError) as error:
            raise errors.BiopsyError("the warm interpreter of the other release does not answer") from error
        finally:
            fork_end.close()
            server_end.close()

    def status(self) -> int:
        """Its exit status, after its connection was closed; negative for a signal."""
        status = _answer(self._control, _SECONDS_TO_END).get("status")
        return status if isinstance(status, int) else 4

    def close(self) -> None:
        """End it."""
        self.connection.close()
        self._control.close()


def _answer(connection: Connection, seconds: float) -> dict[str, Any]:
    """The next message; an empty one if none comes within these seconds."""
    try:
        return connection.answer(seconds)
    except (TimeoutError, ServerGoneError):
        return {}


_LONGEST_NAME = 200
_FACTS = ("__version__", "__file__")
"""Double-underscore names that engines ask of a module there; Python itself asks for others, of the stand-in."""


class RemoteInterpreter:
    """Sends the operations on a package's objects to a ``runner`` with a ``release``.

    Plain values and arrays are sent as they are; a ``RemoteObject`` stands in for every other object.
    """

    def __init__(self, runner: RunnerProcess | RunnerFork, release: str) -> None:
        self._runner = runner
        self._release = release
        self._process = os.getpid()
        self._error: errors.BiopsyError | None = None
        self._is_in_step = True  # every request has had its answer
        self._freed: list[int] = []
        self.methods: set[tuple[str, str]] = set()
        self.times = 1
        """How often each call is made, to measure it."""
        self.seconds = 0.0
        """How long all calls took there: of each, the median."""

    @property
    def is_ours(self) -> bool:
        """Whether it still answers, and was started by this process, not by the one that this is a fork of."""
        return self._process == os.getpid() and self._error is None and self._is_in_step

    def close(self) -> None:
        """End it."""
        self._runner.close()

    def module(self, name: str) -> Any:
        """A module by its full name. Raises ImportError."""
        return self.ask({"do": "module", "name": name})

    def facts(self, packages: list[str]) -> Mapping[str, str]:
        """The versions of ``python`` and of the installed ones of these packages, there."""
        versions = self.ask({"do": "facts", "packages": packages})
        return {str(name): str(version) for name, version in versions.items()} if isinstance(versions, dict) else {}

    def gathered(self, objects: Sequence[Any], *steps: str) -> list[Any]:
        """Follow steps from each object (see ``wire.gathered``), in one request."""
        results: list[Any] = self.ask({"do": "gather", "steps": steps}, objects=list(objects))
        return results

    def start_serving(self) -> None:
        """Tell the runner to serve forks, and send nothing more. Raises GoneError."""
        self._is_in_step = False
        Outgoing(_no_object).write_to(self._runner.connection, {"do": "serve", "free": []})

    def forget(self, number: int) -> None:
        """Tell the runner, with the next request, to drop an object."""
        self._freed.append(number)

    def ask(self, tree: Mapping[str, Any], **values: Any) -> Any:
        """The result of an operation there. Raises what it raises there."""
        free, self._freed = self._freed, []
        try:
            outgoing = Outgoing(self._reference)
            sent = {name: outgoing.value(value) for name, value in values.items()}
            outgoing.write_to(self._runner.connection, {**tree, **sent, "free": free, "times": self.times})
            answer = Incoming(self._runner.connection, self._object)
            self.seconds += float(answer.tree.get("seconds", 0.0))
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
            self._is_in_step = False  # its answer would be taken for that to the next request
            raise
        except WireError as wire_error:
            message = f"the interpreter of the other release cannot be understood: {wire_error}"
            raise errors.BiopsyError(message) from wire_error
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
    """Stands in for an object in the other interpreter."""

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
        """Call the object in the other interpreter."""
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
        """Call the method in the other interpreter."""
        interpreter: RemoteInterpreter = self._object._interpreter
        return interpreter.ask({"do": "method", "name": self._name}, on=self._object, args=args, named=named)


def raised_there(kind: str, text: str) -> Exception:
    """An exception from the other interpreter: a subclass of the built-in class of that name, with its text.

    If the class is not built in, only the name is the same.
    """
    built_in = getattr(builtins, kind, None)
    name = kind[:_LONGEST_NAME] if kind.isidentifier() else "Exception"
    parent = built_in if isinstance(built_in, type) and issubclass(built_in, Exception) else Exception
    exception_class: Any = type(name, (parent,), {"__str__": lambda _: text, "__module__": parent.__module__})
    exception: Exception = exception_class.__new__(exception_class)  # some constructors need more than a text
    return exception


def ended_like(status: int, where: str) -> errors.BiopsyError:
    """End a check, or a watched command, with the exit status of the interpreter ``where``, negative for a signal, so
    that a crash there looks like one here.

    Any other process goes on: returns an error to raise, of a class with the name of the signal, which becomes the kind
    of the engine's failure.
    """
    if VERDICT_VARIABLE in os.environ or engine_calls.is_watched():
        if status >= 0:
            os._exit(status)
        own_process.end_by_signal(-status)
        os._exit(128 - status)
    kind = signal_name(-status) if status < 0 else "ProcessEnded"
    how = kind if status < 0 else f"status {status}"
    error_class: type[errors.BiopsyError] = type(kind, (errors.BiopsyError,), {})
    return error_class(f"{where} ended with {how}")
