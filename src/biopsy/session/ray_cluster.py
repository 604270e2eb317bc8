"""Checks on the machines of a Ray cluster; the only file that imports Ray.

Each place for a check (``_HostActor``) is a Ray actor, on a machine that Ray chooses. Our files reach it through Ray's
object store, once per machine. The actor stops a check with all that it has started; an actor that does not answer then
is killed.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import re
import signal
import socket
import sys
import tempfile
import threading
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import Any

from biopsy import errors
from biopsy.checks.portable import PortableTask
from biopsy.checks.task_host import Answer, TaskHost
from biopsy.processes import cleanup
from biopsy.processes.own_files import claimed_folder, remove_abandoned
from biopsy.processes.own_process import install_line
from biopsy.session.conditions import MachineKind, differing, this_machine
from biopsy.session.machines import MachineLostError, OtherMachines
from biopsy.text import count, first_line

_ADDRESS = re.compile(r"\s*(?P<client>ray://)?\[?(?P<host>[^/\[\]]+)\]?:(?P<port>\d{1,5})/?\s*")
_SOON = 10.0
"""Seconds in which a reachable machine accepts a connection."""
_BEAT = 5.0
_AWAY = 30.0
"""Seconds between two looks at the head, and until it counts as gone: with a last look of 10 s, before Ray's 60 s."""
_MOST_HEARD = 1 << 20
_START = "ray start --head    on the first machine, then  ray start --address HOST:6379  on the others"
_PORTS = "--on HOST:6379    on a machine of the cluster, or  --on ray://HOST:10001  from elsewhere"
_MODE = "RAY_AUTH_MODE"
_REFUSED = "InvalidAuthToken"
"""The error of a cluster for a client without its token."""


def require_listener(address: str) -> None:
    """Raise UsageError if nothing listens at ``HOST:PORT`` or ``ray://HOST:PORT``; other addresses are left to Ray."""
    parts = _ADDRESS.fullmatch(address.strip())
    if parts is None:
        return
    try:
        socket.create_connection((parts["host"], int(parts["port"])), timeout=_SOON).close()
    except (OSError, OverflowError, ValueError) as error:  # no such port, no name of a host
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise errors.UsageError(
            f"no Ray cluster answers at {address}: {reason[:1].lower()}{reason[1:]}", next_steps=[_START, _PORTS]
        ) from error


def no_answer(address: str, error: Exception, heard: str) -> errors.UsageError:
    """The error for a cluster that could not be joined; ``heard`` is what Ray wrote to stderr."""
    wants_token = _REFUSED in heard or type(error).__name__ == "AuthenticationError"
    has_mode = _MODE in os.environ
    token = (
        "the token of the cluster belongs into ~/.ray/auth_token, RAY_AUTH_TOKEN_PATH or RAY_AUTH_TOKEN"
        if has_mode
        else f"export {_MODE}=token    if the cluster wants the token in ~/.ray/auth_token"
    )
    if wants_token:
        return errors.UsageError(f"the Ray cluster at {address} wants its token", next_steps=[token])
    parts = _ADDRESS.fullmatch(address)
    if parts is None:
        reason = first_line(str(error))
        return errors.UsageError(
            f"no Ray cluster answers at {address}: {type(error).__name__}: {reason}", next_steps=[_START]
        )
    kind = "Ray Client" if parts["client"] else "the head of a Ray cluster"
    other = address.removeprefix("ray://") if parts["client"] else f"ray://{address}"
    return errors.UsageError(
        f"what answers at {address} is not {kind}, or is too busy: {first_line(str(error))}",
        next_steps=[f"--on {other}    if this is the other port", _PORTS, *([] if has_mode else [token])],
    )


