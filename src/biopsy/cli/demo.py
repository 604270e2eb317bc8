"""``biopsy demo``: finds a real bug, and shows the command lines to do the same with another model."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Collection, Sequence
from pathlib import Path

from biopsy import errors
from biopsy.checks.words import as_word
from biopsy.cli.app import main
from biopsy.cli.arguments import types
from biopsy.cli.console import Console
from biopsy.processes.writing import write_whole
from biopsy.text import line_of

TOLERANCES = ("--atol", "1e-3", "--rtol", "1e-3")
"""Above the rounding errors of hundreds of nodes, and a hundred times below the error of the bug."""

COMPARE = ("run", "model.onnx", "--engine", "onnxrt:optimization=none", "--onnxrt", *TOLERANCES)
GOLDEN = (
    "run", "model.onnx", "--engine", "onnxrt:optimization=none", "--save-inputs", "inputs.npz",
    "--onnx-outputs", "mark", "all", "--save-outputs", "layerwise_golden.npz",
)  # fmt: skip
MERGE = ("data", "to-input", "inputs.npz", "layerwise_golden.npz", "-o", "layerwise_inputs.npz")
REDUCE = (
    "debug", "reduce", "model.onnx", "-o", "reduced.onnx",
    "--check", "biopsy", "run", "polygraphy_debug.onnx", "--onnxrt",
    "--load-inputs", "layerwise_inputs.npz", "--load-outputs", "layerwise_golden.npz", *TOLERANCES,
)  # fmt: skip
SHOW = ("inspect", "model", "reduced.onnx", "--mode=basic")


_FOLDER = Path("biopsy-demo")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``demo``."""
    parser.description = (
        "Builds a transformer of some 450 nodes and finds the six of them that ONNX Runtime's optimizer silently\n"
        "computes wrongly. Everything is kept in a folder."
    )
    parser.add_argument(
        "-o",
        "--output",
        type=types.FOLDER_WRITTEN,
        default=_FOLDER,
        metavar="DIR",
        help="the folder (default: biopsy-demo)",
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="use the folder even if it exists, and replace its files of the same names",
    )


def execute(args: argparse.Namespace, console: Console) -> int:
    """Run the demonstration. Raises BiopsyError if a command of it does not end as expected."""
    folder: Path = args.output
    if folder.exists() and not args.force:
        raise errors.UsageError(
            f"{folder} exists already",
            next_steps=[_typed(("demo", "--force", "-o", as_word(folder))), "biopsy demo -o ANOTHER"],
        )
    if folder == _FOLDER and folder.is_symlink():
        raise errors.UsageError(
            f"the default folder {folder} is a symbolic link, which is not followed",
            next_steps=["biopsy demo -o ANOTHER"],
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise errors.UsageError(f"cannot make the folder {folder}: {error.strerror}") from error
    with contextlib.chdir(folder):
        from biopsy.model.demonstration import demonstration_model

        model = demonstration_model()
        write_whole(Path("model.onnx"), [model.SerializeToString(deterministic=True)])
        console.note(f"model.onnx: a transformer of {len(model.graph.node)} nodes with several branches", "")
        used = _demonstrated(console)
    console.note("", f"Everything is in {folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}")
    console.note("The command lines, to repeat them on your own model:", "")
    for words in used:
        console.say(f"  {_typed(words)}")
    return 0


def _demonstrated(console: Console) -> list[Sequence[str]]:
    """Find the bug of ONNX Runtime, or an operator if this release has no such bug; returns the commands used."""
    console.note("1. Does ONNX Runtime agree with itself, its optimizer off and on?")
    if _run(COMPARE, console, (0, 1)) == 1:
        console.note(
            "",
            "   It does not. 2. Golden values of every layer, and each layer's inputs, from the run that is right:",
        )
        _run(GOLDEN, console)
        _run(MERGE, console)
        console.note("", "3. The smallest part of the model that still fails:")
        _run(REDUCE, console)
        console.note("", "4. There it is:")
        _run(SHOW, console)
        return [COMPARE, GOLDEN, MERGE, REDUCE, SHOW]
    import onnxruntime

    from biopsy.model.demonstration import SEARCHED_FOR

    console.note(
        "",
        f"   It does: onnxruntime {onnxruntime.__version__} no longer has the bug that this demonstration is about.",
        f"   So here is another: the check fails if the model has the operator {SEARCHED_FOR}.",
        "",
    )
    search = (
        "debug", "reduce", "model.onnx", "-o", "reduced.onnx",
        "--fail-regex", f"Op: {SEARCHED_FOR}", "--hide-fail-output",
        "--check", "biopsy", "inspect", "model", "polygraphy_debug.onnx", "--mode=basic",
    )  # fmt: skip
    _run(search, console)
    _run(SHOW, console)
    return [search, SHOW]


def _run(words: Sequence[str], console: Console, expected: Collection[int] = (0,)) -> int:
    """Show and run a command; returns its exit status. Raises BiopsyError for a status that is not expected."""
    console.note(f"$ {_typed(words)}")
    verbosity = ["-q"] * -console.verbosity if console.verbosity < 0 else ["-v"] * console.verbosity
    status = main((*words[:2], *verbosity, *words[2:]))  # before --check, which takes the rest of the line
    if status not in expected:
        raise errors.BiopsyError(
            f"the demonstration did not go as planned: status {status} of",
            details=[f"  {_typed(words)}"],
            next_steps=["biopsy doctor"],
        )
    return status


def _typed(words: Sequence[str]) -> str:
    return line_of(("biopsy", *words))
