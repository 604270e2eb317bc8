"""``biopsy.diagnose``, ``biopsy.known`` and ``biopsy.workaround``: why a model fails, and what avoids it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Literal, get_args

from biopsy import errors, events
from biopsy.api.engine_questions import template_of
from biopsy.api.running import (
    Folder,
    GivenInputs,
    GivenRanges,
    Model,
    checked_feeds,
    inputs_of,
    model_file,
    require_check,
    require_choice,
    require_names,
    require_own_files,
    require_seconds,
    require_whole,
    rules_of,
    tolerance_words,
    tolerances_and_stats,
)
from biopsy.checks.command import CommandCheck
from biopsy.checks.judge import Rules
from biopsy.comparison.tolerance import DEFAULT_TOLERANCE
from biopsy.diagnosis.diagnose import diagnose as run_diagnosis
from biopsy.diagnosis.diagnose import diagnosis_sections
from biopsy.diagnosis.evidence import held_folder
from biopsy.diagnosis.facts import Diagnosis
from biopsy.diagnosis.following import issue_of
from biopsy.diagnosis.question import (
    DEFAULT_SECONDS,
    DiagnosisQuestion,
    Effort,
    Judging,
    Samples,
    require_sizes,
    resolved_samples,
)
from biopsy.engines.registry import PLAIN, create, parse_spec
from biopsy.findings.page.document import Reported
from biopsy.findings.report import report_tree
from biopsy.model.index import index_file
from biopsy.processes.cleanup import temporary_folder
from biopsy.processes.writing import require_writable
from biopsy.questions.known_failures.lookup import KnownLookup, look_up, seen_by, seen_in
from biopsy.questions.layers.question import Judge
from biopsy.questions.transformations.question import parse_tool
from biopsy.questions.workarounds.find import find_workarounds
from biopsy.questions.workarounds.question import (
    KINDS,
    USUAL_SECONDS,
    Kind,
    PatchedFile,
    WhatIsRight,
    WorkaroundQuestion,
    Workarounds,
    comparison_template,
)
from biopsy.session.trial import Budget
from biopsy.tensors.files import write_feeds


@dataclass(frozen=True, kw_only=True, repr=False)
class DiagnosedModel(Diagnosis, Reported):
    """Why a model fails: ``verdict`` (``text``, ``certainty``, ``workarounds``, ``not_tried``), and ``failed``.

    ``steps`` are the questions with their answers, ``facts`` is what is known, ``folder`` keeps the evidence;
    ``stopped`` says what ended the diagnosis early. ``page`` writes a page, and a notebook shows both table and page.
    ``question`` is what was asked.
    """

    question: DiagnosisQuestion = field(repr=False, compare=False)

    def issue(self) -> str:
        """The text of an issue for the engine's tracker, in Markdown: ``ISSUE.md`` of a bundle.

        Its script is run, to show what it prints. Raises CheckError if there is nothing to file, because nothing fails
        or the verdict blames no engine, or if the failure does not show any more.
        """
        return issue_of(self.question, self, self.report)

    def _repr_html_(self) -> str:
        return super()._repr_html_() + self.framed_page()


def diagnose(
    model: Model,
    engines: str | Sequence[str] = ("onnxrt",),
    inputs: GivenInputs = None,
    *,
    check: Sequence[str] | None = None,
    directory: str | PathLike[str] = "diagnosis",
    atol: float | Mapping[str, float] = DEFAULT_TOLERANCE,
    rtol: float | Mapping[str, float] = DEFAULT_TOLERANCE,
    iterations: int = 1,
    seed: int = 1,
    val_range: tuple[float, float] | Mapping[str, tuple[float, float]] | None = None,
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
    external_data_dir: Folder = None,
    rules: Rules | None = None,
    max_time: float = DEFAULT_SECONDS,
    jobs: int = 1,
    fresh: bool = False,
    thorough: bool = False,
    no_download: bool = False,
    by: str | None = None,
    listener: events.Listener = events.ignore,
) -> DiagnosedModel:
    """Find out why ``model`` fails: ask one question after the other until the answer is known or the time is over.

    ``engines`` are specs. Several engines are compared with the first one; a single engine is compared with ONNX
    Runtime without its optimizer and with the reference evaluator. If ``check`` is given, it decides instead of the
    engines: a command, as a list of words in which ``{}`` stands for the model's path.

    ``inputs``, ``iterations``, ``seed``, ``val_range``, ``input_shapes`` and ``external_data_dir`` are those of
    ``run``, ``atol`` and ``rtol`` those of ``compare``. ``directory`` keeps the evidence; what it answers is
    not asked again, unless ``fresh``. ``rules`` say which failures count as the same, ``max_time`` is in seconds,
    ``jobs`` is how many checks run at once.

    ``thorough`` also asks the questions that take minutes: which change makes the whole model right, and which release
    of the engine broke or mended it. Releases are installed in environments of their own, unless ``no_download``.
    ``by`` is a tool that the model goes through, as in ``transform``.

    The result's ``verdict`` says what was found, ``failed`` whether the model fails, ``stopped`` what ended it early.

    Raises UsageError if ``input_shapes`` lacks sizes that the model leaves open or ``directory`` holds something else
    than a diagnosis, CheckError if nothing can be said about the model, EngineMissing, ModelError or DataError.

    >>> diagnosis = biopsy.diagnose("model.onnx", ["onnxrt:optimization=none", "onnxrt"], atol=1e-3, max_time=60)
    >>> print(diagnosis.verdict.text)
    >>> diagnosis.page("page.html")
    """
    require_seconds(max_time=max_time)
    require_whole(iterations=iterations, jobs=jobs)
    if check is not None:
        require_check(check, is_command=True)
    specs = () if check is not None else (engines,) if isinstance(engines, str) else tuple(engines)
    for spec in specs:
        create(spec)
    input_options = inputs_of(inputs, iterations, seed, val_range, input_shapes)
    place = Path(directory)
    with model_file(model, external_data_dir) as (path, weights):
        index = index_file(path, weights)
        if check is None:
            require_sizes(index, input_options)
        with held_folder(place):
            question = DiagnosisQuestion(
                index=index,
                model=path,
                folder=place,
                engines=specs,
                check=None if check is None else tuple(check),
                samples=Samples(inputs=input_options, made_up=False)
                if check is not None
                else resolved_samples(index, input_options, place),
                judging=Judging(
                    judge=Judge(*tolerances_and_stats(atol, rtol, "elemwise")),
                    limits=tolerance_words(atol=atol, rtol=rtol),
                    rules=rules_of(rules),
                ),
                weights_folder=None if external_data_dir is None else weights,
                effort=Effort(seconds=max_time, jobs=jobs, thorough=thorough, downloads=not no_download),
                fresh=fresh,
                tool=None if by is None else parse_tool(by).text,
            )
            began = time.time()
            diagnosis = run_diagnosis(question, listener)
            report = report_tree(
                "diagnose",
                None,
                status={True: 1, False: 0, None: errors.CannotCompare.status}[diagnosis.failed],
                began=began,
                seconds=diagnosis.seconds,
                sections=diagnosis_sections(diagnosis, question, Path()),
            )
            return DiagnosedModel(**vars(diagnosis), report=report, question=question)


def known(
    piece: Model,
    engine: str = "",
    *,
    release: str = "",
    stage: Literal["", "load", "build", "run", "compare"] = "",
    kind: str = "",
    check: Sequence[str] | None = None,
    check_timeout: float | None = None,
    folders: Sequence[str | PathLike[str]] = (),
    listener: events.Listener = events.ignore,
) -> KnownLookup:
    """Look up a small failing model among the bugs that biopsy knows, those of the user, and those in ``folders``.

    ``engine`` is the engine that fails, ``release`` its version (by default the installed one); ``stage`` and ``kind``
    say how it fails. "" means unknown. ``check`` is a command, as a list of words in which ``{}`` stands for the
    model's path: it is run once, for at most ``check_timeout`` seconds, to learn what the other arguments leave open.

    The result's ``matches`` are the bugs that have something in common with the piece, the best first; ``best`` is the
    first that the piece looks like, or None. A match is not proof.

    Raises UsageError for an argument that cannot be used, ModelError for a model that cannot be read or is too large
    for a piece, UnknownEngine, OriginalPasses if the piece passes the check, CheckError if the check cannot be run.

    >>> biopsy.known("reduced.onnx", "onnxrt", stage="compare").best
    """
    require_choice("stage", stage, ("", "load", "build", "run", "compare"))
    require_seconds(check_timeout=check_timeout)
    seen = seen_in(engine, release=release, stage=stage, kind=kind, is_checked=check is not None)
    with model_file(piece, None) as (path, _):
        if check is not None:
            require_check(check, is_command=True)
            seen = seen_by(CommandCheck(check, str(path), check_timeout), path, seen)
        return look_up(path, seen, [Path(folder) for folder in folders], listener)


def workaround(
    model: Model,
    engine: str,
    check: Sequence[str] | None = None,
    output: str | PathLike[str] | None = None,
    *,
    inputs: GivenInputs = None,
    reference_engine: str | None = None,
    atol: float | Mapping[str, float] = DEFAULT_TOLERANCE,
    rtol: float | Mapping[str, float] = DEFAULT_TOLERANCE,
    kinds: Sequence[Kind] = KINDS,
    piece: str | PathLike[str] | None = None,
    nodes: Sequence[str] = (),
    iterations: int = 1,
    seed: int = 1,
    val_range: GivenRanges = None,
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
    rules: Rules | None = None,
    max_checks: int | None = None,
    max_time: float | None = USUAL_SECONDS,
    check_timeout: float | None = None,
    external_data_dir: Folder = None,
    listener: events.Listener = events.ignore,
) -> Workarounds:
    """Find the smallest changes with which ``model``, which fails in ``engine``, is right there.

    ``check`` is a command, as a list of words in which ``{}`` stands for the model's path and ``{engine}`` for the
    engine with its settings, as in ``flags``. Without it, ``engine`` is compared with ``reference_engine``: an engine,
    by default ONNX Runtime without its optimizer, or the reference evaluator if that is ``engine`` itself.

    A change is a workaround if the outputs equal those of ``reference_engine`` on the original, within ``atol`` and
    ``rtol`` as in ``compare``, both for ``inputs`` (random ones as in ``run`` by default; they should be those of the
    check) and for fresh random inputs. The check must pass too, in fresh processes.

    ``kinds`` are the changes to try: settings and releases of the engine, marked outputs, barriers, higher precision,
    and other spellings. Changes of the model are tried at ``nodes`` (names of nodes or of tensors that they compute),
    or at the nodes of ``piece``, a file with a small failing part of the model; without both, the model is reduced
    first. ``max_time`` is in seconds. ``output`` is where the best patched model is written, if one is found.
    ``external_data_dir``, ``rules``, ``check_timeout`` and ``listener`` are as in ``flags``.

    The result's ``best`` are the best three changes, the cheapest first; it is empty if nothing helps. ``stopped`` says
    what ended the search early.

    Raises OriginalPasses if the model does not fail, CheckError if the check cannot be run, CannotCompare if no engine
    can say what is right, DoesNotFit for unknown nodes, UsageError, EngineMissing, ModelError or DataError.

    >>> [change.text for change in biopsy.workaround("model.onnx", "onnxrt", max_time=300).best]
    """
    require_whole(iterations=iterations, max_checks=max_checks)
    require_seconds(check_timeout=check_timeout, max_time=max_time)
    require_own_files(model, output=output)
    require_names("kinds", kinds)
    for kind in kinds:
        require_choice("kinds", kind, get_args(Kind))
    if not kinds:
        raise errors.UsageError("kinds=(): nothing would be tried")
    if check is not None:
        require_check(check, is_command=True)
    for spec in filter(None, (engine, reference_engine)):
        create(spec)
    if output is not None:
        require_writable(Path(output))
    input_options = inputs_of(inputs, iterations, seed, val_range, input_shapes)
    with model_file(model, external_data_dir) as (path, weights), temporary_folder("biopsy-") as scratch:
        index = index_file(path, weights)
        samples = checked_feeds(index.fed_types(), input_options)
        if check is not None:
            template = template_of(check, parse_spec(engine))
        else:
            words = tolerance_words(atol=atol, rtol=rtol)
            if samples and samples[0]:
                feeds = scratch / "inputs.safetensors"
                write_feeds(feeds, samples)
                words = ("--load-inputs", str(feeds), *words)
            template = comparison_template(parse_spec(engine), reference_engine, words)
        question = WorkaroundQuestion(
            index=index,
            model=path,
            template=template,
            right=WhatIsRight(
                samples=samples,
                drawn=input_options,
                judge=Judge(*tolerances_and_stats(atol, rtol, "elemwise")),
                references=(reference_engine,) if reference_engine is not None else PLAIN,
                named=reference_engine is not None,
            ),
            rules=rules_of(rules),
            kinds=tuple(kind for kind in KINDS if kind in kinds),
            piece=None if piece is None else Path(piece),
            nodes=tuple(nodes),
            default_name=str(scratch / "candidate.onnx"),
            timeout=check_timeout,
            target=None if output is None else PatchedFile(path=Path(output)),
            budget=Budget(checks=max_checks, seconds=max_time),
        )
        return find_workarounds(question, listener)
