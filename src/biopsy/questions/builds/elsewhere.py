"""Builds on other machines: each is made, and checked, on the same one, and several are at once.

What travels back is what the engine chose, what the check said, the kind of the machine, and the files that a person
asked for. What was built stays there otherwise, and is removed.
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
from biopsy.questions.builds.building import Builder, BuildPlan, BuildRun, Built, CheckFor, Order
from biopsy.questions.builds.record import TacticRecord, write_record
from biopsy.questions.builds.settings import VARIABLE, Drawn
from biopsy.session.conditions import this_machine
from biopsy.session.machines import OtherMachines, PreparedRun, tell_of_machines
from biopsy.session.pool import in_order

_MOST_WAITING = 2
"""Builds that may have ended before one that was begun earlier, for each that may run at once."""


class BuildsElsewhere:
    """Builds and checks on ``machines``, up to ``jobs`` at once; they are told of in the order of the plan.

    ``check_for`` gives a check of its own for each build, which is a command. Raises UsageError for a model whose
    weights stand elsewhere than it does.
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

    def runs(self, order: Iterable[Drawn]) -> Generator[BuildRun, None, None]:
        """Build and check. A machine that is lost says nothing: its build is made again on another.

        Raises CheckError if nothing can be concluded, UsageError for a check that no other machine can run.
        """
        until = self._plan.until
        self._machines.expect(min(self._jobs, until) if isinstance(until, int) else self._jobs)
        waiting = 1 if self._back else _MOST_WAITING  # what comes back may be large, and is held until its turn
        runs = in_order(enumerate(order), self._begun, self._machines, jobs=self._jobs, waiting=waiting)
        tell_of_machines(self._machines, self._listener)
        with closing(runs) as ended:
            for (number, drawn), found in ended:
                if found.evidence is not None and found.evidence.remark:
                    self._listener(events.Remark(found.evidence.remark))
                yield self._run(number, drawn, found)

    def _begun(self, asked: tuple[int, Drawn], running: Collection[object]) -> Future[PreparedRun]:
        number, drawn = asked
        plan = self._plan
        assert plan.model.path is not None
        self._listener(plan.beginning(number, drawn, self._line(drawn)))
        task = PreparedTask(
            check=None if plan.checks_building else self._check(drawn),
            candidate=plan.candidate,
            preparation=BuildPreparation(
                model=str(plan.model.path),
                order=Order(plan.spec_with(drawn.change).text, dict(drawn.change.environment), plan.artifact),
                timeout=plan.build_timeout,
                record=None if plan.record_to is None else (str(plan.record_to), plan.record(number, drawn)),
                is_all=plan.checks_building,
            ),
            models=[plan.model.path],
            written=[path for path in (plan.artifact, plan.record_to) if path is not None],
            back=self._back,
        )
        return self._machines.begin_prepared(task)

    @property
    def _back(self) -> list[Path]:
        """Files that come back. The record is written here."""
        return [path for path in self._plan.artifacts.files if path != self._plan.record_to]

    def _check(self, drawn: Drawn) -> CommandCheck:
        """The check of a drawn change, with the environment variables that the change sets."""
        check = self._check_for(drawn.change)
        assert isinstance(check, CommandCheck)
        assert self._plan.model.path is not None
        require_names(check, self._plan.model.path)
        if drawn.change.environment or not isinstance(check.command, OwnRun):  # ours asks nothing of it, and is warm
            told = {**drawn.change.environment, VARIABLE: self._plan.spec_with(drawn.change).text}
            check.environment.update(told)
        return check

    def _run(self, number: int, drawn: Drawn, found: PreparedRun) -> BuildRun:
        built: Built = found.told["built"]
        failure = found.told["failure"]
        if failure is not None:
            error = from_json({**failure, "message": found.with_our_paths(failure["message"])})
            assert isinstance(error, errors.EngineFailure)
            built = replace(built, failure=error)
        return BuildRun(
            number=number,
            drawn=drawn,
            built=replace(built, remarks=tuple(map(found.with_our_paths, built.remarks))),
            evidence=found.evidence,
            line=self._line(drawn),
            machine=found.told["machine"],
            files=found.files,
        )

    def _line(self, drawn: Drawn) -> str:
        return self._check_for(drawn.change).line(self._plan.candidate)


# On the other machine


@dataclass(frozen=True, kw_only=True)
class BuildPreparation:
    """A build that another machine makes before its check looks; see ``checks.preparation``.

    ``model`` and the path in ``order`` are those that stand here, as is that of the ``record``, which is written before
    the check. ``is_all``: nothing else is checked than that it builds. It tells what was ``built``, its ``failure`` as
    JSON has it, and the kind of the ``machine``.
    """

    model: str
    order: Order
    timeout: float | None
    record: tuple[str, TacticRecord] | None
    is_all: bool

    @contextlib.contextmanager
    def prepared(self, site: TaskSite, stop: Stop) -> Iterator[Prepared]:
        """Build. A failure of the engine is told; raises what else is wrong, as ``Builder.build`` does."""
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
        told = {"built": replace(built, failure=None), "failure": failure, "machine": machine}
        yield Prepared(told=told, is_ready=built.failure is None and not self.is_all)


@cache
def machine_text() -> str:
    """The kind of this machine: alike where the same build is the same engine."""
    facts = this_machine().facts
    named = [facts[name] for name in ("processor", "GPU") if facts.get(name, "none") != "none"]
    digest = hashlib.sha256("\n".join(f"{name} {fact}" for name, fact in sorted(facts.items())).encode()).hexdigest()
    return f"{', '.join(named)} ({digest[:8]})"
