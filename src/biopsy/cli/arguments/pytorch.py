"""A PyTorch module on a command line: the function of the user's that makes it, and what it is called with."""

from __future__ import annotations

import argparse

from biopsy.cli.arguments import file_kinds

FACTORY = """\
FACTORY is a function without parameters in a module of yours, imported from the current folder. It returns a
torch.nn.Module in evaluation mode, or that and a tuple of arguments to call it with, or also a dictionary of keyword
arguments."""
"""For the end of a help text."""


def add_module(parser: argparse.ArgumentParser) -> None:
    """``PKG.MOD:FACTORY``, ``--args`` and ``--dynamic-shapes``, as ``factory``, ``arguments``, ``dynamic_shapes``."""
    parser.add_argument("factory", metavar="PKG.MOD:FACTORY", help="a function of yours that makes the module")
    parser.add_argument(
        "--args",
        dest="arguments",
        type=file_kinds.READ,
        metavar="FILE",
        help="what the module is called with: .pt (read with weights_only=True), .safetensors, .npz or .json; by "
        "default what FACTORY gives",
    )
    parser.add_argument(
        "--dynamic-shapes",
        nargs="+",
        metavar="NAME:[d0,d1,...]",
        help="which sizes of which arguments are exported as open ones: a name or -1 for each open one, and for others "
        "their number, as x:[batch,8]; NAME is a parameter of forward",
    )
