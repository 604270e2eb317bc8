"""Open dimensions: a candidate gets the sizes that the check gives to those of the original."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from biopsy.cli.console import Console
    from biopsy.model.index import ModelIndex


def with_sizes_of_symbols(
    words: Sequence[str] | None,
    own_run: argparse.Namespace | None,
    index_of_model: Callable[[], ModelIndex],
    console: Console,
) -> Sequence[str] | None:
    """The words of the check; for ``biopsy run`` with the sizes that its --input-shapes give to open dimensions.

    Without them, a candidate that has lost the input of this shape would run with other sizes than the original.
    """
    if words is None or own_run is None or not own_run.input_shapes or own_run.input_symbols:
        return words
    from biopsy.cli.arguments import named_values
    from biopsy.tensors.generate import symbols_bound

    index = index_of_model()
    kinds = {index.names[tensor]: index.tensor_type(tensor) for tensor in index.fed_inputs()}
    shapes = named_values.parse_shapes(own_run.input_shapes)
    sizes = symbols_bound({name: kind for name, kind in kinds.items() if kind is not None}, shapes)
    if not sizes:
        return words
    bindings = ",".join(f"{name}={size}" for name, size in sizes.items())
    console.note(
        f"sizes      {bindings.replace(',', ' ')} in every candidate, by the check's --input-shapes (--input-symbols)"
    )
    program, command, *others = words
    return [program, command, f"--input-symbols={bindings}", *others]
