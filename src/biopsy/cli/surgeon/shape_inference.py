"""How a surgeon command learns types and shapes: its options, and the inputs of a run that tells them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.cli.arguments import groups

if TYPE_CHECKING:
    from biopsy.cli.console import Console
    from biopsy.engines.feeding import Inputs
    from biopsy.model.tensor_type import TensorType, ValueType
    from biopsy.tensors.results import Feed


def add(group: argparse._ArgumentGroup, *, no_effect: str, without: str) -> argparse._MutuallyExclusiveGroup:
    """``--shape-inference``, of which ``no_effect`` says why it has none, and ``--no-shape-inference``.

    Returns the group of options that exclude each other.
    """
    ways = group.add_mutually_exclusive_group()
    ways.add_argument(
        "--shape-inference", "--do-shape-inference", action="store_true", help=f"has no effect: {no_effect}"
    )
    ways.add_argument("--no-shape-inference", action="store_true", help=without)
    return ways


def add_no_onnxruntime(group: argparse._ArgumentGroup) -> None:
    """The option of Polygraphy that names the only way there is here."""
    group.add_argument(
        "--no-onnxruntime-shape-inference",
        action="store_true",
        help="has no effect: shapes are inferred by onnx alone, in any case",
    )


def warn_of_idle_options(args: argparse.Namespace, console: Console, *, runs: bool) -> None:
    """Say which options on inputs mean nothing: all of them if there is no run, and some in any case."""
    sources = {"--load-inputs": args.load_inputs, "--data-loader-script": args.data_loader_script}
    given = {**{name: value for name, value in sources.items() if value}, **groups.draws_given(args)}
    more = args.iterations > 1
    if not more:
        del given["--iterations"]
    if given and not runs:
        console.warn(f"{', '.join(given)} has no effect without --force-fallback-shape-inference")
    elif more:
        console.warn("--iterations has no effect: types and shapes are taken from one run")


class FallbackRun:
    """Tells types and shapes by running a model, with the inputs that the options of ``add_fallback_inputs`` say.

    ``folder`` is where external weights stand. ``shapes``, of random inputs whose dimensions the model leaves open, are
    those of the option ``--model-input-shapes``; others are 1.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        folder: Path,
        console: Console,
        shapes: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        self._args = args
        self._folder = folder
        self._console = console
        self._shapes = shapes or {}
        self._told = False

    @cached_property
    def _inputs(self) -> Inputs:
        from biopsy.cli.arguments.named_values import parse_ranges
        from biopsy.cli.run.settings import given_feeds
        from biopsy.engines.feeding import Inputs

        given = given_feeds(self._args)
        return Inputs(
            given=None if given is None else given[:1],
            seed=1 if self._args.seed is None else self._args.seed,
            val_range=parse_ranges(self._args.val_range),
            shapes=self._shapes,
        )

    def types(self, data: bytes) -> dict[str, TensorType]:
        """Types of the inputs and outputs of a model in that run.

        Raises BiopsyError if the run fails, DoesNotFit and CannotCompare if the inputs do not fit the model.
        """
        from biopsy.recording.types_by_running import types_by_running

        return types_by_running(data, self._folder, self._feed)

    def _feed(self, wanted: Mapping[str, ValueType | None]) -> Feed:
        from biopsy.engines.casting import casts, casts_told
        from biopsy.engines.feeding import feeds_for
        from biopsy.engines.runner import checked_feed
        from biopsy.model.known_names import require_known

        require_known("--model-input-shapes", "input", self._shapes, wanted)
        found = feeds_for(wanted, self._inputs).feeds
        if not found:
            raise errors.CannotCompare("no inputs were loaded: there is nothing to run the model with")
        feed = checked_feed(found[0], wanted, 0)
        changes = casts(found[:1], [feed]) if self._inputs.given is not None else ()
        if changes and not self._told:
            self._told = True
            self._console.warn(casts_told(changes))
        return feed
