"""The random inputs that a search records values with, as the options of ``groups.add_recorded_inputs`` say."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

from biopsy.cli.arguments import groups, named_values
from biopsy.model.known_names import require_known
from biopsy.recording.random_samples import Draws

if TYPE_CHECKING:
    from biopsy.cli.console import Console


def draws_of(args: argparse.Namespace) -> Draws:
    """How they are drawn. Raises UsageError for words that are no range."""
    usual = Draws()
    return Draws(
        seed=usual.seed if args.seed is None else args.seed,
        count=args.iterations or usual.count,
        val_range=named_values.parse_ranges(args.val_range),
    )


def require_draws(args: argparse.Namespace, inputs: Iterable[str], *, random: bool, console: Console) -> None:
    """Raise DoesNotFit for a range of an input that does not exist; warn of options on random inputs if none is."""
    require_known("--val-range", "input", draws_of(args).val_range, list(inputs))
    given = groups.draws_given(args)
    if given and not random:
        console.warn(f"{', '.join(given)} has no effect: values are recorded with inputs that are given")
