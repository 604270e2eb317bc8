"""What must hold before a reduction starts, and can be told from the command line alone."""

from __future__ import annotations

import argparse
from pathlib import Path

from biopsy import errors


def require_writable_candidate(path: Path) -> None:
    """Raise UsageError if candidates cannot be written."""
    from biopsy.filesystem.write import require_writable

    try:
        require_writable(path)
    except errors.UsageError as error:
        raise errors.UsageError(
            f"{error.message} (every candidate is written there)",
            next_steps=[*error.next_steps, "--iter-artifact FILE    for another place; write {} for it in the check"],
        ) from error


def require_inputs_of_golden_values(own_run: argparse.Namespace | None, *, keep_inputs: bool) -> None:
    """Raise UsageError if a check compares parts of the model with golden values that are of other inputs.

    ``own_run`` are the options of a check that is ``biopsy run``. If it makes up its inputs, a cut tensor gets random
    values, and everything computed from those differs from the golden values, right or wrong.
    """
    if own_run is None or keep_inputs or not own_run.load_outputs:
        return
    if not (own_run.load_inputs or own_run.data_loader_script):
        raise errors.UsageError(
            "the check compares with golden values (--load-outputs) but makes up its inputs: a part of the model would"
            " get random values in the middle and always fail",
            next_steps=[
                "save inputs and every tensor:  biopsy run MODEL --onnxrt --save-inputs inputs.json"
                " --onnx-outputs mark all --save-outputs golden.json",
                "biopsy data to-input inputs.json golden.json -o layerwise.json",
                "and check with  --load-inputs layerwise.json --load-outputs golden.json",
                "or reduce from the end only:  --no-reduce-inputs",
            ],
        )
