"""Installing the releases that engines are run from, before anything else is done, and shown while it lasts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from biopsy.cli.console import Console
    from biopsy.engines.base import Engine


def install(engines: Iterable[Engine | type[Engine]], console: Console) -> None:
    """Have the environments of all engines that are run from another release. Raises CannotInstall, UsageError."""
    elsewhere = [engine.imports for engine in engines if not engine.imports.is_here]
    if not elsewhere:
        return
    from biopsy.cli.progress import Progress

    with Progress(console, None) as progress:
        for imports in elsewhere:
            imports.install(progress)
