"""``biopsy debug version``: the options, the search, and how it ends."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from biopsy import errors
from biopsy.cli import line_again
from biopsy.cli.arguments import checks, file_kinds, groups, packages, types
from biopsy.cli.arguments.report_option import add_report
from biopsy.cli.debug import checking, other_machines
from biopsy.cli.debug.version import piece
from biopsy.cli.report_file import report_file

if TYPE_CHECKING:
    from biopsy.blame.releases.find import ReleaseSearch
    from biopsy.blame.releases.findings import ReleaseFindings
    from biopsy.blame.releases.probe import ReleaseQuestion
    from biopsy.blame.releases.runs import ReleaseRuns
    from biopsy.blame.releases.span import ReleaseSpan
    from biopsy.cli.console import Console
    from biopsy.cli.debug.version.progress import VersionProgress
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
    parser.add_argument("model", type=file_kinds.READ, metavar="MODEL", help="the ONNX model that fails")
    add_report(parser, "--save-report", "-o", "--output")
    _add_releases(parser.add_argument_group("the releases"))
    parser.add_argument(
        "--reduce",
        action="store_true",
        help="reduce the model first, search with the piece that is left, and verify the answer with the whole model",
    )
    group = parser.add_argument_group("the check")
    checks.add_command(
        group,
        "the command that tells whether the model fails",
        f"In it, {{}}, or the name {checks.DEFAULT_CANDIDATE}, stands for the model",
        "In 'biopsy run', the last engine of the package takes the releases, and all others stay as they are installed",
    )
    checks.add_rules(group, "how alike two failures must be to count as the same")
    group.add_argument(
        "--allow-vacuous-check",
        action="store_true",
        help="accept a check that fails with every release, and on a model of one Identity node too",
    )
    checks.add_timeout(group, "20 times as long as the first, at least 60")
    checks.add_shown_output(group, "the first failure")
    checks.add_events(parser.add_argument_group("events"))
    other_machines.add(parser, sent="the model, its weights, and the files that the check names")
    groups.add_weights_folder(parser)


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
    packages.add_surroundings(group)
    group.add_argument(
        "--engine",
        metavar="NAME[:key=value,...]",
        help="the engine that takes the releases (default: the last one of the package in the check)",
    )
    group.add_argument("--all", action="store_true", help="ask every release, instead of halving")
    group.add_argument(
        "--jobs",
        type=types.positive,
        metavar="N",
        help="make N environments at once, also those that may be asked for next; checks run one at a time, but for "
        "those of --on, of which N run at once (default: 1)",
    )


def derived_files(args: argparse.Namespace) -> file_kinds.Derived:
    """The piece of ``--reduce`` and what stands beside it."""
    return piece.derived(args)


def execute(args: argparse.Namespace, console: Console) -> int:
    """Find the release; raises what ends with another status than 0."""
    if not args.check:
        raise errors.UsageError(
            "there is no command to run", next_steps=["--check biopsy run {} --reference --onnxrt    at the end"]
        )
    with other_machines.machines_of(args, console, _NOT_ELSEWHERE) as machines:
        return _execute(args, console, machines)


def _execute(args: argparse.Namespace, console: Console, machines: OtherMachines | None) -> int:
    from biopsy.cli.debug.version.progress import VersionProgress
    from biopsy.cli.debug.version.question import question_of, span_of_line
    from biopsy.cli.debug.version.summary import say_result

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
    from biopsy.blame.releases.runs_elsewhere import RunsElsewhere

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
    from biopsy.blame.releases.find import ReleaseSearch, ReleaseSearchOptions

    options = ReleaseSearchOptions(every=args.all, jobs=args.jobs or 1, allow_vacuous=args.allow_vacuous_check)
    search = ReleaseSearch(question, span, progress, options, runs=runs)
    if not args.reduce:
        return search
    asked = piece.piece_of(args, console, question, search.failing())
    return ReleaseSearch(asked, span, progress, replace(options, whole=question))


def _found(args: argparse.Namespace, console: Console, search: ReleaseSearch) -> ReleaseFindings:
    """Search; what ends it early is raised with what is known by then."""
    from biopsy.cli.debug.version.summary import say_known

    try:
        return search.run()
    except KeyboardInterrupt:
        say_known(console, search.found)
        kept = "the environments that were made: the same line is faster now"
        line = line_again.resume_line(args.words, REST_OPTIONS)
        raise errors.Interrupted("the search was interrupted", kept=kept, resume=line) from None
    except errors.CannotInstall:
        say_known(console, search.found)
        raise


def _sections(args: argparse.Namespace, found: ReleaseFindings, progress: VersionProgress) -> Mapping[str, Any]:
    """What a report tells."""
    from biopsy.report.model_summary import model_tree_of
    from biopsy.report.releases import releases_tree, releases_verdict
    from biopsy.report.versions import versions_tree

    return {
        "verdict": releases_verdict(found),
        "model": model_tree_of(args.model),
        "versions": versions_tree(),
        "search": progress.history.tree(),
        "releases": releases_tree(found),
    }
