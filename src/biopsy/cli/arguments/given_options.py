"""Options that were given, as they are typed again: for a line to paste, or for a check that does the same."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from biopsy.shell_words import ListOption

LIMITS = (
    "--atol", "--rtol", "--check-error-stat", "--error-quantile", "--cosine", "--psnr", "--snr", "--l2", "--ulp",
    "--top-k", "--index-tolerance", "--compare",
)  # fmt: skip
"""Those that say what counts as equal."""

MAKING = ("--data-loader-script", "--iterations", "--seed", "--val-range", "--input-shapes")
"""Those that say how inputs are made."""

MADE_BY_DEFAULT: Mapping[str, object] = MappingProxyType({"iterations": 1, "seed": 1})
"""Of those, what need not be said, by ``dest``."""


def given(
    args: argparse.Namespace, options: Sequence[str], usual: Mapping[str, object] = MappingProxyType({})
) -> Iterator[ListOption]:
    """The options that were given, with their values, except for ``usual`` ones by their ``dest``."""
    for option in options:
        name = option[2:].replace("-", "_")
        value = getattr(args, name)
        if value is not None and value != usual.get(name):
            yield ListOption(option, [str(item) for item in (value if isinstance(value, list) else [value])])
