"""``--bundle`` of commands that find a failing model: checks the option, writes the bundle and shows its contents."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.cli.arguments import types
from biopsy.cli.console import Console
from biopsy.text import size_text

if TYPE_CHECKING:
    from biopsy.cli.run.options import RunOptions
    from biopsy.findings.bundle.job import BundleJob, RunQuestion


def add(parser: argparse.ArgumentParser | argparse._ArgumentGroup, packed: str) -> None:
    """Add the option; ``packed`` names what it packs, such as "the result"."""
    parser.add_argument(
        "--bundle",
        type=types.WRITTEN,
        metavar="DIR|FILE.zip",
        help=f"also pack {packed} to send: the model, its inputs, what is expected, a script that shows the failure "
        "without biopsy (it is run before), a test, versions, and the text of an issue",
    )


def require_possible(bundle: Path | None, *, has_check: bool = True) -> None:
    """Raise UsageError if ``--bundle`` is given and the bundle could not be made."""
    from biopsy.findings.bundle import packing

    if bundle is not None:
        packing.require_target(bundle)
        if not has_check:
            raise errors.UsageError(
                "--bundle needs a check that can be run again, and without --check a person is asked",
                next_steps=["--check biopsy run {} --onnxrt", "or leave out --bundle"],
            )


def words_to_hide(args: argparse.Namespace) -> dict[str, str] | None:
    """The words of the model, read now, that a bundle of ``--anonymize`` must not contain; None for other bundles."""
    from biopsy.findings.bundle.disclosures import words_of_model

    return None if args.bundle is None or not args.anonymize else words_of_model(args.model)


def pack(
    job: BundleJob,
    own: RunOptions | None,
    console: Console,
    words: Mapping[str, str] | None = None,
    width: int = 8,
) -> None:
    """Write the bundle and show what is in it. Raises CheckError if its script does not show the failure.

    ``own`` are the options of a check that is ``biopsy run``; ``words``, those of ``words_to_hide``, must not occur in
    the bundle. ``width`` is that of the column of words at the left.
    """
    from biopsy.findings.bundle.disclosures import without_words_of
    from biopsy.findings.bundle.make import make_bundle

    secrets = None if words is None else without_words_of(words, job.model)
    job = replace(job, run=None if own is None else question_of(own), secrets=secrets, settings=console.basis.text)
    bundle = make_bundle(job)
    members = [f"{name} ({size_text(bundle.members[name])})" for name in _SHOWN_WITH_SIZE if name in bundle.members]
    members += [name for name in bundle.members if name not in _SHOWN_WITH_SIZE]
    console.say(f"{'bundle':<{width}} {bundle.path}, {size_text(bundle.size)}: {', '.join(members)}")
    if job.no_issue:
        console.note(f"{'':<{width}} without ISSUE.md: {job.no_issue}")
    for remark in bundle.remarks:
        console.warn(f"the bundle: {remark}")
    if bundle.reproduced == "alone":
        console.say(f"{'':<{width}} reproduce.py was run without biopsy, and fails")
    elif bundle.reproduced == "with biopsy":
        why = f": without it there is no way to ask for {bundle.needs_biopsy}" if bundle.needs_biopsy else ""
        console.warn(f"reproduce.py fails as it should, but only where biopsy is installed{why}")
    if words is not None and own is not None and (own.load_inputs or own.load_outputs):
        console.warn("inputs.npz and expected.npz of the bundle hold numbers that come from your inputs")
    if bundle.reproduced == "not":
        raise errors.CheckError(
            f"{bundle.path} is not fit to be sent: its reproduce.py does not show the failure (it ended with status "
            f"{bundle.status}, and not as the failure does)",
            details=[f"  {line}" for line in bundle.output.splitlines()[-5:]],
            kept=f"{bundle.path}, which says so in NOT-REPRODUCED.txt, and the result beside it",
        )


def question_of(own: RunOptions) -> RunQuestion:
    """The question of a check that is ``biopsy run``. Raises UsageError for wrong options."""
    from biopsy.engines.registry import create
    from biopsy.findings.bundle.job import RunQuestion
    from biopsy.questions.layers.question import Judge

    return RunQuestion(
        engines=[create(spec) for spec in own.specs_to_run()],
        outputs=own.choice(),
        judge=Judge(*own.limits()),
        golden=own.load_outputs or (),
        build_only=own.build_only,
        unscriptable=next((f"the option {option}" for option in own.given(_JUDGED_BEYOND)), ""),
    )


_JUDGED_BEYOND = ("compare_with", "compare_func_script", "postprocess_func_script")
_SHOWN_WITH_SIZE = ("model.onnx", "model.onnx.data", "inputs.npz", "expected.npz")
