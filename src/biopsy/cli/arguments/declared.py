"""Options declared as fields of records.

From the declarations come the options of a parser, their values with types, and the words that give them again.
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

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

TEXT = "{text}"
"""A placeholder in a help text, which each command may fill with its own words."""


Decides = Literal["", "yes", "the greater, the looser", "the smaller, the looser"]
"""Whether an option may turn a failure into a pass; for a limit, which values let more pass."""


class Declaration(NamedTuple):
    """The spellings and the meaning of an option, and the ``settings`` for ``add_argument``: see ``option``."""

    spellings: tuple[str, ...]
    settings: dict[str, Any]
    meaning: str
    text: str
    rivals: str
    shared: bool | None
    decides: Decides | None
    title: str
    flags: Mapping[str, tuple[str, str]]

    def help(self, text: str | None) -> str:
        """The help text, with a command's ``text`` in place of ``TEXT``, or of all of it if it has no ``TEXT``."""
        if TEXT in self.meaning:
            return self.meaning.replace(TEXT, self.text if text is None else text)
        return self.meaning if text is None else text

    @property
    def default(self) -> Any:
        """The value if the option is not given."""
        return self.settings.get("default", False if self.settings.get("action") == "store_true" else None)


def option(
    *spellings: str,
    meaning: str,
    text: str = "",
    rivals: str = "",
    shared: bool | None = None,
    decides: Decides | None = None,
    title: str = "",
    flags: Mapping[str, tuple[str, str]] = MappingProxyType({}),
    **settings: Any,
) -> Any:
    """A field of ``Options``. ``spellings`` may be one text or several; an operand has none.

    ``settings`` are those of ``add_argument``. ``text`` is the default for ``TEXT`` in ``meaning``. Options with the
    same ``rivals`` exclude each other. ``shared``: a project's settings file may set the option, since it is harmless
    in the sense of ``biopsy.engines.base.Option.harmless``. ``decides``: a verdict names the value if it comes from a
    file. ``title`` is the heading of its group in the help; "" is none. These three have a default for a whole record:
    ``class Limits(Options, decides="yes")``. ``flags`` are options that stand for one value each: flag -> value, help.
    """
    words = tuple(" ".join(spellings).split())
    return Declaration(
        words,
        settings,
        meaning=meaning,
        text=text,
        rivals=rivals,
        shared=shared,
        decides=decides,
        title=title,
        flags=flags,
    )


def switch(*spellings: str, meaning: str, **settings: Any) -> Any:
    """A field that is True if the option is given."""
    return option(*spellings, meaning=meaning, action="store_true", **settings)


def several(*spellings: str, meaning: str, **settings: Any) -> Any:
    """A field whose option takes one word or more."""
    return option(*spellings, meaning=meaning, nargs="+", **settings)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(option, switch, several))
class Options:
    """A group of options: a frozen record whose fields are their values.

    The record of a command inherits from those of its groups. It is not a dataclass, because those compile code when
    they are imported, which would delay every check of a reduction. A field without ``option`` holds a value that the
    program itself puts among the options.
    """

    declared: ClassVar[Mapping[str, Declaration | None]] = MappingProxyType({})

    def __init_subclass__(cls, *, shared: bool = False, decides: Decides = "", title: str = "") -> None:
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
        if title:  # also of the options that it inherits
            fields = {name: field and field._replace(title=title) for name, field in fields.items()}
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
        without: Collection[str] = (),
        also: Mapping[str, Collection[str]] = MappingProxyType({}),
        defaults: Mapping[str, object] = MappingProxyType({}),
        titles: Mapping[str, str] = MappingProxyType({}),
        **texts: str,
    ) -> None:
        """Add the options to a group, or to a parser, in groups by their titles.

        ``only`` some fields are added, in this order, or all but those ``without``. A command may give, by field: more
        spellings (``also``), ``defaults``, other ``titles``, and ``texts`` for ``Declaration.help``.
        """
        exclusive: dict[str, argparse._ActionsContainer] = {}
        for name in only or cls.declared:
            field = cls.declared[name]
            if field is None or name in without:
                continue
            place, title = to, titles.get(name, field.title)
            if title and isinstance(to, argparse.ArgumentParser):
                known = (group for group in to._action_groups if group.title == title)
                place = next(known, None) or to.add_argument_group(title)
            if field.rivals:
                place = exclusive.get(field.rivals) or place.add_mutually_exclusive_group()
                exclusive[field.rivals] = place
            constant = "append_const" if field.settings.get("action") == "append" else "store_const"
            for flag, (value, meaning) in field.flags.items():
                place.add_argument(flag, action=constant, dest=name, const=value, help=meaning)
            if field.flags and not field.spellings:
                continue
            settings = {**field.settings, "help": field.help(texts.get(name))}
            if metavar := metavar_of(settings.get("type")):
                settings.setdefault("metavar", metavar)
            if name in defaults:
                settings["default"] = defaults[name]
            if field.spellings:
                settings["dest"] = name
            spellings = (*(field.spellings or [name]), *also.get(name, ()))
            place.add_argument(*spellings, **settings).declaration = field  # type: ignore[attr-defined]

    @classmethod
    def of(cls, args: argparse.Namespace) -> Self:
        """The values of parsed arguments, and defaults for options that the command does not have."""
        given = vars(args)
        return cls(**{name: given[name] for name in cls.declared if name in given})

    @classmethod
    def reading(
        cls, work: Callable[Concatenate[Self, _Parameters], _Result]
    ) -> Callable[Concatenate[argparse.Namespace, _Parameters], _Result]:
        """A decorator: makes a function of these options one of parsed arguments, such as ``execute`` of a command."""

        def work_of(args: argparse.Namespace, /, *others: _Parameters.args, **named: _Parameters.kwargs) -> _Result:
            return work(cls.of(args), *others, **named)

        return work_of

    def given(self, only: Collection[str] = ()) -> dict[str, Any]:
        """The values that are not defaults, of all fields or ``only`` some, by the first spelling of their options."""
        fields = ((name, self.declared[name]) for name in only or self.declared)
        return {
            field.spellings[0]: getattr(self, name)
            for name, field in fields
            if field and field.spellings and getattr(self, name) != field.default
        }

    def as_typed(self, only: Collection[str] = ()) -> Iterator[ListOption]:
        """The options that were given, as they are typed."""
        for spelling, value in self.given(only).items():
            values = value if isinstance(value, (list, tuple)) else [] if value is True else [value]
            yield ListOption(spelling, [str(word) for word in values])
