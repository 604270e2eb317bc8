"""``biopsy.reduce``, ``biopsy.vary`` and ``biopsy.RayExecutor``: the smallest failing part, and what may vary in it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, wait
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, get_args

from biopsy import errors, events
from biopsy.api.running import (
    Folder,
    Function,
    GivenInputs,
    Model,
    feeds_of,
    index_of,
    require_check,
    require_choice,
    require_names,
    require_one,
    require_own_files,
    require_shapes,
)
from biopsy.api.searching import searching
from biopsy.checks.command_line import NO_WORDS, OwnRun, parse
from biopsy.checks.judge import CONFIDENCE, Rules
from biopsy.checks.outcome import Form
from biopsy.engines.runner import Inputs
from biopsy.findings.model import model_tree
from biopsy.findings.page.document import Reported
from biopsy.findings.reduction import reduction_sections
from biopsy.findings.report import SearchHistory, report_tree, versions_tree
from biopsy.questions.variation.result import Variation
from biopsy.questions.variation.vary import USUAL_CHECKS, USUAL_SECONDS, VariationJob
from biopsy.questions.variation.vary import vary as run_variation
from biopsy.reduction.problem import Border, Cut
from biopsy.reduction.reduce import RecordingOptions, ReductionJob, run_job
from biopsy.reduction.result import Reduction, Target
from biopsy.reduction.schedule import Mode, Passes
from biopsy.reduction.values import Values
from biopsy.session.pool import Workers
from biopsy.session.ray_cluster import RayWorkers, Resources
from biopsy.session.trial import Budget
from biopsy.tensors.results import Feed


@dataclass(frozen=True, kw_only=True, repr=False)
class ReducedModel(Reduction, Reported):
    """The smallest part of a model that still fails.

    - ``output`` is its file, ``nodes`` are its nodes in order, by operator and name, ``nodes_before`` is how many the
      original had; ``reads`` has, for each node, the places of the nodes whose outputs it reads.
    - ``signature`` is what counted as the same failure, ``error_before`` and ``error_after`` are the sizes of errors.
    - ``stopped`` names the limit that ended the search early, so that smaller results may exist; None if none did.
    - ``checks``, ``outcomes``, ``other_failures``, ``cannot_say`` and ``seconds`` are what the search asked and took.
    - ``min_good`` is the file of a passing model, ``inputs`` that of the recorded values with which the result was fed.

    ``page`` writes a page, and a notebook shows both table and page. For an issue, ask ``diagnose`` about ``output``.
    """

    def _repr_html_(self) -> str:
        return super()._repr_html_() + self.framed_page()


def reduce(
    model: Model,
    check: Function | Sequence[str],
    output: str | PathLike[str] = "reduced.onnx",
    *,
    takes: Form | None = None,
    mode: Mode = "minimal",
    inputs: GivenInputs = None,
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
    values: Values = "auto",
    cut: Cut = "auto",
    no_reduce_inputs: bool = False,
    no_reduce_outputs: bool = False,
    mark_intermediate: bool | None = False,
    simplify: bool = False,
    anonymize: bool = False,
    skip_pass: Sequence[str] = (),
    only_pass: Sequence[str] = (),
    min_good: str | PathLike[str] | None = None,
    rules: Rules | None = None,
    allow_vacuous_check: bool = False,
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
) -> ReducedModel:
    """Find the smallest part of ``model`` that still fails ``check``, and write it to ``output``.

    ``check`` is called with each candidate, in the form that its parameter is annotated with: a ``pathlib.Path`` (also
    without annotation), an ``onnx.ModelProto``, ``bytes`` or ``str``; ``takes`` says it for a function without
    annotations. It returns True if the model fails and False if it passes. An exception is a failure too: it is the
    same failure if type and message are those that the original raises (for ``biopsy.EngineFailure``: engine, stage and
    kind). Or ``check`` is a command, as a list of words in which ``{}`` stands for the candidate's path.

    Most other arguments are options of ``biopsy debug reduce``, whose help says more. ``inputs`` are those of ``run``:
    the values of all feeds are recorded, and cut tensors that look like shapes are frozen with them. ``input_shapes``
    freezes dynamic inputs. ``values`` says whether candidates may compute other values than the original, ``cut`` what
    becomes of cut tensors. ``min_good`` is where the passing model that is closest in size is written. ``rules`` say
    which failures count as the same.

    When ``max_checks`` or ``max_time`` (seconds) is spent, the best result so far is returned, and its ``stopped`` says
    so. ``jobs`` checks run at once, in threads or in ``executor``: one by default, or as many as an executor of other
    machines has room for. An executor on another machine must see the folder of temporary files, and gets ``check`` by
    pickle. The result does not depend on the number. ``check_timeout`` (seconds) is for a command.

    ``journal`` is a file from which an interrupted reduction continues; it is removed at the end. A ``check`` that
    fails on a model of one Identity node too says nothing: that is a CheckError, unless ``allow_vacuous_check``.
    ``external_data_dir`` is where external weights are. ``listener`` is called with each event of ``biopsy.events``.

    Raises OriginalPasses if the original does not fail, CheckError if the check cannot be run or contradicts itself,
    ModelError for a damaged model, UsageError for an argument that cannot be used, such as an unknown ``mode`` or a
    path that cannot be read or written, or Interrupted on Ctrl-C, with the best result written.

    >>> def has_mul(model: onnx.ModelProto) -> bool:
    ...     return any(node.op_type == "Mul" for node in model.graph.node)
    >>> biopsy.reduce("model.onnx", has_mul, "reduced.onnx", jobs=4, max_time=60).nodes
    ("Mul 'scale'",)
    """
    for name, value, known in (("mode", mode, get_args(Mode)), ("values", values, get_args(Values)),
                               ("cut", cut, get_args(Cut))):  # fmt: skip
        require_choice(name, value, known)
    require_check(check)
    if not isinstance(output, str | PathLike):
        raise errors.UsageError(f"output={output!r}: it is a path")
    require_own_files(model, output=output, min_good=min_good, journal=journal)
    require_shapes("input_shapes", input_shapes)
    require_names("skip_pass", skip_pass)
    require_names("only_pass", only_pass)
    require_one("no_reduce_inputs", no_reduce_inputs, "no_reduce_outputs", no_reduce_outputs)
    feeds = feeds_of(inputs)
    with searching(
        check, takes, "reduction",
        rules=rules, repeat=repeat, confidence=confidence, budget=Budget(checks=max_checks, seconds=max_time),
        jobs=jobs, executor=executor, check_timeout=check_timeout, journal=journal, inputs=feeds,
    ) as (search, candidate_check):  # fmt: skip
        job = ReductionJob(
            target=Target(Path(output), None if min_good is None else Path(min_good)),
            mode=mode,
            search=search,
            recording=RecordingOptions(samples=None if feeds is None else lambda: feeds),
            border=Border(
                cut=cut,
                keep_inputs=no_reduce_inputs,
                keep_outputs=no_reduce_outputs,
                mark_intermediate=mark_intermediate,
            ),
            input_shapes=dict(input_shapes or {}),
            values=values,
            command=NO_WORDS if callable(check) else parse(check),
            passes=Passes(simplify=simplify, anonymize=anonymize, skip=tuple(skip_pass), only=tuple(only_pass)),
            allow_vacuous_check=allow_vacuous_check,
        )
        index = index_of(model, external_data_dir)
        history, began = SearchHistory(), time.time()
        reduction = run_job(index, candidate_check, job, events.both(history, listener))
        sections = {
            "model": model_tree(index, index.path),
            "versions": versions_tree(job.command.engines if isinstance(job.command, OwnRun) else ()),
            **reduction_sections(reduction, index, history, mode, Path()),
        }
        status = errors.Interrupted.status if reduction.stopped else 0
        report = report_tree(
            "debug reduce", None, status=status, began=began, seconds=reduction.seconds, sections=sections
        )
        return ReducedModel(**vars(reduction), report=report)


class RayExecutor(RayWorkers):
    """Runs the checks of searches on a Ray cluster, one search after the other: an ``executor`` of the functions.

    ``address`` is one that ``ray.init`` takes, such as "ray://HOST:10001"; None is the running cluster, or a new one on
    this machine alone. ``resources`` are reserved for each check, as Ray counts them, such as
    ``{"GPU": 1, "CPU": 4}``; by default one CPU. ``runtime_env`` is Ray's, installed before a check runs.
    ``require_uniform`` refuses machines that differ in processor, GPU or packages, because then their engines differ.
    ``room`` is how many checks may run at once, and ``machines`` describes the cluster in words.

    The processes on the machines stay warm from one search to the next: use the executor in a ``with`` statement, or
    call ``shutdown``. It is not a ``concurrent.futures.Executor``: it runs only checks that are commands, and can end
    them.

    Raises EngineMissing without Ray, UsageError if no cluster answers, none of its machines has the resources, or an
    argument cannot be used, CheckError if machines differ with ``require_uniform``, or if biopsy cannot run there.

    >>> with biopsy.RayExecutor("ray://head:10001") as machines:
    ...     biopsy.reduce("model.onnx", ["biopsy", "run", "{}", "--onnxrt", "--reference"], executor=machines)
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        resources: Mapping[str, float] | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        require_uniform: bool = False,
    ) -> None:
        resources = resources or {}
        for name, number in resources.items():
            if not isinstance(number, int | float) or not number >= 0:
                raise errors.UsageError(f"resources={resources!r}: {name} is not a number of at least 0")
        super().__init__(address, Resources.named(resources), runtime_env=runtime_env, require_uniform=require_uniform)

    def close(self) -> None:
        """End the running checks, and keep the machines for the next search."""
        runs = list(self._held)
        for run in runs:
            self.stop(run)
        wait(runs)

    def shutdown(self) -> None:
        """End the running checks, release the machines, and leave the cluster if this executor has joined it."""
        super().close()

    def __enter__(self) -> RayExecutor:
        return self

    def __exit__(self, *exception: object) -> None:
        self.shutdown()


