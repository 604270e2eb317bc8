"""Asking what a tool that transforms models breaks.

found = biopsy.transform("model.onnx", "onnxslim")
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

from biopsy import errors, events
from biopsy.api.arguments import (
    Folder,
    Model,
    model_file,
    options_of,
    require_check,
    require_own_files,
    require_seconds,
    require_whole,
    tolerances_by_name,
)
from biopsy.api.inputs import GivenInputs, GivenRanges, fed, inputs_of
from biopsy.blame.transformations.find import find_transformation
from biopsy.blame.transformations.findings import TransformationFindings
from biopsy.blame.transformations.question import CommandQuestion, SameEngine, TransformationQuestion
from biopsy.blame.transformations.spec import parse_tool
from biopsy.blame.transformations.tool_python import ToolPackages, tool_python
from biopsy.comparison.tolerance import Tolerances
from biopsy.engines.feeding import Inputs
from biopsy.engines.registry import create
from biopsy.engines.wider_inputs import wider_sample
from biopsy.engines.yardsticks import PLAIN
from biopsy.isolation.watch import Limits
from biopsy.model.index import ModelIndex, index_file
from biopsy.session.budget import Budget


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
    with _indexed(model, folder) as index, tool_python(tool, _packages(packages, python), listener) as interpreter:
        question = TransformationQuestion(
            index=index,
            tool=tool,
            python=interpreter,
            decides=_command(check) if check is not None else _engine(engine, index, wanted, atol, rtol),
            passes=None if passes is None else tuple(passes),
            control=None if control is None else parse_tool(control),
            output=None if output is None else Path(output),
            reduces=reduce,
            budget=options_of("budget", budget, Budget),
            limits=Limits(seconds=tool_timeout),
        )
        return find_transformation(question, listener)


@contextmanager
def _indexed(model: Model, folder: Folder) -> Iterator[ModelIndex]:
    with model_file(model, folder) as (path, weights):
        index = index_file(path, weights)
        if index.has_external_data and weights.resolve() != path.parent.resolve():
            raise errors.UsageError(f"a tool looks for the weights of {path} beside it, not in {weights}")
        yield index


def _packages(packages: Sequence[str], python: str | None) -> ToolPackages:
    if isinstance(packages, str):
        raise errors.UsageError(f"packages={packages!r}: it is a list", next_steps=[f"packages=[{packages!r}]"])
    return ToolPackages(packages=tuple(packages), python=python)


def _command(check: Sequence[str]) -> CommandQuestion:
    if callable(check):
        raise errors.UsageError("check is a function: it is a command as a list of words, for it runs elsewhere")
    require_check(check)
    return CommandQuestion(words=tuple(check))


def _engine(
    engine: str,
    index: ModelIndex,
    wanted: Inputs,
    atol: float | Mapping[str, float] | None,
    rtol: float | Mapping[str, float] | None,
) -> SameEngine:
    create(engine)

    kinds = index.fed_types()
    return SameEngine(
        feeds=lambda: fed(kinds, wanted),
        wider=lambda: wider_sample(index, kinds, wanted),
        engine=engine,
        tolerances=Tolerances(
            {} if atol is None else tolerances_by_name("atol", atol),
            {} if rtol is None else tolerances_by_name("rtol", rtol),
        ),
        is_told=atol is not None or rtol is not None,
    )
