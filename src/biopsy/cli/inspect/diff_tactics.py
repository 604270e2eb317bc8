"""``biopsy debug diff-tactics`` and ``biopsy inspect diff-tactics``: what bad builds have and good ones lack."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path

from biopsy import errors
from biopsy.cli.arguments import types
from biopsy.cli.console import COLUMN, Console
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

_MOST_GROUPS = 5
_MOST_CHOICES = 6
_MOST_PLACES = 6
_LONGEST = 90  # characters

_EPILOG = """\
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
    parser.epilog = _EPILOG
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
    from biopsy.findings.answers import difference_tree

    report = ReportOption.of(args).report_file(console)
    files = _files(args.dir or Path(), args.good, args.bad)
    builds = [
        build_of(str(path), tactics, is_bad=bool(is_bad))
        for is_bad, found in enumerate(files)
        for path, tactics in found.items()
    ]
    for remark in remarks_on({str(path): tactics for found in files for path, tactics in found.items()}):
        console.warn(remark)
    found = difference(builds)
    console.note(*(f"Loaded {len(each)} {word} tactic replays." for each, word in zip(files, _KINDS, strict=True)))
    console.say(*_lines(found, whole=args.all))
    report.write(0, lambda: {"builds": {"difference": difference_tree(found)}})
    return 0


_KINDS = ("good", "bad")


def _files(folder: Path, *given: Path | None) -> list[Mapping[Path, TacticRecord | TacticReplay]]:
    """The tactics of good and of bad builds: of paths that are given, else of the usual folders below ``folder``.

    Raises UsageError for a path that is not there, unless it is one of two folders: ``biopsy debug build`` makes the
    folder ``bad`` only once a build is bad, and ``good`` likewise.
    """
    paths = [path or folder / kind for path, kind in zip(given, _KINDS, strict=True)]
    is_folder_of_both = not any(given) and any(path.is_dir() for path in paths)
    for path, asked, kind in zip(paths, given, _KINDS, strict=True):
        if not path.exists() and (asked is not None or not (any(given) or is_folder_of_both)):
            raise errors.UsageError(
                f"there is no {'folder' if path.name == kind else 'file or folder'} '{path}' with tactic records",
                next_steps=[f"--dir DIR    with the folders good and bad, or --{kind} PATH"],
            )
    return [tactics_below(path) if path.exists() else {} for path in paths]


def _lines(found: Difference, *, whole: bool) -> Iterator[str]:
    if found.only_in_bad:
        yield "Found potentially bad tactics:"
        yield from _only_in_bad(found, whole=whole)
    else:
        yield "Could not determine potentially bad tactics. Try providing more tactic replay files if possible."
    yield ""
    if found.groups:
        yield f"{found.tests} choices differ, groups of choices that were always made together, or pairs of settings."
        yield "The best of them:"
        shown = [group for group in found.groups if whole or (group.table.tends_to_fail and group.chance < 1)]
        for number, group in enumerate(shown if whole else shown[:_MOST_GROUPS], 1):
            yield from _group_lines(number, group, whole=whole)
        yield ""
    yield from verdict_lines(found)


def _only_in_bad(found: Difference, *, whole: bool) -> Iterator[str]:
    lines: list[tuple[str, ...]]
    together = [choice for group in found.only_in_bad for choice in group.choices]
    if all(choice.kind == "algorithm" for choice in together):
        by_layer: dict[str, list[str]] = {}
        for choice in together:
            by_layer.setdefault(choice.where, []).append(choice.value)
        lines = [(f"Layer: {layer}", f"    Algorithms: {values}") for layer, values in by_layer.items()]
    else:
        groups = summarized(together).items()
        lines = [(_summary_line(kind, value, places, whole=whole),) for (kind, value), places in groups]
    most = len(lines) if whole else 2 * _MOST_CHOICES
    for shown in lines[:most]:
        yield from shown
    if len(lines) > most:
        yield f"    and {len(lines) - most} more (--all)"


def _summary_line(kind: str, value: str, places: list[str], *, whole: bool) -> str:
    if not whole and len(value) > _LONGEST:
        value = f"{value[:_LONGEST].rpartition(' ')[0] or value[:_LONGEST]} ... (--all)"
    named = [place for place in places if place]
    if not named:
        return f"    {value}" if kind in SETTINGS else f"    {kind} {value}"
    more = f" and {len(named) - _MOST_PLACES} more" if len(named) > _MOST_PLACES else ""
    return f"    {kind} {value}: {', '.join(named[:_MOST_PLACES])}{more}"


def _group_lines(number: int, group: ChoiceGroup, *, whole: bool) -> Iterator[str]:
    chance = f"by chance {_percent(group.chance)}, with all that was compared {_percent(group.adjusted)}"
    yield f"{number:>3}  {group.representative.text}"
    yield f"     {_counts(group.table)} · {chance}"
    rest = summarized(group.choices[1:])
    for place, ((kind, value), places) in enumerate(rest.items()):
        if place == _MOST_CHOICES and not whole:
            yield f"       and {len(rest) - place} kinds of choices more (--all)"
            return
        head = "together with" if place == 0 else ""
        yield f"       {head:<13}{_summary_line(kind, value, places, whole=whole)[3:]}"


def _counts(table: Table) -> str:
    return f"in {table.bad} of {table.all_bad} bad builds, in {table.good} of {table.all_good} good ones"


def _percent(chance: float) -> str:
    return f"{100 * chance:.0f} %" if chance >= 0.1 else f"{100 * chance:.2g} %"


def verdict_lines(found: Difference) -> Iterator[str]:
    """What may be concluded, in words that leave no doubt, and what to do next."""
    if not found.good or not found.bad:
        lacking = "bad" if found.good else "good" if found.bad else "good and no bad"
        yield f"The evidence does not decide: there are no {lacking} builds to compare with."
    elif not found.groups:
        yield "The evidence does not decide: good and bad builds are alike in all that is recorded."
        yield _head("Next", "vary more: biopsy debug build MODEL --vary threads=1,2 --vary env.NAME=a,b ...")
    elif found.decided:
        groups = found.decided
        best = groups[0]
        told = best.representative.text
        together = best.representative.kind == "settings"
        if best.table.is_perfect:
            has_it = "this explains it. Every bad build is so" if together else "every bad build has it"
            yield f"{told}{': ' if together else ' explains it: '}{has_it}, and no good one."
        else:
            goes = f"{told}{':' if together else ''} goes with failing"
            yield f"{goes}, but does not explain every outcome: {_counts(best.table)}."
        others = len(best.choices) - 1
        if others and best.representative.kind in SETTINGS:
            yield _head("", f"{others} choices of the engine come with it.")
        elif others:
            yield _head("", f"{others} other choices were made in the same builds, and may be the cause as well.")
        if len(groups) > 1:
            yield _head("", f"{len(groups) - 1} other groups are beyond chance too; they may only go with the first.")
    else:
        best = found.groups[0]
        yield (
            f"The evidence does not decide: chance gives one of {found.tests} choices as good a table as the best "
            f"in {_percent(best.adjusted)} of cases."
        )
        if found.more is None:
            yield _head(
                "Next", "more builds alone will not help: nothing recorded is clearly more frequent in bad builds;"
            )
            yield _head("", "vary other things, or see how flaky the check is: biopsy debug repeat")
        else:
            like = f"about {found.more} more builds like these {found.good + found.bad}"
            yield _head("Next", f"{like} would decide, if {best.representative.text} is the cause")


def _head(head: str, text: str) -> str:
    return f"{head:<{COLUMN}} {text}"
