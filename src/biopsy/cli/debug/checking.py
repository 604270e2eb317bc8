"""The check of a debug command, made from its options: how many run at once, with which releases and which engine; or
the person who decides in its place.
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
from biopsy.processes.environments.interpreter import interpreter_of
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

_MOST_JOBS = 64  # each job has file descriptors of its own, and a process has about a thousand

_SECONDS_TO_END = 5.0
"""A second signal after this many seconds ends the process, whatever is not written by then."""


class WarmUp:
    """Holds the process that warms up for a check, from ``begin`` until ``take``, whose caller ends it."""

    def __init__(self) -> None:
        self._warming: Warming | None = None

    def begin(self, check: list[str], jobs: int) -> None:
        """Start the process."""
        with contextlib.suppress(ServerGoneError):
            self._warming = Warming.begun(check, jobs)

    def take(self) -> Warming | None:
        """The process; None if there is none, or if it was taken before."""
        warming, self._warming = self._warming, None
        return warming


class CheckedOptions(
    CheckOption,
    RuleOptions,
    CheckTimeOptions,
    CheckMemoryOption,
    ColdOption,
    BudgetOptions,
    ArtifactOptions,
    IterationOptions,
):
    """The options of a search that concern its check."""

    iter_inputs: Path | None = None
    on: str | None = None
    warming: WarmUp = WarmUp()

    def jobs_of(self, console: Console, machines: OtherMachines | None = None) -> int:
        """How many checks run at once, by default as many as ``machines``, or this one, have room for.

        1, and a message, if several would use the same files.
        """
        jobs, reason = self.jobs_possible(machines)
        if reason:
            (console.warn if self.jobs else console.note)(f"one check at a time: {reason}")
        if machines is not None:
            machines.expect(jobs)  # they get ready while this process loads what it needs
        return jobs

    def jobs_possible(self, machines: OtherMachines | None = None) -> tuple[int, str]:
        """How many checks run at once, and why only one if there is room for more; else ""."""
        if self.check is None:
            return 1, ""
        here = min(self.jobs or processors(), _MOST_JOBS)
        jobs: int = here if machines is None else machines.jobs(self.jobs)
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
        """The check, warmed up by the process that ``warmed_up`` started or by a new one; or the person who decides."""
        from biopsy.checks.command import CommandCheck
        from biopsy.checks.outcome import InteractiveCheck
        from biopsy.checks.warm import command_check

        if self.check is None:
            return InteractiveCheck(ask)
        given = (self.check, str(self.iter_artifact), self.check_timeout, self.check_memory)
        check = CommandCheck(*given) if self.cold_checks else command_check(*given, jobs, self.warming.take())
        if self.on is None:
            check.start()
        return check

    def note_on(self, check: Check, console: Console) -> None:
        """Show a note if the check does not name the candidate; with -v, also whether the check is warm or cold."""
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
    """Start the process that warms up for the check, before anything else that the command does.

    Only the releases of ``--package`` are installed before: they go into ``args.check``, and the contents of their
    environments into ``args.environments``, for the journal. ``CheckedOptions.check_of`` takes the process; else it
    ends with the context. Raises UsageError if the check cannot take a release, CannotInstall.
    """
    args.warming = WarmUp()
    with ExitStack() as held:
        args.check, args.environments = _with_releases(args.check, PackageOptions.of(args), console, held)
        options = CheckedOptions.of(args)
        if options.check and not options.cold_checks and options.on is None and is_served(options.check):
            args.warming.begin(options.check, options.jobs_possible()[0])
        try:
            yield
        finally:
            warming = args.warming.take()
            if warming is not None:
                warming.close()


def own_run(words: Sequence[str] | None) -> RunOptions | None:
    """The options of a check such as ``biopsy run {} ...``; None for another check, and for wrong options."""
    from biopsy.cli.run import options

    return options.own_run(words)


def require_names(check: Sequence[str] | None, model: Path) -> None:
    """Raise DoesNotFit or CannotCompare if the check is ``biopsy run`` and names tensors that the model lacks."""
    own = own_run(check)
    if own is not None:
        from biopsy.cli.run.files import require_names_of_check
        from biopsy.model.index import index_file

        require_names_of_check(own, index_file(model))


def ended_politely() -> AbstractContextManager[None]:
    """A context in which a signal to end interrupts the work, once: see ``interrupted_once``."""
    return interrupted_once(_SECONDS_TO_END)


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
    """Raise UsageError if a check would compare parts of the model with golden values that belong to other inputs.

    ``own_run`` are the options of a check that is ``biopsy run``. If it makes up its inputs, a cut tensor gets random
    values, and everything computed from them differs from the golden values.
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


_SIGNS_OF_RELEASE = ("release=", "python=", "--package")
"""Parts of the words of a check that names a release itself."""


