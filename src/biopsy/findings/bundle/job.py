"""What a command hands over to make a bundle, and the last run of the check, whose failure the bundle describes."""

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
from biopsy.comparison.mismatch import Mismatch, form_text
from biopsy.engines.base import Engine
from biopsy.findings.verdict import Note
from biopsy.model.extract import OutputChoice
from biopsy.questions.layers.question import Judge
from biopsy.session.trial import FailureJudge
from biopsy.tensors.files import read_feeds, read_results
from biopsy.tensors.results import Feed, RunnerResult


@dataclass(frozen=True, kw_only=True)
class RunQuestion:
    """The question of a check that is ``biopsy run``.

    ``outputs`` are those that it marks, ``golden`` its files of golden values. ``unscriptable`` is an option, as it is
    typed, that a script cannot follow without biopsy; "" if there is none.
    """

    engines: Sequence[Engine]
    outputs: OutputChoice
    judge: Judge = field(default_factory=Judge)
    golden: Sequence[Path] = ()
    build_only: bool = False
    unscriptable: str = ""


@dataclass(frozen=True, kw_only=True)
class EarlierFindings:
    """What a command has found out about a failure before it is packed, in words.

    ``title`` is the failure in a line; "" if the check alone tells it. ``notes`` have the labels ``found`` (what fails,
    in a sentence or two), ``cause`` (what it depends on) and ``workaround`` (what was tried and passed). ``how_often``
    says how many runs a flaky failure shows in; "" if it is not known to be flaky. ``links`` are references in these
    words to bugs of biopsy's own catalogue, each with its address. ``mismatch`` is the wrong shape or type that
    they tell; they name ``against`` as the engine that gives another. ``doubt``: why what the engine was compared with
    may be wrong, such as "gives other values than float64, too"; "" if nothing says so. ``is_confirmed``: float64
    shows that it is right and the engine wrong.
    """

    title: str = ""
    notes: Sequence[Note] = ()
    how_often: str = ""
    links: Mapping[str, str] = field(default_factory=dict)
    mismatch: Mismatch | None = None
    against: str = ""
    doubt: str = ""
    is_confirmed: bool = False

    def of_form(self, worst: Mismatch | None) -> EarlierFindings:
        """The same findings with the shape or type that the packed model gives, which may have other sizes."""
        if worst is None or not worst.is_of_form or self.mismatch is None:
            return self
        if not self.mismatch.declared_form:  # only the packed model declares one, as onnx infers it
            worst = replace(worst, declared_form="")
        before, now = (form_text(each, self.against) for each in (self.mismatch, worst))
        notes = [replace(note, text=note.text.replace(before, now)) for note in self.notes]
        return replace(self, title=self.title.replace(before, now), notes=notes)


@dataclass(frozen=True, kw_only=True)
class BundleJob:
    """A failing model, the check that it fails, and where the bundle goes.

    ``target`` is a folder, or a file that ends in .zip. ``original`` is the model that ``model`` was made from;
    ``folder`` is where the external weights of ``model`` are. ``check`` and ``rules`` define the failure; ``run`` is
    the question of the check if it is ``biopsy run``. ``inputs`` is a file of feeds that replaces those that the check
    loads; None if those fit. ``earlier`` is what was found out before.

    ``secrets`` are words that no member may hold, each with what it is; members may then hold no paths and no names of
    the user and the machine either. None hides nothing. ``reports`` are further members by name: the report as JSON and
    as a page. ``settings`` are the options that settings files gave to the check, in words; "" if none. ``no_issue``
    says why no engine is to blame, so that no issue and no test is to be written; "" if one may be. With
    ``measures_rounding``, the failure is held against float64 too, which takes many times the memory of the weights.
    """

    target: Path
    original: Path
    model: Path
    folder: Path
    check: CommandCheck
    rules: Rules = field(default_factory=Rules)
    run: RunQuestion | None = None
    inputs: Path | None = None
    earlier: EarlierFindings = field(default_factory=EarlierFindings)
    secrets: Mapping[str, str] | None = None
    reports: Mapping[str, bytes] = field(default_factory=dict)
    settings: str = ""
    no_issue: str = ""
    measures_rounding: bool = True


_MOST_TRIES = 10
"""The most runs of the check until it fails, since the failure may be flaky."""

_ABOUT_OTHER_FILES = (
    "--onnx-outputs", "--outputs", "--onnx-outputs-by-type", "--onnx-exclude-outputs", "--external-data-dir",
    "--load-external-data", "--ext", "--save-inputs", "--save-input-data", "--save-outputs", "--save-results",
    "--report", "--save-onnx", "--save-external-data", "--external-data-path", "--save-engine",
)  # fmt: skip
"""Options of ``run`` that the bundle's model makes unnecessary, or that would write the files of the user's check."""

_RUNNER = re.compile(r"-runner-N(\d+)-")


@dataclass(frozen=True, kw_only=True)
class Observation:
    """How the model of the bundle failed: the evidence, the reason why it counts as a failure, and in which run.

    ``feeds`` and ``results`` are the inputs and outputs of ``biopsy run``; results are by the position of the engine,
    without engines that failed.
    """

    evidence: Evidence
    reason: str
    runs: int
    feeds: Sequence[Feed] = ()
    results: Mapping[int, RunnerResult] = field(default_factory=dict)


def observe(job: BundleJob, model: Path, scratch: Path) -> Observation:
    """Run the check on ``model`` until it fails. Raises CheckError if it does not fail, or cannot be run."""
    inputs, outputs = scratch / "fed.safetensors", scratch / "given.safetensors"
    check, folder = job.check.cold(), f"{model.parent}{os.sep}"
    if job.run is not None:
        own = own_words(job)
        if not job.run.build_only:
            arbiter = [ARBITER] if job.measures_rounding else []
            own = own.with_options("--save-inputs", str(inputs), "--save-outputs", str(outputs), *arbiter)
        check = CommandCheck(own.words, job.check.default_name, job.check.timeout, job.check.memory)
    for run in range(1, _MOST_TRIES + 1):
        evidence = check.run(model)
        evidence = replace(  # without the temporary folder
            evidence,
            output=evidence.output.replace(os.fsencode(folder), b""),
            verdict=replace(evidence.verdict, message=evidence.verdict.message.replace(folder, "")),
            candidate=evidence.candidate.replace(folder, ""),
        )
        judged = FailureJudge(job.rules).judge(evidence)
        if judged.outcome is Outcome.REPRODUCES:
            results = read_results(outputs) if outputs.exists() else []
            runners = [_RUNNER.search(result.runner) for result in results]  # the name holds the engine's position
            places = [at if match is None else int(match[1]) for at, match in enumerate(runners)]
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
    """The words of a check that is ``biopsy run``, for the model of the bundle and with the inputs of the job."""
    own = job.check.command
    assert isinstance(own, OwnRun)
    plain = own.without_option(_ABOUT_OTHER_FILES)
    return plain if job.inputs is None else plain.with_inputs(job.inputs)


def packed_words(words: Sequence[str], *, inputs: bool, expected: bool) -> OwnRun:
    """The words of a ``biopsy run`` that loads the inputs and golden values of the bundle."""
    loaded = [LOAD_INPUTS[0], "inputs.npz"] if inputs else []
    loaded += [LOAD_OUTPUTS[0], "expected.npz"] if expected else []
    return OwnRun(tuple(words)).with_options(*loaded)
