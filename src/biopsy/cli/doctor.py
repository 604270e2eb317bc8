"""``biopsy doctor``: which engines work here, and how to get the others."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from biopsy import errors

if TYPE_CHECKING:
    from biopsy.cli.console import Console
    from biopsy.engines.base import Option
    from biopsy.engines.registry import Installed

NEEDED = "onnxrt"
"""The engine without which biopsy itself does not work: it records values."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``doctor``."""
    parser.epilog = "exit status: 0 if the engine onnxrt, or the one named, works here; else 4"
    parser.add_argument("engine", nargs="?", metavar="ENGINE", help="show this engine and its options only")


def execute(args: argparse.Namespace, console: Console) -> int:
    """Show one engine or all."""
    from biopsy.engines import registry

    found = registry.installed()
    wanted = args.engine or NEEDED
    shown = [engine for engine in found if args.engine in (None, engine.name)]
    if not shown:
        raise errors.EngineMissing(
            f"there is no engine {args.engine!r}; known here: {', '.join(engine.name for engine in found)}"
        )
    if args.engine is None:
        _say_where(console)
    width = max(len(engine.name) for engine in shown)
    for engine in shown:
        _say_engine(console, engine, width)
    if args.engine is not None:
        _say_options(console, args.engine)
    works = any(engine.name == wanted and engine.version is not None for engine in found)
    return 0 if works else errors.EngineMissing.status


def _say_where(console: Console) -> None:
    import platform
    from importlib.metadata import version

    console.say(f"biopsy {version('biopsy')} · Python {platform.python_version()} · {platform.platform(terse=True)}")


def _say_engine(console: Console, engine: Installed, width: int) -> None:
    name = f"{engine.name:<{width}}"
    if engine.version is None:
        console.say(f"{name}  does not work here: {engine.problem}")
        if engine.package:
            console.say(f'{"":<{width}}  get it with  pip install "{engine.package}"')
        return
    on = f" · {', '.join(engine.devices)}" if engine.devices else ""
    console.say(f"{name}  {engine.version} · {engine.summary}{on}")


def _say_options(console: Console, name: str) -> None:
    from biopsy.engines.registry import find_class

    try:
        declared = find_class(name).options_declared
    except errors.EngineMissing:
        return
    if not declared:
        console.say("it has no options")
        return
    width = max(len(option.name) for option in declared)
    console.say(f"options, as in --engine {name}:{declared[0].name}=VALUE,...")
    for option in declared:
        console.say(f"  {option.name:<{width}}  {option.help}{_choices(option)}")


def _choices(option: Option) -> str:
    default = "+".join(option.default) if isinstance(option.default, tuple) else option.default
    shown = f" (default: {default})" if default not in (None, "") else ""
    return f": {', '.join(option.choices)}{shown}" if option.choices else shown
