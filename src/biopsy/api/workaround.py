"""Asking for the smallest change with which a whole model is right in the engine that must be used.

found = biopsy.workaround("model.onnx", "openvino", output="fixed.onnx")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import get_args

from biopsy import errors, events
from biopsy.api.arguments import (
    Folder,
    Model,
    model_file,
    options_of,
    require_check,
    require_choice,
    require_own_files,
    require_seconds,
    require_whole,
)
from biopsy.api.compare import asked_of_outputs, tolerance_words
from biopsy.api.engine_checks import template_of
from biopsy.api.inputs import GivenInputs, GivenRanges, fed, inputs_of
from biopsy.api.searching import rules_of
from biopsy.checks.judge import Rules
from biopsy.comparison.tolerance import DEFAULT_TOLERANCE
from biopsy.engines.registry import create, parse_spec
from biopsy.engines.yardsticks import PLAIN
from biopsy.filesystem.write import require_writable
from biopsy.isolation.cleanup import temporary_folder
from biopsy.layerwise.tensor_errors import Judge
from biopsy.model.index import index_file
from biopsy.session.budget import Budget
from biopsy.tactics.setting_changes import CheckTemplate
from biopsy.tensors.files import write_feeds
from biopsy.tensors.results import Feed
from biopsy.workarounds.find import find_workarounds
from biopsy.workarounds.question import KINDS, USUAL_BUDGET, Kind, PatchedFile, WhatIsRight, WorkaroundQuestion
from biopsy.workarounds.result import Workarounds


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
    asked_kinds = _kinds(kinds)
    if check is not None:
        require_check(check)
        if callable(check):
            raise errors.UsageError(f"check={check!r}: it is a command as a list of words")
    for spec in filter(None, (engine, reference)):
        create(spec)
    if output is not None:
        require_writable(Path(output))
    wanted = inputs_of(inputs, iterations, seed, val_range, shapes)
    with model_file(model, folder) as (path, weights), temporary_folder("biopsy-") as scratch:
        index = index_file(path, weights)
        kinds_of_inputs = index.fed_types()
        samples = fed(kinds_of_inputs, wanted)
        limits = (*tolerance_words("--atol", atol), *tolerance_words("--rtol", rtol))
        question = WorkaroundQuestion(
            index=index,
            model=path,
            template=_template(check, engine, reference, samples, scratch, limits),
            right=WhatIsRight(
                samples=samples,
                drawn=wanted,
                judge=Judge(*asked_of_outputs(atol, rtol, "elemwise")),
                references=(reference,) if reference is not None else PLAIN,
                named=reference is not None,
            ),
            rules=rules_of(rules),
            kinds=asked_kinds,
            piece=None if piece is None else Path(piece),
            nodes=tuple(nodes),
            default_name=str(scratch / "candidate.onnx"),
            timeout=check_timeout,
            target=None if output is None else PatchedFile(path=Path(output)),
            budget=USUAL_BUDGET if budget is None else options_of("budget", budget, Budget),
        )
        return find_workarounds(question, listener)


def _kinds(kinds: Sequence[Kind]) -> tuple[Kind, ...]:
    if isinstance(kinds, str):
        raise errors.UsageError(f"kinds={kinds!r}: it is a tuple of names", next_steps=[f"kinds=({kinds!r},)"])
    for kind in kinds:
        require_choice("kinds", kind, get_args(Kind))
    if not kinds:
        raise errors.UsageError("kinds=(): nothing would be tried")
    return tuple(kind for kind in KINDS if kind in kinds)


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
    loaded: list[str] = []
    if samples and samples[0]:
        feeds = scratch / "inputs.safetensors"
        write_feeds(feeds, samples)
        loaded = ["--load-inputs", str(feeds)]
    words = ["biopsy", "run", "{}", "--engine", right, "--engine", "{engine}", *loaded]
    return CheckTemplate((*words, *limits), spec, is_own_run=True)
