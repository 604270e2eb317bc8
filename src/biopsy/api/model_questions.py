"""Asking what of a model is wrong: its layers, their precision, what a tool makes of it."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Literal, get_args

from biopsy import errors, events
from biopsy.api.reducing import searching
from biopsy.api.running import (
    Folder,
    Function,
    GivenInputs,
    GivenRanges,
    Model,
    asked_of_outputs,
    fed,
    feeds_of,
    index_of,
    inputs_of,
    model_file,
    options_of,
    require_check,
    require_choice,
    require_names,
    require_own_files,
    require_seconds,
    require_whole,
    tolerances_by_name,
)
from biopsy.checks.judge import Rules
from biopsy.comparison.tolerance import DEFAULT_TOLERANCE, Stat, Tolerances
from biopsy.engines.registry import PLAIN, create
from biopsy.engines.runner import casts_told, in_declared_types, wider_sample
from biopsy.model.index import index_file
from biopsy.processes.cleanup import temporary_folder
from biopsy.processes.watch import Limits
from biopsy.questions.layers.examination import Examination
from biopsy.questions.layers.findings import LayerFindings
from biopsy.questions.layers.question import DEFAULT_LIMIT, DEFAULT_REFERENCE, Judge, Question
from biopsy.questions.precision.formats import Form
from biopsy.questions.precision.mixed_models import High, Low, Precisions, mixed_models
from biopsy.questions.precision.plan import Cost
from biopsy.questions.precision.search import Direction, Mode, PrecisionJob, PrecisionResult
from biopsy.questions.precision.task import run_job
from biopsy.questions.transformations.find import find_transformation
from biopsy.questions.transformations.findings import TransformationFindings
from biopsy.questions.transformations.question import (
    CommandQuestion,
    SameEngine,
    ToolPackages,
    TransformationQuestion,
    parse_tool,
    tool_python,
)
from biopsy.session.checked_search import Repeating
from biopsy.session.pool import Parallelism
from biopsy.session.trial import Budget

_Takes = Literal["path", "model"]


def layers(
    model: Model,
    suspect: str,
    reference: str = DEFAULT_REFERENCE,
    inputs: GivenInputs = None,
    *,
    atol: float | Mapping[str, float] = DEFAULT_TOLERANCE,
    rtol: float | Mapping[str, float] = DEFAULT_TOLERANCE,
    stat: Stat | Mapping[str, Stat] = "elemwise",
    nodes: str | None = None,
    iterations: int = 1,
    seed: int = 1,
    val_range: GivenRanges = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    folder: Folder = None,
    record_memory: int = DEFAULT_LIMIT,
    run_timeout: float | None = None,
    listener: events.Listener = events.ignore,
) -> LayerFindings:
    """Find which layers of ``model`` the engine ``suspect`` computes wrongly, and which only pass an error on.

    Each layer is run in isolation with the values that ``reference`` gives, and in the whole model; both engines are
    specs such as ``"onnxrt:optimization=none"``, and run in processes of their own. ``inputs``, ``iterations``,
    ``seed``, ``val_range``, ``shapes`` and ``folder`` are those of ``run``, ``atol``, ``rtol`` and ``stat`` those of
    ``compare``, by the names of any tensors. ``nodes`` is a regular expression: only layers whose name, operator or
    output it matches somewhere are measured. ``record_memory`` is in bytes of tensors, ``run_timeout`` in seconds.

    ``passed`` of the result is the verdict; ``suspects`` are the layers and groups that make errors, the worst first.

    Raises UsageError if nothing matches ``nodes`` or the reference gives no inner tensors, CannotCompare if the
    reference cannot run the model or ``inputs`` do not fit it, EngineMissing, ModelError or DataError.
    """
    require_whole(record_memory=record_memory, iterations=iterations)
    require_seconds(run_timeout=run_timeout)
    wanted = inputs_of(inputs, iterations, seed, val_range, shapes)
    try:
        pattern = None if nodes is None else re.compile(nodes)
    except re.error as error:
        raise errors.UsageError(f"nodes={nodes!r}: it is no regular expression: {error}") from error
    with model_file(model, folder) as (path, weights), temporary_folder("biopsy-") as scratch:
        question = Question(
            index=index_file(path, weights),
            feeds=lambda kinds: fed(kinds, wanted),
            suspect=suspect,
            reference=reference,
            judge=Judge(*asked_of_outputs(atol, rtol, stat)),
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
    form: Form = "emulate",
    takes: _Takes = "path",
    mode: Mode = "minimal",
    direction: Direction = "forward",
    cost: Cost = "count",
    inputs: GivenInputs = None,
    rules: Rules | None = None,
    repeating: Repeating | None = None,
    budget: Budget | None = None,
    parallelism: Parallelism | None = None,
    journal: str | PathLike[str] | None = None,
    folder: Folder = None,
    listener: events.Listener = events.ignore,
) -> PrecisionResult:
    """Find the layers of ``model`` that must be computed in the precision ``high`` so that ``check`` passes.

    ``check`` is that of ``reduce``: a function that returns True if a candidate fails and False if it passes, or a
    command. A candidate with which it does anything else than pass is ruled out. ``output`` is where to write the model
    in which only the layers that need it are high; None writes none. ``form="emulate"`` rounds by Casts around float32
    arithmetic, ``"native"`` gives low layers low types. int8 needs ``inputs``, feeds that it is calibrated with.

    ``mode``, ``direction`` and ``cost`` are like the options of ``biopsy debug precision``; ``rules``, ``repeating``,
    ``budget``, ``parallelism``, ``journal`` and ``listener`` those of ``reduce``. ``high`` of the result has the layers
    that must be high.

    Raises HighPrecisionFails if the check fails with every layer high, CheckError if the check cannot be run or the
    result does not pass again, ModelError for a damaged model, UsageError for an argument that cannot be used,
    Interrupted on Ctrl-C with the best model written.
    """
    given = {"low": low, "high": high, "form": form, "mode": mode, "takes": takes, "direction": direction, "cost": cost}
    for (name, value), kind in zip(given.items(), (Low, High, Form, Mode, _Takes, Direction, Cost), strict=True):
        require_choice(name, value, get_args(kind))
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
    feeds_given = feeds_of(inputs)
    index = index_of(model, folder)
    feeds, changes = in_declared_types(feeds_given or (), index.declared_type)
    if changes:
        warnings.warn(casts_told(changes), UserWarning, stacklevel=2)
    with searching(
        check, takes, "search",
        rules=rules, repeating=repeating, budget=budget, parallelism=parallelism, journal=journal, inputs=feeds_given,
    ) as (search, made):  # fmt: skip
        job = PrecisionJob(
            output=None if output is None else Path(output),
            mode=mode,
            direction=direction,
            cost=cost,
            search=search,
        )
        return run_job(index, lambda where: mixed_models(index, where, precisions, feeds), made, job, listener)


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
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    reduce: bool = True,
    budget: Budget | None = None,
    tool_timeout: float | None = 600.0,
    folder: Folder = None,
    listener: events.Listener = events.ignore,
) -> TransformationFindings:
    """Find what the tool ``by`` breaks in ``model``: the smallest piece, and the passes that do it.

    ``by`` is a known tool with settings, such as ``"onnxslim"`` or ``"onnxruntime:level=extended"``, or a command with
    ``{}`` for the model and ``{out}`` for the file to write, whose ``control`` only loads and saves. It runs in
    processes of its own, never in this one: by this interpreter if it has the tool, else, or if ``packages`` name
    releases (``["onnxslim==0.1.50"]``), in an environment that is made for it, with the Python ``python``. Only
    ``passes`` may run, if they are given.

    The model and what became of it run in ``engine`` with the same ``inputs`` (as in ``run``, with ``iterations``,
    ``seed``, ``val_range`` and ``shapes``). What rounding explains is no failure, unless ``atol`` or ``rtol`` are
    given, which then decide alone. Or ``check`` decides, a command with ``{}`` for the transformed model and
    ``{original}`` for the model itself. ``output`` is where the piece is written, with what becomes of it and its
    inputs beside it; nothing is written without it. ``reduce=False`` leaves the model as large as it is.
    ``tool_timeout`` is in seconds for each transformation. ``folder``, that of external weights, must be the model's.

    ``fault`` of the result is ``"transformation"``, or ``"control"`` where only loading and saving is wrong already.

    Raises OriginalPasses if the transformed model is right, or the model fails before it is transformed; CheckError if
    nothing can be said; CannotInstall, EngineMissing, ModelError, and UsageError for what cannot be used.
    """
    require_own_files(model, output=output)
    require_whole(iterations=iterations)
    require_seconds(tool_timeout=tool_timeout)
    tool = parse_tool(by)
    wanted = inputs_of(inputs, iterations, seed, val_range, shapes)
    require_names("packages", packages, "a list")
    needed, given = ToolPackages(packages=tuple(packages), python=python), {"atol": atol, "rtol": rtol}
    with model_file(model, folder) as (path, weights):
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
            limits = ({} if value is None else tolerances_by_name(name, value) for name, value in given.items())
            decides = SameEngine(
                feeds=lambda: fed(kinds, wanted),
                wider=lambda: wider_sample(index, kinds, wanted),
                engine=engine,
                tolerances=Tolerances(*limits),
                tolerances_decide=atol is not None or rtol is not None,
            )
        with tool_python(tool, needed, listener) as interpreter:
            question = TransformationQuestion(
                index=index,
                tool=tool,
                python=interpreter,
                decides=decides,
                passes=None if passes is None else tuple(passes),
                control=None if control is None else parse_tool(control),
                output=None if output is None else Path(output),
                reduces=reduce,
                budget=options_of("budget", budget, Budget),
                limits=Limits(seconds=tool_timeout),
            )
            return find_transformation(question, listener)
