"""``biopsy doctor``: which engines work here, and how to get the others."""

from __future__ import annotations

import argparse
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from biopsy import errors
from biopsy.cli import settings
from biopsy.cli.console import Console
from biopsy.engines import registry
from biopsy.engines.base import Engine
from biopsy.engines.registry import Installed
from biopsy.processes.environments.cache import Cache
from biopsy.processes.environments.interpreter import uv_program
from biopsy.processes.own_process import install_line
from biopsy.text import count, size_text

NEEDED = "onnxrt"
"""The engine that biopsy itself cannot work without: it records values with it."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``doctor``."""
    parser.epilog = "exit status: 0 if the engine onnxrt, or the named one, works here; else 4"
    parser.add_argument("engine", nargs="?", metavar="ENGINE", help="show only this engine, with its options")


def execute(args: argparse.Namespace, console: Console) -> int:
    """Show one engine or all."""
    if args.engine is not None:
        (shown,) = registry.installed(args.engine)
        _say_engine(console, shown, len(shown.name))
        if shown.engine is not None:
            _say_details(console, shown.engine, args.engine)
        return 0 if shown.version is not None else errors.EngineMissing.status
    engines = registry.installed()
    console.say(f"biopsy {version('biopsy')} · Python {platform.python_version()} · {platform.platform(terse=True)}")
    width = max(len(engine.name) for engine in engines)
    for engine in engines:
        _say_engine(console, engine, width)
    try:
        packages = [f"{name} {version(name)}" for name in ("torch", "onnxscript")]  # to import them would take seconds
        console.say(f"PyTorch  {' · '.join(packages)} · biopsy torch, biopsy data from-torch")
    except PackageNotFoundError as error:
        console.say(f"PyTorch  {error.name} is not installed: {install_line('biopsy[torch]')}")
    _say_environments(console)
    _say_settings(console)
    works = any(engine.name == NEEDED and engine.version is not None for engine in engines)
    return 0 if works else errors.EngineMissing.status


def _say_environments(console: Console) -> None:
    """Show what installs other releases of packages, and the environments that hold them."""
    try:
        cache = Cache.of_user()
        environments = cache.entries()
    except errors.BiopsyError as error:
        console.say(f"other releases  cannot be kept: {error.summary}")
        return
    by = "uv" if uv_program() else "venv and pip; uv is faster: pip install uv"
    size = size_text(sum(environment.bytes for environment in environments))
    kept = f"{count(len(environments), 'environment')} in {cache.folder}, {size}" if environments else "none yet"
    console.say(f"other releases  installed by {by} · {kept}")


def _say_settings(console: Console) -> None:
    """Show the settings from files, and which of them are refused. Raises UsageError for an invalid file."""
    for whose, file in (("of this project", settings.of_project(Path.cwd())), ("of your own", settings.of_user())):
        if file is None:
            continue
        console.say("", f"settings {whose}, in {file.file}")
        for key, value in file.values.items():
            if file.is_users:
                note = "" if settings.is_known(key) else "is not followed: no command has such an option"
            else:
                why = settings.objection(key, value, file.file.parent)
                note = f"is refused: it {why}" if why else ""
            text = str(value).lower() if isinstance(value, bool) else ", ".join(value)
            console.say(f"  {key}  {text}{f'    {note}' if note else ''}")


def _say_engine(console: Console, engine: Installed, width: int) -> None:
    name = f"{engine.name:<{width}}"
    if engine.version is None:
        console.say(f"{name}  does not work here: {engine.problem}")
        if engine.package:
            console.say(f"{'':<{width}}  get it with  {install_line(engine.package)}")
        return
    on = f" · {', '.join(engine.devices)}" if engine.devices else ""
    console.say(f"{name}  {engine.version} · {engine.summary}{on}")


def _say_details(console: Console, engine: type[Engine], name: str) -> None:
    """Show what an engine can do, and its options."""
    capabilities = engine.capabilities
    abilities = {
        "return every tensor": capabilities.marks_any_tensor,
        "name its layers" + (" and time them" if capabilities.layer_times else ""): capabilities.layers,
        "report the precision that it really used": capabilities.precision_used,
        f"save what it has built ({', '.join(capabilities.saves)})": bool(capabilities.saves),
    }
    console.say(f"it can: {'; '.join(text for text, has in abilities.items() if has) or 'build and run models'}")
    declared = engine.options_declared
    if not declared:
        console.say("it has no options")
        return
    width = max(len(option.name) for option in declared)
    first = declared[0].name if declared[0].is_switch else f"{declared[0].name}=VALUE"
    console.say(f"options, as in --engine {name}:{first},...")
    for option in declared:
        values = ", ".join(option.choices) if option.choices else option.kind
        default = f" (default: {option.default_text})" if option.default_text else ""
        console.say(f"  {option.name:<{width}}  {option.help}", f"  {'':<{width}}    {values}{default}")
