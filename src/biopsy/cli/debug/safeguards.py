"""What would ruin a reduction, or a file of the user, and can be told from the command line alone."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from biopsy import errors


def require_distinct_files(args: argparse.Namespace, output: Path) -> None:
    """Raise UsageError if one file has two tasks, of which one would overwrite, move or remove what the other needs."""
    written = list(_written(args, output))
    for place, (option, path) in enumerate(written):
        for other_option, other in (*_read(args, option), *written[:place]):
            if _same(path, other):
                raise errors.UsageError(f"{path} is given twice, for {other_option} and for {option}: it would be lost")
    for artifact in args.artifacts:
        for option, path in (*_read(args, "--artifacts"), *written):
            if option not in _SORTED and _same(artifact, path):
                raise errors.UsageError(f"{artifact} is given for {option} and as an artifact: it would be moved away")


_SORTED = frozenset({"--iter-artifact", "--iter-inputs", "--iter-info"})
"""These are made anew for each check: they are what artifacts are for."""


def require_writable_candidate(path: Path) -> None:
    """Raise UsageError if candidates cannot be written."""
    from biopsy.model.write import require_writable

    try:
        require_writable(path)
    except errors.UsageError as error:
        raise errors.UsageError(
            f"{error.message} (every candidate is written there)",
            next_steps=[*error.next_steps, "--iter-artifact FILE    for another place; write {} for it in the check"],
        ) from error


def _written(args: argparse.Namespace, output: Path) -> Iterator[tuple[str, Path]]:
    files = {
        "the result": output,
        "--min-good": args.min_good,
        "--iter-artifact": args.iter_artifact,
        "--iter-inputs": args.iter_inputs,
        "--iter-info": args.iter_info,
        "--events": args.events,
        "--save-debug-replay": args.save_debug_replay,
    }
    yield from ((option, path) for option, path in files.items() if path is not None)


def _read(args: argparse.Namespace, option: str) -> Iterator[tuple[str, Path]]:
    if option != "the result":  # a model may be replaced by what it is reduced to, if that is what is asked for
        yield "the model", args.model
    yield from (("--load-inputs", path) for path in args.load_inputs or ())
    if args.order_by is not None:
        yield "--order-by", args.order_by


def _same(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve()


def require_inputs_of_golden_values(own_run: argparse.Namespace | None, *, keep_inputs: bool) -> None:
    """Raise UsageError if a check compares parts of the model with golden values that are of other inputs.

    ``own_run`` are the options of a check that is ``biopsy run``. If it makes its inputs up, a cut tensor gets random
    values, and whatever is computed from those differs from the golden values, right or wrong.
    """
    if own_run is None or keep_inputs or not own_run.load_outputs:
        return
    if not (own_run.load_inputs or own_run.data_loader_script):
        raise errors.UsageError(
            "the check compares with golden values (--load-outputs), but makes its inputs up: a part of the model would"
            " be fed with random values in the middle and always fail",
            next_steps=[
                "save inputs and every tensor:  biopsy run MODEL --onnxrt --save-inputs inputs.json"
                " --onnx-outputs mark all --save-outputs golden.json",
                "biopsy data to-input inputs.json golden.json -o layerwise.json",
                "and check with  --load-inputs layerwise.json --load-outputs golden.json",
                "or reduce from the end only:  --no-reduce-inputs",
            ],
        )
