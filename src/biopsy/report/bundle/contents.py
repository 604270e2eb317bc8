"""What stands in a bundle: its files in a folder of ours, and which script they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from biopsy.checks.command_line import CommandLine, OwnCommand
from biopsy.filesystem.write import write_whole
from biopsy.model.index import ModelIndex, index_bytes
from biopsy.model.load import read_bytes
from biopsy.model.outputs import choose_outputs
from biopsy.report.bundle.command_script import CommandScript, CopiedFiles, copied_files
from biopsy.report.bundle.engine_script import EngineScript
from biopsy.report.bundle.failure import ObservedFailure
from biopsy.report.bundle.job import BundleJob
from biopsy.report.bundle.observation import Observation, packed_words, unloaded_words
from biopsy.report.bundle.regression_test import regression_test
from biopsy.report.bundle.script import Script
from biopsy.report.bundle.scripted_engines import OnlyBiopsyError
from biopsy.session.result_file import write_result
from biopsy.tensors.archive import pack
from biopsy.tensors.container import Container
from biopsy.tensors.files import write_feeds
from biopsy.tensors.npz import FORM
from biopsy.tensors.results import Feed, Iteration, RunnerResult

_LEAST_SECONDS = 60.0
_TIMES = 20
"""How much longer than the check that was seen a script may take before it counts as one that does not end."""


@dataclass(frozen=True, kw_only=True)
class Contents:
    """The files of a bundle in their order, and what is to be told of them.

    ``needs_biopsy`` says what its script cannot ask without biopsy; "" if it can ask all. ``left_out`` are files of the
    check that are not there, with the reason. ``is_command``: it runs the check, and not the engine.
    """

    members: Sequence[Path]
    script: Script
    needs_biopsy: str
    left_out: Sequence[str]
    is_command: bool


def seconds_of(observation: Observation) -> float:
    """How long what a script runs may take before it counts as one that does not end."""
    evidence = observation.evidence
    if evidence.timed_out:
        return round(evidence.seconds, 1)
    return max(_LEAST_SECONDS, round(_TIMES * evidence.seconds, 1))


def write_model(job: BundleJob, path: Path) -> ModelIndex:
    """The model as the check sees it, with all its weights. Raises ModelError or UsageError."""
    data = read_bytes(job.model)
    marked = job.run is not None and not job.run.outputs.changes_nothing
    if marked and job.run is not None:
        data = choose_outputs(data, job.run.outputs)
    write_result([data], path, job.folder, None, index_bytes(data, job.folder).has_external_data)
    return index_bytes(read_bytes(path), path.parent)


def write_contents(
    job: BundleJob, observation: Observation, failure: ObservedFailure, folder: Path, index: ModelIndex
) -> Contents:
    """Write values, script and test beside the model in ``folder``."""
    inputs = _written(folder / "inputs.npz", observation.feeds)
    expected = _written(folder / "expected.npz", failure.expected)
    seconds = seconds_of(observation)
    script, why, copied = _script(job, observation, failure, index, (inputs, expected), seconds)
    for name, data in copied.contents.items():
        write_whole(folder / name, [data])
    write_whole(folder / "reproduce.py", [script.text().encode()])
    write_whole(folder / "test_regression.py", [regression_test(failure.title, script.modules).encode()])
    names = ["model.onnx", "model.onnx.data", "inputs.npz", "expected.npz", "reproduce.py", "test_regression.py"]
    members = [folder / name for name in (*names, *copied.contents) if (folder / name).exists()]
    return Contents(
        members=members, script=script, needs_biopsy=why, left_out=copied.left_out, is_command=not script.modules
    )


def _written(path: Path, samples: Sequence[Feed]) -> list[dict[str, str]]:
    """Write tensors, if there are any; for each sample, the name of each in the file."""
    if not any(samples):
        return [{} for _ in samples]
    write_feeds(path, samples)
    container = Container("feeds", (RunnerResult(path.stem, tuple(Iteration(sample) for sample in samples)),))
    keys: list[dict[str, str]] = [{} for _ in samples]
    for key, (_, number, name) in pack(container, FORM).places.items():
        keys[number][name] = key
    return keys


_Keys = tuple[list[dict[str, str]], list[dict[str, str]]]


def _script(
    job: BundleJob, observation: Observation, failure: ObservedFailure, index: ModelIndex, keys: _Keys, seconds: float
) -> tuple[Script, str, CopiedFiles]:
    """The script, why it needs biopsy, and the files that it needs besides."""
    why = ""
    if job.run is not None:
        try:
            script = EngineScript(
                question=job.run, failure=failure, index=index, inputs=keys[0], expected=keys[1], seconds=seconds
            ).script()
            return script, "", CopiedFiles()
        except OnlyBiopsyError as error:
            why = str(error)
    elif isinstance(job.check.command, OwnCommand):
        why = f"what 'biopsy {job.check.command.arguments[0]}' tells"
    command: CommandLine = job.check.command if job.run is None else unloaded_words(job)
    copied = copied_files(command, job.check.default_name)
    words = copied.words_of(command, job.check.default_name)
    if job.run is not None:
        words = list(packed_words(words, inputs=bool(keys[0]), expected=bool(keys[1]) and bool(job.run.golden)).words)
    made = CommandScript(
        title=failure.title, words=words, evidence=observation.evidence, rules=job.rules, seconds=seconds, why=why
    )
    return made.script(), why, copied
