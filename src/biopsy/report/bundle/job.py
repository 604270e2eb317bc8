"""What a bundle is made from, as a command hands it over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from biopsy.checks.command import CommandCheck
from biopsy.checks.judge import Rules
from biopsy.comparison.tolerance import MetricLimits, Stats, Tolerances
from biopsy.engines.base import Engine
from biopsy.model.outputs import OutputChoice


@dataclass(frozen=True, kw_only=True)
class RunQuestion:
    """What a check asks that is our own ``run``.

    ``outputs`` are those that it marks, ``golden`` its files of golden values. ``beyond`` names an option, as it is
    typed, that only biopsy itself can follow; "" if there is none.
    """

    engines: Sequence[Engine]
    outputs: OutputChoice
    tolerances: Tolerances = field(default_factory=Tolerances)
    stats: Stats = field(default_factory=Stats)
    limits: MetricLimits = field(default_factory=MetricLimits)
    golden: Sequence[Path] = ()
    build_only: bool = False
    beyond: str = ""


@dataclass(frozen=True, kw_only=True)
class EarlierFindings:
    """What a command has found of a failure before it packs it, in words; "" where nobody has asked.

    ``title``: what fails, in a line, where its own run alone would accuse an engine that is right. ``verdict``: what
    fails and why. ``variation``: what of the model may vary. ``known``: how it compares with the
    known bug that it looks like. ``how_often``: in how many runs a flaky failure shows; "" if it is not known to be
    flaky. ``workarounds``: what was tried and passed, each with a line to paste, "" where there is none. ``links``:
    references in these words that are ours, of bugs in the catalogue that comes with biopsy, each with its address.
    """

    title: str = ""
    verdict: str = ""
    variation: str = ""
    known: str = ""
    how_often: str = ""
    workarounds: tuple[tuple[str, str], ...] = ()
    links: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class BundleJob:
    """A failing model, the check that it fails, and where the bundle goes.

    ``target`` is a folder, or a file that ends in .zip. ``folder`` is where the model's external weights stand.
    ``check`` and ``rules`` say what failing is; ``run`` what the check asks, if it is our own ``run``. ``inputs`` is a
    file that the model is fed from, in place of those that the check loads; None where those fit. ``found`` is
    what is known of the failure before. ``secrets`` are words that no member may hold -> what they are, for a person;
    nor may it then hold paths, and the names of the user and the machine. None where nothing is to be hidden.
    ``original`` is the model that ``model`` was made of. ``reports`` are further members that are ready, by name: the
    report as JSON and as a page. ``settings`` is what settings files gave to the check, in words; "" if nothing.
    """

    target: Path
    original: Path
    model: Path
    folder: Path
    check: CommandCheck
    rules: Rules = field(default_factory=Rules)
    run: RunQuestion | None = None
    inputs: Path | None = None
    found: EarlierFindings = field(default_factory=EarlierFindings)
    secrets: Mapping[str, str] | None = None
    reports: Mapping[str, bytes] = field(default_factory=dict)
    settings: str = ""
