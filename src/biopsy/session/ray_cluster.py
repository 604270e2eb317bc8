"""Checks on the machines of a Ray cluster: the only file that knows Ray.

An actor of Ray stands for each place for a check. It runs a ``TaskHost`` in a folder of its own, on whichever machine
Ray puts it; what it needs of our files comes by the object store of Ray, once to each machine. A check is stopped by
the actor itself, with all that it has started; an actor that does not answer then is killed. Where Ray kills one, it
kills the process too that would remove its folder (``isolation.cleanup``): then that stays.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Any

from biopsy import errors
from biopsy.checks.portable import PortableTask
from biopsy.checks.task_host import Answer, TaskHost
from biopsy.filesystem.content_store import ContentStore
from biopsy.filesystem.private_folder import folder_of_user
from biopsy.isolation.cleanup import temporary_folder
from biopsy.session.conditions import versions
from biopsy.session.machines import MachineLostError, OtherMachines
from biopsy.text import first_line

_PART = 32 << 20
"""Bytes of a file that are put into the object store at once."""

_LOOK = 0.5  # seconds between two looks at whether a run was stopped
_GRACE = 4.0
"""Seconds that an actor may take to stop a check: twice what a check has to clean up."""


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What each check needs of a machine, as Ray counts it: processors, GPUs, and whatever a cluster calls its own."""

    cpus: float = 1.0
    gpus: float = 0.0
    others: Mapping[str, float] = field(default_factory=dict)

    def places(self, there: Mapping[str, float]) -> int:
        """How many checks have room at once on a machine with these resources."""
        wanted = {"CPU": self.cpus, "GPU": self.gpus, **self.others}
        return min((math.floor(there.get(name, 0.0) / needed) for name, needed in wanted.items() if needed), default=1)


class RayWorkers(OtherMachines):
    """Workers on a Ray cluster; see ``session.workers.Workers``. ``room`` is for how many checks it has resources.

    ``address`` is one that ``ray.init`` takes, such as "ray://HOST:10001"; None for the cluster that is there, or a new
    one on this machine. ``runtime_env`` is Ray's, for its actors: what it installs on each machine before checks run
    there. ``require_uniform`` refuses machines that differ in processor, GPU or packages: they
    are different engines. Where they may differ, the first check on another kind of machine has a remark.

    Raises EngineMissing without Ray, UsageError if no cluster answers, if none of its machines has the resources or Ray
    does not understand ``runtime_env``, and in
    the future of a run CheckError for a machine that may not run checks.
    """

    def __init__(
        self,
        address: str | None = None,
        resources: Resources | None = None,
        *,
        runtime_env: Mapping[str, Any] | None = None,
        require_uniform: bool = False,
    ) -> None:
        ray = imported()
        self._runtime_env = _checked(runtime_env or {})
        self._ends_ray = not ray.is_initialized()
        if self._ends_ray:
            _connect(address)
        self._resources = resources or Resources()
        self._require_uniform = require_uniform
        self._ending = threading.Event()
        self._seen = _Kinds()
        self._files = _SentFiles()
        try:
            super().__init__(self._actor, self._room())
        except BaseException:
            self._leave()
            raise

    @property
    def machines(self) -> str:
        """How many machines the cluster has, in words."""
        count = sum(node["Alive"] for node in imported().nodes())
        return f"{count} machine{'s' if count > 1 else ''} (Ray {imported().__version__})"

    def close(self) -> None:
        """End what runs, give the machines back, and leave the cluster if nobody had joined it before."""
        self._ending.set()
        super().close()
        self._leave()

    def _leave(self) -> None:
        self._files.clear()
        if self._ends_ray:
            imported().shutdown()

    def _room(self) -> int:
        there = [node["Resources"] for node in imported().nodes() if node["Alive"]]
        room = sum(self._resources.places(node) for node in there)
        if room < 1:
            raise errors.UsageError(
                f"none of the {len(there)} machines of the Ray cluster has what a check is to have ({self._resources})",
                next_steps=["ray status", "--resources CPU=1    for less"],
            )
        return room

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
        machine = _RayMachine(made.remote(), self._files)
        try:
            machine.remark = self._seen.remark(machine.kind(self._ending), required=self._require_uniform)
        except BaseException:
            machine.close()
            raise
        return machine


def imported() -> Any:
    """The package ``ray``. Raises EngineMissing, with what to type, where it is not installed."""
    try:
        import ray
    except ImportError as error:
        raise errors.EngineMissing(
            "checks on other machines need Ray, which is not installed", next_steps=['pip install "biopsy[ray]"']
        ) from error
    return ray


def _checked(runtime_env: Mapping[str, Any]) -> Any:
    """An environment as Ray takes it. Raises UsageError if it does not."""
    from ray.runtime_env import RuntimeEnv

    try:
        return RuntimeEnv(**runtime_env)
    except (TypeError, ValueError, OSError) as error:
        raise errors.UsageError(f"Ray does not take this runtime_env: {first_line(str(error))}") from error


def _connect(address: str | None) -> None:
    ray = imported()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # models are private, and so is that somebody looks at one
    local = {"include_dashboard": False} if address is None and "RAY_ADDRESS" not in os.environ else {}
    ends_us = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", **local)
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise errors.UsageError(
            f"no Ray cluster answers at {address or 'this machine'}: {type(error).__name__}: {reason}",
            next_steps=["ray start --head    on the first machine, then  ray start --address HOST:6379  on the others"],
        ) from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, ends_us)  # Ray puts a handler of its own there, which saves no result


