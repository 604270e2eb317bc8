"""Options that commands with a check share. A command fills ``{text}`` in their help when it adds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from biopsy.cli.arguments import types
from biopsy.cli.arguments.declared import Options, option, several, switch
from biopsy.cli.arguments.groups import RecordedInputs
from biopsy.cli.commands import REST_OPTIONS as REST_OPTIONS

if TYPE_CHECKING:
    from biopsy.checks.judge import Rules
    from biopsy.checks.outcome import Artifacts
    from biopsy.session.checked_search import Repeating
    from biopsy.session.files import Resume
    from biopsy.session.trial import Budget


DEFAULT_CANDIDATE = "polygraphy_debug.onnx"
"""The file that candidates are written to, as in Polygraphy; in a check, its name stands for the candidate."""

STATUSES = "exit status of a check: 0 passes; 125 cannot say; 126 and 127 could not be run; any other fails.\n"
"""A line in the help of every command with a check."""

CANDIDATE = f"{{}}, or the name of --iter-artifact ({DEFAULT_CANDIDATE}), stands for the candidate"
"""A part of the help of ``--check``."""

ASKED = "Without --check, you are asked"


class CheckOption(Options, title="the check"):
    """The check: all words after the option."""

    check: list[str] | None = option(*REST_OPTIONS, nargs="...", metavar="COMMAND ...", meaning="{text}")


class RuleOptions(Options, decides="yes", title="the check"):
    """What counts as a failure."""

    fail_code: Sequence[int] | None = several(
        "--fail-code --fail-returncode",
        rivals="codes",
        type=types.status,
        action="extend",
        meaning="only these exit statuses are failures",
    )
    ignore_fail_code: Sequence[int] | None = several(
        "--ignore-fail-code --ignore-fail-returncode",
        rivals="codes",
        type=types.status,
        action="extend",
        meaning="these exit statuses are not failures",
    )
    fail_regex: Sequence[str] | None = several(
        "--fail-regex",
        action="extend",
        metavar="REGEX",
        meaning="a check fails only if its output matches one of these",
    )
    match: Literal["any", "status", "auto", "message", "exact"] = option(
        "--match",
        choices=("any", "status", "auto", "message", "exact"),
        default="auto",
        text="how alike two failures must be to count as the same",
        meaning="{text} (default: auto: by the check's own report, else the uncaught Python exception, else the exit "
        "status)",
    )

    def rules(self) -> Rules:
        """The rules for the judge. Raises UsageError for an invalid regular expression."""
        from biopsy.checks.judge import Rules

        return Rules(
            fail_codes=frozenset(self.fail_code or ()),
            ignored_codes=frozenset(self.ignore_fail_code or ()),
            fail_regexes=tuple(types.regex("--fail-regex", text) for text in self.fail_regex or ()),
            match=self.match,
        )


class CheckTimeOptions(Options, title="the check"):
    """When a check is ended, and whether its processes end with it (``cli.app`` sees to that)."""

    check_timeout: float | None = option(
        "--check-timeout",
        type=types.duration,
        text="20 times the time of the first, at least 60",
        meaning="end a check that takes longer (default: {text})",
    )
    keep_processes: bool = switch(
        "--keep-processes",
        meaning="keep processes that a check leaves in the background, such as a server for the next check, even after "
        "biopsy ends (default: they end with the check)",
    )


class CheckMemoryOption(Options, title="the check"):
    """How much memory a check may use."""

    check_memory: int | None = option(
        "--check-memory",
        type=types.byte_size,
        meaning="end a check whose processes together use more memory, such as 4GB, not counting mapped files{text} "
        "(default: no limit)",
    )


class VacuousOption(Options, decides="yes", title="the check"):
    """Whether to trust a check that nearly every model fails."""

    allow_vacuous_check: bool = switch(
        "--allow-vacuous-check",
        meaning="continue even if a model of a single Identity node fails the check in the same way, so that the "
        "result is meaningless; by default the status is then 4, and nothing is written",
    )


class ColdOption(Options, title="the check"):
    """Whether every check gets a new process."""

    cold_checks: bool = switch(
        "--cold-checks",
        meaning="start a new process for every check; by default, 'biopsy run' and Python scripts are forks of a warm "
        "process",
    )


class RepeatOptions(Options, title="flaky failures"):
    """How often a check is repeated."""

    repeat: int | None = option(
        "--repeat",
        type=types.positive,
        meaning="a candidate passes only if it passes N times (default: once, or if the failure is flaky, as often as "
        "--confidence requires)",
    )
    confidence: float = option(
        "--confidence",
        type=types.probability,
        default=0.99,
        metavar="P",
        meaning="if the failure is flaky: how sure to be that a candidate passes (default: 0.99)",
    )

    def repeating(self) -> Repeating:
        """How the search repeats its checks."""
        from biopsy.session.checked_search import Repeating

        return Repeating(repeat=self.repeat, confidence=self.confidence)


class BudgetOptions(Options, title="time limits, and resuming"):
    """How many checks run at once, and when the search stops."""

    jobs: int | None = option(
        "--jobs",
        type=types.positive,
        meaning="run N checks at once; the result is the same for any N (default: one per processor, or 1 where checks "
        "would share files)",
    )
    max_checks: int | None = option(
        "--max-checks", type=types.positive, meaning="stop after N checks, with the best result so far"
    )
    max_time: float | None = option(
        "--max-time", type=types.duration, meaning="stop after this time (90s, 10m, 2h), with the best result so far"
    )

    def budget(self) -> Budget:
        """The limits of the search."""
        from biopsy.session.trial import Budget

        return Budget(checks=self.max_checks, seconds=self.max_time)


class FreshOption(Options, title="time limits, and resuming"):
    """Whether a search starts over."""

    fresh: bool = switch(
        "--fresh",
        meaning="start over instead of resuming an interrupted search; its journal (OUTPUT.journal) is kept aside",
    )


class ReplayOptions(Options, title="time limits, and resuming"):
    """Files of outcomes: of an earlier search, and of this one."""

    load_debug_replay: Path | None = option(
        "--load-debug-replay",
        type=types.READ,
        meaning="start with the outcomes in this file, written by --save-debug-replay",
    )
    save_debug_replay: Path | None = option(
        "--save-debug-replay",
        type=types.written_over("load_debug_replay"),
        nargs="?",
        const=Path("polygraphy_debug_replay.json"),
        text="save every outcome as JSON",
        meaning="{text} (default FILE: polygraphy_debug_replay.json)",
    )


class ResumeOptions(FreshOption, ReplayOptions, title="time limits, and resuming"):
    """Whether an interrupted search is resumed, and files of outcomes."""

    replay_form: Literal["biopsy", "polygraphy"] = option(
        "--replay-form",
        choices=("biopsy", "polygraphy"),
        default="biopsy",
        meaning="the format of --save-debug-replay; only biopsy's can be loaded again (default: biopsy)",
    )


class ResumedSearch(ResumeOptions, RecordedInputs):
    """Options that must be the same for a search to be resumed: outcomes depend on the inputs and environments too."""

    runtime_env: Path | None = None  # it changes the engines on the machines of --on
    environments: Mapping[str, str] = MappingProxyType({})

    def resume(self, journal: Path | None, search: str) -> Resume:
        """How the search with this journal is resumed; ``search`` is its name in messages."""
        from biopsy.session.files import Resume

        script = self.data_loader_script
        files = (script and types.script_with_function(script), self.runtime_env)
        return Resume(
            journal=journal,
            fresh=self.fresh,
            load=self.load_debug_replay,
            save=self.save_debug_replay,
            polygraphy_form=self.replay_form == "polygraphy",
            files=(*(self.load_inputs or ()), *(file for file in files if file)),
            search=search,
            about={**{f"option {name}": str(value) for name, value in self.draws_given().items()}, **self.environments},
        )


def journal_of(output: Path) -> Path:
    """The journal of a search that writes ``output``."""
    return output.parent / f"{output.name}.journal"


class ShownOutputOptions(Options, title="the check"):
    """Which checks' output is shown."""

    show_output: bool = switch("--show-output", rivals="shown", meaning="show the output of every check")
    hide_fail_output: bool = switch(
        "--hide-fail-output",
        rivals="shown",
        meaning="hide the output of {text}, which is shown by default",
        text="the first failure",
    )


