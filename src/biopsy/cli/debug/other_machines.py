"""``--on`` and its options: checks on the machines of a Ray cluster, and what Ray installs there first (the file of
``--runtime-env``).
"""

from __future__ import annotations

import argparse
import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from biopsy import errors
from biopsy.cli.arguments import types
from biopsy.cli.arguments.declared import Options, option, switch
from biopsy.cli.console import Console
from biopsy.text import printable

if TYPE_CHECKING:
    from biopsy.session.machines import OtherMachines
    from biopsy.session.ray_cluster import RayWorkers

_RESOURCE = re.compile(r"(?P<name>[A-Za-z_][\w.:-]{0,99})=(?P<number>\d{1,9}(?:\.\d{1,4})?)")
_ADDRESS = re.compile(r"(?:ray://)?[\w.\[\]:-]+:\d{1,5}", re.ASCII)

STAYS_THERE = "what a check leaves on other machines does not come back"
ASKS_HERE = "it asks its questions on this machine"
"""Reasons why options cannot be combined with ``--on``."""

_SENT = "the candidate, its weights, and the files that the check names"
MODEL_SENT = "the model, its weights, and the files that the check names"
"""What commands on one model send."""
_JOBS = "--jobs is then by default as many as it has room for. "


def cluster(text: str) -> str:
    """The type of ``--on``. Raises UsageError if the text names no cluster."""
    if text != "ray" and not _ADDRESS.fullmatch(text):
        raise errors.UsageError("must be ray, ray://HOST:PORT or HOST:PORT")
    return text


def resources(text: str) -> dict[str, float]:
    """The type of ``--resources``. Raises UsageError if the text has another form."""
    amounts: dict[str, float] = {}
    for part in text.split(","):
        match = _RESOURCE.fullmatch(part)
        if match is None or match["name"] in amounts:
            raise errors.UsageError("must be like GPU=1,CPU=4: names, each once, with a number each")
        amounts[match["name"]] = float(match["number"])
    return amounts


class MachineOptions(Options, title="other machines"):
    """The machines that run the checks, if not this one."""

    on: str | None = option("--on", type=cluster, metavar="ray|ray://HOST:PORT", meaning="{text}It needs biopsy[ray]")
    resources: Mapping[str, float] | None = option(
        "--resources",
        type=resources,
        metavar="NAME=N,...",
        meaning="with --on, what each check reserves of a machine, as Ray counts it: GPU=1,CPU=4 (default: CPU=1)",
    )
    runtime_env: Path | None = option(
        "--runtime-env",
        type=types.READ,
        meaning="with --on, have Ray install this on each machine first: requirements (.txt), or the fields pip, uv, "
        "conda, image_uri and env_vars of its runtime_env (.yaml, .json)",
    )
    require_uniform: bool = switch(
        "--require-uniform",
        meaning="with --on, end with status 4 if the machines differ in processor, GPU or versions of packages, which "
        "makes them different engines (default: say so)",
        decides="yes",
    )

    def workers(self, runtime_env: Mapping[str, Any] | None) -> RayWorkers:
        """Join the cluster, and have it install ``runtime_env``; returns its machines. Raises EngineMissing."""
        from biopsy.session.ray_cluster import RayWorkers, Resources

        return RayWorkers(
            None if self.on == "ray" else self.on,
            Resources.named(self.resources or {}),
            runtime_env=runtime_env,
            require_uniform=self.require_uniform,
        )


def meaning(*, runs: str = "the checks", sent: str = _SENT, has_jobs: bool = True) -> str:
    """The help of ``--on``: what ``runs`` there and is ``sent`` there. ``has_jobs``: the command has ``--jobs``."""
    return (
        f"run {runs} on a Ray cluster: the one that this machine is in, or a new one of this machine alone (ray), or "
        f"another; {sent} are sent there. {_JOBS if has_jobs else ''}"
    )


def add_refused(parser: argparse.ArgumentParser, why: str, instead: str) -> None:
    """Make a command refuse ``--on``, which its help does not show, with the reason and what to type instead."""

    class Refused(argparse.Action):
        def __call__(self, *_: object) -> None:
            raise errors.UsageError(f"--on is not available here: {why}", next_steps=[instead])

    parser.add_argument("--on", action=Refused, nargs="?", dest=argparse.SUPPRESS, help=argparse.SUPPRESS)