def vary(
    model: Model,
    check: Function | Sequence[str],
    *,
    takes: Form | None = None,
    inputs: Sequence[Feed] | None = None,
    values: Values = "auto",
    rules: Rules | None = None,
    allow_vacuous_check: bool = False,
    repeat: int | None = None,
    confidence: float = CONFIDENCE,
    jobs: int | None = None,
    executor: Executor | Workers | None = None,
    max_checks: int | None = USUAL_CHECKS,
    max_time: float | None = USUAL_SECONDS,
    check_timeout: float | None = None,
    journal: str | PathLike[str] | None = None,
    external_data_dir: Folder = None,
    listener: events.Listener = events.ignore,
) -> Variation:
    """Find out which attributes, sizes, types, weights and inputs of ``model`` may change without the failure ending.

    ``check`` is as in ``reduce``: a function that gets each candidate and returns True if it fails, or a command. Each
    feature of the model is changed in several ways. It is ``free`` if changes of different kinds still fail in the
    same way and none passes, ``fixed`` if some pass; ``text`` then says what it must be, as far as that was tried.

    ``inputs`` are fed to the model by a check that is ``biopsy run``, and then varied too. ``values="free"`` says that
    the check does not compare with recorded values, so that changed values alone do not make it fail; with "auto", this
    is concluded from the words of a command, or from a failure that is not a comparison. If the check does compare with
    recorded values, nothing is varied, and ``kept`` says why. All other arguments are as in ``reduce``.

    Raises OriginalPasses if the model does not fail, CheckError if the check cannot be run or fails on anything,
    ModelError for a damaged model, UsageError for an argument that cannot be used, or Interrupted on Ctrl-C.

    >>> words = ["biopsy", "run", "{}", "--engine", "onnxrt:optimization=none", "--onnxrt"]
    >>> [feature.text for feature in biopsy.vary("reduced.onnx", words, max_checks=100).fixed]
    """
    require_choice("values", values, get_args(Values))
    require_check(check)
    # None: concluded from the failure.
    compares = None if callable(check) else parse(check).compares_recorded
    values_free = values == "free" if values != "auto" else None if compares is None else not compares
    with searching(
        check, takes, "explanation",
        rules=rules, repeat=repeat, confidence=confidence, budget=Budget(checks=max_checks, seconds=max_time),
        jobs=jobs, executor=executor, check_timeout=check_timeout, journal=journal, inputs=inputs,
    ) as (search, candidate_check):  # fmt: skip
        job = VariationJob(
            search=search,
            inputs=None if inputs is None else Inputs(given=inputs),
            values_free=values_free,
            allow_vacuous_check=allow_vacuous_check,
        )
        return run_variation(index_of(model, external_data_dir), candidate_check, job, listener)