class _SentFiles:
    """Files in the object store, each put there once."""

    def __init__(self) -> None:
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
                except OSError as error:
                    raise errors.CheckError(f"cannot read {path}: {error.strerror or error}") from error
            return self._parts[digest]

    def clear(self) -> None:
        """Let the object store free them."""
        self._parts.clear()


class _Kinds:
    """The kinds of machines that were met."""

    def __init__(self) -> None:
        self._first: Mapping[str, str] | None = None
        self._lock = threading.Lock()

    def remark(self, kind: Mapping[str, str], *, required: bool) -> str:
        """How a machine differs from the first; "" if it does not. Raises CheckError if it is ``required`` not to."""
        with self._lock:
            first = self._first = self._first or kind
        names = [name for name in sorted({*first, *kind} - {"machine"}) if first.get(name) != kind.get(name)]
        if not names:
            return ""
        differs = "; ".join(
            f"{name}: {first.get(name, 'none')}, {kind.get(name, 'none')}" for name in names[:_MOST_TOLD]
        )
        text = f"machines differ, so they are different engines: {first['machine']} and {kind['machine']} ({differs})"
        if required:
            raise errors.CheckError(
                text, next_steps=["--resources NAME=1    for machines of one kind", "or leave --require-uniform out"]
            )
        return text


_MOST_TOLD = 4


class _RayMachine:
    """A place for one check: an actor, on whichever machine Ray has put it."""

    def __init__(self, actor: Any, files: _SentFiles) -> None:
        self.remark = ""
        self._actor = actor
        self._files = files
        self._number = 0
        self._stopped: float | None = None
        self._lock = threading.Lock()

    def kind(self, ending: threading.Event) -> Mapping[str, str]:
        """What its answers depend on: see ``machine_kind``. It waits until there is a machine, unless it is ``ending``.

        Raises MachineLostError, or CheckError.
        """
        ray = imported()
        with _told():
            asked = self._actor.kind.remote()
            while not ray.wait([asked], timeout=_LOOK)[0]:
                if ending.is_set():
                    raise MachineLostError("no machine had room for the check when the search ended")
            found: dict[str, str] = ray.get(asked)
            return found

    def run(self, task: PortableTask, files: Mapping[str, Path]) -> Answer:
        """Do a task and wait for its end. Raises MachineLostError if the actor or its machine dies."""
        try:
            parts = {digest: self._files.parts(digest, path) for digest, path in files.items()}
            with _told():
                answer = self._answer(self._actor.run.remote(self._number, task, parts))
            return self._with_remark(answer)
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
            if is_late:
                ray.kill(self._actor)

    def _with_remark(self, answer: Answer) -> Answer:
        if not self.remark or answer.evidence is None or answer.evidence.remark:
            return answer
        remark, self.remark = self.remark, ""
        return replace(answer, evidence=replace(answer.evidence, remark=remark))

    def stop(self) -> None:
        """End the task that runs, or the next one if none runs."""
        with self._lock:
            self._stopped = monotonic()
            self._actor.stop.remote(self._number)

    def close(self) -> None:
        """End the actor: politely, if it answers."""
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
    except (failures.RayTaskError, failures.RuntimeEnvSetupError, failures.AuthenticationError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise errors.CheckError(f"the check could not be run on another machine: {lines[-1]}") from error
    except failures.RayError as error:
        lines = str(error).strip().splitlines() or [""]
        raise MachineLostError(f"{type(error).__name__}: {lines[0]}") from error


# On the other machine


class _HostActor:
    """A task host in a folder of its own, which goes with this process however it ends."""

    def __init__(self) -> None:
        self._leaving = contextlib.ExitStack()
        folder = self._leaving.enter_context(temporary_folder("biopsy-host-"))
        os.chdir(folder)
        self._host = TaskHost(folder, ContentStore(_store_folder() or folder / "contents"))

    def kind(self) -> dict[str, str]:
        """The kind of this machine."""
        return machine_kind()

    def run(self, number: int, task: PortableTask, parts: Mapping[str, list[Any]]) -> Answer:
        """Do a task; ``parts`` are references to the parts of each file."""
        ray = imported()
        received: Callable[[str], Iterator[bytes]] = lambda digest: map(ray.get, parts[digest])  # noqa: E731
        return self._host.run(number, task, received)

    def stop(self, number: int) -> None:
        """End it."""
        self._host.stop(number)

    def close(self) -> None:
        """End what was kept warm, and remove the folder."""
        self._host.close()
        os.chdir("/")
        self._leaving.close()


def _store_folder() -> Path | None:
    given = os.environ.get("BIOPSY_CACHE_DIR")
    own = Path(given).absolute() if given else folder_of_user("XDG_CACHE_HOME", ".cache")
    return None if own is None else own / "contents"


def machine_kind() -> dict[str, str]:
    """What a check's answers depend on besides the model and its files: processor, GPUs, versions; and the name."""
    found = {"machine": platform.node(), "processor": _processor(), **dict(versions())}
    gpus = sorted(path.read_text().partition("Model:")[2].partition("\n")[0].strip() for path in _gpus())
    return found | ({"GPU": ", ".join(gpus), "driver": _driver()} if gpus else {})


def _processor() -> str:
    """The model of the processor and a digest of its features, as far as the system tells."""
    import hashlib

    try:
        lines = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    values = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    features = " ".join(sorted(values.get("flags", values.get("Features", "")).split()))
    return f"{values.get('model name', platform.machine())} {hashlib.sha256(features.encode()).hexdigest()[:8]}"


def _gpus() -> list[Path]:
    return list(Path("/proc/driver/nvidia/gpus").glob("*/information"))


def _driver() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/driver/nvidia/version").read_text().partition("\n")[0]
    return ""
