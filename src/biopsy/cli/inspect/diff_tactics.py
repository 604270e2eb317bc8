"""``biopsy debug diff-tactics`` and ``biopsy inspect diff-tactics``: find what bad builds have in common."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from biopsy import errors
from biopsy.cli.arguments import types
from biopsy.cli.console import Console, headed
from biopsy.cli.report import ReportOption
from biopsy.questions.builds.difference import (
    SETTINGS,
    ChoiceGroup,
    Difference,
    Table,
    build_of,
    difference,
    remarks_on,
    summarized,
)
from biopsy.questions.builds.record import TacticRecord, TacticReplay, tactics_below
from biopsy.text import first_of

_MOST_GROUPS = 5
_MOST_CHOICES = 6
_MOST_PLACES = 6
_LONGEST = 90  # characters

EPILOG = """\
examples:
  biopsy debug build model.onnx --openvino --vary precision=f32,bf16 --until 20 \\
      --save-tactics replay.json --artifacts replay.json --art-dir replays \\
      --check biopsy run {} --openvino --load-inputs inputs.json --load-outputs golden.json
  biopsy debug diff-tactics --dir replays
  biopsy debug diff-tactics --good replays/good --bad replays/bad/replay_11-21-26_05-31-06_N3.json

Files are tactic records of biopsy, or tactic replays of Polygraphy. A choice is named as the cause only if chance
alone would do as much in less than 5 % of cases, by Fisher's exact test with Holm's correction for all choices
compared, including pairs of settings that vary.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--dir",
        type=types.FOLDER_READ,
        metavar="DIR",
        help="a folder with the folders 'good' and 'bad' (default: the current one)",
    )
    parser.add_argument(
        "--good", type=types.READ, metavar="PATH", help="a file of a good build, or a folder (default: DIR/good)"
    )
    parser.add_argument(
        "--bad", type=types.READ, metavar="PATH", help="a file of a bad build, or a folder (default: DIR/bad)"
    )
    parser.add_argument("--all", action="store_true", help="show every choice, not only the first few")
    ReportOption.add(parser)


def execute(args: argparse.Namespace, console: Console) -> int:
    """Compare the builds; returns 0 whether or not a cause is found."""
    report = ReportOption.of(args).report_file(console)
    tactics_of_kinds = _files(args.dir or Path(), args.good, args.bad)
    builds = [
        build_of(str(path), tactics, is_bad=kind == "bad")
        for kind, files in zip(_KINDS, tactics_of_kinds, strict=True)
        for path, tactics in files.items()
    ]
    for remark in remarks_on({str(path): tactics for files in tactics_of_kinds for path, tactics in files.items()}):
        console.warn(remark)
    result = difference(builds)
    loaded = zip(_KINDS, tactics_of_kinds, strict=True)
    console.note(*(f"Loaded {len(files)} {kind} tactic replays." for kind, files in loaded))
    console.say(*_lines(result, all_choices=args.all))

    def sections() -> dict[str, Any]:
        from biopsy.findings.answers import difference_tree  # slow, and only a report needs it

        return {"builds": {"difference": difference_tree(result)}}

    report.write(0, sections)
    return 0


_KINDS = ("good", "bad")


def _files(folder: Path, *given: Path | None) -> list[Mapping[Path, TacticRecord | TacticReplay]]:
    """The tactics of good and of bad builds, by file, from the ``given`` paths or from DIR/good and DIR/bad.

    Raises UsageError for a path that does not exist. One of the two folders may be missing, because ``biopsy debug
    build`` makes each only when a build belongs there.
    """
    paths = [path or folder / kind for path, kind in zip(given, _KINDS, strict=True)]
    has_one_folder = not any(given) and any(path.is_dir() for path in paths)
    for path, given_path, kind in zip(paths, given, _KINDS, strict=True):
        if not path.exists() and (given_path is not None or not (any(given) or has_one_folder)):
            raise errors.UsageError(
                f"there is no {'folder' if path.name == kind else 'file or folder'} '{path}' with tactic records",
                next_steps=[f"--dir DIR    with the folders good and bad, or --{kind} PATH"],
            )
    return [tactics_below(path) if path.exists() else {} for path in paths]


def _lines(result: Difference, *, all_choices: bool) -> Iterator[str]:
    if result.only_in_bad:
        yield "Found potentially bad tactics:"
        yield from _only_in_bad(result, all_choices=all_choices)
    else:
        yield "Could not determine potentially bad tactics. Try providing more tactic replay files if possible."
    yield ""
    if result.groups:
        kinds = "groups of choices that were always made together, or pairs of settings"
        yield f"{result.groups_compared} choices differ, {kinds}."
        yield "The best of them:"
        shown = [group for group in result.groups if all_choices or (group.table.tends_to_fail and group.chance < 1)]
        for number, group in enumerate(shown if all_choices else shown[:_MOST_GROUPS], 1):
            yield from _group_lines(number, group, all_choices=all_choices)
        yield ""
    yield from verdict_lines(result)


