"""What the functions for Python users take: models, checks, inputs and the options of a search, each refused if it
cannot be used.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, get_args

import numpy as np

from biopsy import errors
from biopsy.checks.command_line import OwnRun, parse
from biopsy.checks.judge import Match, Rules
from biopsy.checks.outcome import Check, FunctionCheck
from biopsy.checks.warm import command_check
from biopsy.engines.base import ModelInput
from biopsy.engines.registry import EngineSpec
from biopsy.engines.runner import Inputs, casts, casts_told, checked_feed, feeds_for
from biopsy.model.external import require_safe_locations
from biopsy.model.index import ModelIndex, index_bytes, index_file
from biopsy.model.load import read_bytes
from biopsy.model.tensor_type import ValueType
from biopsy.processes.cleanup import temporary_folder
from biopsy.tensors.files import read_feeds
from biopsy.tensors.results import Feed
from biopsy.text import similar

if TYPE_CHECKING:
    import onnx

    from biopsy.questions.builds.settings import CheckTemplate
    from biopsy.session.checked_search import Repeating, SearchOptions
    from biopsy.session.pool import Parallelism
    from biopsy.session.trial import Budget

Model: TypeAlias = "str | PathLike[str] | bytes | onnx.ModelProto"
"""A model: the path of its file, its serialized bytes, or the protobuf object itself."""

Folder: TypeAlias = "str | PathLike[str] | None"
"""Where external weights stand: None for the model's own folder, or the current one if the model is not a file."""

Function: TypeAlias = "Callable[[Any], object]"

_Option = TypeVar("_Option")


# Models


def model_input(model: Model, folder: Folder) -> ModelInput:
    """The model as engines take it. Raises UsageError or ModelError if there is none."""
    if isinstance(model, str | PathLike):
        path = Path(model)
        return ModelInput(read_bytes(path), Path(folder) if folder is not None else path.parent, path)
    return ModelInput(_serialized(model), Path(folder) if folder is not None else Path())


def index_of(model: Model, folder: Folder = None) -> ModelIndex:
    """The model as searches take it. Raises UsageError or ModelError if it cannot be used."""
    weights = None if folder is None else Path(folder)
    if isinstance(model, str | PathLike):
        return index_file(Path(model), weights)
    data = _serialized(model)
    require_safe_locations(data, weights or Path())
    return index_bytes(data, weights)


@contextmanager
def model_file(model: Model, folder: Folder) -> Iterator[tuple[Path, Path]]:
    """The file of a model, a temporary one if it has none, and the folder of its external weights."""
    if isinstance(model, str | PathLike):
        path = Path(model)
        yield path, Path(folder) if folder is not None else path.parent
        return
    with temporary_folder("biopsy-") as place:
        path = place / "model.onnx"
        path.write_bytes(_serialized(model))
        yield path, Path(folder) if folder is not None else Path()


def require_own_files(model: Model, **written: str | PathLike[str] | None) -> None:
    """Raise UsageError if a file that is written is the model, or is written as something else too.

    ``written`` are paths by the names of the arguments; None is no file.
    """
    named: dict[str, Path] = {"model": Path(model)} if isinstance(model, str | PathLike) else {}
    for argument, path in written.items():
        if path is None:
            continue
        for other, taken in named.items():
            is_same_file = taken.is_file() and Path(path).is_file() and taken.samefile(path)
            if is_same_file or taken.resolve() == Path(path).resolve():
                raise errors.UsageError(f"{argument}={str(path)!r} is the file of {other} too: it would be lost")
        named[argument] = Path(path)


def _serialized(model: bytes | onnx.ModelProto) -> bytes:
    if isinstance(model, bytes):
        return model
    if not hasattr(model, "SerializeToString"):
        raise errors.UsageError(f"model={model!r}: it is a path, bytes, or an onnx.ModelProto")
    return model.SerializeToString()


# Checks


def require_check(check: object) -> None:
    """Raise UsageError for what is neither a function nor the words of a command."""
    if callable(check):
        return
    wanted = "it is a function, or a command as a list of words"
    if isinstance(check, str):
        raise errors.UsageError(f"check={check!r}: {wanted}", next_steps=[f"check={check.split()!r}"])
    if not isinstance(check, Sequence) or not check or not all(isinstance(word, str) for word in check):
        raise errors.UsageError(
            f"check={check!r}: {wanted}", next_steps=["check=['biopsy', 'run', '{}', '--onnxrt', '--openvino']"]
        )


def require_command(check: object) -> None:
    """Raise UsageError for what is not the words of a command."""
    require_check(check)
    if callable(check):
        raise errors.UsageError(f"check={check!r}: it is a command as a list of words")


def check_of(check: Function | Sequence[str], candidate: Path, takes: Literal["path", "model"], jobs: int) -> Check:
    """The check that a function or a command makes; ``candidate`` is where candidates stand."""
    if callable(check):
        return FunctionCheck(check, as_proto=takes == "model")
    return command_check(check, str(candidate), jobs=jobs)


