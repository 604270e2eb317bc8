"""Options of ``run`` and ``debug layers`` that a failure was seen with: lines to type next carry them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from biopsy.shell_words import ListOption

LIMITS = (
    "--atol", "--rtol", "--check-error-stat", "--error-quantile", "--cosine", "--psnr", "--snr", "--l2", "--ulp",
    "--top-k", "--index-tolerance", "--compare",
)  # fmt: skip
"""What is out of tolerance."""

MAKING = ("--data-loader-script", "--iterations", "--seed", "--val-range", "--input-shapes")
"""How inputs are made."""

_MADE_BY_DEFAULT = {"iterations": 1, "seed": 1}


def given(args: argparse.Namespace, options: Sequence[str]) -> Iterator[ListOption]:
    """Those of some options that were given, with their values."""
    for option in options:
        name = option[2:].replace("-", "_")
        value = getattr(args, name)
        if value is not None and value != _MADE_BY_DEFAULT.get(name):
            yield ListOption(option, [str(item) for item in (value if isinstance(value, list) else [value])])
