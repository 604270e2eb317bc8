"""``biopsy debug version``: which release of a package broke a model, or mended it."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biopsy import errors, events
from biopsy.checks.command_line import OwnRun, parse
from biopsy.checks.words import as_word
from biopsy.cli import advice
from biopsy.cli.advice import Advice, say_advice
from biopsy.cli.arguments import checks, engines, groups, types
from biopsy.cli.arguments.checks import ShownChecks
from biopsy.cli.commands import COMMANDS
from biopsy.cli.console import Console
from biopsy.cli.debug import checking, other_machines, reduce
from biopsy.cli.debug.reduce_options import ReduceOptions
from biopsy.cli.parser import parser_of
from biopsy.cli.progress import CheckProgress, shows
from biopsy.cli.report import ReportOption, report_file
from biopsy.engines.base import ModelInput
from biopsy.engines.registry import EngineSpec, parse_spec
from biopsy.findings.model import model_tree_of
from biopsy.findings.report import machine_tree, versions_tree
from biopsy.model.index import index_file
from biopsy.model.load import read_bytes
from biopsy.reduction.result import inputs_file
from biopsy.text import count, did_you_mean, is_refused, line_of, printable, series, shortened

if TYPE_CHECKING:
    from biopsy.processes.environments.releases import Release
    from biopsy.questions.releases.find import ReleaseSearch
    from biopsy.questions.releases.findings import ReleaseFindings
    from biopsy.questions.releases.probe import ReleaseQuestion
    from biopsy.questions.releases.runs import ReleaseCheck, ReleaseRuns
    from biopsy.questions.releases.span import ReleaseSpan
    from biopsy.session.machines import OtherMachines

REST_OPTIONS = checks.REST_OPTIONS

_NOT_ELSEWHERE = {
    "--reduce": "reduce the model first, which is another command with --on, and ask about the piece",
    "--external-data-dir": "weights are sent that stand beside the model",
}
"""Options that cannot be combined with ``--on``, each with the reason."""

_EPILOG = f"""\
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


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``debug version``."""
    parser.epilog = _EPILOG
    groups.ModelOption.add(parser, model=" that fails")
    ReportOption.add(parser, also={"report": ["--save-report", "-o", "--output"]})
    _add_releases(parser.add_argument_group("the releases"))
    parser.add_argument(
        "--reduce",
        action="store_true",
        help="reduce the model first, search with the piece that is left, and verify the answer with the whole model",
    )
    group = parser.add_argument_group("the check")
    checks.CheckOption.add(
        group,
        check="the command that tells whether the model fails; takes the rest of the line. "
        f"In it, {{}}, or the name {checks.DEFAULT_CANDIDATE}, stands for the model. "
        "In 'biopsy run', the last engine of the package takes the releases, and all others stay as they are installed",
    )
    checks.RuleOptions.add(group)
    checks.VacuousOption.add(
        group,
        allow_vacuous_check="accept a check that fails with every release, and on a model of one Identity node too",
    )
    checks.CheckTimeOptions.add(group)
    checks.ShownOutputOptions.add(group)
    checks.EventsOption.add(parser.add_argument_group("events"))
    other_machines.add(parser, sent="the model, its weights, and the files that the check names")
    groups.WeightsFolderOption.add(parser)


def _add_releases(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--package", required=True, metavar="NAME", help="the distribution, such as onnxruntime")
    group.add_argument(
        "--good", metavar="VERSION", help="a release without the failure (default: looked for, the newest and older)"
    )
    group.add_argument(
        "--bad", metavar="VERSION", help="a release with the failure (default: the one installed here, else the newest)"
    )
    group.add_argument(
        "--versions",
        metavar="RANGE",
        help="look at these only: A..B, releases joined by commas, or a specifier such as '>=1.20,!=1.23.0' (default: "
        "all with a wheel for this Python that were not yanked)",
    )
    engines.SurroundingOptions.add(group)
    group.add_argument(
        "--engine",
        metavar="NAME[:key=value,...]",
        help="the engine that takes the releases (default: the last one of the package in the check)",
    )
    group.add_argument("--all", action="store_true", help="ask every release, instead of halving")
    checks.BudgetOptions.add(
        group,
        only=["jobs"],
        jobs="make N environments at once, also those that may be asked for next; checks run one at a time, but for "
        "those of --on, of which N run at once (default: 1)",
    )


def derived_files(args: argparse.Namespace) -> types.Derived:
    """The piece of ``--reduce`` and what stands beside it."""
    return derived(args)


def execute(args: argparse.Namespace, console: Console) -> int:
    """Find the release; raises what ends with another status than 0."""
    if not args.check:
        raise errors.UsageError(
            "there is no command to run", next_steps=["--check biopsy run {} --reference --onnxrt    at the end"]
        )
    with other_machines.machines_of(args, console, _NOT_ELSEWHERE) as machines:
        report = report_file(args, console)
        question = question_of(args, console)
        span = span_of_line(args, question)
        with VersionProgress(console, args) as progress, checking.ended_politely():
            progress.show_plan(question, span)
            with _runs(args, machines, progress) as runs:
                search = _search(args, console, question, span, progress, runs)
                with report.also_of_errors(lambda: _sections(args, search.found, progress)):
                    found = _found(args, console, search)
            report.write(0, lambda: _sections(args, found, progress))
        say_result(console, args, found)
        return 0


@contextmanager
def _runs(
    args: argparse.Namespace, machines: OtherMachines | None, progress: VersionProgress
) -> Iterator[ReleaseRuns | None]:
    """Who runs checks on other machines, until the end; None for this one."""
    if machines is None:
        yield None
        return
    from biopsy.questions.releases.runs_elsewhere import RunsElsewhere

    with closing(RunsElsewhere(machines, other_machines.jobs_on(machines, args.jobs), progress)) as runs:
        yield runs


def _search(
    args: argparse.Namespace,
    console: Console,
    question: ReleaseQuestion,
    span: ReleaseSpan,
    progress: VersionProgress,
    runs: ReleaseRuns | None,
) -> ReleaseSearch:
    """The search, with the whole model or, if that was asked for, with the smallest part of it that fails."""
    from biopsy.questions.releases.find import ReleaseSearch, ReleaseSearchOptions

    options = ReleaseSearchOptions(every=args.all, jobs=args.jobs or 1, allow_vacuous=args.allow_vacuous_check)
    search = ReleaseSearch(question, span, progress, options, runs=runs)
    if not args.reduce:
        return search
    asked = piece_of(args, console, question, search.failing())
    return ReleaseSearch(asked, span, progress, replace(options, whole=question))


def _found(args: argparse.Namespace, console: Console, search: ReleaseSearch) -> ReleaseFindings:
    """Search; what ends it early is raised with what is known by then."""
    try:
        return search.run()
    except KeyboardInterrupt:
        say_known(console, search.found)
        kept = "the environments that were made: the same line is faster now"
        line = advice.resume_line(args.words, REST_OPTIONS)
        raise errors.Interrupted("the search was interrupted", kept=kept, resume=line) from None
    except errors.CannotInstall:
        say_known(console, search.found)
        raise


def _sections(args: argparse.Namespace, found: ReleaseFindings, progress: VersionProgress) -> Mapping[str, Any]:
    """What a report tells."""
    from biopsy.findings.answers import releases_verdict

    return {
        "verdict": releases_verdict(found),
        "model": model_tree_of(args.model),
        "versions": versions_tree(),
        "search": progress.history.tree(),
        "releases": found.as_json(),
    }


# What is asked of releases: the check with a place for them, and which of them are looked at.


def question_of(args: argparse.Namespace, console: Console) -> ReleaseQuestion:
    """The question of a command line. Raises UsageError, ModelError."""
    from biopsy.questions.releases.probe import ReleaseQuestion
    from biopsy.questions.releases.runs import PYTHON_VARIABLE

    ModelInput(read_bytes(args.model), args.external_data_dir or args.model.parent, args.model)  # checks what it names
    checking.require_names(args.check, args.model)
    check = _check(args)
    if not check.names_release:
        console.note(f"the check has no {{python}} and no {{engine}}: it must run {PYTHON_VARIABLE} of its environment")
    return ReleaseQuestion(
        check=check,
        model=args.model,
        rules=checks.RuleOptions.of(args).rules(),
        weights=args.external_data_dir,
        operators=frozenset(node.op_type for node in index_file(args.model, args.external_data_dir).nodes),
        default_name=checks.DEFAULT_CANDIDATE,
        timeout=args.check_timeout,
    )


def span_of_line(args: argparse.Namespace, question: ReleaseQuestion) -> ReleaseSpan:
    """The releases that a command line asks for. Raises UsageError, CannotInstall."""
    from biopsy.processes.environments.releases import releases
    from biopsy.questions.releases.span import NamedReleases, span_of

    known = releases(args.package, python=question.check.python)
    return span_of(args.package, known, NamedReleases(good=args.good, bad=args.bad, versions=args.versions))


def _check(args: argparse.Namespace) -> ReleaseCheck:
    """The words of the check with a place for the release."""
    from biopsy.processes.environments.interpreter import interpreter_of
    from biopsy.questions.releases.runs import ReleaseCheck, engine_of, has_place, requirements_of

    beside = requirements_of(args.package, args.beside)
    command = parse(args.check)
    words, yardstick = command.words, ""
    named = engine_of(args.package)
    spec = parse_spec(args.engine) if args.engine else EngineSpec(named) if named else None
    if isinstance(command, OwnRun) and not has_place(words):
        run = checking.engines_of_run(command)
        if spec is None or (not args.engine and spec.name not in {one.name for one in run}):
            theirs = engines.distributions_of(run)
            raise errors.UsageError(
                f"the check is 'biopsy run', and no engine of it is the package {printable(args.package)}",
                next_steps=[
                    *did_you_mean(args.package, theirs, cutoff=engines.ALIKE),
                    *(f"--package {name}" for name in theirs),
                    "--check {python} check.py {}    any command that uses the package",
                ],
            )
        template = checking.own_template(command, spec.text if args.engine else spec.name)
        others = [one.text for one in run if one.name == template.spec.name]
        others.remove(template.spec.text)
        words, spec, yardstick = template.words, template.spec, ", ".join(others)
    return ReleaseCheck(
        package=args.package,
        words=words,
        spec=spec,
        is_own_run=isinstance(command, OwnRun),
        beside=beside,
        python=interpreter_of(args.python),
        python_text=args.python,
        yardstick=yardstick,
    )


# What ``debug version`` shows while it works: a line for each release.

_REASON = 90
"""Characters of a reason that stand in the line of a release."""


class VersionProgress(CheckProgress):
    """A line for each release that was asked, and the output of the first failure."""

    def __init__(self, console: Console, args: argparse.Namespace) -> None:
        super().__init__(console, ShownChecks.of(args), head="releases", needs="a release passes")

    def show_plan(self, question: ReleaseQuestion, span: ReleaseSpan) -> None:
        """Say what is going to happen."""
        check, found = question.check, span.releases
        python = f" for Python {check.python.version}" if check.python is not None else ""
        self.line(
            "releases",
            f"{count(len(found), 'release')} of {check.package}{python}: {found[0].version} to {found[-1].version}; "
            f"first {found[span.start].version}",
        )
        if check.spec is not None and check.is_own_run:
            others = f"; as installed: {check.yardstick}" if check.yardstick else ""
            self.line("varies", f"the release of {check.spec.text}{others}")

    @shows(events.OriginalFails)
    def _show_failure(self, event: events.OriginalFails) -> None:
        self.line("fails", f"{_short(event.reason, 160)} · {event.seconds:.2f} s")

    @shows(events.InstallationDone)
    def _show_installed(self, event: events.InstallationDone) -> None:
        """What was made stands in the line of its release."""

    @shows(events.ReleaseTried)
    def _show_release(self, event: events.ReleaseTried) -> None:
        told = event.outcome in ("passes", "fails")
        reason = "" if told else f": {_short(event.reason)}"
        added = f"   (with {series(event.added)})" if event.added else ""
        self.line(event.version, f"{event.date:<10}  {event.outcome}{reason}{added}")


def _short(reason: str, most: int = _REASON) -> str:
    return shortened(" ".join(reason.split()), most)


# What ``debug version`` has found, in words: the releases, their notes, the line to pin.


def say_result(console: Console, args: argparse.Namespace, found: ReleaseFindings) -> None:
    """Show the answer."""
    console.note("")
    for border in found.borders:
        verified = "" if border.verified else "   (not confirmed when asked again)"
        console.say(f"{found.package}: {border.text}.{verified}")
        fails, passes = (border.after, border.before) if border.broke else (border.before, border.after)
        console.note(f"  passes  {_dated(passes)}", f"  fails   {_dated(fails)}", f"  notes   {border.notes}")
    if not found.borders:
        console.say(f"{found.text}.")
        for one in [one for one in found.tried if one.side is None][:5]:
            console.note(f"  {one.release.version}: {one.words}: {' '.join(one.reason.split())[:100]}")
    elif len(found.borders) > 1:
        console.say("It changed more than once; --all asks every release.")
    if found.doubt:
        console.warn(found.doubt)
    if found.yardstick:
        console.note(f"compared  {found.yardstick} was as installed in every check; it did not vary")
    facts = machine_tree()
    driver = f" · driver {facts['driver']}" if facts["driver"] else ""
    console.note(f"machine   {facts['cpu']} · {facts['os']}{driver}")
    console.note(count(found.checks, "check") + (f"; report: {args.report}" if args.report else ""))
    say_advice(console, advice_of(args, found))


def say_known(console: Console, found: ReleaseFindings) -> None:
    """Show what is known of a search that ended early."""
    if any(one.side is not None for one in found.tried):
        console.say(f"So far: {found.text}.")


def advice_of(args: argparse.Namespace, found: ReleaseFindings) -> list[Advice]:
    """The lines that keep to releases without the failure; where there are none, what finds another way out."""
    if found.answer == "every release tried fails" and args.check[:2] == ["biopsy", "run"]:
        engine = ["--engine", args.engine] if args.engine else []
        words = ["biopsy", "debug", "workaround", as_word(args.model), *engine, "--skip", "release"]
        line = line_of([*words, "--check", *args.check])
        return [] if is_refused(line) else [Advice(line, "what avoids it in the release that is installed")]
    return [Advice(line_of(["pip", "install", f"{found.package}{pin}"])) for pin in found.pins[:3]]


def _dated(release: Release) -> str:
    return release.version if release.date is None else f"{release.version} of {release.date.isoformat()}"


# ``--reduce``: the smallest part of the model that fails as it does, found with a release that fails.


def piece_file(model: Path) -> Path:
    """Where the piece is written."""
    return Path(f"{model.stem}_reduced.onnx")


def piece_of(
    args: argparse.Namespace, console: Console, question: ReleaseQuestion, release: Release
) -> ReleaseQuestion:
    """The same question about the smallest part of the model that fails with ``release``.

    Raises what ``debug reduce`` raises, UsageError for a check whose words do not say where the release belongs.
    """
    from biopsy.questions.releases.runs import installed

    check = question.check
    if not check.names_release:
        raise errors.UsageError(
            "--reduce needs a check that says where the release belongs",
            next_steps=["write {python} in it, in the place of python"],
        )
    console.note("", f"reduce     with {check.package} {release.version}")
    with installed(check, release, events.ignore) as environment:
        words = check.words_of(release.version, str(environment.python))
        fed = _reduced(args, console, words)
    console.note("")
    piece = piece_file(args.model)
    if fed is None:
        return replace(question, model=piece)
    return replace(question, model=piece, check=replace(check, words=OwnRun(check.words).with_inputs(fed).words))


def _reduced(args: argparse.Namespace, console: Console, check: tuple[str, ...]) -> Path | None:
    """Reduce, as the command does; the file of inputs that the piece is fed, if there is one."""
    output = piece_file(args.model)
    words = ["debug", "reduce", str(args.model), "-o", str(output), "--match", args.match, *_options(args)]
    command = next(one for one in COMMANDS if one.words == ("debug", "reduce"))
    asked = parser_of("biopsy", command).parse_args(words[2:])
    asked.check, asked.words = list(check), [*words, "--check", *check]
    asked.began, asked.started, asked.warming = time.time(), time.monotonic(), None
    fed = inputs_file(output) if ReduceOptions.of(asked).records_feeds(checking.own_run(asked.check)) else None
    status = reduce.execute(asked, console)
    if status != 0:
        raise errors.Interrupted("the reduction ended before its end", kept=str(output))
    return fed


def _options(args: argparse.Namespace) -> list[str]:
    """The options that mean the same for ``debug reduce``."""
    passed_on = (
        *checks.RuleOptions.of(args).as_typed(("fail_code", "ignore_fail_code", "fail_regex")),
        *checks.CheckTimeOptions.of(args).as_typed(("check_timeout",)),
        *groups.WeightsFolderOption.of(args).as_typed(),
        *checks.ShownOutputOptions.of(args).as_typed(("hide_fail_output", "show_output")),
    )
    return [word for option in passed_on for word in option.words]


def derived(args: argparse.Namespace) -> types.Derived:
    """The piece, and what stands beside it."""
    if not args.reduce:
        return {}
    piece = piece_file(args.model)
    return {
        "the piece of --reduce": (piece, types.WRITTEN),
        "the inputs of the piece": (inputs_file(piece), types.WRITTEN),
        "the journal of --reduce": (checks.journal_of(piece), types.WRITTEN),
    }
