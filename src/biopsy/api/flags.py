"""Asking which settings of an engine switch a failure off.

found = biopsy.flags("model.onnx", "onnxrt", ["biopsy", "run", "{}", "--reference", "--engine", "{engine}"])
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from biopsy import errors, events
from biopsy.api.arguments import Folder, Model, model_file, require_check, require_seconds
from biopsy.api.engine_checks import template_of
from biopsy.api.searching import rules_of
from biopsy.checks.judge import Rules
from biopsy.engines.base import ModelInput
from biopsy.engines.registry import create, parse_spec
from biopsy.model.load import read_bytes
from biopsy.session.machines import OtherMachines
from biopsy.tactics.flags import Flags
from biopsy.tactics.setting_changes import varied_check
from biopsy.tactics.switch_search import find_switches


def flags(
    model: Model,
    engine: str,
    check: Sequence[str],
    *,
    rules: Rules | None = None,
    check_timeout: float | None = None,
    folder: Folder = None,
    executor: OtherMachines | None = None,
    listener: events.Listener = events.ignore,
) -> Flags:
    """Find the fewest settings of ``engine`` with which ``model`` passes ``check`` that fails as the engine is set.

    ``check`` is a command, a list of words, in which ``{}`` stands for the model's path and ``{engine}`` for the engine
    with its settings, or ``{settings}`` for the settings alone; other commands than ``biopsy run`` may read the
    environment variable ``BIOPSY_ENGINE`` instead. It is no function, since some settings take effect only in a fresh
    process. ``check_timeout`` is in seconds, by default 20 times as long as the first run, at least 60. ``folder`` is
    where external weights stand. ``executor`` are other machines, as of ``RayExecutor``, which run the check, with many
    settings at once; the result is the same. ``switches`` of it are the smallest changes, none if there are none.

    Raises OriginalPasses if the model passes, CheckError if the check cannot be run, UsageError for a check or an
    engine that cannot be used, EngineMissing and ModelError.
    """
    if callable(check):
        raise errors.UsageError(
            f"check={check!r}: it is a command as a list of words, for some settings need a fresh process",
            next_steps=["check=['python', 'check.py', '{}', '{engine}']"],
        )
    require_check(check)
    require_seconds(check_timeout=check_timeout)
    create(engine)
    template = template_of(check, parse_spec(engine))
    asked = rules_of(rules)
    with model_file(model, folder) as (path, weights):
        ModelInput(read_bytes(path), weights, path)  # checks what it names
        with closing(varied_check(template, str(path), check_timeout)) as varied:
            return find_switches(varied, path, asked, listener, weights, executor)
