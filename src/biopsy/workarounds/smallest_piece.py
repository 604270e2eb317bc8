"""Where to look for a workaround in a model: the nodes of the smallest piece of it that still fails."""

from __future__ import annotations

import contextlib
from pathlib import Path

from biopsy import errors, events
from biopsy.checks.command_line import OwnRun, parse
from biopsy.checks.warm import command_check
from biopsy.reduction.job import RecordingOptions, ReductionJob
from biopsy.reduction.job_run import run_job
from biopsy.reduction.result import Target
from biopsy.session.budget import Budget
from biopsy.session.options import SearchOptions
from biopsy.tactics.setting_changes import SettingChange
from biopsy.workarounds.question import WorkaroundQuestion


def nodes_of_smallest_piece(
    question: WorkaroundQuestion, scratch: Path, seconds: float | None, listener: events.Listener
) -> tuple[int, ...]:
    """The places of the nodes in the smallest piece that fails the check.

    ``seconds`` is what that may take: what is known by then counts. Raises what ``run_job`` raises, but for an
    interruption, which is a KeyboardInterrupt.
    """
    words = question.template.with_change(SettingChange())
    command = parse(words)
    files = (command.input_files, command.golden_files) if isinstance(command, OwnRun) else ((), ())
    inputs, golden = map(bool, files)
    if golden and not inputs:
        raise errors.UsageError(
            "the check compares with golden values, but makes up its inputs: no part of it can fail"
        )
    job = ReductionJob(
        target=Target(scratch / "piece.onnx"),
        search=SearchOptions(
            rules=question.rules, candidate=Path(question.default_name), budget=Budget(seconds=seconds)
        ),
        recording=RecordingOptions(samples=lambda: question.right.samples),
        command=command,
        feeds_recorded=inputs and not golden,
    )
    made = command_check(words, question.default_name, question.timeout)
    with contextlib.closing(made) as check, question.template.environment(SettingChange()):
        try:
            return run_job(question.index, check, job, listener).kept
        except errors.Interrupted as stop:
            raise KeyboardInterrupt from stop
