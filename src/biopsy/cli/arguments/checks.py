"""Options that the commands with a check share. Texts that differ from command to command are arguments."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy.cli.arguments import groups, types

if TYPE_CHECKING:
    from biopsy.session.result_file import Resume


REST_OPTIONS = ("--check", "--check-inference")
"""These take the whole rest of the line, whatever it holds."""

DEFAULT_CANDIDATE = "polygraphy_debug.onnx"
"""Where candidates are written, and what stands for them in a check, as for Polygraphy."""

STATUSES = "exit status of a check: 0 passes; 125 cannot say; 126 and 127 could not be run; any other fails.\n"
"""Part of the help of every command with a check."""

CANDIDATE = f"{{}}, or the name of --iter-artifact ({DEFAULT_CANDIDATE}), stands for the candidate"
"""What stands for the candidate in the words of a check."""

ASKED = "Without --check, you are asked"


def add_command(group: argparse._ArgumentGroup, command: str, *sentences: str) -> None:
    """``--check``: what the ``command`` is for; ``sentences`` say what its words may hold, and more."""
    meaning = ". ".join((f"{command}; takes the rest of the line", *sentences))
    group.add_argument(*REST_OPTIONS, nargs="...", metavar="COMMAND ...", help=meaning)


def add_rules(group: argparse._ArgumentGroup, match: str) -> None:
    """What counts as a failure: ``--fail-code`` and its like. ``match`` begins the help of ``--match``."""
    codes = group.add_mutually_exclusive_group()
    codes.add_argument(
        "--fail-code",
        "--fail-returncode",
        nargs="+",
        type=types.status,
        action="extend",
        metavar="STATUS",
        help="only these exit statuses are failures",
    )
    codes.add_argument(
        "--ignore-fail-code",
        "--ignore-fail-returncode",
        nargs="+",
        type=types.status,
        action="extend",
        metavar="STATUS",
        help="these exit statuses are not failures",
    )
    group.add_argument(
        "--fail-regex",
        nargs="+",
        action="extend",
        metavar="REGEX",
        help="a check fails only if its output matches one of these",
    )
    group.add_argument(
        "--match",
        choices=("any", "status", "auto", "message", "exact"),
        default="auto",
        help=f"{match} (default: auto: by the check's own report, else the uncaught Python exception, else the exit "
        "status)",
    )


def add_timeout(group: argparse._ArgumentGroup, default: str) -> None:
    """``--check-timeout`` and ``--keep-processes``; ``default`` says in words what holds without the first."""
    group.add_argument(
        "--check-timeout",
        type=types.duration,
        metavar="SECONDS",
        help=f"end a check that takes longer (default: {default})",
    )
    add_keep_processes(group)


def add_keep_processes(group: argparse._ArgumentGroup) -> None:
    """``--keep-processes``, which ``cli.app`` applies."""
    group.add_argument(
        "--keep-processes",
        action="store_true",
        help="keep processes that a check leaves in the background, such as a server for the next check, even when "
        "biopsy has ended (default: they end with the check)",
    )


def add_memory(group: argparse._ArgumentGroup, meaning: str = "") -> None:
    """``--check-memory``; ``meaning`` says what it makes of a candidate."""
    group.add_argument(
        "--check-memory",
        type=types.byte_size,
        metavar="SIZE",
        help=f"end a check whose processes together use more, such as 4GB{meaning} (default: no limit)",
    )


def add_cold(group: argparse._ArgumentGroup) -> None:
    """``--cold-checks``."""
    group.add_argument(
        "--cold-checks",
        action="store_true",
        help="start a process for every check, even for those that fork a warm one: 'biopsy run' and Python scripts",
    )


def add_repeating(group: argparse._ArgumentGroup) -> None:
    """``--repeat`` and ``--confidence``."""
    group.add_argument(
        "--repeat",
        type=types.positive,
        metavar="N",
        help="a candidate passes only if it passes N times (default: once; if the failure turns out to be flaky, as "
        "often as --confidence requires)",
    )
    group.add_argument(
        "--confidence",
        type=types.probability,
        default=0.99,
        metavar="P",
        help="if the failure is flaky: how sure to be that a candidate passes (default: 0.99)",
    )


def add_limits(group: argparse._ArgumentGroup) -> None:
    """``--jobs``, ``--max-checks`` and ``--max-time``."""
    group.add_argument(
        "--jobs",
        type=types.positive,
        metavar="N",
        help="run N checks at once; the result is the same for any N (default: one per processor, or 1 where checks "
        "would share files)",
    )
    group.add_argument(
        "--max-checks", type=types.positive, metavar="N", help="stop after N checks, with the best result so far"
    )
    group.add_argument(
        "--max-time",
        type=types.duration,
        metavar="TIME",
        help="stop after this time (90s, 10m, 2h), with the best result so far",
    )


def add_resume(group: argparse._ArgumentGroup, search: str) -> None:
    """``--fresh`` and the replays. ``search`` names what could be resumed."""
    group.add_argument(
        "--fresh",
        action="store_true",
        help=f"start over instead of resuming an interrupted {search}, whose journal (OUTPUT.journal) is kept aside",
    )
    add_replays(
        group, "start with the outcomes in this file, written by --save-debug-replay", "save every outcome as JSON"
    )
    group.add_argument(
        "--replay-form",
        choices=("biopsy", "polygraphy"),
        default="biopsy",
        help="the form of --save-debug-replay; only that of biopsy can be loaded again (default: biopsy)",
    )


def add_replays(group: argparse._ArgumentGroup, loaded: str, saved: str) -> None:
    """``--load-debug-replay`` and ``--save-debug-replay``, and what each does."""
    group.add_argument("--load-debug-replay", type=types.READ, metavar="FILE", help=loaded)
    group.add_argument(
        "--save-debug-replay",
        type=types.written_over("load_debug_replay"),
        nargs="?",
        const=Path("polygraphy_debug_replay.json"),
        metavar="FILE",
        help=f"{saved} (default FILE: polygraphy_debug_replay.json)",
    )


def journal_of(output: Path) -> Path:
    """Where the journal of a search stands that writes ``output``."""
    return output.parent / f"{output.name}.journal"


def resume_of(args: argparse.Namespace, journal: Path | None, search: str) -> Resume:
    """What the options of ``add_resume`` say; outcomes depend on the inputs, too."""
    from biopsy.session.result_file import Resume

    draws = {f"option {name}": str(value) for name, value in groups.draws_given(args).items()}
    return Resume(
        journal=journal,
        fresh=args.fresh,
        load=args.load_debug_replay,
        save=args.save_debug_replay,
        polygraphy_form=args.replay_form == "polygraphy",
        files=_inputs_read(args),
        search=search,
        about={**draws, **getattr(args, "environments", {})},
    )


def _inputs_read(args: argparse.Namespace) -> tuple[Path, ...]:
    script: str | None = args.data_loader_script
    environment: Path | None = getattr(args, "runtime_env", None)  # it makes other engines of the machines of --on
    return (
        *(args.load_inputs or ()),
        *([types.script_with_function(script)] if script else ()),
        *([environment] if environment else ()),
    )


def add_shown_output(group: argparse._ArgumentGroup, hidden: str) -> None:
    """``--show-output`` or ``--hide-fail-output``; ``hidden`` is the failure whose output the latter hides too."""
    shown = group.add_mutually_exclusive_group()
    shown.add_argument("--show-output", action="store_true", help="show the output of every check")
    shown.add_argument("--hide-fail-output", action="store_true", help=f"hide even the output of {hidden}")


def add_artifacts(group: argparse._ArgumentGroup) -> None:
    """``--artifacts`` and ``--art-dir``."""
    group.add_argument(
        "--artifacts",
        nargs="+",
        type=types.ARTIFACT,
        default=[],
        metavar="FILE",
        help="after each check, sort these files into 'good', 'bad' and 'other'",
    )
    group.add_argument(
        "--art-dir",
        "--artifacts-dir",
        type=types.FOLDER_WRITTEN,
        default=Path("polygraphy_artifacts"),
        metavar="DIR",
        help="the folder that they are sorted into (default: polygraphy_artifacts)",
    )


def add_iteration_artifact(
    group: argparse._ArgumentGroup, meaning: str, last: str, *, default: Path | None = None
) -> None:
    """``--iter-artifact``, with its help, and ``--no-remove-intermediate``, which keeps the ``last`` one."""
    group.add_argument(
        "--iter-artifact",
        "--intermediate-artifact",
        type=types.ITERATION,
        default=default,
        metavar="FILE",
        help=meaning,
    )
    group.add_argument("--no-remove-intermediate", action="store_true", help=f"keep {last} there at the end")


def add_iteration_info(group: argparse._ArgumentGroup) -> None:
    """``--iter-info``."""
    group.add_argument(
        "--iter-info",
        "--iteration-info",
        type=types.ITERATION,
        metavar="FILE",
        help='before each check, write {"iteration": N} into this file',
    )


def add_events(group: argparse._ArgumentGroup) -> None:
    """``--events``."""
    group.add_argument(
        "--events", type=types.WRITTEN, metavar="FILE", help="write what happens to this file, as JSON lines"
    )
