"""The machines of a Ray cluster, for searches that Python code starts.

with biopsy.RayExecutor(resources={"GPU": 1}) as cluster:
    biopsy.reduce("model.onnx", ["biopsy", "run", "{}", "--trt", "--onnxrt"], parallelism=cluster.parallelism)
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import wait
from types import TracebackType
from typing import Any

from biopsy import errors
from biopsy.session.pool import Parallelism
from biopsy.session.ray_cluster import RayWorkers, Resources


class RayExecutor(RayWorkers):
    """Runs the checks of searches on a Ray cluster, one search after the other: an ``executor`` of ``Parallelism``.

    ``address`` is one that ``ray.init`` takes, such as "ray://HOST:10001"; None for the cluster that is there, or a new
    one of this machine alone. ``resources`` is what each check has for itself, as Ray counts it, such as
    ``{"GPU": 1, "CPU": 4}``: one CPU if nothing is said. ``runtime_env`` is Ray's, installed before a check runs.
    ``require_uniform`` refuses machines that differ in processor, GPU or packages: they are different engines. ``room``
    is how many checks may run at once, and ``machines`` tells of the cluster in words.

    The processes on the machines stay warm from one search to the next: use it in a ``with`` statement, or call
    ``shutdown``. It is no ``concurrent.futures.Executor``: it can end a check that runs, and runs nothing but checks
    that are commands.

    Raises EngineMissing without Ray, UsageError if no cluster answers, none of its machines has the resources, or an
    argument has another form, CheckError if machines may not differ and do, or biopsy cannot run there.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        resources: Mapping[str, float] | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        require_uniform: bool = False,
    ) -> None:
        wanted = resources or {}
        for name, number in wanted.items():
            if not isinstance(number, int | float) or not number >= 0:
                raise errors.UsageError(f"resources={resources!r}: {name} is no number of at least 0")
        super().__init__(address, Resources.named(wanted), runtime_env=runtime_env, require_uniform=require_uniform)

    @property
    def parallelism(self) -> Parallelism:
        """As many checks at once as there is room for, on these machines."""
        return Parallelism(jobs=self.room, executor=self)

    def close(self) -> None:
        """End the checks of a search, and keep the machines for the next one."""
        runs = list(self._held)
        for run in runs:
            self.stop(run)
        wait(runs)

    def shutdown(self) -> None:
        """End what runs, give the machines back, and leave the cluster if nobody had joined it before."""
        super().close()

    def __enter__(self) -> RayExecutor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shutdown()
