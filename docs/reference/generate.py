"""Writes the generated parts of the reference, from the parsers and engines themselves.

python docs/reference/generate.py

What stands between ``<!-- generated: NAME -->`` and ``<!-- end -->`` on the pages beside this file is replaced; the
rest is written by hand. A test fails where a page is behind.
"""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Callable
from pathlib import Path

from biopsy.cli.commands import COMMANDS
from biopsy.cli.parser import Parser
from biopsy.engines import registry
from biopsy.reduction.passes.bypass import bypass
from biopsy.reduction.schedule import MODEL_PASSES, PASSES

HERE = Path(__file__).parent
_PART = re.compile(r"(<!-- generated: (.*?) -->\n).*?(<!-- end -->)", re.DOTALL)


def parser_of(words: str) -> argparse.ArgumentParser:
    """The parser of a command, such as ``debug reduce``, without what every command has."""
    module = next(command.module for command in COMMANDS if " ".join(command.words) == words)
    parser = Parser(prog=f"biopsy {words}", add_help=False, allow_abbrev=False)
    importlib.import_module(module).configure(parser)
    return parser


def options_of(words: str) -> str:
    """A table for each group of a command's options."""
    parts = []
    for group in parser_of(words)._action_groups:
        shown = [action for action in group._group_actions if action.help != argparse.SUPPRESS]
        rows = [f"| {_written(action)} | {_meaning(action)} |" for action in shown]
        if rows:
            title = {"positional arguments": "Arguments", "options": "Options"}.get(group.title or "", group.title)
            parts += [f"**{_sentence(title or '')}**", "", "| | |", "|---|---|", *rows, ""]
    return "\n".join(parts)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _written(action: argparse.Action) -> str:
    value = action.metavar if isinstance(action.metavar, str) else ""
    if action.choices and not value:
        value = "{" + ",".join(map(str, action.choices)) + "}"
    if action.nargs == "+":
        value += " ..."
    elif action.nargs in ("?", "*") and action.option_strings:
        value = f"[{value}{' ...' if action.nargs == '*' else ''}]"
    if not action.option_strings:
        return f"`{value}`"
    return "<br>".join(f"`{f'{option} {value}'.strip()}`" for option in action.option_strings).replace("|", "\\|")


def _meaning(action: argparse.Action) -> str:
    text = (action.help or "").replace("|", "\\|").replace("<", "&lt;")
    return re.sub(r"(?<![\w-])(--[a-z-]+)", r"`\1`", text)


def engines() -> str:
    """The engines that come with biopsy, and their options."""
    parts = []
    for name in registry.BUILT_IN:
        found = registry.find_class(name)
        parts += [f"## {name}", "", f'{_sentence(found.summary)}. `pip install "{found.package}"`', ""]
        if found.options_declared:
            parts += ["| option | means | default |", "|---|---|---|"]
        for option in found.options_declared:
            choices = f": {', '.join(f'`{choice}`' for choice in option.choices)}" if option.choices else ""
            default = "+".join(option.default) if isinstance(option.default, tuple) else option.default
            shown = f"`{default}`" if default not in (None, "") else ""
            parts.append(f"| `{option.name}` | {option.help}{choices} | {shown} |")
        parts += [""] if found.options_declared else []
    return "\n".join(parts)


def overview() -> str:
    """One line for each command."""
    rows = [f"| [`biopsy {' '.join(one.words)}`](#biopsy-{'-'.join(one.words)}) | {one.summary} |" for one in COMMANDS]
    return "\n".join(["| | |", "|---|---|", *rows, ""])


def passes() -> str:
    """Every pass of a reduction in its order: what it does, when it runs, what it may change."""
    rows = [
        f"| `{one.name}` | {_sentence(one.summary)} | nodes | {'no' if one.search is bypass else 'yes'} | |"
        for one in PASSES
    ]
    for named in MODEL_PASSES:
        when = " or ".join(f"`--{option}`" for option in named.only_with) or "the model"
        keeps = "yes" if named.keeps_values else "no"
        changed = {"inputs": named.changes_inputs, "outputs": named.changes_outputs}
        changes = ", ".join(border for border, is_changed in changed.items() if is_changed)
        rows.append(f"| `{named.name}` | {_sentence(named.summary)} | {when} | {keeps} | {changes} |")
    head = [
        "| pass | what it removes or replaces | works on, or needs | keeps values | may change |",
        "|---|---|---|---|---|",
    ]
    return "\n".join([*head, *rows, ""])


def renewed(text: str) -> str:
    """A page with its generated parts as they should be."""
    makers: dict[str, Callable[[], str]] = {"engines": engines, "overview": overview, "passes": passes}

    def renew(match: re.Match[str]) -> str:
        made = makers[match[2]]() if match[2] in makers else options_of(match[2])
        return f"{match[1]}\n{made}\n{match[3]}"

    return _PART.sub(renew, text)


def main() -> None:
    """Renew every page of the reference."""
    for page in HERE.glob("*.md"):
        page.write_text(renewed(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
