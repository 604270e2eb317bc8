"""Checks on the machines of a Ray cluster: the only file that knows Ray.

Each place for a check (``session.cluster.HostPlace``) is an actor of Ray, on whichever machine Ray puts it. What it
needs of our files comes through the object store of Ray, once to each machine. The actor itself stops
a check, with all that it has started; an actor that does not answer then is killed.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import Any

from biopsy import errors
from biopsy.checks.portable import PortableTask
from biopsy.checks.task_host import Answer
from biopsy.session.cluster import HostPlace, Pulse, Resources, no_answer, overheard, require_listener
from biopsy.session.conditions import MachineKind, differing, this_machine
from biopsy.session.machines import MachineLostError, OtherMachines
from biopsy.text import count, first_line

_PART = 32 << 20
"""Bytes of a file that are put into the object store at once."""

_LOOK = 0.5  # seconds between two looks at whether a run was stopped
_GRACE = 4.0
"""Seconds that an actor may take to stop a check: twice what a check has to clean up."""
_PATIENCE = 60.0
"""Seconds that machines may take to say of what kind they are."""
_INSTALLING = 1800.0
"""The same, where they install what they need before; Ray itself gives up after some attempts of 600 s."""


class RayWorkers(OtherMachines):
    """Workers on a Ray cluster; see ``session.workers.Workers``. ``room`` is for how many checks it has resources.

    ``address`` is one that ``ray.init`` takes, such as "ray://HOST:10001"; None for the cluster that is there, or a new
    one on this machine. ``runtime_env`` is Ray's: what it installs on each machine before checks run there.
    ``require_uniform`` refuses machines that differ in processor, GPU or packages: they are different engines.
    ``dashboard`` is the address of Ray's own page about the cluster; "" if there is none, or somebody else has joined
    the cluster.

    Raises EngineMissing without Ray, UsageError if no cluster answers, none of its machines has the resources, or Ray
    does not take ``runtime_env``, CheckError if machines may not differ and do, or biopsy cannot run there; and that in
    the future of a run too, for a machine that comes later.
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
            self._runtime_env = _checked(runtime_env or {})
            room, nodes = self._room()
            kinds = _kinds_of(nodes, self._runtime_env)
            if require_uniform:
                _require_uniform(kinds)
            super().__init__(self._actor, room, kinds)
        except BaseException:
            self._leave()
            raise

    @property
    def sent(self) -> int:
        """How many bytes of files were put into the object store."""
        return self._files.bytes

    @property
    def machines(self) -> str:
        """How many machines the cluster has, in words."""
        alive = count(sum(node["Alive"] for node in imported().nodes()), "machine")
        return f"{alive}{', a new cluster' if self._is_new else ''} (Ray {imported().__version__})"

    def close(self) -> None:
        """End what runs, give the machines back, and leave the cluster if nobody had joined it before."""
        self._ending.set()
        super().close()
        self._leave()

    def _leave(self) -> None:
        self._files.clear()
        if self._pulse.is_gone:
            atexit.unregister(imported().shutdown)  # it would wait for the head until Ray ends this process
        elif self._ends_ray:
            imported().shutdown()

    def _room(self) -> tuple[int, list[str]]:
        """How many checks have room, and the machines that have room for one."""
        there = {node["NodeID"]: node["Resources"] for node in imported().nodes() if node["Alive"]}
        places = {node: self._resources.places(has) for node, has in there.items()}
        room = sum(places.values())
        if room < 1:
            raise errors.UsageError(
                f"no machine of the Ray cluster has what a check is to have for itself: {self._resources}",
                details=[f"  the most that any of them has: {self._resources.most(there.values())}"],
                next_steps=["--resources CPU=1    for less", "ray status    shows what the machines have"],
            )
        return room, [node for node, number in places.items() if number]

    def _actor(self) -> _RayMachine:
        ray = imported()
        wanted = self._resources
        made = ray.remote(_HostActor).options(
            num_cpus=wanted.cpus,
            num_gpus=wanted.gpus,
            resources=dict(wanted.others),
            runtime_env=self._runtime_env,
            max_concurrency=2,  # a check, and whoever stops it
            max_restarts=0,
            max_task_retries=0,
        )
        machine = _RayMachine(made.remote(), self._files, self._pulse)
        try:
            machine.settle(self._ending)
            if self._require_uniform:
                _require_uniform([self.kinds[0], machine.kind])
        except BaseException:
            machine.close()
            raise
        return machine


