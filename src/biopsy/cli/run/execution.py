"""Running a model: in each engine in turn, in memory or into the recorder's file, and again where that is needed."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.cli.run.findings import Ran
from biopsy.quantities import count

if TYPE_CHECKING:
    from biopsy.cli.console import Console
    from biopsy.cli.run.inputs import Feeder
    from biopsy.cli.run.recording import Recorder
    from biopsy.engines.base import Engine, ModelInput
    from biopsy.tensors.results import RunnerResult


@dataclass(frozen=True)
class ModelExecution:
    """A model that is run in engines, all with the inputs of one feeder, as the arguments say."""

    model: ModelInput
    feeder: Feeder
    args: argparse.Namespace
    console: Console

    def run_all(self, engines: Sequence[Engine], recorder: Recorder | None) -> list[Ran]:
        """Run each engine, freed before the next; all get the inputs that the first one that builds asks for."""
        ran = []
        for number, engine in enumerate(engines):
            try:
                ran.append(self._run(engine, number, self.feeder, recorder))
            except errors.EngineFailure as failure:
                self.console.failure(with_engine(failure, engine))
                ran.append(Ran(engine, failure=failure))
                if self.args.fail_fast:
                    break
        return ran

    def run_again(self, engine: Engine, feeder: Feeder) -> RunnerResult:
        """What another engine gives for the inputs of another feeder. Raises EngineFailure."""
        recorder = self.recorder([engine], None)
        result = self._run(engine, 0, feeder, recorder).result
        if recorder is not None:
            recorder.finish()
        assert result is not None
        return result

    def recorder(self, engines: Sequence[Engine], save_to: Path | None) -> Recorder | None:
        """What keeps outputs out of memory, if --record-memory is given."""
        if self.args.record_memory is None:
            return None
        from biopsy.cli.run.recording import Recorder
        from biopsy.cli.run.settings import own_outputs, tolerances_of

        if self.args.warm_up:
            self.console.warn("--warm-up is ignored: with --record-memory nothing is timed")
        return Recorder(
            model=self.model,
            own=own_outputs(self.args),
            engines=engines,
            limit=self.args.record_memory,
            save_to=save_to,
            tolerances=tolerances_of(self.args)[0],
            console=self.console,
        )

    def _run(self, engine: Engine, number: int, feeder: Feeder, recorder: Recorder | None) -> Ran:
        """Run one engine. Raises EngineFailure."""
        if recorder is not None:
            return Ran(engine, recorder.record(engine, number, feeder.feeds(recorder.inputs)), remarks=recorder.remarks)
        from biopsy.cli.run.building import session_of
        from biopsy.engines.runner import run_session, runner_name

        session = session_of(engine, self.model, feeder, self.args, self.console)
        if self.args.build_only:
            self.console.note(f"{engine.label} {engine.version()} has built the model")
            return Ran(engine, remarks=tuple(session.remarks))
        feeds = feeder.feeds(session.inputs)
        result = run_session(session, feeds, runner=runner_name(engine.name, number), warm_up=self.args.warm_up)
        self.console.note(f"{engine.label}  {_timing(result)}")
        return Ran(engine, result, remarks=tuple(session.remarks))


def with_engine(failure: errors.EngineFailure, engine: Engine) -> errors.EngineFailure:
    """The failure with a message that names the engine and what it was doing."""
    message = f"{engine.label} cannot {failure.stage} the model: {failure.kind}: {failure.message}"
    named = errors.EngineFailure(
        message, engine=failure.engine, stage=failure.stage, kind=failure.kind, next_steps=failure.next_steps
    )
    return named.with_traceback(failure.__traceback__)


def _timing(result: RunnerResult) -> str:
    times = [iteration.runtime * 1000 for iteration in result.iterations if iteration.runtime is not None]
    return f"{count(len(result.iterations), 'iteration')}, {sum(times) / len(times):.3g} ms each"


def save_outputs(path: Path | None, ran: Sequence[Ran], recorder: Recorder | None, console: Console) -> None:
    """Write what the engines gave, unless the recorder already has."""
    results = [each.result for each in ran if each.result is not None]
    finished = recorder is not None and recorder.finish()
    if path is None:
        return
    if finished:
        console.note(f"outputs saved to {path}")
        return
    if not results and recorder is not None:
        return
    if not results:
        console.warn(f"{path} is not written: no engine gave any outputs")
        return
    from biopsy.tensors.files import write_results

    write_results(path, results)
    console.note(f"outputs saved to {path}")