@contextlib.contextmanager
def machines_of(
    args: argparse.Namespace,
    console: Console,
    refused: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[OtherMachines | None]:
    """The machines that ``--on`` names, as long as the context lasts; None without ``--on``.

    ``refused`` are options of the command that cannot be combined with ``--on``, each with the reason. Before it joins
    the cluster, it raises UsageError if checks cannot run there or there is no model, EngineMissing without Ray.
    """
    from biopsy.model.load import require_file

    options = MachineOptions.of(args)
    if options.on is not None and not args.check:
        raise errors.UsageError(
            "--on needs a check: there is nobody to ask at the other machines", next_steps=["--check COMMAND ..."]
        )
    for spelling, reason in refused.items() if options.on is not None else ():
        if getattr(args, spelling.removeprefix("--").replace("-", "_")):
            raise errors.UsageError(
                f"{spelling} cannot be combined with --on: {reason}", next_steps=[f"leave {spelling} out, or --on"]
            )
    if options.on is not None and "model" in args:
        require_file(args.model)
    with joined(options, console) as machines:
        yield machines


@contextlib.contextmanager
def joined(options: MachineOptions, console: Console) -> Iterator[OtherMachines | None]:
    """The machines that ``--on`` names, as long as the context lasts; None without ``--on``.

    Raises UsageError for options that need ``--on``, or if no cluster answers, EngineMissing without Ray.
    """
    if options.on is None:
        for idle in options.given(MachineOptions.declared):
            raise errors.UsageError(f"{idle} is for the machines of --on", next_steps=["--on ray"])
        yield None
        return
    from biopsy.session.ray_cluster import require_ray

    runtime_env = None if options.runtime_env is None else runtime_environment(options.runtime_env)
    require_ray()
    where = "that this machine is in, or starting one" if options.on == "ray" else f"at {options.on}"
    console.note(f"machines   joining the Ray cluster {where}")
    if runtime_env is not None:
        console.note(f"machines   Ray installs what {options.runtime_env} names, on each: this may take minutes")
    with contextlib.closing(options.workers(runtime_env)) as workers:
        at_once = "1 check has room at a time" if workers.room == 1 else f"{workers.room} checks have room at once"
        console.note(f"machines   {at_once} on {workers.machines}")
        if workers.dashboard:
            console.note(f"dashboard  http://{workers.dashboard}")
        yield workers


_MOST_BYTES = 1 << 20
_FIELDS = ("pip", "uv", "conda", "image_uri", "env_vars")
_SENT_UNASKED = frozenset({"working_dir", "py_modules", "excludes", "java_jars"})
_FORMS = "name a file of requirements (.txt), or of the fields of Ray's runtime_env (.yaml, .json)"


def runtime_environment(path: Path) -> dict[str, Any]:
    """The fields of Ray's ``runtime_env`` that a file holds; a file of requirements is its field ``pip``.

    Every plain value is a text. Raises UsageError for other fields: some would send whole folders that no check names,
    the others install nothing.
    """
    if path.suffix == ".txt":
        return {
            "pip": [
                line
                for line in map(str.strip, types.text_in(path, _MOST_BYTES).splitlines())
                if line and line[0] != "#"
            ]
        }
    if path.suffix not in (".yaml", ".yml", ".json"):
        raise errors.UsageError(f"{path}: its name says no form", next_steps=[_FORMS])
    from biopsy.questions.known_failures.catalogue import value_in

    try:
        fields = value_in(types.text_in(path, _MOST_BYTES))
    except ValueError as error:
        raise errors.UsageError(f"{path}: {error}", next_steps=[_FORMS]) from error
    if not isinstance(fields, dict) or not fields:
        raise errors.UsageError(f"{path}: it holds no fields", next_steps=["pip: [onnxruntime==1.20.1]"])
    for name in fields:
        if name in _SENT_UNASKED:
            raise errors.UsageError(
                f"{path}: {name} would send files that no check names",
                next_steps=["name each file that the check reads as a word of its own: they are sent by themselves"],
            )
        if name not in _FIELDS:
            raise errors.UsageError(
                f"{path}: there is no field {printable(str(name))!r:.80}",
                next_steps=[f"the fields are {', '.join(_FIELDS)}"],
            )
    return fields
