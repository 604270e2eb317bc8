"""How far two outputs may lie apart: tolerances and the statistic that is held against them, per output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

Stat: TypeAlias = Literal["elemwise", "max", "mean", "median", "quantile"]
"""What is compared with the tolerances.

``elemwise``: every element must satisfy |actual - expected| <= atol + rtol * |expected|, as in
numpy.testing.assert_allclose. The others: that statistic of the absolute errors must be <= atol, or that of the
relative errors <= rtol.
"""

STATS: tuple[Stat, ...] = get_args(Stat)

DEFAULT_TOLERANCE = 1e-5
DEFAULT_QUANTILE = 0.99


@dataclass(frozen=True)
class Tolerance:
    """The tolerances of one output: ``atol`` in the output's unit, ``rtol`` as a fraction of the expected value."""

    atol: float = DEFAULT_TOLERANCE
    rtol: float = DEFAULT_TOLERANCE


@dataclass(frozen=True)
class Tolerances:
    """Tolerances by output name; "" stands for every output that is not named, else the default is 1e-5."""

    atol: Mapping[str, float] = field(default_factory=dict)
    rtol: Mapping[str, float] = field(default_factory=dict)

    def for_output(self, name: str) -> Tolerance:
        """The tolerances of an output."""
        return Tolerance(
            self.atol.get(name, self.atol.get("", DEFAULT_TOLERANCE)),
            self.rtol.get(name, self.rtol.get("", DEFAULT_TOLERANCE)),
        )


@dataclass(frozen=True)
class Stats:
    """Which statistic decides, by output name, and which quantile where it is "quantile"; "" as in Tolerances."""

    stat: Mapping[str, Stat] = field(default_factory=dict)
    quantile: Mapping[str, float] = field(default_factory=dict)

    def for_output(self, name: str) -> tuple[Stat, float]:
        """The statistic and the quantile (0 to 1) of an output."""
        return (
            self.stat.get(name, self.stat.get("", "elemwise")),
            self.quantile.get(name, self.quantile.get("", DEFAULT_QUANTILE)),
        )
