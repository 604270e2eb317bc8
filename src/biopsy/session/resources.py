"""What a check has of a machine for itself, as Ray counts it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What each check needs of a machine, as Ray counts it: processors, GPUs, and whatever a cluster calls its own."""

    cpus: float = 1.0
    gpus: float = 0.0
    others: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def named(cls, wanted: Mapping[str, float]) -> Resources:
        """Resources by the names that Ray has for them, such as ``{"GPU": 1, "CPU": 4}``; one CPU if none is said."""
        others = {name: number for name, number in wanted.items() if name not in ("CPU", "GPU")}
        return cls(cpus=wanted.get("CPU", 1.0), gpus=wanted.get("GPU", 0.0), others=others)

    def __str__(self) -> str:
        return _text(self._wanted)

    @property
    def _wanted(self) -> dict[str, float]:
        every = {"CPU": self.cpus, "GPU": self.gpus, **self.others}
        return {name: number for name, number in every.items() if number}

    def places(self, there: Mapping[str, float]) -> int:
        """How many checks have room at once on a machine with these resources."""
        needs = self._wanted.items()
        return min((math.floor(there.get(name, 0.0) / needed) for name, needed in needs), default=1)

    def most(self, machines: Collection[Mapping[str, float]]) -> str:
        """The most that any of these machines has of each of them."""
        return _text({name: max((has.get(name, 0.0) for has in machines), default=0.0) for name in self._wanted})


def _text(numbers: Mapping[str, float]) -> str:
    return ",".join(f"{name}={number:g}" for name, number in numbers.items())
