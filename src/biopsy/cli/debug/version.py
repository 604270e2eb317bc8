"""``biopsy debug version``: finds the release of a package that broke a model, or mended it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from biopsy import errors, events
from biopsy.checks.command_line import OwnRun, parse
from biopsy.checks.warm import command_check
from biopsy.checks.words import as_word
from biopsy.cli.advice import Advice, of_diagnosis, resume_line, say_advice
from biopsy.cli.arguments import checks, engines, types
from biopsy.cli.arguments.declared import option, switch
from biopsy.cli.arguments.groups import ModelOption, WeightsFolderOption
from biopsy.cli.console import Console
from biopsy.cli.debug import checking, other_machines
from biopsy.cli.debug.reduce_options import ReduceOptions
from biopsy.cli.debug.reduction_report import ReductionReport, job_of
from biopsy.cli.debug.reduction_report import say_result as say_reduction
from biopsy.cli.progress import CheckProgress
from biopsy.cli.report import ReportOption
from biopsy.engines.base import ModelInput
from biopsy.engines.registry import EngineSpec, parse_spec
from biopsy.findings.answers import releases_verdict
from biopsy.findings.model import model_tree_of
from biopsy.findings.report import machine_tree, versions_tree
from biopsy.model.index import index_file
from biopsy.model.load import read_bytes
from biopsy.processes.environments.interpreter import interpreter_of
from biopsy.processes.environments.releases import Release, releases
from biopsy.processes.own_process import processors
from biopsy.questions.releases.find import ReleaseSearch, ReleaseSearchOptions
from biopsy.questions.releases.findings import ReleaseFindings
from biopsy.questions.releases.question import (
    PYTHON_VARIABLE,
    NamedReleases,
    ReleaseCheck,
    ReleaseQuestion,
    ReleaseSpan,
    engine_of,
    has_place,
    requirements_of,
    span_of,
)
from biopsy.questions.releases.runs import RunsElsewhere, RunsHere, installed
from biopsy.reduction.reduce import run_job
from biopsy.reduction.result import inputs_file
from biopsy.text import count, did_you_mean, is_refused, line_of, printable, series, shortened

REST_OPTIONS = checks.REST_OPTIONS

_NOT_ELSEWHERE = {
    "--reduce": "reduce the model first, which is another command with --on, and ask about the piece",
    "--external-data-dir": "weights are sent that stand beside the model",
}
"""Options that cannot be combined with ``--on``, each with the reason."""

EPILOG = f"""\
examples:
  Which release of ONNX Runtime broke it, or mended it? The engine of this package takes each release:
    biopsy debug version model.onnx --package onnxruntime \\
        --check biopsy run {{}} --reference --onnxrt
  Between two releases that you know of:
    biopsy debug version model.onnx --package openvino --good 2024.6.0 --bad 2025.1.0 \\
        --check biopsy run {{}} --openvino --load-inputs inputs.json --load-outputs golden.json
  Any package, any command; {{python}} is the interpreter of the environment that holds the release:
    biopsy debug version model.onnx --package onnxslim --check {{python}} check.py {{}}
  A table of some releases, with an older NumPy beside them:
    biopsy debug version model.onnx --package onnxruntime --versions 1.16..1.20 --all --with 'numpy<2' \\
        --check biopsy run {{}} --reference --onnxrt
  The environment variables BIOPSY_PYTHON and BIOPSY_ENGINE hold the interpreter, and the engine with its release.

