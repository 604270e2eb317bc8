"""``--on``, ``--resources`` and ``--require-uniform``: checks on the machines of a Ray cluster."""

from __future__ import annotations

import argparse
import contextlib
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from biopsy import errors

if TYPE_CHECKING:
    from biopsy.cli.console import Console
    from biopsy.session.machines import OtherMachines

_RESOURCE = re.compile(r"(?P<name>[A-Za-z_][\w.:-]{0,99})=(?P<number>\d{1,9}(?:\.\d{1,4})?)")
_ADDRESS = re.compile(r"(?:ray://)?[\w.\[\]:-]+:\d{1,5}", re.ASCII)


STAYS_THERE = "what a check leaves on other machines does not come back"
ASKS_HERE = "it asks its questions on this machine"
"""Why options cannot be combined with ``--on``."""

_SENT = "the candidate, its weights, and the files that the check names"


def add(parser: argparse.ArgumentParser, *, runs: str = "the checks", sent: str = _SENT) -> argparse._ArgumentGroup:
    """Add the options, in a group of their own. The help says what ``runs`` there, and what is ``sent`` there."""
    group = parser.add_argument_group("other machines")
    group.add_argument(
        "--on",
        type=cluster,
        metavar="ray|ray://HOST:PORT",
        help=f"run {runs} on a Ray cluster: the one that this machine is in, or a new one of this machine alone (ray), "
        f"or another; {sent} are sent there. --jobs is then by default as many as it has room for. It needs "
        'pip install "biopsy[ray]"',
    )
    group.add_argument(
        "--resources",
        type=resources,
        metavar="NAME=N,...",
        help="with --on, what each check has for itself of a machine, as Ray counts it: GPU=1,CPU=4 (default: CPU=1)",
    )
    group.add_argument(
        "--require-uniform",
        action="store_true",
        help="with --on, end with status 4 if the machines differ in processor, GPU or versions of packages, which "
        "makes them different engines (default: say so)",
    )
    return group


def cluster(text: str) -> str:
    """The type of ``--on``. Raises UsageError for what names no cluster."""
    if text != "ray" and not _ADDRESS.fullmatch(text):
        raise errors.UsageError("must be ray, ray://HOST:PORT or HOST:PORT")
    return text


def resources(text: str) -> dict[str, float]:
    """The type of ``--resources``. Raises UsageError for another form."""
    found = {}
    for part in text.split(","):
        match = _RESOURCE.fullmatch(part)
        if match is None or match["name"] in found:
            raise errors.UsageError("must be like GPU=1,CPU=4: names, each once, with a number each")
        found[match["name"]] = float(match["number"])
    return found


@contextlib.contextmanager
def machines_of(
    args: argparse.Namespace,
    console: Console,
    refused: Mapping[str, str] = MappingProxyType({}),
    *,
    needs_check: bool = True,
) -> Iterator[OtherMachines | None]:
    """The machines that ``--on`` names, until the end; None without it.

    ``refused`` are options of the command that cannot be combined with ``--on``, each with the reason;
    ``needs_check``: neither can a command without ``--check``. Raises UsageError where checks cannot run there,
    EngineMissing without Ray.
    """
    if args.on is None:
        for option, given in (("--resources", args.resources), ("--require-uniform", args.require_uniform)):
            if given:
                raise errors.UsageError(f"{option} speaks of the machines of --on", next_steps=["--on ray"])
        yield None
        return
    if needs_check and not args.check:
        raise errors.UsageError(
            "--on needs a check: nobody sits at the other machines to be asked", next_steps=["--check COMMAND ..."]
        )
    _require_none(args, refused)
    from biopsy.session.ray_cluster import RayWorkers, Resources

    wanted = dict(args.resources or {})
    asked = Resources(cpus=wanted.pop("CPU", 1.0), gpus=wanted.pop("GPU", 0.0), others=wanted)
    workers = RayWorkers(None if args.on == "ray" else args.on, asked, require_uniform=args.require_uniform)
    try:
        console.note(f"machines   {workers.room} checks have room at once on {workers.machines}")
        if workers.dashboard:
            console.note(f"dashboard  http://{workers.dashboard}")
        yield workers
    finally:
        workers.close()


def _require_none(args: argparse.Namespace, refused: Mapping[str, str]) -> None:
    """Raise UsageError for the first of these options that was given."""
    for option, reason in refused.items():
        if getattr(args, option.removeprefix("--").replace("-", "_")):
            raise errors.UsageError(
                f"{option} cannot be combined with --on: {reason}", next_steps=[f"leave {option} out, or --on"]
            )
