"""Options declared once: a record with a field for each option, which knows its spellings and what it means. From it
come the options of a parser, the typed values that a person gave, and the words that say them again.
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from types import MappingProxyType
from typing import (
    Any,
    ClassVar,
    Concatenate,
    Literal,
    NamedTuple,
    NoReturn,
    ParamSpec,
    Self,
    TypeVar,
    dataclass_transform,
)

from biopsy.cli.arguments.types import metavar_of
from biopsy.text import ListOption

_Rest = ParamSpec("_Rest")
_Answer = TypeVar("_Answer")

TEXT = "{text}"
"""What stands in a help for the words that a command may replace by its own."""


Decides = Literal["", "yes", "the greater, the looser", "the smaller, the looser"]
"""Whether a model may pass with an option that fails without it; of a limit, which values let more pass."""


class Declaration(NamedTuple):
    """How an option is spelled, what it means, and the ``settings`` that ``add_argument`` gets: see ``option``."""

    spellings: tuple[str, ...]
    settings: dict[str, Any]
    meaning: str
    text: str
    rivals: str
    shared: bool | None
    decides: Decides | None

    def help(self, text: str | None) -> str:
        """What it means, with the words of a command: in the place of ``TEXT``, or else instead of it all."""
        if TEXT in self.meaning:
            return self.meaning.replace(TEXT, self.text if text is None else text)
        return self.meaning if text is None else text

    @property
    def default(self) -> Any:
        """The value where the option is not given."""
        return self.settings.get("default", False if self.settings.get("action") == "store_true" else None)


def option(
    *spellings: str,
    meaning: str,
    text: str = "",
    rivals: str = "",
    shared: bool | None = None,
    decides: Decides | None = None,
    **settings: Any,
) -> Any:
    """A field of ``Options``; an operand has no spelling. Those with the same ``rivals`` exclude each other.

    Spellings are words of one text, or of several.
    ``settings`` are those of ``add_argument``; ``TEXT`` in the ``meaning`` is ``text`` unless a command says another.
    ``shared``: a settings file that lies in a folder may give it, since it is as harmless as
    ``biopsy.engines.base.Option.harmless`` says. A verdict names what a file gave of what ``decides``. Both may be said
    of a whole record: ``class Limits(Options, decides="yes")``.
    """
    words = tuple(" ".join(spellings).split())
    return Declaration(words, settings, meaning=meaning, text=text, rivals=rivals, shared=shared, decides=decides)


def switch(*spellings: str, meaning: str, **settings: Any) -> Any:
    """A field that is True where the option is given."""
    return option(*spellings, meaning=meaning, action="store_true", **settings)


def several(*spellings: str, meaning: str, **settings: Any) -> Any:
    """A field of one word or several."""
    return option(*spellings, meaning=meaning, nargs="+", **settings)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(option, switch, several))
class Options:
    """A group of options: a frozen record whose fields are their values.

    A record of a whole command inherits from those of its groups. Unlike a dataclass, a subclass compiles nothing when
    it is imported, which every check of a reduction would wait for. A field without ``option`` takes what the program
    itself puts beside the options.
    """

    declared: ClassVar[Mapping[str, Declaration | None]] = MappingProxyType({})

    def __init_subclass__(cls, *, shared: bool = False, decides: Decides = "") -> None:
        fields: dict[str, Declaration | None] = {}
        for base in cls.__bases__:
            if issubclass(base, Options):
                fields |= {name: field for name, field in base.declared.items() if fields.get(name) is None}
        for name in inspect.get_annotations(cls):
            fields[name] = None
            field = cls.__dict__.get(name)
            if isinstance(field, Declaration):
                fields[name] = field._replace(
                    shared=shared if field.shared is None else field.shared,
                    decides=decides if field.decides is None else field.decides,
                )
                setattr(cls, name, field.default)
        cls.declared = fields

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__}.{name} is read-only")

    @classmethod
    def add(
        cls,
        to: argparse._ActionsContainer,
        *,
        only: Collection[str] = (),
        also: Mapping[str, Collection[str]] = MappingProxyType({}),
        defaults: Mapping[str, object] = MappingProxyType({}),
        **texts: str,
    ) -> None:
        """Add the options, or ``only`` those of some fields in this order, to a parser or to a group of one.

        What is the command's own, by field: ``also`` are more spellings, ``defaults`` values, and ``texts`` what
        ``Declaration.help`` takes.
        """
        exclusive: dict[str, argparse._ActionsContainer] = {}
        for name in only or cls.declared:
            field = cls.declared[name]
            if field is None:
                continue
            if field.rivals and field.rivals not in exclusive:
                exclusive[field.rivals] = to.add_mutually_exclusive_group()
            settings = {**field.settings, "help": field.help(texts.get(name))}
            if metavar := metavar_of(settings.get("type")):
                settings.setdefault("metavar", metavar)
            if name in defaults:
                settings["default"] = defaults[name]
            if field.spellings:
                settings["dest"] = name
            spellings = (*(field.spellings or [name]), *also.get(name, ()))
            added = exclusive.get(field.rivals, to).add_argument(*spellings, **settings)
            added.declaration = field  # type: ignore[attr-defined]

    @classmethod
    def of(cls, args: argparse.Namespace) -> Self:
        """The values on a command line that was parsed; the defaults of options that its command does not have."""
        given = vars(args)
        return cls(**{name: given[name] for name in cls.declared if name in given})

    @classmethod
    def reading(
        cls, work: Callable[Concatenate[Self, _Rest], _Answer]
    ) -> Callable[Concatenate[argparse.Namespace, _Rest], _Answer]:
        """A function of these options as one of the parsed arguments: a decorator for what a command's module gives."""

        def work_of(args: argparse.Namespace, /, *rest: _Rest.args, **named: _Rest.kwargs) -> _Answer:
            return work(cls.of(args), *rest, **named)

        return work_of

    @classmethod
    def spellings(cls) -> tuple[str, ...]:
        """The first spelling of every option."""
        return tuple(field.spellings[0] for field in cls.declared.values() if field and field.spellings)

    def given(self, only: Collection[str] = ()) -> dict[str, Any]:
        """The values that are no defaults, or ``only`` those of some fields, by the first spelling of their options."""
        fields = ((name, self.declared[name]) for name in only or self.declared)
        return {
            field.spellings[0]: getattr(self, name)
            for name, field in fields
            if field and field.spellings and getattr(self, name) != field.default
        }

    def as_typed(self, only: Collection[str] = ()) -> Iterator[ListOption]:
        """The options that were given, as they are typed once more."""
        for spelling, value in self.given(only).items():
            values = value if isinstance(value, (list, tuple)) else [] if value is True else [value]
            yield ListOption(spelling, [str(word) for word in values])