{checks.STATUSES}
exit status: 0 if it was found, also if every release tried fails; 3 if none does; 4 if nothing could be concluded;
5 if interrupted, with what is known by then.
"""


class VersionOptions(
    ModelOption,
    ReportOption,
    engines.SurroundingOptions,
    checks.BudgetOptions,
    checks.CheckOptions,
    checks.VacuousOption,
    WeightsFolderOption,
):
    """All options of ``debug version``, but for those on other machines."""

    package: str = option("--package", required=True, metavar="NAME", meaning="the distribution, such as onnxruntime")
    good: str | None = option(
        "--good", metavar="VERSION", meaning="a release without the failure (default: looked for, the newest and older)"
    )
    bad: str | None = option(
        "--bad",
        metavar="VERSION",
        meaning="a release with the failure (default: the one installed here, else the newest)",
    )
    versions: str | None = option(
        "--versions",
        metavar="RANGE",
        meaning="look at these only: A..B, releases joined by commas, or a specifier such as '>=1.20,!=1.23.0' "
        "(default: all with a wheel for this Python that were not yanked)",
    )
    engine: str | None = option(
        "--engine",
        metavar="NAME[:key=value,...]",
        meaning="the engine that takes the releases (default: the last one of the package in the check)",
    )
    every: bool = switch("--all", meaning="ask every release, instead of halving")
    reduce: bool = switch(
        "--reduce",
        meaning="reduce the model first, search with the piece that is left, and verify the answer with the whole "
        "model",
    )

    @property
    def words_of_check(self) -> list[str]:
        """The words of the check. Raises UsageError if there is none."""
        if not self.check:
            raise errors.UsageError(
                "there is no command to run", next_steps=["--check biopsy run {} --reference --onnxrt    at the end"]
            )
        return self.check

    @property
    def piece(self) -> Path:
        """The file of the piece that ``--reduce`` writes."""
        return Path(f"{self.model.stem}_reduced.onnx")


_OF_RELEASES = ("package", "good", "bad", "versions", "beside", "python", "engine", "every", "jobs")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``debug version``."""
    VersionOptions.add(
        parser,
        without=("max_checks", "max_time"),
        also={"report": ["--save-report", "-o", "--output"]},
        titles=dict.fromkeys(_OF_RELEASES, "the releases"),
        model=" that fails",
        jobs="make N environments at once, also those that may be asked for next; checks run one at a time, but for "
        "those of --on, of which N run at once (default: 1)",
        check="the command that tells whether the model fails; takes the rest of the line. "
        f"In it, {{}}, or the name {checks.DEFAULT_CANDIDATE}, stands for the model. "
        "In 'biopsy run', the last engine of the package takes the releases, and all others stay as they are installed",
        allow_vacuous_check="accept a check that fails with every release, and on a model of one Identity node too",
    )
    other_machines.MachineOptions.add(parser, on=other_machines.meaning(sent=other_machines.MODEL_SENT))


@VersionOptions.reading
def derived_files(options: VersionOptions) -> types.Derived:
    """The piece of ``--reduce``, and the files beside it."""
    if not options.reduce:
        return {}
    return {
        "the piece of --reduce": (options.piece, types.WRITTEN),
        "the inputs of the piece": (inputs_file(options.piece), types.WRITTEN),
        "the journal of --reduce": (checks.journal_of(options.piece), types.WRITTEN),
    }


def execute(args: argparse.Namespace, console: Console) -> int:
    """Find the release; returns 0; raises what ends with another status."""
    options = VersionOptions.of(args)
    words = options.words_of_check
    with other_machines.machines_of(args, console, _NOT_ELSEWHERE) as machines:
        report = options.report_file(console)
        question = _question(options, words, console)
        known = releases(options.package, python=question.check.python)
        named = NamedReleases(good=options.good, bad=options.bad, versions=options.versions)
        span = span_of(options.package, known, named)

        def sections(findings: ReleaseFindings) -> Mapping[str, Any]:
            return {
                "verdict": releases_verdict(findings),
                "model": model_tree_of(options.model),
                "versions": versions_tree(),
                "search": progress.history.tree(),
                "releases": findings.as_json(),
            }

        with VersionProgress(console, options) as progress, checking.ended_politely():
            progress.show_plan(question, span)
            with closing(
                RunsHere(ahead=options.jobs or 1)
                if machines is None
                else RunsElsewhere(machines, machines.jobs(options.jobs), progress)
            ) as runs:
                how = ReleaseSearchOptions(every=options.every, allow_vacuous=options.allow_vacuous_check)
                search = ReleaseSearch(question, span, progress, how, runs=runs)
                if options.reduce:
                    piece = _piece(options, console, question, search.failing())
                    search = ReleaseSearch(piece, span, progress, replace(how, whole_model=question), runs=runs)
                with report.also_of_errors(lambda: sections(search.findings)):
                    findings = _findings(options, console, search)
            report.write(0, lambda: sections(findings))
        _say_result(console, options, findings)
        return 0


