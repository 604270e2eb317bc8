"""From the arguments to the check: its rules, how many run at once, the releases and the engine that it is made
with, or the person who decides; and how its work is ended.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from biopsy import errors
from biopsy.checks.command_line import OwnCommand, OwnInspect, OwnRun, is_served, parse
from biopsy.cli.arguments.checks import DEFAULT_CANDIDATE, RuleOptions
from biopsy.cli.arguments.engines import PackageOptions, PinnedPackage, install
from biopsy.cli.console import Console
from biopsy.cli.debug import other_machines
from biopsy.cli.parser import Parser
from biopsy.processes.own_process import interrupted_once, processors, variables
from biopsy.processes.warm import ServerGoneError, Warming
from biopsy.processes.writing import require_writable

if TYPE_CHECKING:
    from biopsy.checks.command import CommandCheck
    from biopsy.checks.judge import Rules
    from biopsy.checks.outcome import Check
    from biopsy.cli.run.options import RunOptions
    from biopsy.engines.base import Engine
    from biopsy.engines.registry import EngineSpec
    from biopsy.questions.builds.settings import CheckTemplate
    from biopsy.session.machines import OtherMachines

_MOST_JOBS = 64  # each has some descriptors of its own, of which a process has a thousand

_SECONDS_TO_END = 5.0
"""A second signal after this many seconds ends the process, whatever is not written by then."""


def rules_of(args: argparse.Namespace) -> Rules:
    """What counts as a failure. Raises UsageError for what is no regular expression."""
    return RuleOptions.of(args).rules()


@contextlib.contextmanager
def warmed_up(args: argparse.Namespace, console: Console) -> Iterator[None]:
    """Have what warms up for the check begin now: nothing else that a command does comes before.

    But for releases that the check needs, which are installed first. ``command_of`` hands what has begun to the check;
    if it is not called, this ends it.
    """
    args.warming = None
    with releases_installed(args, console):
        if args.check and not args.cold_checks and not _runs_elsewhere(args) and is_served(args.check):
            with contextlib.suppress(ServerGoneError):
                args.warming = Warming.begun(args.check, _jobs(args)[0])
        try:
            yield
        finally:
            if args.warming is not None:
                args.warming.close()


def _runs_elsewhere(args: argparse.Namespace) -> bool:
    """Whether other machines run the checks."""
    return getattr(args, "on", None) is not None


def jobs_of(args: argparse.Namespace, console: Console, machines: OtherMachines | None = None) -> int:
    """How many checks run at once, by default as many as ``machines`` have room for, or this one.

    One where they would look at, or write, the same files, which is told.
    """
    jobs, reason = _jobs(args, machines)
    if reason:
        (console.warn if args.jobs else console.note)(f"one check at a time: {reason}")
    if machines is not None:
        machines.expect(jobs)  # they get ready while the rest is loaded
    return jobs


def _jobs(args: argparse.Namespace, machines: OtherMachines | None = None) -> tuple[int, str]:
    """How many checks run at once, and what keeps it at one although more were possible; "" if nothing does."""
    if args.check is None:
        return 1, ""
    here = min(args.jobs or processors(), _MOST_JOBS)
    jobs: int = here if machines is None else other_machines.jobs_on(machines, args.jobs)
    command = parse(args.check)
    shared = {"--artifacts": args.artifacts, "--no-remove-intermediate": args.no_remove_intermediate}
    reasons = [f"{option} names a file that every check has" for option, given in shared.items() if given]
    read = {"--iter-info": args.iter_info, "--iter-inputs": getattr(args, "iter_inputs", None)}
    for option, file in read.items():
        if file is not None and not command.names_file(file):
            reasons.append(f"the check does not name the file of {option} as {file}, so all would look at the same one")
    if not command.names_candidate(str(args.iter_artifact)):
        reasons.append("the check does not name the candidate, so all would look at the same file")
    return (jobs, "") if not reasons or jobs == 1 else (1, reasons[0])


def command_of(args: argparse.Namespace, jobs: int) -> CommandCheck:
    """The check that ``--check`` names, with what ``warmed_up`` has begun for it; or that begins now."""
    from biopsy.checks.command import CommandCheck
    from biopsy.checks.warm import command_check

    given = (args.check, str(args.iter_artifact), args.check_timeout, args.check_memory)
    begun, args.warming = getattr(args, "warming", None), None
    check = CommandCheck(*given) if args.cold_checks else command_check(*given, jobs, begun)
    if not _runs_elsewhere(args):
        check.start()
    return check


def note_on_check(check: Check, args: argparse.Namespace, console: Console) -> None:
    """Say so if the words of a check do not name the candidate that it is to judge; with -v, if it is warm or cold."""
    from biopsy.checks.command import CommandCheck, ServedCheck

    if isinstance(check, ServedCheck) and check.is_served:
        console.detail(f"checks     forks of {check.served_by} (warm) · the last one is a fresh process")
    elif isinstance(check, CommandCheck):
        console.detail("checks     run cold: each is a process of its own")
    if isinstance(check, CommandCheck) and not check.names_candidate:
        console.note(
            f"the check names neither {{}} nor {args.iter_artifact}: put {{}} where it takes the model, unless it "
            "finds the candidate itself"
        )
    command = parse(args.check or ())
    if args.fail_regex and isinstance(command, OwnInspect) and command.prints_no_nodes:
        console.warn("the check prints no nodes, which --fail-regex may look for: add --show layers to it")


def check_of(args: argparse.Namespace, jobs: int) -> Check:
    """The check: a command, or the person who typed the line."""
    from biopsy.checks.outcome import InteractiveCheck

    if args.check is not None:
        return command_of(args, jobs)

    return InteractiveCheck(ask)


def own_run(words: Sequence[str] | None) -> RunOptions | None:
    """The options of a check such as ``biopsy run {} ...``; None if the check is something else, or is wrong."""
    command = parse(words or ())
    return options_of_run(command) if isinstance(command, OwnRun) else None


def options_of_run(command: OwnRun) -> RunOptions | None:
    """The options of a ``biopsy run``; None if they are wrong, of which the check itself will tell."""
    try:
        return _options_of_run(command.options)
    except errors.UsageError:
        return None


@cache
def _options_of_run(words: tuple[str, ...]) -> RunOptions:
    """What these words behind ``biopsy run`` say, parsed once. Raises UsageError."""
    from biopsy.cli.run.options import RunOptions

    return RunOptions.of(run_parser().parse_known_args(list(words))[0])


@cache
def run_parser() -> Parser:
    """The parser of ``biopsy run``, made once."""
    from biopsy.cli.run import command as run

    parser = Parser(prog="biopsy run", allow_abbrev=False, add_help=False)
    run.configure(parser)
    return parser


def require_names(args: argparse.Namespace, model: Path) -> None:
    """Raise DoesNotFit or CannotCompare if a check that is our own ``run`` speaks of another model than this one."""
    from biopsy.model.index import index_file

    own = own_run(args.check)
    if own is not None:
        from biopsy.cli.run.names import require_names_of_check

        require_names_of_check(own, index_file(model))


def ended_politely() -> AbstractContextManager[None]:
    """What asks this process to end interrupts what stands inside, once: see ``interrupted_once``."""
    return interrupted_once(_SECONDS_TO_END)


# What must hold before a reduction starts, and can be told from the command line alone.


def require_writable_candidate(path: Path) -> None:
    """Raise UsageError if candidates cannot be written."""
    try:
        require_writable(path)
    except errors.UsageError as error:
        raise errors.UsageError(
            f"{error.message} (every candidate is written there)",
            next_steps=[*error.next_steps, "--iter-artifact FILE    for another place; write {} for it in the check"],
        ) from error


def require_inputs_of_golden_values(own_run: RunOptions | None, *, keep_inputs: bool) -> None:
    """Raise UsageError if a check compares parts of the model with golden values that are of other inputs.

    ``own_run`` are the options of a check that is ``biopsy run``. If it makes up its inputs, a cut tensor gets random
    values, and everything computed from those differs from the golden values, right or wrong.
    """
    if own_run is None or keep_inputs or not own_run.load_outputs:
        return
    if not (own_run.load_inputs or own_run.data_loader_script):
        raise errors.UsageError(
            "the check compares with golden values (--load-outputs) but makes up its inputs: a part of the model would"
            " get random values in the middle and always fail",
            next_steps=[
                "save inputs and every tensor:  biopsy run MODEL --onnxrt --save-inputs inputs.json"
                " --onnx-outputs mark all --save-outputs golden.json",
                "biopsy data to-input inputs.json golden.json -o layerwise.json",
                "and check with  --load-inputs layerwise.json --load-outputs golden.json",
                "or reduce from the end only:  --no-reduce-inputs",
            ],
        )


# Releases that a check is made with: installed before it is asked, and told to it and to the journal.

_SIGNS = ("release=", "python=", "--package")
"""What stands in the words of a check that names a release by itself."""


@contextmanager
def releases_installed(args: argparse.Namespace, console: Console) -> Iterator[None]:
    """Have all releases that the check in ``args.check`` is made with, which gets those of ``--package``.

    ``args.environments`` are what they hold, for the journal. Raises UsageError where the check cannot take a release,
    CannotInstall.
    """
    args.environments = {}
    packages = PackageOptions.of(args).pinned()
    if packages and args.check is None:
        raise errors.UsageError("--package belongs to a check, and there is none", next_steps=["--check biopsy run {}"])
    command = parse(args.check or ())
    with ExitStack() as held:
        if isinstance(command, OwnRun):
            if packages or any(sign in word for word in command.words for sign in _SIGNS):
                from biopsy.engines.other_release.classes import variables_of
                from biopsy.engines.registry import class_of

                if getattr(args, "packages", ()):
                    words = [word for text in args.packages for word in ("--package", text)]
                    words += ["--with", *args.beside] if args.beside else []
                    words += [] if args.python is None else ["--python", args.python]
                    command = command.with_options(*words)
                args.check = list(command.words)
                engines: dict[str, type[Engine]] = {spec.text: class_of(spec) for spec in engines_of_run(command)}
                install(engines.values(), console)
                others = {label: engine for label, engine in engines.items() if not engine.imports.is_here}
                contents = {label: _text(engine.imports.packages()) for label, engine in others.items()}
                args.environments = {f"environment of {label}": text for label, text in contents.items()}
                # Checks find the releases at once that we hold open.
                held.enter_context(variables(variables_of(others.values())))
        elif packages and isinstance(command, OwnCommand):
            raise errors.UsageError(
                f"--package {packages[0].text}: this check runs no engine",
                next_steps=["--check biopsy run {} --onnxrt"],
            )
        elif packages:
            _tell_foreign(args, packages, console, held)
        yield


def _tell_foreign(
    args: argparse.Namespace, packages: Sequence[PinnedPackage], console: Console, held: ExitStack
) -> None:
    """Have the interpreter of one environment with all packages stand in the words of a foreign check."""
    from biopsy.questions.releases.runs import PYTHON_PLACE

    if not any(PYTHON_PLACE in word for word in args.check):
        raise errors.UsageError(
            f"--package {packages[0].text}: the check must say where its interpreter goes, by {PYTHON_PLACE}",
            next_steps=[f"--check {PYTHON_PLACE} check.py {{}}"],
        )
    from biopsy.cli.progress import Progress
    from biopsy.processes.environments.interpreter import interpreter_of
    from biopsy.processes.environments.prepared import prepared

    wanted = [*(package.text for package in packages), *args.beside]
    with Progress(console, None) as progress:
        made = prepared(wanted, python=interpreter_of(args.python), listener=progress)
        environment = held.enter_context(made)
    args.check = [word.replace(PYTHON_PLACE, str(environment.python)) for word in args.check]
    args.environments = {f"environment {PYTHON_PLACE}": _text(environment.packages)}


def _text(packages: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted(packages.items()))


# A check whose engine varies: where the words of a ``biopsy run`` name it.


def own_template(command: OwnRun, wanted: str | None) -> CheckTemplate:
    """The words of a ``biopsy run`` with ``{engine}`` in the place of the engine ``wanted``. Raises UsageError."""
    from biopsy.questions.builds.settings import ENGINE_PLACE, CheckTemplate

    specs = engines_of_run(command)
    chosen = _chosen(specs, wanted)
    if chosen is None or len(command.engine_places) != len(specs):
        named = ", ".join(spec.text for spec in specs) or "none"
        raise errors.UsageError(
            f"the check runs no engine {wanted!r}, so its settings cannot be varied; it runs {named}",
            next_steps=["--engine NAME    of one of these"],
        )
    return CheckTemplate(command.with_engine(chosen, ENGINE_PLACE), specs[chosen], is_own_run=True)


def template_of(words: Sequence[str], engine: str | None, untold: str) -> CheckTemplate:
    """The words of a check with ``{engine}`` in the place of the engine that varies.

    ``untold`` says what is lacking where neither the check nor ``engine`` names it. Raises UsageError.
    """
    from biopsy.engines.registry import parse_spec
    from biopsy.questions.builds.settings import ENGINE_PLACE, SETTINGS_PLACE, CheckTemplate

    command = parse(words)
    has_place = any(place in word for word in command.words for place in (ENGINE_PLACE, SETTINGS_PLACE))
    if isinstance(command, OwnRun) and not has_place:
        return own_template(command, engine)
    if engine is None:
        raise errors.UsageError(
            untold, next_steps=["--engine onnxrt    and write {engine} in the check where it takes one"]
        )
    return CheckTemplate(command.words, parse_spec(engine), is_own_run=isinstance(command, OwnRun))


def line_with(template: CheckTemplate, engine: str, environment: Mapping[str, str], model: Path) -> str:
    """The check of a model with another engine, or other settings of it, as it is typed."""
    from biopsy.questions.builds.settings import VARIABLE
    from biopsy.text import line_of

    told = {} if template.names_settings else {VARIABLE: engine}
    variables = [f"{name}={value}" for name, value in {**environment, **told}.items()]
    words = parse(template.with_engine(engine)).words_for(model, DEFAULT_CANDIDATE)
    return line_of([*(["env", *variables] if variables else []), *words])


def engines_of_run(command: OwnRun) -> list[EngineSpec]:
    """The engines that a ``biopsy run`` runs, in order. Raises UsageError for one that is none."""
    return _options_of_run(command.options).specs_to_run()


def _chosen(specs: list[EngineSpec], wanted: str | None) -> int | None:
    """Which of the engines is varied: the last that is written as wanted, else the last of that name."""
    from biopsy.engines.registry import parse_spec

    if wanted is None:
        return len(specs) - 1 if specs else None
    asked = parse_spec(wanted)
    matching = [number for number, spec in enumerate(specs) if spec == asked]
    matching = matching or [number for number, spec in enumerate(specs) if spec.name == asked.name]
    return matching[-1] if matching else None


# The person who decides where no ``--check`` is given: questions and answers on the terminal.


def ask(question: str) -> str:
    """Show a question and read a line, where the person who types it looks; begin a new line after it.

    Raises what input() raises.
    """
    from biopsy.text import printable

    typed = _is_terminal(sys.stdin)
    elsewhere = typed and not _is_terminal(sys.stdout) and _is_terminal(sys.stderr)
    shown = sys.stderr if elsewhere else sys.stdout  # as where the output goes into a file
    encoding = (shown.encoding if shown is not None else None) or "utf-8"
    question = printable(question).encode(encoding, "backslashreplace").decode(encoding)
    if elsewhere:
        print(question, end="", file=shown, flush=True)
    try:
        answer = input("" if elsewhere else question)
    except EOFError:
        print(file=shown)
        raise
    if not typed:
        print()  # noqa: T201
    return answer


def _is_terminal(stream: TextIO | None) -> bool:
    """Whether a stream is open, and a terminal."""
    return stream is not None and stream.isatty()
