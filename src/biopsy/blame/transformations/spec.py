"""A tool as a person names it: a known one with settings, or the words of a command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from biopsy import errors
from biopsy.blame.transformations.known_tools import TOOLS
from biopsy.blame.transformations.tool import Rounds, Tool, WrongSettingError
from biopsy.similar_names import ask_for, similar

SOURCE, TARGET, PASSES = "{}", "{out}", "{passes}"
"""What stands in a command for the model, for the file to write, and for the passes that may run, commas between."""


@dataclass(frozen=True, kw_only=True)
class ToolSpec:
    """What transforms: a known tool by ``name``, or a command by its ``words``. ``text`` is how it was asked for."""

    text: str
    name: str
    settings: Mapping[str, str] = field(default_factory=dict)
    words: tuple[str, ...] = ()

    @property
    def known(self) -> type[Tool] | None:
        """The class of a known tool; None of a command."""
        return None if self.words else TOOLS[self.name]

    @property
    def rounds_to(self) -> Rounds:
        """To what it may round values and be right."""
        return "float32" if self.known is None else self.known.rounds_to


def parse_tool(text: str) -> ToolSpec:
    """The tool that a text names: ``NAME[:key=value,...]``, or a command with ``{}`` and ``{out}``, as a shell splits
    it; no shell ever sees it.

    Raises UsageError for a name that there is not, a wrong setting, and a command that names no file to write.
    """
    if SOURCE in text or TARGET in text or " " in text.strip():
        return _command(text)
    name, _, rest = text.partition(":")
    if name not in TOOLS:
        raise errors.UsageError(
            f"--by {text}: there is no tool {name!r}; known are {', '.join(TOOLS)}",
            next_steps=[*ask_for(similar(name, TOOLS, most=1)), "--by 'COMMAND {} {out}'    takes any command"],
        )
    settings: dict[str, str] = {}
    for part in filter(None, re.split(",", rest)):
        key, equals, value = part.partition("=")
        if not key or not equals:
            raise errors.UsageError(f"--by {text}: the setting {part!r} is not key=value")
        settings[key] = value
    try:
        TOOLS[name](settings)
    except WrongSettingError as error:
        raise errors.UsageError(f"--by {text}: {error}") from error
    return ToolSpec(text=text, name=name, settings=settings)


def _command(text: str) -> ToolSpec:
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise errors.UsageError(f"--by {text!r}: it cannot be split into words: {error}") from error
    for place, what in ((SOURCE, "the model"), (TARGET, "the file to write")):
        if not any(place in word for word in words):
            raise errors.UsageError(
                f"--by {text!r}: it does not say where {what} goes", next_steps=["--by 'mytool {} -o {out}'"]
            )
    return ToolSpec(text=text, name=words[0], words=words)