def imported() -> Any:
    """The package ``ray``. Raises EngineMissing, with what to type, where it is not installed."""
    require_ray()
    import ray

    return ray


def require_ray() -> None:
    """Raise EngineMissing, with what to type, where Ray is not installed. It is not imported for that."""
    if "ray" not in sys.modules and find_spec("ray") is None:
        raise errors.EngineMissing(
            "checks on other machines need Ray, which is not installed", next_steps=['pip install "biopsy[ray]"']
        )


def _checked(runtime_env: Mapping[str, Any]) -> Any:
    """An environment as Ray takes it. Raises UsageError if it does not."""
    from ray.runtime_env import RuntimeEnv

    try:
        return RuntimeEnv(**runtime_env)
    except (TypeError, ValueError, OSError) as error:
        raise errors.UsageError(f"Ray does not take this runtime_env: {first_line(str(error))}") from error


def _connect(address: str | None) -> tuple[str, bool, str]:
    """Join it; returns where its dashboard is, "" if it has none, whether it is new, its head. Raises UsageError."""
    named = address or os.environ.get("RAY_ADDRESS", "")
    require_ray()
    require_listener(named)
    if named:
        os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "2")  # 20, each of up to 40 s, by default
    ray = imported()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # models are private, and so is that somebody looks at one
    local = {} if named else {"include_dashboard": False}
    # Ray has its processes import from the current folder first, unless it is told that the job comes from a client.
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
            signal.signal(signal.SIGTERM, ends_us)  # Ray puts a handler of its own there, which saves no result
    session = "" if named else str(joined.address_info.get("session_dir"))
    head = "" if named.startswith("ray://") else str(joined.address_info.get("gcs_address") or "")
    return joined.dashboard_url or "", session.endswith(f"_{os.getpid()}"), head  # a session is named by who began it


