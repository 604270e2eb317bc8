"""Asking why a model fails, and what avoids it.

found = biopsy.diagnose("model.onnx", ["onnxrt:optimization=none", "onnxrt"])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path

from biopsy import errors, events
from biopsy.api.arguments import (
    Folder,
    Model,
    model_file,
    require_check,
    require_seconds,
    require_whole,
)
from biopsy.api.compare import asked_of_outputs, tolerance_words
from biopsy.api.inputs import GivenInputs, inputs_of
from biopsy.api.searching import rules_of
from biopsy.blame.transformations.spec import parse_tool
from biopsy.checks.judge import Rules
from biopsy.comparison.tolerance import DEFAULT_TOLERANCE
from biopsy.diagnosis.diagnose import diagnose as diagnosed
from biopsy.diagnosis.evidence import held_folder
from biopsy.diagnosis.facts import Diagnosis
from biopsy.diagnosis.question import DEFAULT_SECONDS, DiagnosisQuestion, Effort, Judging, Samples
from biopsy.diagnosis.samples import require_sizes, settled
from biopsy.engines.registry import create
from biopsy.layerwise.tensor_errors import Judge
from biopsy.model.index import index_file


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
        require_check(check)
        if callable(check):
            raise errors.UsageError(f"check={check!r}: it is a command as a list of words")
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
                samples=Samples(inputs=wanted, made_up=False) if check is not None else settled(index, wanted, place),
                judging=Judging(
                    judge=Judge(*asked_of_outputs(atol, rtol, "elemwise")),
                    limits=(*tolerance_words("--atol", atol), *tolerance_words("--rtol", rtol)),
                    rules=rules_of(rules),
                ),
                weights_folder=None if folder is None else weights,
                effort=Effort(seconds=max_time, jobs=jobs, thorough=thorough, downloads=downloads),
                fresh=fresh,
                tool=None if by is None else parse_tool(by).text,
            )
            return diagnosed(question, listener)