class ArtifactOptions(Options, title="files of each iteration"):
    """Files of a check that are kept, sorted by its outcome."""

    artifacts: Sequence[Path] = several(
        "--artifacts",
        type=types.ARTIFACT,
        default=[],
        meaning="after each check, sort these files into 'good', 'bad' and 'other'",
    )
    art_dir: Path = option(
        "--art-dir --artifacts-dir",
        type=types.FOLDER_WRITTEN,
        default=Path("polygraphy_artifacts"),
        meaning="the folder for --artifacts (default: polygraphy_artifacts)",
    )

    def sorted_files(self) -> Artifacts:
        """The artifacts to sort after each check."""
        from biopsy.checks.outcome import Artifacts

        return Artifacts(tuple(self.artifacts), self.art_dir)


class IterationOptions(Options, title="files of each iteration"):
    """Files that are written before each check."""

    iter_artifact: Path | None = option(
        "--iter-artifact --intermediate-artifact", type=types.ITERATION, meaning="{text}"
    )
    no_remove_intermediate: bool = switch(
        "--no-remove-intermediate", meaning="keep {text} there at the end", text="the last candidate"
    )
    iter_info: Path | None = option(
        "--iter-info --iteration-info",
        type=types.ITERATION,
        meaning='before each check, write {"iteration": N} into this file',
    )


class EventsOption(Options, title="files of each iteration"):
    """The file that events are written to."""

    events: Path | None = option(
        "--events", type=types.WRITTEN, meaning="write every event of the work to this file, as JSON lines"
    )


class ShownChecks(ShownOutputOptions, EventsOption):
    """Which checks' output is shown, and the file of events."""


class CheckOptions(CheckOption, RuleOptions, CheckTimeOptions, ShownChecks):
    """The check of a question: what is a failure, when it is ended, and what is shown of it."""
