"""Failures without rhyme or reason, as functions that can be sent to another process."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

_NODE = re.compile(rb"\x1a[\x02-\x06](n\d+)\x22")


def kept(candidate: Path) -> tuple[str, ...]:
    """The names of a candidate's nodes, as n<number>, from its bytes alone."""
    return tuple(name.decode() for name in _NODE.findall(candidate.read_bytes()))


@dataclass(frozen=True)
class Scattered:
    """Whether the nodes there are fail is drawn by lot, with this chance, but stays the same; ``whole`` of them do.

    Nothing follows for a larger or a smaller set of nodes.
    """

    whole: int
    seed: int
    chance: float

    def __call__(self, candidate: Path) -> bool:
        nodes = kept(candidate)
        if len(nodes) == self.whole:
            return True
        lot = hashlib.blake2b(repr((self.seed, sorted(nodes))).encode(), digest_size=4).digest()
        return bool(nodes) and int.from_bytes(lot, "big") < self.chance * 2**32