class Pulse:
    """Watches whether the head of a joined cluster still accepts connections, whenever an answer is waited for.

    Ray ends this whole process, with status 1 and no message of ours, if the head is away for 60 s.
    """

    def __init__(self, head: str) -> None:
        self._head = head
        self._heard = self._asked = monotonic()
        self._lock = threading.Lock()
        self.is_gone = False

    def require(self) -> None:
        """Raise CheckError if the head has been away for too long."""
        with self._lock:
            now = monotonic()
            if self._head and not self.is_gone and now > self._asked + _BEAT:
                with contextlib.suppress(errors.UsageError):
                    require_listener(self._head)
                    self._heard = now
                self._asked = monotonic()
                self.is_gone = self._asked > self._heard + _AWAY
        if self.is_gone:
            raise errors.CheckError(
                f"the Ray cluster does not answer any more: its head, {self._head}, has been away for {_AWAY:.0f} s",
                next_steps=["ray status    shows whether it runs; the same line goes on once it does"],
            )


@contextlib.contextmanager
def overheard() -> Iterator[list[str]]:
    """Keep what libraries write to stderr off the terminal; at the end, the list holds it as one text."""
    heard: list[str] = []
    try:
        before = os.dup(2)
    except OSError:  # stderr is closed, so there is nothing to hide or hear
        yield heard
        return
    with tempfile.TemporaryFile() as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        os.dup2(file.fileno(), 2)
        try:
            yield heard
        finally:
            os.dup2(before, 2)
            os.close(before)
            file.seek(0)
            heard.append(file.read(_MOST_HEARD).decode(errors="replace"))


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What each check needs on a machine, as Ray counts it: CPUs, GPUs, and custom resources of the cluster."""

    cpus: float = 1.0
    gpus: float = 0.0
    others: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def named(cls, wanted: Mapping[str, float]) -> Resources:
        """Resources by their names in Ray, such as ``{"GPU": 1, "CPU": 4}``; one CPU by default."""
        others = {name: number for name, number in wanted.items() if name not in ("CPU", "GPU")}
        return cls(cpus=wanted.get("CPU", 1.0), gpus=wanted.get("GPU", 0.0), others=others)

    def __str__(self) -> str:
        return ",".join(f"{name}={number:g}" for name, number in self._wanted.items())

    @property
    def _wanted(self) -> dict[str, float]:
        every = {"CPU": self.cpus, "GPU": self.gpus, **self.others}
        return {name: number for name, number in every.items() if number}

    def places(self, there: Mapping[str, float]) -> int:
        """How many checks fit on a machine with these resources."""
        needs = self._wanted.items()
        return min((math.floor(there.get(name, 0.0) / needed) for name, needed in needs), default=1)

    def most(self, machines: Collection[Mapping[str, float]]) -> str:
        """The most that any of these machines has of each resource."""
        most = {name: max((has.get(name, 0.0) for has in machines), default=0.0) for name in self._wanted}
        return ",".join(f"{name}={number:g}" for name, number in most.items())


_PREFIX = "biopsy-host-"


_PART = 32 << 20
"""Bytes of a file in one object of the object store."""

_LOOK = 0.5  # seconds between two looks at whether a run was stopped
_GRACE = 4.0
"""Seconds for an actor to stop a check: twice what a check has to clean up."""
_PATIENCE = 60.0
"""Seconds for machines to report their kind."""
_INSTALLING = 1800.0
"""The same if they install packages first; Ray itself gives up after some attempts of 600 s."""


class RayWorkers(OtherMachines):
    """Workers on a Ray cluster; see ``session.pool.Workers``. ``room`` is how many checks fit on it.

    ``address`` is as in ``ray.init``, such as "ray://HOST:10001"; None for the cluster that exists, or a new one on
    this machine. ``runtime_env`` is Ray's: what it installs on each machine before checks run there.
    ``require_uniform`` refuses machines with different processors, GPUs or packages, because they are different
    engines. ``dashboard`` is the address of Ray's page about the cluster; "" if there is none, or if this process had
    joined the cluster before.

    Raises EngineMissing without Ray, UsageError if no cluster answers, no machine has the resources, or Ray refuses
    ``runtime_env``, CheckError if machines differ and may not, or biopsy cannot run there. For a machine that comes
    later, CheckError is in the future of a run.
    """

    def __init__(
        self,
        address: str | None = None,
        resources: Resources | None = None,
        *,
        runtime_env: Mapping[str, Any] | None = None,
        require_uniform: bool = False,
    ) -> None:
        self._ends_ray = "ray" not in sys.modules or not imported().is_initialized()
        self.dashboard, self._is_new, head = _connect(address) if self._ends_ray else ("", False, "")
        self._pulse = Pulse(head)
        self._resources = resources or Resources()
        self._require_uniform = require_uniform
        self._ending = threading.Event()
        self._files = _SentFiles()
        try:
            self._runtime_env = _environment(runtime_env or {})
            there = {node["NodeID"]: node["Resources"] for node in imported().nodes() if node["Alive"]}
            places = {node: self._resources.places(has) for node, has in there.items()}
            room = sum(places.values())
            if room < 1:
                raise errors.UsageError(
                    f"no machine of the Ray cluster has what a check is to have for itself: {self._resources}",
                    details=[f"  the most that any of them has: {self._resources.most(there.values())}"],
                    next_steps=["--resources CPU=1    for less", "ray status    shows what the machines have"],
                )
            kinds = _kinds_of([node for node, number in places.items() if number], self._runtime_env)
            if require_uniform:
                _require_uniform(kinds)
            super().__init__(self._actor, room, kinds)
        except BaseException:
            self._leave()
            raise

    @property
    def machines(self) -> str:
        """The size of the cluster, in words."""
        alive = count(sum(node["Alive"] for node in imported().nodes()), "machine")
        return f"{alive}{', a new cluster' if self._is_new else ''} (Ray {imported().__version__})"

    def close(self) -> None:
        """Stop all runs, give the machines back, and leave the cluster unless it was joined before."""
        self._ending.set()
        super().close()
        self._leave()

    def _leave(self) -> None:
        self._files.references.clear()
        if self._pulse.is_gone:
            atexit.unregister(imported().shutdown)  # it would wait for the head until Ray ends this process
        elif self._ends_ray:
            imported().shutdown()

    def _actor(self) -> _RayMachine:
        ray = imported()
        wanted = self._resources
        actor = ray.remote(_HostActor).options(
            num_cpus=wanted.cpus,
            num_gpus=wanted.gpus,
            resources=dict(wanted.others),
            runtime_env=self._runtime_env,
            max_concurrency=2,  # a check, and a call that stops it
            max_restarts=0,
            max_task_retries=0,
        )
        machine = _RayMachine(actor.remote(), self._files, self._pulse)
        try:
            machine.settle(self._ending)
            if self._require_uniform:
                _require_uniform([self.kinds[0], machine.kind])
        except BaseException:
            machine.close()
            raise
        return machine


def imported() -> Any:
    """The package ``ray``. Raises EngineMissing, with what to type, if it is not installed."""
    require_ray()
    import ray

    return ray


def require_ray() -> None:
    """Raise EngineMissing, with what to type, if Ray is not installed; without importing it."""
    if "ray" not in sys.modules and find_spec("ray") is None:
        raise errors.EngineMissing(
            "checks on other machines need Ray, which is not installed", next_steps=[install_line("biopsy[ray]")]
        )


def _environment(runtime_env: Mapping[str, Any]) -> Any:
    """The environment as a Ray object. Raises UsageError if Ray refuses it."""
    from ray.runtime_env import RuntimeEnv

    try:
        return RuntimeEnv(**runtime_env)
    except (TypeError, ValueError, OSError) as error:
        raise errors.UsageError(f"Ray does not take this runtime_env: {first_line(str(error))}") from error


def _connect(address: str | None) -> tuple[str, bool, str]:
    """Join a cluster; returns its dashboard ("" for none), whether it is new, and its head. Raises UsageError."""
    named = address or os.environ.get("RAY_ADDRESS", "")
    require_ray()
    require_listener(named)
    if named:
        os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "2")  # 20, each of up to 40 s, by default
    ray = imported()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # models are private, and so is the use of this program
    local = {} if named else {"include_dashboard": False}
    # Ray's processes import from the current folder first, unless the job seems to come from a client.
    elsewhere = ray.job_config.JobConfig(_client_job=True)
    ends_us = signal.getsignal(signal.SIGTERM)
    heard: list[str] = []
    try:
        with overheard() as heard:
            joined = ray.init(
                address=address, job_config=elsewhere, log_to_driver=False, logging_level="ERROR", **local
            )
    except Exception as error:
        raise no_answer(named or "this machine", error, "".join(heard)) from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, ends_us)  # Ray's own handler saves no result
    session = "" if named else str(joined.address_info.get("session_dir"))
    head = "" if named.startswith("ray://") else str(joined.address_info.get("gcs_address") or "")
    return joined.dashboard_url or "", session.endswith(f"_{os.getpid()}"), head  # Ray names a session by its process


def _kinds_of(nodes: Sequence[str], runtime_env: Mapping[str, Any]) -> list[MachineKind]:
    """The kinds of these machines, except those that do not answer soon and may be dead. Raises CheckError.

    With a ``runtime_env``, they install it first, which may take minutes.
    """
    ray = imported()
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    answers = [
        ray.remote(this_machine)
        .options(
            num_cpus=0,
            max_retries=0,
            runtime_env=runtime_env,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        )
        .remote()
        for node in nodes
    ]
    ready, _ = ray.wait(answers, num_returns=len(answers), timeout=_INSTALLING if runtime_env else _PATIENCE)
    kinds = []
    for answer in (answer for answer in answers if answer in ready):
        with contextlib.suppress(MachineLostError), _translated():
            kinds.append(ray.get(answer))
    return kinds


def _require_uniform(kinds: Sequence[MachineKind]) -> None:
    words = differing(kinds)
    if words:
        raise errors.CheckError(
            words, next_steps=["--resources NAME=1    for machines of one kind", "or leave --require-uniform out"]
        )


class _SentFiles:
    """Files in the object store, each put there once."""

    def __init__(self) -> None:
        self.references: dict[str, list[Any]] = {}
        self._lock = threading.Lock()

    def parts(self, digest: str, path: Path) -> list[Any]:
        """References to the parts of a file. Raises CheckError if it cannot be read."""
        ray = imported()
        with self._lock:
            if digest not in self.references:
                try:
                    with path.open("rb") as stream:
                        self.references[digest] = [ray.put(part) for part in iter(lambda: stream.read(_PART), b"")]
                except OSError as error:
                    raise errors.CheckError(f"cannot read {path}: {error.strerror or error}") from error
            return self.references[digest]


class _RayMachine:
    """A place for one check: an actor, on a machine that Ray has chosen."""

    def __init__(self, actor: Any, files: _SentFiles, pulse: Pulse) -> None:
        self.name = ""
        self._pulse = pulse
        self.kind = MachineKind(machine="", facts={})
        self._actor = actor
        self._files = files
        self._number = 0
        self._stopped: float | None = None
        self._lock = threading.Lock()

    def settle(self, ending: threading.Event) -> None:
        """Wait for a machine, unless the search is ``ending``. Raises MachineLostError or CheckError."""
        ray = imported()
        with _translated():
            answer = self._actor.where.remote()
            while not ray.wait([answer], timeout=_LOOK)[0]:
                self._pulse.require()
                if ending.is_set():
                    raise MachineLostError("no machine had room for the check when the search ended")
            self.name, self.kind = ray.get(answer)

    def lives(self) -> bool:
        """Whether the actor is not known to have died; one that is slow to answer counts as alive."""
        ray = imported()
        try:
            ray.get(self._actor.lives.remote(), timeout=_GRACE)
        except ray.exceptions.GetTimeoutError:
            return True
        except ray.exceptions.RayError:
            return False
        return True

    def run(self, task: PortableTask, files: Mapping[str, Path]) -> Answer:
        """Run a task and wait for its end. Raises MachineLostError if the actor or its machine dies."""
        ray = imported()
        try:
            parts = {digest: self._files.parts(digest, path) for digest, path in files.items()}
            with _translated():
                running = self._actor.run_with.remote(parts, self._number, task)
                while not ray.wait([running], timeout=_LOOK)[0]:
                    with self._lock:
                        is_late = self._stopped is not None and monotonic() > self._stopped + _GRACE
                    self._pulse.require()
                    if is_late:
                        ray.kill(self._actor)
                answer: Answer = ray.get(running)
                return answer
        finally:
            with self._lock:
                self._number += 1
                self._stopped = None

    def stop(self) -> None:
        """End the task that runs, or the next one if none runs."""
        with self._lock:
            self._stopped = monotonic()
            self._actor.stop.remote(self._number)

    def close(self) -> None:
        """Close the actor, and kill it."""
        if self._pulse.is_gone:
            return
        ray = imported()
        with contextlib.suppress(ray.exceptions.RayError):
            ray.get(self._actor.close.remote(), timeout=_GRACE)
        with contextlib.suppress(Exception):  # it is gone already
            ray.kill(self._actor)


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Turn Ray's exceptions into ours: a machine was lost, or our own code there failed."""
    failures = imported().exceptions
    try:
        yield
    except failures.RayTaskError as error:
        if isinstance(error.cause, failures.RayError):  # an object was lost on its way
            raise _lost(error.cause) from error
        raise _refused(error) from error
    except (failures.RuntimeEnvSetupError, failures.AuthenticationError) as error:
        raise _refused(error) from error
    except failures.RayError as error:
        raise _lost(error) from error


