"""The result of a reduction: the files that it writes, and the facts about them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from biopsy.checks.judge import Signature
from biopsy.checks.outcome import Judged
from biopsy.comparison.mismatch import ErrorSize
from biopsy.model.index import Node
from biopsy.model.sources import NodeSource
from biopsy.session.files import files_of
from biopsy.text import count, html_table, printable, some_of


@dataclass(frozen=True)
class Target:
    """Where a reduction writes its results. ``external`` is a file beside ``output`` for its weights.

    With ``shares_weights``, an ``output`` in the folder of the original's weights names these, and copies none.
    """

    output: Path
    min_good: Path | None = None
    external: str | None = None
    shares_weights: bool = False

    @property
    def files(self) -> tuple[Path, ...]:
        """All files that may be written, also that for the weights of a large result."""
        return (*files_of(self.output, self.external), *([] if self.min_good is None else [self.min_good]))

    @cached_property
    def streams(self) -> frozenset[Path]:
        """Those of ``files`` that exist but are not plain files, such as pipes and /dev/null; found out once."""
        return frozenset(path for path in self.files if path.exists() and not path.is_file())


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """The result of a reduction.

    - ``nodes`` are the nodes of the result in order, by operator and name; ``reads`` has, for each of them, the places
      of the nodes whose outputs it reads, also in bodies; ``sources`` has where an exporter says that it comes from,
      maybe in the original (None if nothing is noted or the result must hide it). ``kept`` are the numbers of the
      original's nodes that the search kept.
    - ``outcomes`` counts checks by outcome, ``other_failures`` counts the other failures by their appearance, and
      ``other_models`` has a file that shows each. ``cannot_say`` counts the models about which the check could say
      nothing, by the reason. ``remembered`` counts runs of the check before an interruption.
    - ``seconds`` is the total wall time. ``stopped`` names the limit that ended the search early, so that smaller
      results may exist; None if it was completed.
    - ``min_good`` is the file of the passing model closest in size; None if it was not requested or no model passed.
      ``inputs`` is the file of recorded values with which the result was fed; None if it needs only the original's.
    - ``failure`` is what counted as the same failure. ``judged_before`` is how the original failed, ``judged_after``
      how the result did, if it was checked again. ``error_before`` and ``error_after`` are the sizes of their errors,
      if the check reports them. ``last_words`` are the last lines of both if they show different failures that
      ``--match`` did not distinguish, else None.
    - ``values_free``: whether candidates could compute other values than the original; None if no pass had to know.
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
        """The number of checks, including the first and the last."""
        return sum(self.outcomes.values())

    def __repr__(self) -> str:
        nodes = some_of(self.nodes, 6)
        return f"<{type(self).__name__}: {self._summary}: {nodes}>"

    def _repr_html_(self) -> str:
        reads = self.reads or ((),) * len(self.nodes)
        rows = [
            (place, node, ", ".join(map(str, read)))
            for place, (node, read) in enumerate(zip(self.nodes, reads, strict=True))
        ]
        return html_table(self._summary, ["", "node", "reads from"], rows)

    @property
    def _summary(self) -> str:
        ended = f", ended by {self.stopped}" if self.stopped else ""
        nodes = f"{len(self.nodes)} of {count(self.nodes_before, 'node')}"
        return f"{nodes} in {printable(str(self.output))}, {count(self.checks, 'check')}, {self.seconds:.1f} s{ended}"


def inputs_file(output: Path) -> Path:
    """The file beside a result with the recorded values that it is fed with."""
    return output.with_name(f"{output.name}.inputs.safetensors")


def labels_of(nodes: Sequence[Node], kept: Sequence[Node]) -> Iterator[str]:
    """Labels of the nodes of a result: the number of one without a name is that in the original, if it is known which
    of the nodes ``kept`` of the original it was.
    """
    for node in nodes:
        alike = [old for old in kept if old.op_type == node.op_type]
        same = [each for each in nodes if each.op_type == node.op_type]
        old = alike[same.index(node)] if len(alike) == len(same) else None
        yield node.label if node.name else node.op_type if old is None else old.label