# Options


def require_choice(name: str, value: object, choices: Sequence[str], more: str = "") -> None:
    """Raise UsageError, with the nearest choice, if the value is none of them."""
    if value not in choices:
        known = ", ".join(map(repr, choices))
        near = similar(str(value), choices, most=1)
        raise errors.UsageError(
            f"{name}={value!r}: it is {'one of ' if len(choices) > 1 else ''}{known}{f', {more}' if more else ''}",
            next_steps=[f"did you mean {name}={near[0]!r}?"] if near else [],
        )


def options_of(name: str, given: _Option | None, kind: type[_Option]) -> _Option:
    """The object that holds some options, the usual ones if none is given. Raises UsageError for another thing."""
    if given is None:
        return kind()
    if not isinstance(given, kind):
        raise errors.UsageError(f"{name}={given!r}: it is a biopsy.{kind.__name__}(...)")
    return given


def require_whole(**given: int | None) -> None:
    """Raise UsageError for what is no whole number above 0; None is no number to look at."""
    for name, value in given.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise errors.UsageError(f"{name}={value!r}: it is a whole number above 0")


def require_seconds(**given: float | None) -> None:
    """Raise UsageError for what is no time; None is no time to look at."""
    for name, value in given.items():
        if value is not None and not 0 < value < float("inf"):
            raise errors.UsageError(f"{name}={value!r}: it is a time above 0, in seconds")


def require_names(name: str, names: object, kind: str = "a tuple of names") -> None:
    """Raise UsageError for a name that stands alone."""
    if isinstance(names, str):
        shown = f"({names!r},)" if "tuple" in kind else f"[{names!r}]"
        raise errors.UsageError(f"{name}={names!r}: it is {kind}", next_steps=[f"{name}={shown}"])


def tolerances_by_name(option: str, value: float | Mapping[str, float]) -> Mapping[str, float]:
    """Tolerances by the name of a tensor, "" for all. Raises UsageError for what is no number, 0 or more."""
    by_name: Mapping[str, Any] = value if isinstance(value, Mapping) else {"": value}
    for one in by_name.values():
        if not isinstance(one, Real) or not 0 <= float(one) < math.inf:
            raise errors.UsageError(f"{option}={value!r}: it is a number, 0 or more, or a dictionary of these by name")
    return by_name


# Inputs and other tensors that Python users give, and how random ones are to be, each refused if it cannot be used.

GivenInputs: TypeAlias = "Feed | Sequence[Feed] | str | PathLike[str] | None"
"""One feed (tensor name -> array), several, or a file of them; None for random ones."""

GivenRanges: TypeAlias = "tuple[float, float] | Mapping[str, tuple[float, float]] | None"
"""From where to where random values go: for all inputs, or by name."""


