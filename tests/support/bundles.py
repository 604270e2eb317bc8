"""Bundles as a maintainer gets them: made of a failing model, unpacked, and their script run."""

import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from biopsy.checks.command import CommandCheck
from biopsy.checks.judge import Rules
from biopsy.cli.debug import bundling, checking
from biopsy.findings.bundle.job import BundleJob
from biopsy.findings.bundle.make import Bundle, make_bundle


@dataclass(frozen=True)
class Ended:
    """How a script ended, and all that it printed."""

    status: int
    printed: str


def bundle_of(
    model: Path,
    target: Path,
    *check: object,
    rules: Rules | None = None,
    secrets: Mapping[str, str] | None = None,
    reports: Mapping[str, bytes] | None = None,
    timeout: float | None = None,
) -> Bundle:
    """The bundle of a model that fails a check, whose words are these."""

    words = [str(word) for word in check]
    own = checking.own_run(words)
    job = BundleJob(
        target=target,
        original=model,
        model=model,
        folder=model.parent,
        check=CommandCheck(words, "polygraphy_debug.onnx", timeout),
        rules=rules or Rules(),
        run=None if own is None else bundling.question_of(own),
        secrets=secrets,
        reports=reports or {},
    )
    return make_bundle(job)


def unpacked(bundle: Path, folder: Path) -> Path:
    """The folder that an archive was unpacked into."""
    with zipfile.ZipFile(bundle) as stream:
        stream.extractall(folder)
    return folder


def run_script(folder: Path, *words: str, python: Sequence[str] = (sys.executable,)) -> Ended:
    """Run ``reproduce.py`` of a folder as a maintainer does, in that folder."""
    done = subprocess.run(
        [*python, "reproduce.py", *words],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder, timeout=120,
    )  # fmt: skip
    return Ended(done.returncode, done.stdout)
