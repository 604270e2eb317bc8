"""The model that a surgeon command reads and the one that it writes: their options, opening and saving them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.cli import validity
from biopsy.cli.arguments import absent_options, file_kinds, groups

if TYPE_CHECKING:
    import onnx

    from biopsy.cli.console import Console
    from biopsy.model.weights_file import Anew


def add(parser: argparse.ArgumentParser, command: str) -> None:
    """The model, the file to write, where weights stand and go, and what Polygraphy's ``command`` has besides."""
    parser.add_argument("model", type=file_kinds.READ, metavar="MODEL", help="the ONNX model")
    parser.add_argument(
        "-o",
        "--output",
        type=file_kinds.written_over("model"),
        required=True,
        metavar="FILE",
        help="write the result to this file, which may be the model itself",
    )
    group = parser.add_argument_group("weights in files of their own")
    groups.add_weights_folder(group)
    group.add_argument(
        "--ignore-external-data",
        action="store_true",
        help="do not look for external weights, which may be missing: what is written refers to them as the model does",
    )
    groups.add_weights_file(group)
    groups.add_weights_threshold(group)
    validity.add_allow_invalid(parser)
    absent_options.add(parser, command)


def derived(args: argparse.Namespace) -> file_kinds.Derived:
    """The file for weights beside the output."""
    return groups.derived_weights(args)


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A model that was read: as bytes, without its external weights; these stand in ``folder``, if it needs them."""

    data: bytes
    path: Path
    folder: Path
    ignores_weights: bool

    def parsed(self) -> onnx.ModelProto:
        """The model as an object. Raises ModelError if it is damaged."""
        from biopsy.model import load

        return load.parse(self.data, self.path)


def opened(args: argparse.Namespace) -> Opened:
    """Read and check the model, and make sure that the output can be written.

    Raises UsageError or ModelError that name the file.
    """
    import onnx  # noqa: F401 -- loaded before the model is looked at

    from biopsy.checks import verdict
    from biopsy.filesystem import write
    from biopsy.model import external, index, load

    verdict.report_looking()
    if args.ignore_external_data and args.save_external_data is not None:
        raise errors.UsageError(
            "--save-external-data moves weights, and --ignore-external-data leaves them where they are",
            next_steps=["leave out one of them"],
        )
    data = load.read_bytes(args.model)
    folder = args.external_data_dir or args.model.parent
    external.require_safe_locations(data, folder, args.model)
    index.require_sound(data, args.model)
    write.require_writable(args.output)
    return Opened(data=data, path=args.model, folder=folder, ignores_weights=args.ignore_external_data)


def save(
    args: argparse.Namespace,
    model: onnx.ModelProto,
    opened: Opened,
    console: Console,
    anew: Sequence[Anew] = (),
    *,
    at_fault: Sequence[str] = (),
    loads: bool = True,
) -> None:
    """Write ``model`` as the options say; ``anew`` are initializers with other values.

    It is not written if it is less valid than what was opened: ``at_fault`` are lines on the options that may have made
    it so, ``loads`` says whether an engine can be asked. Raises InvalidResult then, and as ``weights_file`` does.
    """
    from biopsy.filesystem.write import write_whole
    from biopsy.model import weights_file

    filled = [weight.name for weight, _ in anew]
    validity.require_as_valid(
        args, model, opened.data, opened.folder, console, filled=filled, at_fault=at_fault, loads=loads
    )
    if args.ignore_external_data:
        weights_file.put_inside(model, args.output, anew)
        write_whole(args.output, [weights_file.serialized(model, args.output)])
        return
    name = groups.weights_file(args, args.output)
    threshold = args.external_data_size_threshold
    weights_file.save_with_weights(model, args.output, opened.folder, name, threshold, anew=anew)
