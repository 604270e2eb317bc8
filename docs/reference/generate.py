"""Writes the generated parts of the docs, from the parsers and engines themselves.

python docs/reference/generate.py

What stands between ``<!-- generated: NAME -->`` and ``<!-- end -->`` on the pages below this folder, and on the one of
Polygraphy, is replaced; the rest is written by hand. Each command has a page in ``commands/``; one that has none yet
gets it. A test fails where a page is behind.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from biopsy.cli.commands import COMMANDS, find, why_absent
from biopsy.cli.help_text import short_help_examples
from biopsy.cli.parser import Parser, absent_options
from biopsy.cli.parser import parser_of as whole_parser_of
from biopsy.engines import registry
from biopsy.questions.workarounds.spellings.table import BARRIERS, FAMILIES
from biopsy.reduction.passes.nodes import bypass
from biopsy.reduction.schedule import MODEL_PASSES, PASSES

HERE = Path(__file__).parent
POLYGRAPHY_PAGE = HERE.parent / "how-to" / "come-from-polygraphy.md"
POLYGRAPHY = HERE / "polygraphy-0.53.6.json"
"""Its commands and their options, by dump_polygraphy.py."""
DIFFERENCES = HERE / "polygraphy-differences.json"
"""What is said of its options that are here too, with another meaning, or with more or fewer values; by command."""
_PART = re.compile(r"(<!-- generated: (.*?) -->\n).*?(<!-- end -->)", re.DOTALL)


def parser_of(words: str) -> argparse.ArgumentParser:
    """The parser of a command, such as ``debug reduce``, without what every command has."""
    module = importlib.import_module(next(each.module for each in COMMANDS if " ".join(each.words) == words))
    parser = Parser(prog=f"biopsy {words}", add_help=False, allow_abbrev=False)
    parser.epilog = getattr(module, "EPILOG", None)
    module.configure(parser)
    return parser


def page_of(words: str) -> Path:
    """The page of a command."""
    return HERE / "commands" / f"{words.replace(' ', '-')}.md"


def pages() -> list[Path]:
    """Every page with generated parts."""
    return [*sorted(HERE.rglob("*.md")), POLYGRAPHY_PAGE]


def options_of(words: str) -> str:
    """A command's examples, and a table for each group of its options."""
    parser = parser_of(words)
    examples = textwrap.dedent("\n".join(short_help_examples(parser.epilog)))
    parts = ["```text", examples, "```", ""] if examples else []
    for group in parser._action_groups:
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
    return _prose(action.help or "")


def _prose(text: str) -> str:
    """Text with its options as code, for a cell of a table."""
    return re.sub(r"(?<![\w-])(--[a-z][a-z0-9-]*)", r"`\1`", text.replace("|", "\\|").replace("<", "&lt;"))


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
        harmless = ", ".join(f"`{option.name}`" for option in found.options_declared if option.harmless)
        parts += ["", f"A project's settings may give: {harmless or 'none of them'}.", ""]
    return "\n".join(parts)


def overview() -> str:
    """One line for each command."""
    rows = [f"| {_linked(' '.join(one.words), HERE)} | {_sentence(one.summary)} |" for one in COMMANDS]
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


def spellings() -> str:
    """A table for each family of equivalent spellings."""
    parts = []
    for title, family in FAMILIES.items():
        parts += [f"### {title}", "", "| name | found | written | from opset | equal for | costs |"]
        parts += ["|---|---|---|---|---|---|"]
        for one in family:
            equal = "; ".join(filter(None, ["every bit" if one.exact else "", one.holds]))
            cells = (_prose(text) for text in (one.matches, one.writes, str(one.least_opset), equal, one.cost))
            parts.append(f"| `{one.name}` | {' | '.join(cells)} |")
        parts.append("")
    return "\n".join(parts)


def barriers() -> str:
    """A table of the nodes that optimizers do not see through."""
    rows = [f"| `{one.name}` | {_prose(one.writes)} | {one.least_opset} | {_prose(one.cost)} |" for one in BARRIERS]
    return "\n".join(["| name | after a node stands | from opset | costs |", "|---|---|---|---|", *rows, ""])


