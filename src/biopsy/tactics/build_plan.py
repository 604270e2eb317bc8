"""What to build, how often, and what to leave where."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

from biopsy.checks.artifacts import Artifacts
from biopsy.checks.judge import Rules
from biopsy.checks.outcome import Check
from biopsy.engines.base import ModelInput
from biopsy.engines.registry import EngineSpec, find_class
from biopsy.tactics.setting_changes import CheckTemplate, SettingChange
from biopsy.tactics.variations import VariedSetting

Until = int | Literal["good", "bad"]

CheckFor = Callable[[SettingChange], Check]
"""Gives the check for a build with a change: its words may name the engine."""


@dataclass(frozen=True, kw_only=True)
class BuildPlan:
    """What to build, how often, and what to leave where; see the options of ``biopsy debug build``.

    ``artifact`` is where the engine saves what it has built; None if it cannot, and the check then gets the model.
    ``checks_building``: a build that fails is the failure, and nothing else is checked. ``seed`` is that of the order.
    """

    model: ModelInput
    spec: EngineSpec
    until: Until
    artifact: Path | None = None
    variations: Sequence[VariedSetting] = ()
    seed: int = 0
    record: Path | None = None
    artifacts: Artifacts = field(default_factory=Artifacts)
    info: Path | None = None
    rules: Rules = field(default_factory=Rules)
    build_timeout: float | None = None
    checks_building: bool = False

    @property
    def candidate(self) -> Path:
        """What the check looks at."""
        return self.artifact or self.model.path or Path()

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the model's file."""
        return hashlib.sha256(self.model.data).hexdigest()

    def spec_with(self, change: SettingChange) -> EngineSpec:
        """The engine of a build with a change."""
        return CheckTemplate((), self.spec).changed(change)


def artifact_name(spec: EngineSpec) -> str | None:
    """The usual name of what an engine saves; None if it saves nothing.

    An ending that only built models have is preferred: what is saved as ONNX may be optimized again when it is run.
    """
    endings = find_class(spec.name).capabilities.saves
    chosen = next((ending for ending in endings if ending != ".onnx"), next(iter(endings), None))
    return None if chosen is None else f"polygraphy_debug{chosen}"
