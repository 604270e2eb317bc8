"""A whole reduction: the original is checked, passes run, the best candidate is written and checked again."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from biopsy import errors, events
from biopsy.checks.outcome import Judged, Outcome
from biopsy.checks.signature import Signature, signature_of
from biopsy.model.index import ModelIndex
from biopsy.model.tensor_type import TensorType
from biopsy.model.value_info import value_info
from biopsy.model.wire import head, string_field, varint_field
from biopsy.model.write import require_writable
from biopsy.reduction.candidate import Candidate
from biopsy.reduction.driver import Driver, RestartError
from biopsy.reduction.result import write_result
from biopsy.reduction.schedule import Schedule


@dataclass(frozen=True)
class Target:
    """Where a reduction leaves its results. ``external``: a file beside ``output`` for its weights."""

    output: Path
    min_good: Path | None = None
    external: str | None = None


@dataclass(frozen=True)
class Reduction:
    """What a reduction found.

    ``nodes`` are the nodes left, by number in the original and label, in order. ``outcomes`` counts checks by what they
    said; ``other_failures`` the other failures met, by how they look. ``min_good`` is the file of the passing model
    closest in size, None if none was asked for or none was met. ``seconds`` is wall time of the whole.
    """

    output: Path
    nodes_before: int
    nodes: tuple[tuple[int, str], ...]
    signature: str
    outcomes: Mapping[str, int]
    other_failures: Mapping[str, int]
    seconds: float
    min_good: Path | None = None

    @property
    def checks(self) -> int:
        """Checks that were run, the first and the last included."""
        return sum(self.outcomes.values())


def reduce_problem(driver: Driver, schedule: Schedule, target: Target) -> Reduction:
    """Reduce the driver's problem and write the result.

    Raises OriginalPasses if the original does not fail, CheckError if the check cannot be run or the result written
    does not fail when it is checked again, Interrupted if it is stopped; what was found by then is written.
    """
    started = time.monotonic()
    for path in (target.output, target.min_good):
        if path is not None:
            require_writable(path)
    try:
        preflight(driver)
        _search(driver, schedule, target)
        _write(driver, target)
        _check_written(driver, target.output)
    except (KeyboardInterrupt, errors.Interrupted) as stop:
        raise errors.Interrupted(_left(driver), kept=_rescue(driver, target)) from stop
    finally:
        driver.tidy()
    return _reduction(driver, target, time.monotonic() - started)


def preflight(driver: Driver) -> None:
    """Check the original, which must fail, and a one-node Identity model, which should not.

    Raises OriginalPasses if the original passes, CheckError if the check cannot say.
    """
    judged = _check_original(driver)
    if judged.outcome is not Outcome.REPRODUCES:
        raise _original_passes(driver, judged)
    driver.reference = signature_of(judged.evidence)
    driver.best = driver.problem.whole
    driver.listener(events.OriginalFails(_described(driver.reference, judged), judged.reason, judged.evidence.seconds))
    if driver.check.automatic:
        _try_identity(driver)


def _check_original(driver: Driver) -> Judged:
    whole = driver.problem.whole
    while True:
        try:
            return driver.check_once(whole, driver.boundary(whole), "original", "the original model")
        except RestartError:
            continue  # there is no answer before the first one: ask again


def _described(signature: Signature, judged: Judged) -> str:
    return judged.reason if "matches" in judged.reason else str(signature)


def _original_passes(driver: Driver, judged: Judged) -> errors.BiopsyError:
    path = driver.workspace.candidate
    line = driver.check.line(driver.problem.index.path or path)
    if judged.outcome is Outcome.INVALID:
        return errors.CheckError(
            f"the check cannot say whether the original model fails: {judged.reason}", next_steps=[line]
        )
    tried = "" if judged.outcome is Outcome.PASSES else f"{judged.outcome.value}: "
    message = (
        f"the original model does not fail this check ({tried}{judged.reason}), so there is nothing to reduce.\n"
        f"  tried   {line}"
    )
    if driver.problem.may_cut_outputs:
        message += f"\n  {_masked(driver)}"
    return errors.OriginalPasses(
        message,
        next_steps=["run that line by hand; if your check shows a failure otherwise, give --fail-regex or --fail-code"],
    )


def _masked(driver: Driver) -> str:
    """Whether the failure shows once every tensor is an output: a wrong tensor can be masked by what follows it."""
    boundary = replace(driver.problem.everything_marked(), places=driver.workspace.places)
    judged = driver.check_once(driver.problem.whole, boundary, "marked", "the original, every tensor an output")
    if judged.outcome is Outcome.REPRODUCES:
        return (
            "but with every intermediate tensor marked as an output it fails: a wrong value inside is masked later.\n"
            "          give --mark-intermediate to reduce from there"
        )
    return "passes  also with every intermediate tensor marked as an output"


def _try_identity(driver: Driver) -> None:
    try:
        judged = driver.check_bytes(identity_model(driver.problem.index), 1, "identity", "a one-node Identity model")
    except errors.CheckError:
        return  # what an engine or a script makes of a stranger's inputs is no matter of the user's model
    if judged.outcome is Outcome.REPRODUCES:
        driver.listener(
            events.Remark(
                "a one-node Identity model fails this check in the same way: the check fails on anything, and the"
                " result will say nothing. Does it look at the candidate? Is its path right?",
                grave=True,
            )
        )


def identity_model(index: ModelIndex) -> bytes:
    """A model of one Identity node with the original's opset and, if it has one, its first input."""
    first = next(iter(index.fed_inputs()), None)
    kind = index.tensor_type(first) if first is not None else None
    name = index.names[first] if first is not None and kind is not None else "x"
    made = kind or TensorType(1, (1,))
    node = string_field(1, name.encode("utf-8", "surrogateescape")) + string_field(2, b"biopsy_identity")
    graph = b"".join(
        (
            string_field(1, node + string_field(4, b"Identity")),
            string_field(2, b"identity"),
            string_field(11, value_info(name, made)),
            string_field(12, value_info("biopsy_identity", made)),
        )
    )
    opset = string_field(8, varint_field(2, index.opset or 17))
    return b"".join((varint_field(1, index.ir_version or 8), head(7, len(graph)), graph, opset))


