"""From the arguments to the check: its rules, how many run at once, the releases and the engine that it is made
with, or the person who decides; and how its work is ended.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from biopsy import errors
from biopsy.checks.command_line import OwnCommand, OwnInspect, OwnRun, is_served, parse
from biopsy.cli.arguments.checks import (
    DEFAULT_CANDIDATE,
    ArtifactOptions,
    BudgetOptions,
    CheckMemoryOption,
    CheckOption,
    CheckTimeOptions,
    ColdOption,
    IterationOptions,
    RuleOptions,
)
from biopsy.cli.arguments.engines import PackageOptions, install
from biopsy.cli.console import Console
from biopsy.cli.debug import other_machines
from biopsy.processes.own_process import interrupted_once, processors, variables
from biopsy.processes.warm import ServerGoneError, Warming
from biopsy.processes.writing import require_writable
from biopsy.text import line_of, printable

if TYPE_CHECKING:
    from biopsy.checks.outcome import Check
    from biopsy.cli.run.options import RunOptions
    from biopsy.engines.registry import EngineSpec
    from biopsy.questions.builds.settings import CheckTemplate
    from biopsy.session.machines import OtherMachines

_MOST_JOBS = 64  # each has some descriptors of its own, of which a process has a thousand

_SECONDS_TO_END = 5.0
"""A second signal after this many seconds ends the process, whatever is not written by then."""


class Begun:
    """What has begun to warm up for a check; whoever takes it ends it."""

    def __init__(self) -> None:
        self._warming: Warming | None = None

    def begin(self, check: list[str], jobs: int) -> None:
        """Begin."""
        with contextlib.suppress(ServerGoneError):
            self._warming = Warming.begun(check, jobs)

    def take(self) -> Warming | None:
        """It, once; None if there is nothing."""
        begun, self._warming = self._warming, None
        return begun


class CheckedOptions(
    CheckOption,
    CheckTimeOptions,
    CheckMemoryOption,
    ColdOption,
    RuleOptions,
    BudgetOptions,
    ArtifactOptions,
    IterationOptions,
):
    """What a search says of its check."""

    iter_inputs: Path | None = None
    on: str | None = None
    begun: Begun = Begun()

    def jobs_of(self, console: Console, machines: OtherMachines | None = None) -> int:
        """How many checks run at once, by default as many as ``machines`` have room for, or this one.

        One where they would look at, or write, the same files, which is told.
        """
        jobs, reason = self.jobs_possible(machines)
        if reason:
            (console.warn if self.jobs else console.note)(f"one check at a time: {reason}")
        if machines is not None:
            machines.expect(jobs)  # they get ready while the rest is loaded
        return jobs

    def jobs_possible(self, machines: OtherMachines | None = None) -> tuple[int, str]:
        """How many checks run at once, and what keeps it at one although more were possible; "" if nothing does."""
        if self.check is None:
            return 1, ""
        here = min(self.jobs or processors(), _MOST_JOBS)
        jobs: int = here if machines is None else other_machines.jobs_on(machines, self.jobs)
        command = parse(self.check)
        shared = {"--artifacts": self.artifacts, "--no-remove-intermediate": self.no_remove_intermediate}
        reasons = [f"{option} names a file that every check has" for option, given in shared.items() if given]
        reasons += [
            f"the check does not name the file of {option} as {file}, so all would look at the same one"
            for option, file in {"--iter-info": self.iter_info, "--iter-inputs": self.iter_inputs}.items()
            if file is not None and not command.names_file(file)
        ]
        if not command.names_candidate(str(self.iter_artifact)):
            reasons.append("the check does not name the candidate, so all would look at the same file")
        return (jobs, "") if not reasons or jobs == 1 else (1, reasons[0])

    def check_of(self, jobs: int) -> Check:
        """The check, with what ``warmed_up`` has begun for it, or that begins now; or the person who typed the line."""
        from biopsy.checks.command import CommandCheck
        from biopsy.checks.outcome import InteractiveCheck
        from biopsy.checks.warm import command_check

        if self.check is None:
            return InteractiveCheck(ask)
        given = (self.check, str(self.iter_artifact), self.check_timeout, self.check_memory)
        check = CommandCheck(*given) if self.cold_checks else command_check(*given, jobs, self.begun.take())
        if self.on is None:
            check.start()
        return check

    def note_on(self, check: Check, console: Console) -> None:
        """Say so if its words do not name the candidate that it is to judge; with -v, if it is warm or cold."""
        from biopsy.checks.command import CommandCheck

        if isinstance(check, CommandCheck) and check.starter.is_served:
            console.detail(f"checks     forks of {check.starter.served_by} (warm) · the last one is a fresh process")
        elif isinstance(check, CommandCheck):
            console.detail("checks     run cold: each is a process of its own")
        if isinstance(check, CommandCheck) and not check.names_candidate:
            console.note(
                f"the check names neither {{}} nor {self.iter_artifact}: put {{}} where it takes the model, unless it "
                "finds the candidate itself"
            )
        command = parse(self.check or ())
        if self.fail_regex and isinstance(command, OwnInspect) and command.prints_no_nodes:
            console.warn("the check prints no nodes, which --fail-regex may look for: add --show layers to it")


@contextlib.contextmanager
def warmed_up(args: argparse.Namespace, console: Console) -> Iterator[None]:
    """Have what warms up for the check begin now: nothing else that a command does comes before.

    But for releases that the check needs, which are installed first: ``args.check`` gets those of ``--package``, and
    ``args.environments`` are what they hold, for the journal. ``CheckedOptions.check_of`` hands what has begun to the
    check; if it is not called, this ends it. Raises UsageError where the check cannot take a release, CannotInstall.
    """
    args.begun = Begun()
    with ExitStack() as held:
        args.check, args.environments = _with_releases(args.check, PackageOptions.of(args), console, held)
        options = CheckedOptions.of(args)
        if options.check and not options.cold_checks and options.on is None and is_served(options.check):
            args.begun.begin(options.check, options.jobs_possible()[0])
        try:
            yield
        finally:
            left = args.begun.take()
            if left is not None:
                left.close()


def own_run(words: Sequence[str] | None) -> RunOptions | None:
    """The options of a check such as ``biopsy run {} ...``; None if the check is something else, or is wrong."""
    from biopsy.cli.run import options

    return options.own_run(words)


def require_names(check: Sequence[str] | None, model: Path) -> None:
    """Raise DoesNotFit or CannotCompare if a check that is our own ``run`` speaks of another model than this one."""
    own = own_run(check)
    if own is not None:
        from biopsy.cli.run.files import require_names_of_check
        from biopsy.model.index import index_file

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


def _with_releases(
    check: list[str] | None, options: PackageOptions, console: Console, held: ExitStack
) -> tuple[list[str] | None, dict[str, str]]:
    """The words of a check with the releases of ``--package``, and what the environments hold that it is made with.

    All are installed, and ``held`` open.
    """
    packages = options.pinned()
    command = parse(check or ())
    if packages and check is None:
        raise errors.UsageError("--package belongs to a check, and there is none", next_steps=["--check biopsy run {}"])
    if packages and isinstance(command, OwnCommand) and not isinstance(command, OwnRun):
        raise errors.UsageError(
            f"--package {packages[0].text}: this check runs no engine", next_steps=["--check biopsy run {} --onnxrt"]
        )
    if isinstance(command, OwnRun):
        if not packages and not any(sign in word for word in command.words for sign in _SIGNS):
            return check, {}
        from biopsy.engines.other_release.classes import variables_of
        from biopsy.engines.registry import class_of

        if options.packages:
            words = [word for text in options.packages for word in ("--package", text)]
            words += ["--with", *options.beside] if options.beside else []
            words += [] if options.python is None else ["--python", options.python]
            command = command.with_options(*words)
        engines = {spec.text: class_of(spec) for spec in engines_of_run(command)}
        install(engines.values(), console)
        others = {label: engine for label, engine in engines.items() if not engine.imports.is_here}
        # Checks find the releases at once that we hold open.
        held.enter_context(variables(variables_of(others.values())))
        contents = {f"environment of {label}": _text(engine.imports.packages()) for label, engine in others.items()}
        return list(command.words), contents
    if not packages or check is None:
        return check, {}
    from biopsy.questions.releases.question import PYTHON_PLACE

    if not any(PYTHON_PLACE in word for word in check):
        raise errors.UsageError(
            f"--package {packages[0].text}: the check must say where its interpreter goes, by {PYTHON_PLACE}",
            next_steps=[f"--check {PYTHON_PLACE} check.py {{}}"],
        )
    from biopsy.cli.progress import Progress
    from biopsy.processes.environments.interpreter import interpreter_of
    from biopsy.processes.environments.prepared import prepared

    wanted = [*(package.text for package in packages), *options.beside]
    with Progress(console, None) as progress:
        environment = held.enter_context(prepared(wanted, python=interpreter_of(options.python), listener=progress))
    words = [word.replace(PYTHON_PLACE, str(environment.python)) for word in check]
    return words, {f"environment {PYTHON_PLACE}": _text(environment.packages)}


def _text(packages: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted(packages.items()))


# A check whose engine varies: where the words of a ``biopsy run`` name it.


def own_template(command: OwnRun, wanted: str | None) -> CheckTemplate:
    """The words of a ``biopsy run`` with ``{engine}`` in the place of the engine ``wanted``. Raises UsageError.

    That is the last that is written as wanted, else the last of that name.
    """
    from biopsy.engines.registry import parse_spec
    from biopsy.questions.builds.settings import ENGINE_PLACE, CheckTemplate

    specs = engines_of_run(command)
    asked = None if wanted is None else parse_spec(wanted)
    alike = [number for number, spec in enumerate(specs) if asked is None or spec.name == asked.name]
    chosen = [number for number in alike if specs[number] == asked] or alike
    if not chosen or len(command.engine_places) != len(specs):
        named = ", ".join(spec.text for spec in specs) or "none"
        raise errors.UsageError(
            f"the check runs no engine {wanted!r}, so its settings cannot be varied; it runs {named}",
            next_steps=["--engine NAME    of one of these"],
        )
    varied = chosen[-1]
    return CheckTemplate(command.with_engine(varied, ENGINE_PLACE), specs[varied], is_own_run=True)


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

    told = {} if template.names_settings else {VARIABLE: engine}
    variables = [f"{name}={value}" for name, value in {**environment, **told}.items()]
    words = parse(template.with_engine(engine)).words_for(model, DEFAULT_CANDIDATE)
    return line_of([*(["env", *variables] if variables else []), *words])


def engines_of_run(command: OwnRun) -> list[EngineSpec]:
    """The engines that a ``biopsy run`` runs, in order. Raises UsageError for one that is none."""
    from biopsy.cli.run.options import options_of

    return options_of(command).specs_to_run()


# The person who decides where no ``--check`` is given: questions and answers on the terminal.


def ask(question: str) -> str:
    """Show a question and read a line, where the person who types it looks; begin a new line after it.

    Raises what input() raises.
    """
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