def _findings(options: VersionOptions, console: Console, search: ReleaseSearch) -> ReleaseFindings:
    """Search; shows what is known so far before it raises CannotInstall or Interrupted."""
    try:
        return search.run()
    except (KeyboardInterrupt, errors.CannotInstall) as error:
        if any(answer.side is not None for answer in search.findings.tried):
            console.say(f"So far: {search.findings.text}.")
        if isinstance(error, errors.CannotInstall):
            raise
        kept = "the environments that were made: the same line is faster now"
        line = resume_line(options.words, REST_OPTIONS)
        raise errors.Interrupted("the search was interrupted", kept=kept, resume=line) from None


def _question(options: VersionOptions, words: list[str], console: Console) -> ReleaseQuestion:
    """The model, and the check with a place for the release. Raises UsageError, ModelError."""
    model, folder = options.model, options.external_data_dir
    ModelInput(read_bytes(model), folder or model.parent, model)  # checks the files that the model names
    checking.require_names(words, model)
    check = _check(options, words)
    if not check.names_release:
        console.note(f"the check has no {{python}} and no {{engine}}: it must run {PYTHON_VARIABLE} of its environment")
    return ReleaseQuestion(
        check=check,
        model=model,
        rules=options.rules(),
        weights=folder,
        default_name=checks.DEFAULT_CANDIDATE,
        timeout=options.check_timeout,
    )


def _check(options: VersionOptions, check: list[str]) -> ReleaseCheck:
    """The words of the check with a place for the release. Raises UsageError."""
    package, engine = options.package, options.engine
    beside = requirements_of(package, options.beside)
    command = parse(check)
    words, yardstick = command.words, ""
    named = engine_of(package)
    spec = parse_spec(engine) if engine else EngineSpec(named) if named else None
    if isinstance(command, OwnRun) and not has_place(words):
        run = checking.engines_of_run(command)
        if spec is None or (not engine and spec.name not in {each.name for each in run}):
            packages = engines.distributions_of(run)
            raise errors.UsageError(
                f"the check is 'biopsy run', and no engine of it is the package {printable(package)}",
                next_steps=[
                    *did_you_mean(package, packages, cutoff=engines.ALIKE),
                    *(f"--package {name}" for name in packages),
                    "--check {python} check.py {}    any command that uses the package",
                ],
            )
        template = checking.own_template(command, spec.text if engine else spec.name)
        others = [each.text for each in run if each.name == template.spec.name]
        others.remove(template.spec.text)
        words, spec, yardstick = template.words, template.spec, ", ".join(others)
    return ReleaseCheck(
        package=package,
        words=words,
        spec=spec,
        is_own_run=isinstance(command, OwnRun),
        beside=beside,
        python=interpreter_of(options.python),
        python_text=options.python,
        yardstick=yardstick,
    )


_LONGEST_REASON = 90
"""Characters of a reason in the line of a release."""


class VersionProgress(CheckProgress):
    """Shows a line for each release that was tried, and the output of the first failure."""

    def __init__(self, console: Console, shown: checks.ShownChecks) -> None:
        super().__init__(console, shown, head="releases", needs="a release passes")

    def show_plan(self, question: ReleaseQuestion, span: ReleaseSpan) -> None:
        """Show which releases are searched, and which engine takes them."""
        check, known = question.check, span.releases
        python = f" for Python {check.python.version}" if check.python is not None else ""
        self.line(
            "releases",
            f"{count(len(known), 'release')} of {check.package}{python}: {known[0].version} to {known[-1].version}; "
            f"first {known[span.start].version}",
        )
        if check.spec is not None and check.is_own_run:
            others = f"; as installed: {check.yardstick}" if check.yardstick else ""
            self.line("varies", f"the release of {check.spec.text}{others}")

    def show(self, event: events.Event) -> None:
        """Show each release that was tried, with what was installed for it."""
        match event:
            case events.OriginalFails():
                self.line("fails", f"{_short(event.reason, 160)} · {event.seconds:.2f} s")
            case events.InstallationDone():
                pass  # stands in the line of its release
            case events.ReleaseTried():
                reason = "" if event.outcome in ("passes", "fails") else f": {_short(event.reason)}"
                added = f"   (with {series(event.added)})" if event.added else ""
                self.line(event.version, f"{event.date:<10}  {event.outcome}{reason}{added}")
            case _:
                super().show(event)


def _short(reason: str, most: int = _LONGEST_REASON) -> str:
    return shortened(" ".join(reason.split()), most)


