"""``biopsy.layers``, ``biopsy.precision`` and ``biopsy.transform``: which part of a model is wrong, and when."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from os import PathLike
from pathlib import Path
from typing import get_args

from biopsy import errors, events
from biopsy.api.running import (
    Folder,
    Function,
    GivenInputs,
    GivenRanges,
    Model,
    checked_feeds,
    feeds_of,
    index_of,
    inputs_of,
    model_file,
    require_check,
    require_choice,
    require_names,
    require_own_files,
    require_seconds,
    require_whole,
    tolerances_and_stats,
    tolerances_by_name,
)
from biopsy.api.searching import searching
from biopsy.checks.judge import CONFIDENCE, Rules
from biopsy.checks.outcome import Form
from biopsy.comparison.tolerance import DEFAULT_TOLERANCE, Stat, Tolerances
from biopsy.engines.registry import PLAIN, create
from biopsy.engines.runner import casts_text, in_declared_types, wider_sample
from biopsy.model.index import index_file
from biopsy.processes.cleanup import temporary_folder
from biopsy.processes.watch import Limits
from biopsy.questions.layers.examination import Examination
from biopsy.questions.layers.findings import LayerFindings
from biopsy.questions.layers.question import DEFAULT_LIMIT, DEFAULT_REFERENCE, Judge, Question
from biopsy.questions.precision.formats import Form as PrecisionForm
from biopsy.questions.precision.mixed_models import High, Low, Precisions, mixed_models
from biopsy.questions.precision.plan import Cost
from biopsy.questions.precision.search import Direction, Mode, PrecisionJob, PrecisionResult
from biopsy.questions.precision.task import run_job
from biopsy.questions.transformations.find import find_transformation
from biopsy.questions.transformations.question import (
    CommandQuestion,
    SameEngine,
    ToolPackages,
    TransformationFindings,
    TransformationQuestion,
    parse_tool,
    tool_python,
)
from biopsy.session.pool import Workers
from biopsy.session.trial import Budget


def layers(
    model: Model,
    suspect: str,
    reference_engine: str = DEFAULT_REFERENCE,
    inputs: GivenInputs = None,
    *,
    atol: float | Mapping[str, float] = DEFAULT_TOLERANCE,
    rtol: float | Mapping[str, float] = DEFAULT_TOLERANCE,
    check_error_stat: Stat | Mapping[str, Stat] = "elemwise",
    nodes: str | None = None,
    iterations: int = 1,
    seed: int = 1,
    val_range: GivenRanges = None,
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
    external_data_dir: Folder = None,
    record_memory: int = DEFAULT_LIMIT,
    run_timeout: float | None = None,
    listener: events.Listener = events.ignore,
) -> LayerFindings:
    """Find which layers of ``model`` the engine ``suspect`` computes wrongly, and which only pass an error on.

    Each layer is run in isolation with the values that ``reference_engine`` gives, and in the whole model. Both engines
    are specs such as ``"onnxrt:optimization=none"``, and run in processes of their own. ``inputs``, ``iterations``,
    ``seed``, ``val_range``, ``input_shapes`` and ``external_data_dir`` are those of ``run``, ``atol``, ``rtol`` and
    ``check_error_stat`` those of ``compare``, by the names of any tensors. ``nodes`` is a regular expression: only
    layers whose name, operator or output it matches somewhere are measured. ``record_memory`` is in bytes of tensors,
    ``run_timeout`` in seconds.

    The result's ``passed`` is the verdict; ``suspects`` are the layers and groups that make errors, the worst first.

    Raises UsageError if nothing matches ``nodes`` or the reference gives no inner tensors, CannotCompare if the
    reference cannot run the model or ``inputs`` do not fit it, EngineMissing, ModelError or DataError.

    >>> [suspect.name for suspect in biopsy.layers("model.onnx", "onnxrt", atol=1e-3).suspects]
    """
    require_whole(record_memory=record_memory, iterations=iterations)
    require_seconds(run_timeout=run_timeout)
    input_options = inputs_of(inputs, iterations, seed, val_range, input_shapes)
    try:
        pattern = None if nodes is None else re.compile(nodes)
    except re.error as error:
        raise errors.UsageError(f"nodes={nodes!r}: it is not a regular expression: {error}") from error
    with model_file(model, external_data_dir) as (path, weights), temporary_folder("biopsy-") as scratch:
        question = Question(
            index=index_file(path, weights),
            feeds=lambda kinds: checked_feeds(kinds, input_options),
            suspect=suspect,
            reference=reference_engine,
            judge=Judge(*tolerances_and_stats(atol, rtol, check_error_stat)),
            nodes=pattern,
            limit=record_memory,
            timeout=run_timeout,
        )
        return Examination(question, scratch, listener).run()


def precision(
    model: Model,
    check: Function | Sequence[str],
    output: str | PathLike[str] | None = None,
    *,
    low: Low = "fp16",
    high: High = "float32",
    form: PrecisionForm = "emulate",
    takes: Form | None = None,
    mode: Mode = "minimal",
    direction: Direction = "forward",
    cost: Cost = "count",
    inputs: GivenInputs = None,
    rules: Rules | None = None,
    repeat: int | None = None,
    confidence: float = CONFIDENCE,
    jobs: int | None = None,
    executor: Executor | Workers | None = None,
    max_checks: int | None = None,
    max_time: float | None = None,
    check_timeout: float | None = None,
    journal: str | PathLike[str] | None = None,
    external_data_dir: Folder = None,
    listener: events.Listener = events.ignore,
) -> PrecisionResult:
    """Find the layers of ``model`` that must be computed in the precision ``high`` so that ``check`` passes.

    ``check`` is that of ``reduce``: a function that returns True if a candidate fails and False if it passes, or a
    command. A candidate that does anything but pass is ruled out. ``output`` is where the model of mixed precision is
    written; None writes none. ``form="emulate"`` rounds by Casts around float32 arithmetic, ``"native"`` gives the
    layers of low precision low types. int8 is calibrated with ``inputs``, and needs them.

    ``mode``, ``direction`` and ``cost`` are like the options of ``biopsy debug precision``; all other arguments are
    those of ``reduce``.

    The result's ``high`` are the layers that need the high precision.

    Raises HighPrecisionFails if the check fails with every layer high, CheckError if the check cannot be run or the
    result does not pass again, ModelError for a damaged model, UsageError for an argument that cannot be used, or
    Interrupted on Ctrl-C, with the best model written.

    >>> words = ["biopsy", "run", "{}", "--onnxrt", "--load-inputs", "in.npz", "--load-outputs", "golden.npz"]
    >>> [layer.label for layer in biopsy.precision("model.onnx", words, "mixed.onnx", low="fp16", jobs=4).high]
    """
    for name, value, choices in (
        ("low", low, Low), ("high", high, High), ("form", form, PrecisionForm), ("mode", mode, Mode),
        ("direction", direction, Direction), ("cost", cost, Cost),
    ):  # fmt: skip
        require_choice(name, value, get_args(choices))
    require_check(check)
    precisions = Precisions(low=low, high=high, form=form)
    require_own_files(model, output=output, journal=journal)
    precisions.require_possible()
    is_int8 = precisions.low == "int8"
    if is_int8 and not inputs:
        raise errors.UsageError("low='int8' is calibrated with inputs, and there are none", next_steps=["inputs=[...]"])
    if is_int8 and precisions.form == "native":
        raise errors.UsageError("form='native' has no effect with low='int8', which has a form of its own")
    if not is_int8 and inputs is not None:
        raise errors.UsageError(f"inputs have no effect with low={precisions.low!r}: only int8 is calibrated")
    given_feeds = feeds_of(inputs)
    index = index_of(model, external_data_dir)
    feeds, changes = in_declared_types(given_feeds or (), index.declared_type)
    if changes:
        warnings.warn(casts_text(changes), UserWarning, stacklevel=2)
    with searching(
        check, takes, "search",
        rules=rules, repeat=repeat, confidence=confidence, budget=Budget(checks=max_checks, seconds=max_time),
        jobs=jobs, executor=executor, check_timeout=check_timeout, journal=journal, inputs=given_feeds,
    ) as (search, candidate_check):  # fmt: skip
        job = PrecisionJob(
            output=None if output is None else Path(output),
            mode=mode,
            direction=direction,
            cost=cost,
            search=search,
        )
        return run_job(
            index, lambda where: mixed_models(index, where, precisions, feeds), candidate_check, job, listener
        )


def transform(
    model: Model,
    by: str,
    engine: str = PLAIN[0],
    inputs: GivenInputs = None,
    *,
    output: str | PathLike[str] | None = None,
    passes: Sequence[str] | None = None,
    check: Sequence[str] | None = None,
    control: str | None = None,
    packages: Sequence[str] = (),
    python: str | None = None,
    atol: float | Mapping[str, float] | None = None,
    rtol: float | Mapping[str, float] | None = None,
    iterations: int = 1,
    seed: int = 1,
    val_range: GivenRanges = None,
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
    no_reduce: bool = False,
    max_checks: int | None = None,
    max_time: float | None = None,
    tool_timeout: float | None = 600.0,
    external_data_dir: Folder = None,
    listener: events.Listener = events.ignore,
) -> TransformationFindings:
    """Find what the tool ``by`` breaks in ``model``: the smallest piece, and the passes that do it.

    ``by`` is a known tool with settings, such as ``"onnxslim"`` or ``"onnxruntime:level=extended"``, or a command with
    ``{}`` for the model and ``{out}`` for the file to write; ``control`` is then a command that only loads and saves.
    The tool runs in processes of its own: with this interpreter if it is installed here, else (or if
    ``packages`` name releases, such as ``["onnxslim==0.1.50"]``) in an environment made for it, with the Python
    ``python``. If ``passes`` are given, only they run.

    The model and the transformed model run in ``engine`` with the same ``inputs`` (as in ``run``, with ``iterations``,
    ``seed``, ``val_range`` and ``input_shapes``). Differences that rounding explains are not a failure, unless ``atol``
    or ``rtol`` are given, which then decide alone. If ``check`` is given, it decides instead: a command with ``{}`` for
    the transformed model and ``{original}`` for the model itself.

    ``output`` is where the piece is written, with its transformed model and its inputs beside it; None writes nothing.
    ``no_reduce`` looks for no smaller piece. ``tool_timeout`` is in seconds per transformation.
    ``external_data_dir``, that of external weights, must be the model's.

    The result's ``fault`` is ``"transformation"``, or ``"control"`` if loading and saving alone breaks the model.

    Raises OriginalPasses if the transformed model is right or the model fails before it is transformed, CheckError if
    nothing can be said, CannotInstall, EngineMissing, ModelError, or UsageError for an argument that cannot be used.

    >>> print(biopsy.transform("model.onnx", "onnxslim", max_time=300).sentence)
    """
    require_own_files(model, output=output)
    require_whole(iterations=iterations, max_checks=max_checks)
    require_seconds(tool_timeout=tool_timeout, max_time=max_time)
    tool = parse_tool(by)
    input_options = inputs_of(inputs, iterations, seed, val_range, input_shapes)
    require_names("packages", packages, "a list")
    tool_packages = ToolPackages(packages=tuple(packages), python=python)
    with model_file(model, external_data_dir) as (path, weights):
        index = index_file(path, weights)
        if index.has_external_data and weights.resolve() != path.parent.resolve():
            raise errors.UsageError(f"a tool looks for the weights of {path} beside it, not in {weights}")
        decides: CommandQuestion | SameEngine
        if check is not None:
            require_check(check, is_command=True)
            decides = CommandQuestion(words=tuple(check))
        else:
            create(engine)
            kinds = index.fed_types()
            decides = SameEngine(
                feeds=lambda: checked_feeds(kinds, input_options),
                wider=lambda: wider_sample(index, kinds, input_options),
                engine=engine,
                tolerances=Tolerances(
                    {} if atol is None else tolerances_by_name("atol", atol),
                    {} if rtol is None else tolerances_by_name("rtol", rtol),
                ),
                tolerances_decide=atol is not None or rtol is not None,
            )
        with tool_python(tool, tool_packages, listener) as interpreter:
            question = TransformationQuestion(
                index=index,
                tool=tool,
                python=interpreter,
                decides=decides,
                passes=None if passes is None else tuple(passes),
                control=None if control is None else parse_tool(control),
                output=None if output is None else Path(output),
                reduces=not no_reduce,
                budget=Budget(checks=max_checks, seconds=max_time),
                limits=Limits(seconds=tool_timeout),
            )
            return find_transformation(question, listener)
