"""Checks whose words name the engine that varies, as ``flags`` and ``build`` take them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from biopsy import errors
from biopsy.checks.command_line import OwnRun, parse
from biopsy.engines.registry import EngineSpec
from biopsy.tactics.setting_changes import CheckTemplate


def template_of(check: Sequence[str], spec: EngineSpec) -> CheckTemplate:
    """The words of a check, with ``{engine}`` or ``{settings}`` where the engine belongs.

    Raises UsageError for a ``biopsy run`` without either: its settings would never change. Any other command may read
    them from its environment, which a warning says.
    """
    command = parse(check)
    template = CheckTemplate(command.words, spec, is_own_run=isinstance(command, OwnRun))
    if template.names_settings:
        return template
    if template.is_own_run:
        raise errors.UsageError(
            f"check={list(check)!r}: its engine would keep its settings, for nothing in it says where they belong",
            next_steps=["write {engine} in its place: ['biopsy', 'run', '{}', '--engine', '{engine}', ...]"],
        )
    told = "the check has no {engine} and no {settings}: it must read BIOPSY_ENGINE from its environment"
    warnings.warn(told, UserWarning, stacklevel=3)
    return template