def inputs_of(
    inputs: GivenInputs,
    iterations: int = 1,
    seed: int = 1,
    val_range: GivenRanges = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> Inputs:
    """What was said about inputs. Raises DataError if a file of them is damaged, UsageError for what is no input."""
    require_whole(iterations=iterations)
    ranges = val_range if isinstance(val_range, Mapping) else {} if val_range is None else {"": val_range}
    for one in ranges.values():
        if not isinstance(one, Sequence) or len(one) != 2:
            raise errors.UsageError(
                f"val_range={val_range!r}: it is a pair of numbers, or a dictionary of these by name"
            )
    require_shapes("shapes", shapes)
    return Inputs(
        given=feeds_of(inputs), iterations=iterations, seed=seed, val_range=ranges, shapes=shapes or {}, complete=False
    )


def require_shapes(argument: str, shapes: Mapping[str, tuple[int, ...]] | None) -> None:
    """Raise UsageError for what are no shapes by name."""
    for name, shape in (shapes or {}).items():
        if not isinstance(shape, Sequence) or not all(
            isinstance(size, int | np.integer) and size >= 0 for size in shape
        ):
            raise errors.UsageError(f"{argument}={{{name!r}: {shape!r}}}: sizes are whole numbers, 0 or more")


def feeds_of(inputs: GivenInputs) -> Sequence[Feed] | None:
    """The feeds that are given; None if there are to be random ones. Raises DataError and UsageError."""
    if inputs is None:
        return None
    if isinstance(inputs, str | PathLike):
        return read_feeds(Path(inputs))
    feeds = [inputs] if isinstance(inputs, Mapping) else list(inputs)
    if not feeds:
        raise errors.UsageError("inputs=[]: nothing would be run", next_steps=["inputs=None    makes random ones"])
    for feed in feeds:
        require_arrays("inputs", feed)
    return feeds


def require_arrays(argument: str, feed: Feed) -> None:
    """Raise UsageError for what is no dictionary of arrays; what a file holds is one, and is not looked into."""
    if not isinstance(feed, Mapping):
        raise errors.UsageError(f"{argument}: {type(feed).__name__} is no dictionary of arrays by name")
    for name, value in feed.items() if isinstance(feed, dict) else ():
        if not isinstance(value, np.ndarray | np.generic) or isinstance(value, np.ma.MaskedArray):
            kind = type(value).__name__
            raise errors.UsageError(
                f"{argument}: the value of {name!r} is a {kind}, and no array",
                next_steps=["numpy.asarray(...) makes one" + (", mask and all" if kind == "MaskedArray" else "")],
            )


def fed(inputs: Mapping[str, ValueType | None], wanted: Inputs, stacklevel: int = 3) -> Sequence[Feed]:
    """The feeds that a model takes, with a warning for inputs that are cast."""
    given = feeds_for(inputs, wanted).feeds
    feeds = [checked_feed(feed, inputs, number) for number, feed in enumerate(given)]
    changes = casts(given, feeds)
    if changes:
        warnings.warn(casts_told(changes), UserWarning, stacklevel=stacklevel)
    return feeds


@contextmanager
def searching(
    check: Function | Sequence[str],
    takes: Literal["path", "model"],
    search: str,
    *,
    rules: Rules | None,
    repeating: Repeating | None,
    budget: Budget | None,
    parallelism: Parallelism | None,
    journal: str | PathLike[str] | None,
    inputs: Sequence[Feed] | None,
) -> Iterator[tuple[SearchOptions, Check]]:
    """The options of a search as a caller gave them, None where nothing was said, and its check.

    ``search`` is what a person calls it. Raises UsageError for what cannot be used.
    """
    from biopsy.session.checked_search import Repeating, SearchOptions, digest_of_feeds
    from biopsy.session.files import Resume
    from biopsy.session.pool import Parallelism
    from biopsy.session.trial import Budget

    repeats = options_of("repeating", repeating, Repeating)
    limits = options_of("budget", budget, Budget)
    at_once = options_of("parallelism", parallelism, Parallelism)
    require_whole(jobs=at_once.jobs, repeat=repeats.repeat, checks=limits.checks)
    require_seconds(seconds=limits.seconds)
    if not 0 < repeats.confidence < 1:
        raise errors.UsageError(f"confidence={repeats.confidence!r}: it is above 0 and below 1")
    about = {} if journal is None else {"inputs": digest_of_feeds(inputs or ())}
    with temporary_folder("biopsy-") as place:
        candidate = place / "candidate.onnx"
        options = SearchOptions(
            rules=rules_of(rules),
            candidate=candidate,
            parallelism=at_once,
            budget=limits,
            repeating=repeats,
            resume=Resume(journal=None if journal is None else Path(journal), about=about, search=search),
        )
        with closing(check_of(check, candidate, takes, at_once.jobs)) as made:
            yield options, made


def rules_of(given: Rules | None) -> Rules:
    """The rules, with sets for what may be any collection. Raises UsageError for what cannot be used."""
    rules = options_of("rules", given, Rules)
    require_choice("match", rules.match, get_args(Match))
    for name, codes in (("fail_codes", rules.fail_codes), ("ignored_codes", rules.ignored_codes)):
        if not isinstance(codes, Collection) or not all(isinstance(code, int) for code in codes):
            raise errors.UsageError(f"{name}={codes!r}: it is a set of exit statuses", next_steps=[f"{name}={{1}}"])
    if not all(isinstance(pattern, re.Pattern) for pattern in rules.fail_regexes):
        raise errors.UsageError(
            f"fail_regexes={rules.fail_regexes!r}: it is a tuple of compiled regular expressions",
            next_steps=["fail_regexes=(re.compile('Op: Mul'),)"],
        )
    return Rules(
        fail_codes=frozenset(rules.fail_codes),
        ignored_codes=frozenset(rules.ignored_codes),
        fail_regexes=tuple(rules.fail_regexes),
        match=rules.match,
    )


# Checks whose words name the engine that varies, as ``flags`` and ``build`` take them.


def template_of(check: Sequence[str], spec: EngineSpec) -> CheckTemplate:
    """The words of a check, with ``{engine}`` or ``{settings}`` where the engine belongs.

    Raises UsageError for a ``biopsy run`` without either: its settings would never change. Any other command may read
    them from its environment, which a warning says.
    """
    from biopsy.questions.builds.settings import CheckTemplate

    command = parse(check)
    template = CheckTemplate(command.words, spec, is_own_run=isinstance(command, OwnRun))
    if template.names_settings:
        return template
    if template.is_own_run:
        raise errors.UsageError(
            f"check={list(check)!r}: its engine would keep its settings, for nothing in it says where they belong",
            next_steps=["write {engine} in its place: ['biopsy', 'run', '{}', '--engine', '{engine}', ...]"],
        )
    told = "the check has no {engine} and no {settings}: it must read BIOPSY_ENGINE from its environment"
    warnings.warn(told, UserWarning, stacklevel=3)
    return template
