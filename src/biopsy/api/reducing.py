"""``biopsy.reduce``, ``biopsy.vary`` and ``biopsy.RayExecutor``: the smallest failing part, and what may vary in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import closing, contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal, get_args

from biopsy import errors, events
from biopsy.api.running import (
    Folder,
    Function,
    GivenInputs,
    Model,
    feeds_of,
    index_of,
    options_of,
    require_check,
    require_choice,
    require_names,
    require_own_files,
    require_seconds,
    require_shapes,
    require_whole,
    rules_of,
)
from biopsy.checks.command_line import NO_WORDS, parse
from biopsy.checks.judge import Rules
from biopsy.checks.outcome import Check, FunctionCheck
from biopsy.checks.warm import command_check
from biopsy.engines.runner import Inputs
from biopsy.processes.cleanup import temporary_folder
from biopsy.questions.variation.result import Variation
from biopsy.questions.variation.vary import USUAL_BUDGET, VariationJob
from biopsy.questions.variation.vary import vary as run_variation
from biopsy.reduction.problem import Border, Cut
from biopsy.reduction.reduce import RecordingOptions, ReductionJob, run_job
from biopsy.reduction.result import Reduction, Target
from biopsy.reduction.schedule import Mode, Passes
from biopsy.reduction.values import Values
from biopsy.session.checked_search import Repeating, SearchOptions, digest_of_feeds
from biopsy.session.files import Resume
from biopsy.session.pool import Parallelism
from biopsy.session.ray_cluster import RayWorkers, Resources
from biopsy.session.trial import Budget
from biopsy.tensors.results import Feed


def reduce(
    model: Model,
    check: Function | Sequence[str],
    output: str | PathLike[str] = "reduced.onnx",
    *,
    takes: Literal["path", "model"] = "path",
    mode: Mode = "minimal",
    inputs: GivenInputs = None,
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
    values: Values = "auto",
    min_good: str | PathLike[str] | None = None,
    passes: Passes | None = None,
    border: Border | None = None,
    rules: Rules | None = None,
    repeating: Repeating | None = None,
    budget: Budget | None = None,
    parallelism: Parallelism | None = None,
    journal: str | PathLike[str] | None = None,
    allow_vacuous_check: bool = False,
    listener: events.Listener = events.ignore,
) -> Reduction:
    """Find the smallest part of ``model`` that still fails ``check``, and write it to ``output``.

    ``check`` is called with each candidate, a ``pathlib.Path`` or, with ``takes="model"``, an ``onnx.ModelProto``. It
    returns True if the model fails and False if it passes. An exception is a failure too: it is the same failure if
    type and message are those that the original raises (for ``biopsy.EngineFailure``: engine, stage and kind). Or
    ``check`` is a command, as a list of words in which ``{}`` stands for the candidate's path.

    ``inputs`` are those of ``run``. The values of all feeds are recorded, and cut tensors that look like shapes are
    frozen with them. ``input_shapes`` freezes dynamic inputs. ``values`` says whether candidates may compute other
    values than the original. ``min_good`` is where the passing model that is closest in size is written.

    ``passes`` says what is tried besides removing nodes; ``border`` what becomes of cut tensors, inputs and outputs;
    ``rules`` which failures count as the same; ``repeating`` how often a candidate must pass if the failure is flaky;
    ``budget`` what the search may cost: when it is spent, the best result so far is returned, and its ``stopped`` says
    so. ``parallelism`` says how many checks run at once, in threads or in an executor; an executor on another machine
    must see the folder of temporary files, and gets ``check`` by pickle. The result does not depend on the number.

    ``journal`` is a file from which an interrupted reduction continues; it is removed at the end. A ``check`` that
    fails on a model of one Identity node too says nothing: that is a CheckError, unless ``allow_vacuous_check``.
    ``listener`` is called with each event of ``biopsy.events``.

    Raises OriginalPasses if the original does not fail, CheckError if the check cannot be run or contradicts itself,
    ModelError for a damaged model, UsageError for an argument that cannot be used, such as an unknown ``mode`` or a
    path that cannot be read or written, or Interrupted on Ctrl-C, with the best result written.

    >>> import biopsy, onnx                                                              # doctest: +SKIP
    >>> def has_mul(model: onnx.ModelProto) -> bool:
    ...     return any(node.op_type == "Mul" for node in model.graph.node)
    >>> biopsy.reduce("model.onnx", has_mul, "reduced.onnx", takes="model").nodes        # doctest: +SKIP
    ("Mul 'onnx_graphsurgeon_node_3'",)
    """
    for name, value, known in (("takes", takes, ("path", "model")), ("mode", mode, get_args(Mode)),
                               ("values", values, get_args(Values))):  # fmt: skip
        require_choice(name, value, known)
    require_check(check)
    if not isinstance(output, str | PathLike):
        raise errors.UsageError(f"output={output!r}: it is a path")
    require_own_files(model, output=output, min_good=min_good, journal=journal)
    require_shapes("input_shapes", input_shapes)
    feeds = feeds_of(inputs)
    border = options_of("border", border, Border)
    require_choice("cut", border.cut, get_args(Cut))
    passes = options_of("passes", passes, Passes)
    require_names("skip", passes.skip)
    require_names("only", passes.only)
    with searching(
        check, takes, "reduction",
        rules=rules, repeating=repeating, budget=budget, parallelism=parallelism, journal=journal, inputs=feeds,
    ) as (search, candidate_check):  # fmt: skip
        job = ReductionJob(
            target=Target(Path(output), None if min_good is None else Path(min_good)),
            mode=mode,
            search=search,
            recording=RecordingOptions(samples=None if feeds is None else lambda: feeds),
            border=border,
            input_shapes=dict(input_shapes or {}),
            values=values,
            command=NO_WORDS if callable(check) else parse(check),
            passes=replace(passes, skip=tuple(passes.skip), only=tuple(passes.only)),
            allow_vacuous_check=allow_vacuous_check,
        )
        return run_job(index_of(model), candidate_check, job, listener)


@contextmanager
def searching(
    check: Function | Sequence[str],
    takes: Literal["path", "model"],
    search: str,
    *,
    rules: Rules | None,
    repeating: Repeating | None,
    budget: Budget | None,
    parallelism: Parallelism | None,
    journal: str | PathLike[str] | None,
    inputs: Sequence[Feed] | None,
) -> Iterator[tuple[SearchOptions, Check]]:
    """The options of a search and its check, which is closed at the end. None stands for the usual options.

    ``search`` is its name in messages, such as "reduction". Raises UsageError for an argument that cannot be used.
    """
    repeating = options_of("repeating", repeating, Repeating)
    budget = options_of("budget", budget, Budget)
    parallelism = options_of("parallelism", parallelism, Parallelism)
    require_whole(jobs=parallelism.jobs, repeat=repeating.repeat, checks=budget.checks)
    require_seconds(seconds=budget.seconds)
    if not 0 < repeating.confidence < 1:
        raise errors.UsageError(f"confidence={repeating.confidence!r}: it is above 0 and below 1")
    about = {} if journal is None else {"inputs": digest_of_feeds(inputs or ())}
    with temporary_folder("biopsy-") as place:
        candidate = place / "candidate.onnx"
        options = SearchOptions(
            rules=rules_of(rules),
            candidate=candidate,
            parallelism=parallelism,
            budget=budget,
            repeating=repeating,
            resume=Resume(journal=None if journal is None else Path(journal), about=about, search=search),
        )
        if callable(check):
            candidate_check: Check = FunctionCheck(check, as_proto=takes == "model")
        else:
            candidate_check = command_check(check, str(candidate), jobs=parallelism.jobs)
        with closing(candidate_check):
            yield options, candidate_check


class RayExecutor(RayWorkers):
    """Runs the checks of searches on a Ray cluster, one search after the other: an ``executor`` of ``Parallelism``.

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

    @property
    def parallelism(self) -> Parallelism:
        """The ``parallelism`` of a search that runs as many checks on these machines as have room."""
        return Parallelism(jobs=self.room, executor=self)

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
    takes: Literal["path", "model"] = "path",
    inputs: Sequence[Feed] | None = None,
    values: Values = "auto",
    rules: Rules | None = None,
    repeating: Repeating | None = None,
    budget: Budget | None = None,
    parallelism: Parallelism | None = None,
    journal: str | PathLike[str] | None = None,
    allow_vacuous_check: bool = False,
    folder: Folder = None,
    listener: events.Listener = events.ignore,
) -> Variation:
    """Find out which attributes, sizes, types, weights and inputs of ``model`` may change without the failure ending.

    ``check`` is as in ``reduce``: a function that gets each candidate and returns True if it fails, or a command. Each
    feature of the model is changed in several ways. It is ``free`` if changes of different kinds still fail in the
    same way and none passes, ``fixed`` if some pass; ``text`` then says what it must be, as far as that was tried.

    ``inputs`` are fed to the model by a check that is ``biopsy run``, and then varied too. ``values="free"`` says that
    the check does not compare with recorded values, so that changed values alone do not make it fail; with "auto", this
    is concluded from the words of a command, or from a failure that is not a comparison. If the check does compare with
    recorded values, nothing is varied, and ``kept`` says why. ``budget`` is 250 checks or 5 minutes by default.
    ``folder`` is where external weights are. ``rules``, ``repeating``, ``parallelism``, ``journal``,
    ``allow_vacuous_check`` and ``listener`` are as in ``reduce``.

    Raises OriginalPasses if the model does not fail, CheckError if the check cannot be run or fails on anything,
    ModelError for a damaged model, UsageError for an argument that cannot be used, or Interrupted on Ctrl-C.
    """
    for name, value, known in (("takes", takes, ("path", "model")), ("values", values, get_args(Values))):
        require_choice(name, value, known)
    require_check(check)
    # None: concluded from the failure.
    compares = None if callable(check) else parse(check).compares_recorded
    values_free = values == "free" if values != "auto" else None if compares is None else not compares
    with searching(
        check, takes, "explanation",
        rules=rules, repeating=repeating, budget=budget or USUAL_BUDGET, parallelism=parallelism, journal=journal,
        inputs=inputs,
    ) as (search, candidate_check):  # fmt: skip
        job = VariationJob(
            search=search,
            inputs=None if inputs is None else Inputs(given=inputs),
            values_free=values_free,
            allow_vacuous_check=allow_vacuous_check,
        )
        return run_variation(index_of(model, folder), candidate_check, job, listener)