def _kinds_of(nodes: Sequence[str], runtime_env: Mapping[str, Any]) -> list[MachineKind]:
    """The kinds of these machines, as far as they answer soon: one that does not may be dead. Raises CheckError.

    With a ``runtime_env`` they install it before they answer, which may take minutes.
    """
    ray = imported()
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    asked = [
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
    ready, _ = ray.wait(asked, num_returns=len(asked), timeout=_INSTALLING if runtime_env else _PATIENCE)
    kinds = []
    for answer in (answer for answer in asked if answer in ready):
        with contextlib.suppress(MachineLostError), _told():
            kinds.append(ray.get(answer))
    return kinds


def _require_uniform(kinds: Sequence[MachineKind]) -> None:
    words = differing(kinds)
    if words:
        raise errors.CheckError(
            words, next_steps=["--resources NAME=1    for machines of one kind", "or leave --require-uniform out"]
        )


class _SentFiles:
    """Files in the object store, each put there once; ``bytes`` counts what was."""

    def __init__(self) -> None:
        self.bytes = 0
        self._parts: dict[str, list[Any]] = {}
        self._lock = threading.Lock()

    def parts(self, digest: str, path: Path) -> list[Any]:
        """The references to the parts of a file. Raises CheckError if it cannot be read."""
        ray = imported()
        with self._lock:
            if digest not in self._parts:
                try:
                    with path.open("rb") as stream:
                        self._parts[digest] = [ray.put(part) for part in iter(lambda: stream.read(_PART), b"")]
                        self.bytes += stream.tell()
                except OSError as error:
                    raise errors.CheckError(f"cannot read {path}: {error.strerror or error}") from error
            return self._parts[digest]

    def clear(self) -> None:
        """Let the object store free them."""
        self._parts.clear()


class _RayMachine:
    """A place for one check: an actor, on whichever machine Ray has put it."""

    def __init__(self, actor: Any, files: _SentFiles, pulse: Pulse) -> None:
        self.name = ""
        self._pulse = pulse
        self._kind: MachineKind | None = None
        self._actor = actor
        self._files = files
        self._number = 0
        self._stopped: float | None = None
        self._lock = threading.Lock()

    @property
    def kind(self) -> MachineKind:
        """What its answers depend on."""
        assert self._kind is not None
        return self._kind

    def settle(self, ending: threading.Event) -> None:
        """Wait until there is a machine for it, unless it is ``ending``. Raises MachineLostError, or CheckError."""
        ray = imported()
        with _told():
            asked = self._actor.where.remote()
            while not ray.wait([asked], timeout=_LOOK)[0]:
                self._pulse.require()
                if ending.is_set():
                    raise MachineLostError("no machine had room for the check when the search ended")
            self.name, self._kind = ray.get(asked)

    def lives(self) -> bool:
        """Whether nobody knows that the actor has died. One that is only slow to answer lives."""
        ray = imported()
        try:
            ray.get(self._actor.lives.remote(), timeout=_GRACE)
        except ray.exceptions.GetTimeoutError:
            return True
        except ray.exceptions.RayError:
            return False
        return True

    def run(self, task: PortableTask, files: Mapping[str, Path]) -> Answer:
        """Do a task and wait for its end. Raises MachineLostError if the actor or its machine dies."""
        try:
            parts = {digest: self._files.parts(digest, path) for digest, path in files.items()}
            with _told():
                return self._answer(self._actor.run_with.remote(parts, self._number, task))
        finally:
            with self._lock:
                self._number += 1
                self._stopped = None

    def _answer(self, running: Any) -> Answer:
        ray = imported()
        while True:
            ready, _ = ray.wait([running], timeout=_LOOK)
            if ready:
                answer: Answer = ray.get(running)
                return answer
            with self._lock:
                is_late = self._stopped is not None and monotonic() > self._stopped + _GRACE
            self._pulse.require()
            if is_late:
                ray.kill(self._actor)

    def stop(self) -> None:
        """End the task that runs, or the next one if none runs."""
        with self._lock:
            self._stopped = monotonic()
            self._actor.stop.remote(self._number)

    def close(self) -> None:
        """End the actor: politely, if it answers."""
        if self._pulse.is_gone:
            return
        ray = imported()
        with contextlib.suppress(ray.exceptions.RayError):
            ray.get(self._actor.close.remote(), timeout=_GRACE)
        with contextlib.suppress(Exception):  # it has gone
            ray.kill(self._actor)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """What Ray raises, as what we do: a machine is lost, or our own code there has failed."""
    failures = imported().exceptions
    try:
        yield
    except failures.RayTaskError as error:
        if isinstance(error.cause, failures.RayError):  # what we sent was lost on its way
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
    """What has become of a machine, in words, and in those of Ray."""
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


# On the other machine


class _HostActor(HostPlace):
    """A place for a check, as Ray asks it."""

    def where(self) -> tuple[str, MachineKind]:
        """Which node of the cluster it is on, and of what kind that is."""
        return imported().get_runtime_context().get_node_id(), this_machine()

    def lives(self) -> None:
        """Answer."""

    def run_with(self, parts: Mapping[str, list[Any]], number: int, task: PortableTask) -> Answer:
        """Do a task; ``parts`` are references to the parts of each file."""
        ray = imported()
        return self.run(number, task, lambda digest: map(ray.get, parts[digest]))
