"""Options of engines: what an engine declares, and the kinds of values that options take.

Here rather than in the command line, since an engine's options are the same in a spec, in Python and in a check.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


def count(text: str) -> int:
    """A whole number from 0 on."""
    if not text.isdecimal():
        raise ValueError("a whole number from 0 on is wanted")
    return int(text)


def number(text: str) -> float:
    """Any number."""
    try:
        return float(text)
    except ValueError:
        raise ValueError("a number is wanted") from None


def switch(text: str) -> bool:
    """On or off. A switch that is named alone is on: ``reference:float64``."""
    word = text.lower()
    if word not in _SWITCH:
        raise ValueError("true or false is wanted")
    return _SWITCH[word]


_SWITCH = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def words(text: str) -> tuple[str, ...]:
    """Several words, joined by ``+`` because a comma ends a setting."""
    return tuple(filter(None, text.split("+")))


_KINDS: dict[Any, str] = {
    str: "text", int: "whole number", float: "number", bool: "switch",
    count: "whole number", number: "number", switch: "switch", words: "words joined by +",
}  # fmt: skip


@dataclass(frozen=True)
class Option:
    """One option of an engine, as in ``--engine NAME:key=value``.

    ``parse`` turns the text into the value and raises ValueError, whose text says what is accepted. A name such as
    ``config.KEY`` stands for any key: the value is a dictionary. ``takes`` says in a word or two what a value is; it is
    needed only where ``parse`` is a function of the engine's own.
    """

    name: str
    help: str
    default: Any = None
    choices: tuple[str, ...] = ()
    parse: Callable[[str], Any] = str
    takes: str = ""
    harmless: bool = False
    """Whether a stranger may choose its value, in a settings file that came with a folder: no value of it runs code,
    reads or writes a file, installs something, hides an output, or takes more time or memory than a model could."""

    @property
    def is_switch(self) -> bool:
        """Whether it is on or off, so that its name alone turns it on."""
        return self.parse in (switch, bool)

    @property
    def is_family(self) -> bool:
        """Whether it stands for any key, as ``config.KEY`` does for ``config.a=1,config.b=2``."""
        return self.name.endswith(".KEY")

    @property
    def stem(self) -> str:
        """The name under which its value stands among the options: a family's without ``.KEY``."""
        return self.name.removesuffix(".KEY")

    @property
    def kind(self) -> str:
        """What a value is, in words for a person."""
        return self.takes or ("choice" if self.choices else _KINDS.get(self.parse, "text"))

    @property
    def default_text(self) -> str:
        """The default as it is written in a spec; empty if there is none."""
        if isinstance(self.default, bool):
            return str(self.default).lower()
        if isinstance(self.default, tuple | list):
            return "+".join(map(str, self.default))
        return "" if self.default is None else str(self.default)

    def value_of(self, text: str | None) -> Any:
        """The value that a text stands for; None is an option named alone.

        Raises ValueError if it is none of the choices, cannot be parsed, or lacks its value.
        """
        if text is None:
            if not self.is_switch:
                raise ValueError(f"it needs a value ({self.kind})")
            return True
        if self.choices and text not in self.choices:
            raise ValueError(f"it can be {', '.join(self.choices)}")
        return switch(text) if self.parse is bool else self.parse(text)
