"""A check whose engine varies: where the words of a ``biopsy run`` name it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.cli.arguments import engine_options

if TYPE_CHECKING:
    from biopsy.checks.command_line import OwnRun
    from biopsy.engines.registry import EngineSpec
    from biopsy.tactics.setting_changes import CheckTemplate


def own_template(command: OwnRun, wanted: str | None) -> CheckTemplate:
    """The words of a ``biopsy run`` with ``{engine}`` in the place of the engine ``wanted``. Raises UsageError."""
    from biopsy.tactics.setting_changes import ENGINE_PLACE, CheckTemplate

    specs = engines_of_run(command)
    chosen = _chosen(specs, wanted)
    if chosen is None or len(command.engine_places) != len(specs):
        named = ", ".join(spec.text for spec in specs) or "none"
        raise errors.UsageError(
            f"the check runs no engine {wanted!r}, so its settings cannot be varied; it runs {named}",
            next_steps=["--engine NAME    of one of these"],
        )
    return CheckTemplate(command.with_engine(chosen, ENGINE_PLACE), specs[chosen], is_own_run=True)


def engines_of_run(command: OwnRun) -> list[EngineSpec]:
    """The engines that a ``biopsy run`` runs, in order. Raises UsageError for one that is none."""
    from biopsy.cli.parser import Parser
    from biopsy.cli.run import command as run

    parser = Parser(prog="biopsy run", allow_abbrev=False)
    run.configure(parser)
    own, _ = parser.parse_known_args(list(command.options))
    return engine_options.specs_to_run(own)


def _chosen(specs: list[EngineSpec], wanted: str | None) -> int | None:
    """Which of the engines is varied: the last that is written as wanted, else the last of that name."""
    from biopsy.engines.registry import parse_spec

    if wanted is None:
        return len(specs) - 1 if specs else None
    asked = parse_spec(wanted)
    matching = [number for number, spec in enumerate(specs) if spec == asked]
    matching = matching or [number for number, spec in enumerate(specs) if spec.name == asked.name]
    return matching[-1] if matching else None
