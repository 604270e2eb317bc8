"""What ``biopsy debug reduce --report`` tells, besides what every report begins with."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biopsy.cli.arguments import engine_options
from biopsy.cli.debug import checking
from biopsy.report.model_summary import model_tree
from biopsy.report.versions import versions_tree

if TYPE_CHECKING:
    from biopsy.cli.advice import Advice
    from biopsy.model.index import ModelIndex
    from biopsy.reduction.result import Reduction
    from biopsy.report.search_history import SearchHistory
    from biopsy.variation.result import Variation


class Sections:
    """Makes the sections of a reduction, also of one that has ended early.

    If they are ``wanted``, the model is described now: its file may be where the result goes.
    """

    def __init__(self, args: argparse.Namespace, index: ModelIndex, history: SearchHistory, *, wanted: bool) -> None:
        self._args = args
        self._index = index
        self._history = history
        self._model = model_tree(index, args.model) if wanted else {}

    def of_result(
        self, found: Reduction, variation: Variation | None, advice: Sequence[Advice], folder: Path
    ) -> Mapping[str, Any]:
        """What was found, and what to type next; paths as seen from a folder."""
        from biopsy.report.reduction import reduction_sections

        return {
            **self._always(),
            **reduction_sections(found, self._index, self._history, self._args.mode, folder),
            "variation": None if variation is None else variation.as_json(),
            "next": [vars(one) for one in advice],
        }

    def of_error(self) -> Mapping[str, Any]:
        """What is known where an error ended the search."""
        search = None if self._history.is_empty else {"mode": self._args.mode, **self._history.tree()}
        return {**self._always(), "search": search}

    def _always(self) -> Mapping[str, Any]:
        own = checking.own_run(self._args)
        engines = [] if own is None else [spec.text for spec in engine_options.specs_to_run(own)]
        return {"model": self._model, "versions": versions_tree(engines)}
