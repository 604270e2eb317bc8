"""What a bundle is made from, as a command hands it over, and its check run once more: what a bundle tells of is
what was seen there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from biopsy import errors
from biopsy.checks.command import ARBITER, CommandCheck
from biopsy.checks.command_line import LOAD_INPUTS, LOAD_OUTPUTS, OwnRun
from biopsy.checks.judge import Rules
from biopsy.checks.outcome import Evidence, Outcome
from biopsy.engines.base import Engine
from biopsy.findings.verdict import Note
from biopsy.model.extract import OutputChoice
from biopsy.questions.layers.question import Judge
from biopsy.session.trial import FailureJudge
from biopsy.tensors.files import read_feeds, read_results
from biopsy.tensors.results import Feed, RunnerResult


@dataclass(frozen=True, kw_only=True)
class RunQuestion:
    """What a check asks that is our own ``run``.

    ``outputs`` are those that it marks, ``golden`` its files of golden values. ``beyond`` names an option, as it is
    typed, that only biopsy itself can follow; "" if there is none.
    """

    engines: Sequence[Engine]
    outputs: OutputChoice
    judge: Judge = field(default_factory=Judge)
    golden: Sequence[Path] = ()
    build_only: bool = False
    beyond: str = ""


@dataclass(frozen=True, kw_only=True)
class EarlierFindings:
    """What a command has found of a failure before it packs it, in words; "" where nobody has asked.

    ``title``: what fails, in a line, where its own run alone would accuse an engine that is right. ``notes`` have the
    labels ``found`` (what fails and why), ``may vary`` (of the model), ``known`` (how it compares with the known bug
    that it looks like) and ``workaround`` (what was tried and passed). ``how_often``: in how many runs a flaky failure
    shows; "" if it is not known to be flaky. ``links``: references in these words that are ours, of bugs in the
    catalogue that comes with biopsy, each with its address.
    """

    title: str = ""
    notes: Sequence[Note] = ()
    how_often: str = ""
    links: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class BundleJob:
    """A failing model, the check that it fails, and where the bundle goes.

    ``target`` is a folder, or a file that ends in .zip. ``folder`` is where the model's external weights stand.
    ``check`` and ``rules`` say what failing is; ``run`` what the check asks, if it is our own ``run``. ``inputs`` is a
    file that the model is fed from, in place of those that the check loads; None where those fit. ``found`` is
    what is known of the failure before. ``secrets`` are words that no member may hold -> what they are, for a person;
    nor may it then hold paths, and the names of the user and the machine. None where nothing is to be hidden.
    ``original`` is the model that ``model`` was made of. ``reports`` are further members that are ready, by name: the
    report as JSON and as a page. ``settings`` is what settings files gave to the check, in words; "" if nothing.
    """

    target: Path
    original: Path
    model: Path
    folder: Path
    check: CommandCheck
    rules: Rules = field(default_factory=Rules)
    run: RunQuestion | None = None
    inputs: Path | None = None
    found: EarlierFindings = field(default_factory=EarlierFindings)
    secrets: Mapping[str, str] | None = None
    reports: Mapping[str, bytes] = field(default_factory=dict)
    settings: str = ""


# The check, run once more on the bundle's own model: what a bundle tells of is what was seen there.

_MOST_TRIES = 10
"""Runs of a check that does not fail at once: a failure may be a flaky one."""

_ABOUT_OTHER_FILES = (
    "--onnx-outputs", "--outputs", "--onnx-outputs-by-type", "--onnx-exclude-outputs", "--external-data-dir",
    "--load-external-data", "--ext", "--save-inputs", "--save-input-data", "--save-outputs", "--save-results",
    "--report", "--save-onnx", "--save-external-data", "--external-data-path", "--save-engine",
)  # fmt: skip
"""Options of ``run`` that the bundle's model has in itself, or that write where the user's own check does."""

_RUNNER = re.compile(r"-runner-N(\d+)-")


@dataclass(frozen=True, kw_only=True)
class Observation:
    """How the model of the bundle failed: what the check left, why that counts as a failure, and in which run.

    ``feeds`` and ``results`` are inputs and outputs of our own ``run``, the latter by the place of the engine among its
    engines; none of an engine that failed.
    """

    evidence: Evidence
    reason: str
    runs: int
    feeds: Sequence[Feed] = ()
    results: Mapping[int, RunnerResult] = field(default_factory=dict)


def observe(job: BundleJob, model: Path, scratch: Path) -> Observation:
    """Run the check on ``model`` until it fails. Raises CheckError if it does not, or cannot be run."""
    inputs, outputs = scratch / "fed.safetensors", scratch / "given.safetensors"
    check, place = job.check.cold(), f"{model.parent}{os.sep}"
    if job.run is not None:
        own = own_words(job)
        if not job.run.build_only:
            own = own.with_options("--save-inputs", str(inputs), "--save-outputs", str(outputs), ARBITER)
        check = CommandCheck(own.words, job.check.default_name, job.check.timeout, job.check.memory)
    for run in range(1, _MOST_TRIES + 1):
        evidence = check.run(model)
        evidence = replace(  # without the folder that the model stands in for a while
            evidence,
            output=evidence.output.replace(os.fsencode(place), b""),
            verdict=replace(evidence.verdict, message=evidence.verdict.message.replace(place, "")),
            candidate=evidence.candidate.replace(place, ""),
        )
        judged = FailureJudge(job.rules).judge(evidence)
        if judged.outcome is Outcome.REPRODUCES:
            results = read_results(outputs) if outputs.exists() else []
            runners = [_RUNNER.search(result.runner) for result in results]  # each is named for the place of its engine
            places = [at if named is None else int(named[1]) for at, named in enumerate(runners)]
            return Observation(
                evidence=judged.evidence,
                reason=judged.reason,
                runs=run,
                feeds=read_feeds(inputs) if inputs.exists() else [],
                results=dict(zip(places, results, strict=True)),
            )
        if judged.outcome is Outcome.INFRASTRUCTURE:
            break
    raise errors.CheckError(
        f"there is nothing to put into {job.target}: in {run} runs, the check of the model alone does not fail "
        f"({judged.outcome.value}: {judged.reason})",
        next_steps=[check.line(job.model)],
    )


def own_words(job: BundleJob) -> OwnRun:
    """The words of a check that is our own ``run``, about a model that stands alone, with the inputs of the job."""
    own = job.check.command
    assert isinstance(own, OwnRun)
    plain = own.without_option(_ABOUT_OTHER_FILES)
    return plain if job.inputs is None else plain.with_inputs(job.inputs)


def unloaded_words(job: BundleJob) -> OwnRun:
    """The same without the inputs and golden values that it loads."""
    return own_words(job).without_option((*LOAD_INPUTS, *LOAD_OUTPUTS))


def packed_words(words: Sequence[str], *, inputs: bool, expected: bool) -> OwnRun:
    """Such words, which load the inputs and golden values that stand in the bundle."""
    loaded = [LOAD_INPUTS[0], "inputs.npz"] if inputs else []
    loaded += [LOAD_OUTPUTS[0], "expected.npz"] if expected else []
    return OwnRun(tuple(words)).with_options(*loaded)
