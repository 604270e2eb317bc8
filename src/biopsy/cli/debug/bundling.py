"""``--bundle`` of commands that find a failing model: from their arguments to the job of a bundle, and what is said;"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.cli.arguments import types
from biopsy.cli.console import Console
from biopsy.cli.report import page_in

if TYPE_CHECKING:
    from biopsy.checks.command import CommandCheck
    from biopsy.checks.judge import Rules
    from biopsy.cli.run.options import RunOptions
    from biopsy.findings.bundle.job import EarlierFindings, RunQuestion


def add(parser: argparse.ArgumentParser | argparse._ArgumentGroup, found: str) -> None:
    """Add the option; ``found`` is what it packs, in words."""
    parser.add_argument(
        "--bundle",
        type=types.WRITTEN,
        metavar="DIR|FILE.zip",
        help=f"also pack {found} to send: the model, its inputs, what is expected, a script that shows the failure "
        "without biopsy (it is run before), a test, versions, and the text of an issue",
    )


@dataclass(frozen=True, kw_only=True)
class Packing:
    """What a command packs: the model that fails, and the check that it fails.

    ``own_run`` are the options of a check that is ``biopsy run``. ``inputs`` are those that it is fed where they are
    not the check's own; ``folder`` is where the model's weights stand if not beside it. ``words`` are those of the
    original that the bundle may not tell, as ``words_to_hide`` gave them. ``found`` is
    what is known of the failure before, if anything is.
    """

    target: Path
    original: Path
    model: Path
    check: CommandCheck
    rules: Rules
    own_run: RunOptions | None
    inputs: Path | None = None
    folder: Path | None = None
    words: Mapping[str, str] | None = None
    reports: Mapping[str, bytes] = field(default_factory=dict)
    found: EarlierFindings | None = None


def require_target(args: argparse.Namespace) -> None:
    """Raise UsageError if ``--bundle`` was given and could not be written at the end."""
    from biopsy.findings.bundle import packing

    if args.bundle is not None:
        packing.require_target(args.bundle)


def require_possible(args: argparse.Namespace) -> None:
    """Raise UsageError if ``--bundle`` was given and there could be none at the end."""
    require_target(args)
    if args.bundle is not None and getattr(args, "check", ()) is None:
        raise errors.UsageError(
            "--bundle needs a check that can be run again, and without --check a person is asked",
            next_steps=["--check biopsy run {} --onnxrt", "or leave out --bundle"],
        )


def words_to_hide(args: argparse.Namespace) -> dict[str, str] | None:
    """What the bundle of ``--anonymize`` may not tell of the model, which is read now; None for any other bundle."""
    from biopsy.findings.bundle.disclosures import words_of_model

    if args.bundle is None or not args.anonymize:
        return None
    return words_of_model(args.model)


def reports_of(report: bytes, console: Console) -> dict[str, bytes]:
    """The members that a report becomes: its JSON, and the page of it; where none can be made, that is said."""
    try:
        page = page_in(report)
    except errors.BiopsyError as error:
        console.warn(f"the bundle has no report.html: {error.summary}")
        return {"report.json": report}
    return {"report.json": report, "report.html": page}


def pack(packing: Packing, console: Console) -> None:
    """Write the bundle and say what is in it. Raises CheckError if its script does not show the failure."""
    from biopsy.findings.bundle.disclosures import without_words_of
    from biopsy.findings.bundle.job import BundleJob, EarlierFindings
    from biopsy.findings.bundle.make import make_bundle
    from biopsy.text import size_text

    own = packing.own_run
    job = BundleJob(
        target=packing.target,
        original=packing.original,
        model=packing.model,
        folder=packing.folder or packing.model.parent,
        check=packing.check,
        rules=packing.rules,
        run=None if own is None else question_of(own),
        inputs=packing.inputs,
        secrets=None if packing.words is None else without_words_of(packing.words, packing.model),
        reports=packing.reports,
        found=packing.found or EarlierFindings(),
        settings=console.basis.text,
    )
    bundle = make_bundle(job)
    told = [f"{name} ({size_text(bundle.members[name])})" for name in _SHOWN if name in bundle.members]
    told += [name for name in bundle.members if name not in _SHOWN]
    console.say(f"bundle   {bundle.path}, {size_text(bundle.size)}: {', '.join(told)}")
    for remark in bundle.remarks:
        console.warn(f"the bundle: {remark}")
    if bundle.standing == "alone":
        console.say("         reproduce.py was run without biopsy, and fails")
    elif bundle.standing == "with biopsy":
        why = f": without it there is no way to ask for {bundle.needs_biopsy}" if bundle.needs_biopsy else ""
        console.warn(f"reproduce.py fails as it should, but only where biopsy is installed{why}")
    if packing.words is not None and own is not None and (own.load_inputs or own.load_outputs):
        console.warn("inputs.npz and expected.npz of the bundle hold numbers that come from your inputs")
    if bundle.standing == "not":
        raise errors.CheckError(
            f"{bundle.path} is not fit to be sent: its reproduce.py does not show the failure (it ended with status "
            f"{bundle.status}, and not with 1)",
            details=[f"  {line}" for line in bundle.output.splitlines()[-5:]],
            kept=f"{bundle.path}, which says so in ISSUE.md and NOT-REPRODUCED.txt, and the result beside it",
        )


def question_of(own: RunOptions) -> RunQuestion:
    """What a check asks that is ``biopsy run``. Raises UsageError for options that are wrong."""
    from biopsy.engines.registry import create
    from biopsy.findings.bundle.job import RunQuestion

    tolerances, stats, limits = own.limits()
    return RunQuestion(
        engines=[create(spec) for spec in own.specs_to_run()],
        outputs=own.choice(),
        tolerances=tolerances,
        stats=stats,
        limits=limits,
        golden=own.load_outputs or (),
        build_only=own.build_only,
        beyond=next((f"the option {option}" for option in own.given(_JUDGED_BEYOND)), ""),
    )


_JUDGED_BEYOND = ("compare_with", "compare_func_script", "postprocess_func_script")
_SHOWN = ("model.onnx", "model.onnx.data", "inputs.npz", "expected.npz")