def _say_result(console: Console, options: VersionOptions, findings: ReleaseFindings) -> None:
    """Show the releases between which it changes, what it was found with, and what to type next."""
    console.note("")
    for border in findings.borders:
        verified = "" if border.verified else "   (not confirmed when asked again)"
        console.say(f"{findings.package}: {border.text}.{verified}")
        for side, release in sorted(
            [(border.was, border.before), (border.became, border.after)], key=lambda one: one[0] is not False
        ):
            day = "" if release.date is None else f" of {release.date.isoformat()}"
            head = "passes" if side is False else "fails" if side is True else "another failure"
            console.note(f"  {head:<7} {release.version}{day}")
        console.note(f"  notes   {border.notes}")
    if not findings.borders:
        console.say(f"{findings.text}.")
        for answer in [answer for answer in findings.tried if answer.side is None][:5]:
            console.note(f"  {answer.release.version}: {answer.words}: {' '.join(answer.reason.split())[:100]}")
    elif len(findings.borders) > 1:
        without = "without --versions, " if options.versions and len(findings.tried) == findings.known else ""
        console.say(f"It changed more than once; {without}--all asks every release.")
    if findings.doubt:
        console.warn(findings.doubt)
    if findings.yardstick:
        console.note(f"compared  {findings.yardstick} was as installed in every check; it did not vary")
    facts = machine_tree()
    driver = f" · driver {facts['driver']}" if facts["driver"] else ""
    console.note(f"machine   {facts['cpu']} · {facts['os']}{driver}")
    console.note(count(findings.checks, "check") + (f"; report: {options.report}" if options.report else ""))
    say_advice(console, _advice(options, findings))


def _advice(options: VersionOptions, findings: ReleaseFindings) -> list[Advice]:
    """The lines that install releases without the failure; if none is right, the one that finds a workaround."""
    words = options.words_of_check
    if not findings.pins and words[:2] == ["biopsy", "run"]:
        engine = ["--engine", options.engine] if options.engine else []
        workaround = ["biopsy", "debug", "workaround", as_word(options.model), *engine, "--skip", "release"]
        line = line_of([*workaround, "--check", *words])
        own = [] if is_refused(line) else [Advice(line, "what avoids it in the release that is installed")]
        return [*own, *of_diagnosis(options.model)]
    pins = [Advice(line_of(["pip", "install", f"{findings.package}{pin}"])) for pin in findings.pins[:3]]
    return [*pins, *of_diagnosis(options.model)]


_SHARED = (*checks.RuleOptions.declared, *checks.CheckTimeOptions.declared, *WeightsFolderOption.declared)
"""Options that mean the same in ``debug reduce``."""


def _piece(options: VersionOptions, console: Console, question: ReleaseQuestion, release: Release) -> ReleaseQuestion:
    """The same question about the smallest part of the model that fails with ``release``, for ``--reduce``.

    Raises what a reduction raises, and UsageError for a check without a place for the release.
    """
    check, shown = question.check, "all" if options.show_output else "none" if options.hide_fail_output else "original"
    if not check.names_release:
        raise errors.UsageError(
            "--reduce needs a check that says where the release belongs",
            next_steps=["write {python} in it, in the place of python"],
        )
    console.note("", f"reduce     with {check.package} {release.version}")
    line = resume_line(options.words, REST_OPTIONS)
    with installed(check, release, events.ignore) as environment, ReductionReport(console, None, shown) as progress:
        words = list(check.words_of(release.version, str(environment.python)))
        reduction = ReduceOptions(
            model=options.model, output=options.piece, check=words, **{name: getattr(options, name) for name in _SHARED}
        )
        jobs = processors() if parse(words).names_candidate(str(reduction.candidate)) else 1
        index, job = (
            index_file(options.model, options.external_data_dir),
            job_of(reduction, checking.own_run(words), jobs),
        )
        with closing(command_check(words, str(reduction.candidate), options.check_timeout, None, jobs)) as command:
            try:
                result = run_job(index, command, job, progress)
            except errors.Interrupted as stop:
                raise errors.Interrupted(stop.message, kept=stop.kept, resume=line) from stop
        progress.ended(0, result.nodes)
    say_reduction(console, result, line, [])
    console.note("")
    if result.inputs is None:
        return replace(question, model=result.output)
    fed = OwnRun(check.words).with_inputs(result.inputs).words
    return replace(question, model=result.output, check=replace(check, words=fed))
