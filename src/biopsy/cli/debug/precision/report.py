"""What ``biopsy debug precision --report`` tells: all that is known when the search ends, also where it ends early."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from biopsy import errors
from biopsy.cli.arguments import engine_options
from biopsy.cli.debug import checking
from biopsy.mixed_precision.result import PrecisionResult, precision_tree
from biopsy.quantities import count
from biopsy.report.model_map import map_tree
from biopsy.report.model_summary import model_tree_of
from biopsy.report.tree import Tree
from biopsy.report.verdict import verdict_tree
from biopsy.report.versions import versions_tree

if TYPE_CHECKING:
    from biopsy.cli.report_file import ReportFile
    from biopsy.model.index import ModelIndex
    from biopsy.report.search_history import SearchHistory


class PrecisionSections:
    """Makes the sections of a search over precisions, and writes the report of a result."""

    def __init__(self, args: argparse.Namespace, index: ModelIndex, history: SearchHistory, report: ReportFile) -> None:
        self._args = args
        self._index = index
        self._history = history
        self._report = report
        self._known: PrecisionResult | None = None

    def write(self, result: PrecisionResult) -> None:
        """Write the report. Raises UsageError if it cannot be written."""
        self._known = result
        self._report.write(errors.Interrupted.status if result.stopped else 0, self.of_result)

    def of_result(self) -> Mapping[str, Any]:
        """What was found."""
        sections = self.of_error()
        return sections if self._known is None else {"verdict": _verdict(self._known), **sections}

    def of_error(self) -> Mapping[str, Any]:
        """What is known besides the error that ended the search."""
        own, known = checking.own_run(self._args), self._known
        engines = [] if own is None else [spec.text for spec in engine_options.specs_to_run(own)]
        high = () if known is None else sorted({layer.place for layer in known.high if not layer.where})
        return {
            "model": model_tree_of(self._args.model),
            "versions": versions_tree(engines),
            "whole": map_tree(self._index, high),
            "search": None if self._history.is_empty else {"mode": self._args.mode, **self._history.tree()},
            "precision": None if known is None else precision_tree(known),
        }


def _verdict(found: PrecisionResult) -> Tree:
    needed = f"{len(found.high)} of {count(found.layers, 'layer')} must be {found.precision}"
    ended = f" The search was stopped by {found.stopped}: fewer may be enough." if found.stopped else ""
    text = f"{needed}, the others may be {found.low}." if found.high else f"Every layer may be {found.low}."
    return verdict_tree("reduced" if found.high else "passes", text + ended)