def polygraphy() -> str:
    """What becomes here of each command and option of Polygraphy. Raises LookupError for one that nobody speaks of."""
    theirs: dict[str, list[list[str]]] = json.loads(POLYGRAPHY.read_text(encoding="utf-8"))
    everywhere = [option for option in theirs["run"] if all(option in options for options in theirs.values())]
    parts = ["### Every command", "", f"The same: {_spelled(everywhere)}.", ""]
    absent: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for words, options in theirs.items():
        own = [option for option in options if option[0].startswith("-") and option not in everywhere]
        why = why_absent(words.split())
        if find(words.split()) is None and why is not None:
            absent.setdefault(why, []).append(f"`{words}`: {_spelled(own)}")
        else:
            parts += [f"### {words}", "", *_fates(words, own)]
    return "\n".join([*parts, *_absent_commands(absent), *_new_commands(theirs)])


def _fates(words: str, options: Sequence[list[str]]) -> Iterator[str]:
    """What becomes of the options of a command: those that are the same in one line, the others in a table."""
    command = find(words.split())
    if command is None:
        raise LookupError(f"nobody says anything of Polygraphy's command {words!r}")
    parser = whole_parser_of("biopsy", command)
    unknown = [spelling for option in options for spelling in option if not parser.answers_to(spelling)]
    if unknown:
        raise LookupError(f"nobody says anything of {', '.join(unknown)} of {words}")
    differing = json.loads(DIFFERENCES.read_text(encoding="utf-8")).get(words, {})
    absent = absent_options().get(words, [])
    fates = (
        {spelled: _prose(why) for spelled, why in differing.items()},
        {" ".join(row.options): f"no effect: {_prose(row.why)}" for row in absent if not row.instead},
        {
            " ".join(row.options): f"not here: {_prose(row.why)}. Instead: {_step(row.instead)}"
            for row in absent
            if row.instead
        },
    )
    places = {option[0]: place for place, option in enumerate(options)}
    row_of = {spelling: spelled for rows in fates for spelled in rows for spelling in spelled.split()}
    same = [option for option in options if option[0] not in row_of]
    if same:
        yield from (f"The same: {_spelled(same)}.", "")
    if row_of:
        yield from ("| Polygraphy | here |", "|---|---|")
        for rows in fates:
            for spelled in sorted(
                rows, key=lambda spelled: min(places.get(each, len(places)) for each in spelled.split())
            ):
                yield f"| {_spelled([spelled.split()], '<br>')} | {rows[spelled]} |"
        yield ""


def _step(text: str) -> str:
    """What to type, with what it does in brackets."""
    return _prose(re.sub(r"^(.*?)\s{2,}(.*)$", r"\1 (\2)", text))


def _spelled(options: Iterable[Sequence[str]], between: str = ", ") -> str:
    return between.join(f"`{spelling}`" for option in options for spelling in option)


def _absent_commands(absent: dict[tuple[str, tuple[str, ...]], list[str]]) -> Iterator[str]:
    yield from ("### Commands that are not here", "", "| Polygraphy | here |", "|---|---|")
    for (why, instead), commands in absent.items():
        told = why.partition(" is not here: ")[2]
        steps = "; ".join(map(_step, instead))
        yield f"| {'<br>'.join(commands)} | {_prose(told)}. Instead: {steps} |"
    yield ""


def _new_commands(theirs: Iterable[str]) -> Iterator[str]:
    new = [" ".join(one.words) for one in COMMANDS if " ".join(one.words) not in theirs]
    linked = ", ".join(_linked(words, POLYGRAPHY_PAGE.parent) for words in new)
    yield from ("### Commands that only biopsy has", "", f"{linked}.", "")


def _linked(words: str, folder: Path) -> str:
    """A command, with a link from a page in ``folder`` to its own."""
    return f"[`biopsy {words}`]({os.path.relpath(page_of(words), folder)})"


def renewed(text: str) -> str:
    """A page with its generated parts as they should be."""
    makers: dict[str, Callable[[], str]] = {
        "engines": engines,
        "overview": overview,
        "passes": passes,
        "polygraphy": polygraphy,
        "spellings": spellings,
        "barriers": barriers,
    }

    def renew(match: re.Match[str]) -> str:
        made = makers[match[2]]() if match[2] in makers else options_of(match[2])
        return f"{match[1]}\n{made}\n{match[3]}"

    return _PART.sub(renew, text)


def main() -> None:
    """Renew every page, those of new commands too."""
    for words in (" ".join(one.words) for one in COMMANDS):
        if not page_of(words).exists():
            page_of(words).write_text(
                f"# biopsy {words}\n\n<!-- generated: {words} -->\n<!-- end -->\n", encoding="utf-8"
            )
    for page in pages():
        page.write_text(renewed(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
