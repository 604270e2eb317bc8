"""Asking why a model fails, which known bugs it looks like, and what avoids the failure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    asked_of_outputs,
    fed,
    inputs_of,
    model_file,
    options_of,
    require_check,
    require_choice,
    require_names,
    require_own_files,
    require_seconds,
    require_whole,
    rules_of,
    tolerance_words,
)
from biopsy.checks.command import CommandCheck
from biopsy.checks.judge import Rules
from biopsy.comparison.tolerance import DEFAULT_TOLERANCE
from biopsy.diagnosis.diagnose import diagnose as diagnosed
from biopsy.diagnosis.evidence import held_folder
from biopsy.diagnosis.facts import Diagnosis
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
from biopsy.model.index import index_file
from biopsy.processes.cleanup import temporary_folder
from biopsy.processes.writing import require_writable
from biopsy.questions.builds.settings import CheckTemplate
from biopsy.questions.known_failures.lookup import KnownLookup, look_up, seen_by, seen_in
from biopsy.questions.layers.question import Judge
from biopsy.questions.transformations.question import parse_tool
from biopsy.questions.workarounds.find import find_workarounds
from biopsy.questions.workarounds.question import (
    KINDS,
    USUAL_BUDGET,
    Kind,
    PatchedFile,
    WhatIsRight,
    WorkaroundQuestion,
)
from biopsy.questions.workarounds.result import Workarounds
from biopsy.session.trial import Budget
from biopsy.tensors.files import write_feeds
from biopsy.tensors.results import Feed


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
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    folder: Folder = None,
    rules: Rules | None = None,
    max_time: float = DEFAULT_SECONDS,
    jobs: int = 1,
    fresh: bool = False,
    thorough: bool = False,
    downloads: bool = True,
    by: str | None = None,
    listener: events.Listener = events.ignore,
) -> Diagnosis:
    """Find out why ``model`` fails: one question after the other, until the answer is known or the time is over.

    ``engines`` are specs; several are compared with the first, one with ONNX Runtime without its optimizer and with the
    reference evaluator. ``check`` is a command, a list of words in which ``{}`` stands for the model's path, that
    decides instead; ``engines`` then has no effect. ``inputs``, ``iterations``, ``seed``, ``val_range``, ``shapes`` and
    ``folder`` are those of ``run``, ``atol`` and ``rtol`` those of ``compare``. ``directory`` keeps the evidence; a
    diagnosis that was stopped goes on there, unless ``fresh``. ``rules`` says which failures count as the same,
    ``max_time`` is in seconds, ``jobs`` how many checks run at once.

    ``thorough`` also asks what takes minutes: which change makes the whole model right, and which release of the engine
    broke it, or mended it; for that, releases are installed in environments of their own, unless ``downloads`` is
    False. ``by`` is a tool that the model goes through, as for ``transform``.

    ``verdict`` of the result says what was found, ``failed`` whether the model fails, ``stopped`` what ended it early.

    Raises UsageError if sizes that the model leaves open were not said, or for a directory that is no diagnosis's,
    CheckError if nothing can be said of the model, EngineMissing, ModelError or DataError.
    """
    require_seconds(max_time=max_time)
    require_whole(iterations=iterations, jobs=jobs)
    if check is not None:
        require_check(check, is_command=True)
    specs = () if check is not None else (engines,) if isinstance(engines, str) else tuple(engines)
    for spec in specs:
        create(spec)
    wanted = inputs_of(inputs, iterations, seed, val_range, shapes)
    place = Path(directory)
    with model_file(model, folder) as (path, weights):
        index = index_file(path, weights)
        if check is None:
            require_sizes(index, wanted)
        with held_folder(place):
            question = DiagnosisQuestion(
                index=index,
                model=path,
                folder=place,
                engines=specs,
                check=None if check is None else tuple(check),
                samples=Samples(inputs=wanted, made_up=False)
                if check is not None
                else resolved_samples(index, wanted, place),
                judging=Judging(
                    judge=Judge(*asked_of_outputs(atol, rtol, "elemwise")),
                    limits=tolerance_words(atol=atol, rtol=rtol),
                    rules=rules_of(rules),
                ),
                weights_folder=None if folder is None else weights,
                effort=Effort(seconds=max_time, jobs=jobs, thorough=thorough, downloads=downloads),
                fresh=fresh,
                tool=None if by is None else parse_tool(by).text,
            )
            return diagnosed(question, listener)


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

    ``engine`` is the one that fails, ``release`` its version (the installed one), ``stage`` and ``kind`` say how it
    fails; "" is not known. ``check`` is a command, a list of words in which ``{}`` stands for the model's path: it is
    run once, for at most ``check_timeout`` seconds, and what is not said is taken from it. ``matches`` of the result
    are the bugs that have something of the piece, the best first; ``best`` is the first that it looks like, None if it
    looks like none. A match is no proof.

    Raises UsageError for what cannot be used, ModelError for a model that cannot be read or is too large for a piece,
    UnknownEngine; OriginalPasses if the piece passes the check, CheckError if that cannot be run.
    """
    require_choice("stage", stage, ("", "load", "build", "run", "compare"))
    require_seconds(check_timeout=check_timeout)
    seen = seen_in(engine, release=release, stage=stage, kind=kind, is_checked=check is not None)
    with model_file(piece, None) as (path, _):
        if check is not None:
            require_check(check)
            seen = seen_by(CommandCheck(check, str(path), check_timeout), path, seen)
        return look_up(path, seen, [Path(folder) for folder in folders], listener)