def _search(driver: Driver, schedule: Schedule, target: Target) -> None:
    """Run the passes from the whole model; when a check cannot be run any more, the best so far is written."""
    while True:
        try:
            left = _run_schedule(driver, schedule)
        except RestartError:
            driver.best = driver.problem.whole
            continue
        except errors.CheckError as error:
            kept = _rescue(driver, target) or error.kept
            raise errors.CheckError(error.message, kept=kept, next_steps=error.next_steps) from error
        driver.best = left
        return


def _run_schedule(driver: Driver, schedule: Schedule) -> Candidate:
    left = driver.problem.whole
    for named in schedule.once:
        left = driver.search(named, left)
    before = None
    while schedule.repeated and left != before and left.size > 1:
        before = left
        for named in schedule.repeated:
            left = driver.search(named, left)
    return left


def _write(driver: Driver, target: Target) -> None:
    assert driver.best is not None
    write_result(driver.problem, driver.best, driver.boundary(driver.best), target.output, target.external)
    passing = closest_passing(driver.passing, driver.best)
    if target.min_good is not None:
        if passing is None:
            driver.listener(events.Remark(f"no passing model was met, so {target.min_good} was not written"))
        else:
            write_result(driver.problem, passing, driver.boundary(passing), target.min_good, None)


def closest_passing(passing: list[Candidate], best: Candidate) -> Candidate | None:
    """The passing candidate closest in size to the result; of several, the one met last."""
    return min(reversed(passing), key=lambda candidate: abs(candidate.size - best.size), default=None)


def _check_written(driver: Driver, output: Path) -> None:
    """The last word: the file as it was written must fail in the same way."""
    assert driver.best is not None
    if not driver.check.automatic:
        return
    if driver.check.names_candidate:
        judged = driver.check_file(output, driver.best.size, "final", f"the result {output}")
    else:
        judged = driver.check_once(driver.best, driver.boundary(driver.best), "final", f"the result {output}")
    if judged.outcome is not Outcome.REPRODUCES:
        raise errors.CheckError(
            f"the result does not fail when it is checked again ({judged.outcome.value}: {judged.reason}):"
            " the check does not always say the same",
            kept=f"{output}, which failed once",
            next_steps=[driver.check.line(output)],
        )


def _left(driver: Driver) -> str:
    if driver.best is None:
        return "before the original was checked; nothing was written"
    return f"{driver.best.size} of {len(driver.problem.index.nodes)} nodes are left so far"


def _rescue(driver: Driver, target: Target) -> str | None:
    """Write the best candidate so far; returns what to tell of it."""
    if driver.best is None or driver.best == driver.problem.whole:
        return None
    write_result(driver.problem, driver.best, driver.boundary(driver.best), target.output, target.external)
    return f"{target.output}, which fails in the same way"


def _reduction(driver: Driver, target: Target, seconds: float) -> Reduction:
    assert driver.best is not None
    index = driver.problem.index
    passing = target.min_good if target.min_good is not None and driver.passing else None
    return Reduction(
        target.output,
        len(index.nodes),
        tuple((number, index.nodes[number].label) for number in driver.best.nodes),
        str(driver.reference),
        {outcome.value: count for outcome, count in driver.tally.outcomes.items() if count},
        dict(driver.tally.other_failures),
        seconds,
        passing,
    )
