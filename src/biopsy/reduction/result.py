"""What a reduction leaves: the model it found, self-contained, the facts about it, and the values that it is fed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from biopsy.checks.judge import Signature
from biopsy.checks.outcome import Judged
from biopsy.comparison.mismatch import ErrorSize
from biopsy.model.index import ModelIndex
from biopsy.model.sources import NodeSource
from biopsy.session.files import files_of
from biopsy.text import count, html_table, printable, some_of


@dataclass(frozen=True)
class Target:
    """Where a reduction leaves its results. ``external``: a file beside ``output`` for its weights."""

    output: Path
    min_good: Path | None = None
    external: str | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        """All files that may be written; the weights of a large result have a name of their own if none is given."""
        return (*files_of(self.output, self.external), *([] if self.min_good is None else [self.min_good]))

    @cached_property
    def streams(self) -> frozenset[Path]:
        """Those that are no files, such as pipes and /dev/null, when this is first asked: a person wants them so."""
        return frozenset(path for path in self.files if path.exists() and not path.is_file())


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """What a reduction found.

    ``nodes`` are the nodes of the result in order, by operator and name; ``kept`` the numbers of those nodes of the
    original that the search kept. ``outcomes`` counts checks by what they said; ``other_failures`` the other failures
    met, by how they look. ``min_good`` is the file of the passing model closest in size, None if none was asked for or
    none was met. ``seconds`` is wall time of the whole. ``other_models`` are files that show one of the other failures
    each. ``remembered`` counts runs of the check that an interrupted reduction had done. ``stopped`` names the limit
    that ended the search before its end, so that smaller results may exist; None if none did. ``error_before`` is the
    error of the original, ``error_after`` that of the result, where the check tells sizes. ``last_words`` are what
    the original and the result say at their end where these tell of different failures that ``--match`` did not tell
    apart; None where they are alike. ``reads`` are, for each of ``nodes``, the places of those that it reads from.
    ``inputs`` is a file of recorded values that the result was fed in checks that load inputs; None if it needs none
    but those of the original. ``cannot_say`` counts the models of which the check could not say anything, by the
    reason. ``sources`` are, for each of ``nodes``, where an exporter says that it comes from, also where only the
    original has it noted; None where none does, and of all that a result is to hide.
    ``judged_before`` is how the original fails, ``judged_after`` how the result does, if it was checked again.
    ``failure`` is what counted as the same failure, ``values_free`` whether candidates could compute other values than
    the original, None where no pass wanted to know.
    """

    output: Path
    nodes_before: int
    nodes: tuple[str, ...]
    kept: tuple[int, ...]
    signature: str
    outcomes: Mapping[str, int]
    other_failures: Mapping[str, int]
    seconds: float
    min_good: Path | None = None
    other_models: Mapping[str, Path] = field(default_factory=dict)
    remembered: int = 0
    stopped: str | None = None
    last_words: tuple[str, str] | None = None
    reads: tuple[tuple[int, ...], ...] = ()
    error_before: ErrorSize | None = None
    error_after: ErrorSize | None = None
    inputs: Path | None = None
    failure: Signature | None = None
    values_free: bool | None = None
    cannot_say: Mapping[str, int] = field(default_factory=dict)
    sources: tuple[NodeSource | None, ...] = ()
    judged_before: Judged | None = None
    judged_after: Judged | None = None

    @property
    def checks(self) -> int:
        """Checks that were run, the first and the last included."""
        return sum(self.outcomes.values())

    def __repr__(self) -> str:
        nodes = some_of(self.nodes, 6)
        return f"<Reduction: {self._summary}: {nodes}>"

    def _repr_html_(self) -> str:
        reads = self.reads or ((),) * len(self.nodes)
        rows = [
            (place, node, ", ".join(map(str, read)))
            for place, (node, read) in enumerate(zip(self.nodes, reads, strict=True))
        ]
        return html_table(self._summary, ["", "node", "reads from"], rows)

    @property
    def _summary(self) -> str:
        """In one line."""
        ended = f", ended by {self.stopped}" if self.stopped else ""
        left = f"{len(self.nodes)} of {count(self.nodes_before, 'node')}"
        return f"{left} in {printable(str(self.output))}, {count(self.checks, 'check')}, {self.seconds:.1f} s{ended}"


def reads_of(index: ModelIndex) -> tuple[tuple[int, ...], ...]:
    """For each node of a model, the places of the nodes whose outputs it reads; bodies count."""
    return tuple(
        tuple(sorted({index.producer[tensor] for tensor in node.reads if tensor in index.producer}))
        for node in index.nodes
    )


def inputs_file(output: Path) -> Path:
    """The file beside a result with the recorded values that it is fed."""
    return output.with_name(f"{output.name}.inputs.safetensors")