def _only_in_bad(result: Difference, *, all_choices: bool) -> Iterator[str]:
    lines: list[tuple[str, ...]]
    choices = [choice for group in result.only_in_bad for choice in group.choices]
    if all(choice.kind == "algorithm" for choice in choices):
        by_layer: dict[str, list[str]] = {}
        for choice in choices:
            by_layer.setdefault(choice.where, []).append(choice.value)
        lines = [(f"Layer: {layer}", f"    Algorithms: {values}") for layer, values in by_layer.items()]
    else:
        groups = summarized(choices).items()
        lines = [(_summary_line(kind, value, places, all_choices=all_choices),) for (kind, value), places in groups]
    most = len(lines) if all_choices else 2 * _MOST_CHOICES
    for shown in lines[:most]:
        yield from shown
    if len(lines) > most:
        yield f"    and {len(lines) - most} more (--all)"


def _summary_line(kind: str, value: str, places: list[str], *, all_choices: bool) -> str:
    if not all_choices and len(value) > _LONGEST:
        value = f"{value[:_LONGEST].rpartition(' ')[0] or value[:_LONGEST]} ... (--all)"
    named = [place for place in places if place]
    if not named:
        return f"    {value}" if kind in SETTINGS else f"    {kind} {value}"
    return f"    {kind} {value}: {first_of(named, _MOST_PLACES)}"


def _group_lines(number: int, group: ChoiceGroup, *, all_choices: bool) -> Iterator[str]:
    chance = f"by chance {_percent(group.chance)}, with all that was compared {_percent(group.adjusted)}"
    yield f"{number:>3}  {group.representative.text}"
    yield f"     {_counts(group.table)} · {chance}"
    others = summarized(group.choices[1:])
    for place, ((kind, value), places) in enumerate(others.items()):
        if place == _MOST_CHOICES and not all_choices:
            yield f"       and {len(others) - place} more kinds of choices (--all)"
            return
        head = "together with" if place == 0 else ""
        yield f"       {head:<13}{_summary_line(kind, value, places, all_choices=all_choices)[3:]}"


def _counts(table: Table) -> str:
    return f"in {table.bad} of {table.all_bad} bad builds, in {table.good} of {table.all_good} good ones"


def _percent(chance: float) -> str:
    return f"{100 * chance:.0f} %" if chance >= 0.1 else f"{100 * chance:.2g} %"


def verdict_lines(result: Difference) -> Iterator[str]:
    """The conclusion from a comparison of builds, and what to do next."""
    if not result.good or not result.bad:
        missing = "bad" if result.good else "good" if result.bad else "good and no bad"
        yield f"The evidence does not decide: there are no {missing} builds to compare with."
    elif not result.groups:
        yield "The evidence does not decide: good and bad builds are alike in all that is recorded."
        yield headed("Next", "vary more: biopsy debug build MODEL --vary threads=1,2 --vary env.NAME=a,b ...")
    elif result.decided:
        groups = result.decided
        best = groups[0]
        choice = best.representative.text
        is_pair = best.representative.kind == "settings"
        if best.table.is_perfect:
            has_it = "this explains it. Every bad build is so" if is_pair else "every bad build has it"
            yield f"{choice}{': ' if is_pair else ' explains it: '}{has_it}, and no good one."
        else:
            goes = f"{choice}{':' if is_pair else ''} goes with failing"
            yield f"{goes}, but does not explain every outcome: {_counts(best.table)}."
        others = len(best.choices) - 1
        if others and best.representative.kind in SETTINGS:
            yield headed("", f"{others} choices of the engine come with it.")
        elif others:
            yield headed("", f"{others} other choices were made in the same builds, and may be the cause as well.")
        if len(groups) > 1:
            yield headed("", f"{len(groups) - 1} other groups are beyond chance too; they may only go with the first.")
    else:
        best = result.groups[0]
        yield (
            f"The evidence does not decide: chance gives one of {result.groups_compared} choices as good a table as "
            f"the best in {_percent(best.adjusted)} of cases."
        )
        if result.more is None:
            yield headed(
                "Next", "more builds alone will not help: nothing recorded is clearly more frequent in bad builds;"
            )
            yield headed("", "vary other things, or see how flaky the check is: biopsy debug repeat")
        else:
            more = f"about {result.more} more builds like these {result.good + result.bad}"
            yield headed("Next", f"{more} would decide, if {best.representative.text} is the cause")
