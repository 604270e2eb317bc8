"""Builds on other machines, several at once; each build is checked on the machine that made it.

The choices of the engine, the evidence of the check, the kind of the machine and the requested files come back.
Everything else that was built is removed there.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Collection, Generator, Iterable, Iterator
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from biopsy import errors, events
from biopsy.checks.command import CommandCheck
from biopsy.checks.command_line import OwnRun
from biopsy.checks.task import Prepared, PreparedTask, TaskSite, require_names, require_weights_beside
from biopsy.engines.base import ModelInput
from biopsy.model.load import read_bytes
from biopsy.processes.server import as_json, from_json
from biopsy.processes.watch import Stop
from biopsy.questions.builds.building import Builder, BuildOrder, BuildPlan, BuildRun, Built, CheckFor
from biopsy.questions.builds.record import TacticRecord, write_record
from biopsy.questions.builds.settings import VARIABLE, Drawn
from biopsy.session.conditions import this_machine
from biopsy.session.machines import OtherMachines, PreparedRun, tell_of_machines
from biopsy.session.pool import in_order

_MOST_WAITING = 2
"""How many finished builds may wait for one that was begun earlier, for each build that may run at once."""


class BuildsElsewhere:
    """Builds and checks on ``machines``, up to ``jobs`` at once; results come in the order of the plan.

    ``check_for`` returns a new command for each build. Raises UsageError for a model whose weights are not in its
    folder.
    """

    def __init__(
        self,
        plan: BuildPlan,
        check_for: CheckFor,
        machines: OtherMachines,
        jobs: int,
        listener: events.Listener = events.ignore,
    ) -> None:
        if plan.model.path is not None:
            require_weights_beside(plan.model.path, plan.model.folder)
        self._plan = plan
        self._check_for = check_for
        self._machines = machines
        self._jobs = jobs
        self._listener = listener

    def runs(self, changes: Iterable[Drawn]) -> Generator[BuildRun, None, None]:
        """Build and check. If a machine is lost, its build is made again on another.

        Raises CheckError if nothing can be concluded, UsageError for a check that no other machine can run.
        """
        until = self._plan.until
        self._machines.expect(min(self._jobs, until) if isinstance(until, int) else self._jobs)
        waiting = 1 if self._back else _MOST_WAITING  # files that come back may be large, and are held until their turn
        runs = in_order(enumerate(changes), self._begin, self._machines, jobs=self._jobs, waiting=waiting)
        tell_of_machines(self._machines, self._listener)
        with closing(runs) as ended:
            for (number, drawn), prepared_run in ended:
                if prepared_run.evidence is not None and prepared_run.evidence.remark:
                    self._listener(events.Remark(prepared_run.evidence.remark))
                yield self._run(number, drawn, prepared_run)

    def _begin(self, numbered: tuple[int, Drawn], running: Collection[object]) -> Future[PreparedRun]:
        number, drawn = numbered
        plan = self._plan
        assert plan.model.path is not None
        self._listener(plan.beginning(number, drawn, self._line(drawn)))
        task = PreparedTask(
            check=None if plan.checks_building else self._check(drawn),
            candidate=plan.candidate,
            preparation=BuildPreparation(
                model=str(plan.model.path),
                order=BuildOrder(plan.spec_with(drawn.change).text, dict(drawn.change.environment), plan.artifact),
                timeout=plan.build_timeout,
                record=None if plan.record_to is None else (str(plan.record_to), plan.record(number, drawn)),
                checks_building=plan.checks_building,
            ),
            models=[plan.model.path],
            written=[path for path in (plan.artifact, plan.record_to) if path is not None],
            back=self._back,
        )
        return self._machines.begin_prepared(task)

    @property
    def _back(self) -> list[Path]:
        """Files that come back; the record does not, as it is written here."""
        return [path for path in self._plan.artifacts.files if path != self._plan.record_to]

    def _check(self, drawn: Drawn) -> CommandCheck:
        """The check with a change, in the environment that the change sets."""
        check = self._check_for(drawn.change)
        assert isinstance(check, CommandCheck)
        assert self._plan.model.path is not None
        require_names(check, self._plan.model.path)
        # biopsy run does not read VARIABLE, and without an environment of its own it can run warm
        if drawn.change.environment or not isinstance(check.command, OwnRun):
            check.environment.update(drawn.change.environment)
            check.environment[VARIABLE] = self._plan.spec_with(drawn.change).text
        return check

    def _run(self, number: int, drawn: Drawn, prepared_run: PreparedRun) -> BuildRun:
        built: Built = prepared_run.report["built"]
        failure = prepared_run.report["failure"]
        if failure is not None:
            error = from_json({**failure, "message": prepared_run.with_our_paths(failure["message"])})
            assert isinstance(error, errors.EngineFailure)
            built = replace(built, failure=error)
        return BuildRun(
            number=number,
            drawn=drawn,
            built=replace(built, remarks=tuple(map(prepared_run.with_our_paths, built.remarks))),
            evidence=prepared_run.evidence,
            line=self._line(drawn),
            machine=prepared_run.report["machine"],
            files=prepared_run.files,
        )

    def _line(self, drawn: Drawn) -> str:
        return self._check_for(drawn.change).line(self._plan.candidate)


@dataclass(frozen=True, kw_only=True)
class BuildPreparation:
    """A build that another machine makes before it runs the check; see ``checks.task.Preparation``.

    ``model`` and the paths in ``order`` and ``record`` are those on this machine; the record is written before the
    check. ``checks_building``: no check is run. The other machine reports what was ``built``, its ``failure`` as JSON,
    and the kind of the ``machine``.
    """

    model: str
    order: BuildOrder
    timeout: float | None
    record: tuple[str, TacticRecord] | None
    checks_building: bool

    @contextlib.contextmanager
    def prepared(self, site: TaskSite, stop: Stop) -> Iterator[Prepared]:
        """Build, and report a failure of the engine. Raises the other errors of ``Builder.build``."""
        path = site.path(self.model)
        builder = site.kept(
            ("build", self.model, self.timeout),
            lambda: Builder(ModelInput(read_bytes(path), path.parent, path), self.timeout),
        )
        save_to = None if self.order.save_to is None else site.path(str(self.order.save_to))
        built, machine = builder.build(replace(self.order, save_to=save_to), stop), machine_text()
        if self.record is not None:
            place, record = self.record
            write_record(built.noted_in(record, machine), site.path(place))
        failure = None if built.failure is None else as_json(built.failure)
        report = {"built": replace(built, failure=None), "failure": failure, "machine": machine}
        yield Prepared(report=report, is_ready=built.failure is None and not self.checks_building)


@cache
def machine_text() -> str:
    """The kind of this machine: its processor, GPU, and a digest of everything that a build may depend on."""
    facts = this_machine().facts
    hardware = [facts[name] for name in ("processor", "GPU") if facts.get(name, "none") != "none"]
    digest = hashlib.sha256("\n".join(f"{name} {fact}" for name, fact in sorted(facts.items())).encode()).hexdigest()
    return f"{', '.join(hardware)} ({digest[:8]})"