def workaround(
    model: Model,
    engine: str,
    check: Sequence[str] | None = None,
    output: str | PathLike[str] | None = None,
    *,
    inputs: GivenInputs = None,
    reference: str | None = None,
    atol: float | Mapping[str, float] = DEFAULT_TOLERANCE,
    rtol: float | Mapping[str, float] = DEFAULT_TOLERANCE,
    kinds: Sequence[Kind] = KINDS,
    piece: str | PathLike[str] | None = None,
    nodes: Sequence[str] = (),
    iterations: int = 1,
    seed: int = 1,
    val_range: GivenRanges = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    rules: Rules | None = None,
    budget: Budget | None = None,
    check_timeout: float | None = None,
    folder: Folder = None,
    listener: events.Listener = events.ignore,
) -> Workarounds:
    """Find the smallest changes with which ``model`` is right in ``engine``, and fails without them.

    ``check`` is a command, a list of words in which ``{}`` stands for the model's path and ``{engine}`` for the engine
    with its settings, as for ``flags``. Without it, ``engine`` is compared with ``reference``.

    A change is a workaround if the outputs are those of ``reference`` on the original, within ``atol`` and ``rtol`` as
    in ``compare``: on ``inputs``, or random ones as ``run`` makes them, which should be those of the check, and on
    fresh ones. The check must pass too, in fresh processes. ``reference`` is an engine; by default ONNX Runtime without
    its optimizer, else the reference evaluator.

    ``kinds`` is what to try: settings and releases of the engine, marked outputs, barriers, higher precision, and other
    spellings. Those of the model are tried at ``nodes``, by their names or those of what they compute, or at the nodes
    of ``piece``, a file with a small failing part of the model; without both the model is reduced first. ``budget`` is
    10 minutes if none is given. ``output`` is where the best patched model is written, if one is found. ``folder``,
    ``rules``, ``check_timeout`` and ``listener`` are as for ``flags``.

    ``best`` of the result are the best three, the cheapest first; none if nothing that was tried helps. ``stopped``
    says what has ended it early.

    Raises OriginalPasses if the model does not fail, CheckError if the check cannot be run, CannotCompare if nobody can
    tell what is right, DoesNotFit for nodes that there are not, UsageError, EngineMissing, ModelError or DataError.
    """
    require_whole(iterations=iterations)
    require_seconds(check_timeout=check_timeout)
    require_own_files(model, output=output)
    require_names("kinds", kinds)
    for kind in kinds:
        require_choice("kinds", kind, get_args(Kind))
    if not kinds:
        raise errors.UsageError("kinds=(): nothing would be tried")
    if check is not None:
        require_check(check, is_command=True)
    for spec in filter(None, (engine, reference)):
        create(spec)
    if output is not None:
        require_writable(Path(output))
    wanted = inputs_of(inputs, iterations, seed, val_range, shapes)
    with model_file(model, folder) as (path, weights), temporary_folder("biopsy-") as scratch:
        index = index_file(path, weights)
        samples = fed(index.fed_types(), wanted)
        question = WorkaroundQuestion(
            index=index,
            model=path,
            template=_template(check, engine, reference, samples, scratch, tolerance_words(atol=atol, rtol=rtol)),
            right=WhatIsRight(
                samples=samples,
                drawn=wanted,
                judge=Judge(*asked_of_outputs(atol, rtol, "elemwise")),
                references=(reference,) if reference is not None else PLAIN,
                named=reference is not None,
            ),
            rules=rules_of(rules),
            kinds=tuple(kind for kind in KINDS if kind in kinds),
            piece=None if piece is None else Path(piece),
            nodes=tuple(nodes),
            default_name=str(scratch / "candidate.onnx"),
            timeout=check_timeout,
            target=None if output is None else PatchedFile(path=Path(output)),
            budget=USUAL_BUDGET if budget is None else options_of("budget", budget, Budget),
        )
        return find_workarounds(question, listener)


def _template(
    check: Sequence[str] | None,
    engine: str,
    reference: str | None,
    samples: Sequence[Feed],
    scratch: Path,
    limits: Sequence[str],
) -> CheckTemplate:
    """The words of the check; without one, those of a comparison."""
    spec = parse_spec(engine)
    if check is not None:
        return template_of(check, spec)
    right = reference or next(one for one in PLAIN if parse_spec(one) != spec)
    words = ["biopsy", "run", "{}", "--engine", right, "--engine", "{engine}"]
    if samples and samples[0]:
        feeds = scratch / "inputs.safetensors"
        write_feeds(feeds, samples)
        words += ["--load-inputs", str(feeds)]
    return CheckTemplate((*words, *limits), spec, is_own_run=True)