def _with_releases(
    check: list[str] | None, options: PackageOptions, console: Console, held: ExitStack
) -> tuple[list[str] | None, dict[str, str]]:
    """The words of a check with the releases of ``--package``, and the contents of their environments, by name.

    The environments are installed, and in use until ``held`` is closed.
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
        if not packages and not any(sign in word for word in command.words for sign in _SIGNS_OF_RELEASE):
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
        # Checks find the environments at once that this process holds open.
        held.enter_context(variables(variables_of(others.values())))
        contents = {
            f"environment of {label}": _versions_text(engine.imports.packages()) for label, engine in others.items()
        }
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
    from biopsy.processes.environments.prepared import prepared

    wanted = [*(package.text for package in packages), *options.beside]
    with Progress(console, None) as progress:
        environment = held.enter_context(prepared(wanted, python=interpreter_of(options.python), listener=progress))
    words = [word.replace(PYTHON_PLACE, str(environment.python)) for word in check]
    return words, {f"environment {PYTHON_PLACE}": _versions_text(environment.packages)}


def _versions_text(packages: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted(packages.items()))


def own_template(command: OwnRun, wanted: str | None) -> CheckTemplate:
    """The words of a ``biopsy run`` with ``{engine}`` in the place of the engine ``wanted``. Raises UsageError.

    This is the last one written exactly so, else the last one of that name, for None the last one of all.
    """
    from biopsy.engines.registry import parse_spec
    from biopsy.questions.builds.settings import ENGINE_PLACE, CheckTemplate

    specs = engines_of_run(command)
    wanted_spec = None if wanted is None else parse_spec(wanted)
    same_name = [number for number, spec in enumerate(specs) if wanted_spec is None or spec.name == wanted_spec.name]
    chosen = [number for number in same_name if specs[number] == wanted_spec] or same_name
    if not chosen or len(command.engine_places) != len(specs):
        named = ", ".join(spec.text for spec in specs) or "none"
        raise errors.UsageError(
            f"the check runs no engine {wanted!r}, so its settings cannot be varied; it runs {named}",
            next_steps=["--engine NAME    of one of these"],
        )
    return CheckTemplate(command.with_engine(chosen[-1], ENGINE_PLACE), specs[chosen[-1]], is_own_run=True)


def template_of(words: Sequence[str], engine: str | None, unnamed: str) -> CheckTemplate:
    """The words of a check with ``{engine}`` in the place of the engine that varies.

    Raises UsageError, with the message ``unnamed`` if neither the check nor ``engine`` names it.
    """
    from biopsy.engines.registry import parse_spec
    from biopsy.questions.builds.settings import ENGINE_PLACE, SETTINGS_PLACE, CheckTemplate

    command = parse(words)
    has_place = any(place in word for word in command.words for place in (ENGINE_PLACE, SETTINGS_PLACE))
    if isinstance(command, OwnRun) and not has_place:
        return own_template(command, engine)
    if engine is None:
        raise errors.UsageError(
            unnamed, next_steps=["--engine onnxrt    and write {engine} in the check where it takes one"]
        )
    return CheckTemplate(command.words, parse_spec(engine), is_own_run=isinstance(command, OwnRun))


def line_with(template: CheckTemplate, engine: str, environment: Mapping[str, str], model: Path) -> str:
    """The command line that checks a model with another engine, or other settings of it."""
    from biopsy.questions.builds.settings import VARIABLE

    environment = environment if template.names_settings else {**environment, VARIABLE: engine}
    variables = [f"{name}={value}" for name, value in environment.items()]
    words = parse(template.with_engine(engine)).words_for(model, DEFAULT_CANDIDATE)
    return line_of([*(["env", *variables] if variables else []), *words])


def engines_of_run(command: OwnRun) -> list[EngineSpec]:
    """The engines of a ``biopsy run``, in order. Raises UsageError for a wrong specification."""
    from biopsy.cli.run.options import options_of

    return options_of(command).specs_to_run()


def ask(question: str) -> str:
    """Show a question and read the answer, a line. The question goes to stderr if only that is a terminal.

    Raises what input() raises.
    """
    is_typed = _is_terminal(sys.stdin)
    on_stderr = is_typed and not _is_terminal(sys.stdout) and _is_terminal(sys.stderr)
    stream = sys.stderr if on_stderr else sys.stdout
    encoding = (stream.encoding if stream is not None else None) or "utf-8"
    question = printable(question).encode(encoding, "backslashreplace").decode(encoding)
    if on_stderr:
        print(question, end="", file=stream, flush=True)
    try:
        answer = input("" if on_stderr else question)
    except EOFError:
        print(file=stream)
        raise
    if not is_typed:
        print()  # noqa: T201
    return answer


def _is_terminal(stream: TextIO | None) -> bool:
    """Whether a stream is open and a terminal."""
    return stream is not None and stream.isatty()