def _refused(error: Exception) -> errors.CheckError:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return errors.CheckError(f"the check could not be run on another machine: {lines[-1].strip()}")


def _lost(error: Exception) -> MachineLostError:
    """The error for a lost machine, in our words or Ray's."""
    failures, text = imported().exceptions, str(error).strip()
    if isinstance(error, failures.OutOfMemoryError):
        used = re.search(r"[\d.]+\w* used / [\d.]+\w* limit", text)
        words = f"it ran out of memory, so Ray ended what runs checks there{f' ({used[0]})' if used else ''}"
    elif "node was terminated expectedly" in text or "preempt" in text:
        words = "it was taken out of the cluster"
    elif "its node has died" in text or isinstance(error, failures.ActorUnavailableError):
        words = "it does not answer any more"
    elif "worker process has died" in text:
        words = "what runs checks there was killed, perhaps by the system for its memory"
    else:
        words = first_line(text)
    return MachineLostError(f"{words} ({type(error).__name__})")


class _HostActor:
    """A task host on the other machine, in a folder of its own that is the current folder of this process.

    The folder and all processes that checks have started go with this process, however it ends. Folders left by a
    machine that died are removed by the next actor there.
    """

    def __init__(self) -> None:
        os.environ.pop("PYTHONBREAKPOINT", None)  # Ray's value waits for a person
        cleanup.start(apart=True)  # its children may be ended before this process is
        parent = Path(tempfile.gettempdir())
        remove_abandoned(_PREFIX, parent)
        self._leaving = ExitStack()
        folder = self._leaving.enter_context(claimed_folder(_PREFIX, parent))
        os.chdir(folder)
        self._host = TaskHost(folder)

    def where(self) -> tuple[str, MachineKind]:
        """The id of its node in the cluster, and the kind of machine."""
        return imported().get_runtime_context().get_node_id(), this_machine()

    def lives(self) -> None:
        """Answer."""

    def run_with(self, parts: Mapping[str, list[Any]], number: int, task: PortableTask) -> Answer:
        """Run a task; ``parts`` are references to the parts of each file."""
        ray = imported()
        return self._host.run(number, task, lambda digest: map(ray.get, parts[digest]))

    def stop(self, number: int) -> None:
        """End a task. From any thread."""
        self._host.stop(number)

    def close(self) -> None:
        """End warm processes, and remove the folder."""
        self._host.close()
        os.chdir("/")
        self._leaving.close()
