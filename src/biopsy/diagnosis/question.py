"""What a diagnosis is asked: the model, the engines or the check, the inputs, what counts as equal, its limits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from biopsy import errors
from biopsy.checks.command_line import LOAD_INPUTS, PLACEHOLDER, CommandLine, OwnRun, parse
from biopsy.checks.judge import Rules
from biopsy.checks.own_program import NAME
from biopsy.checks.words import as_word
from biopsy.engines.feeding import Inputs
from biopsy.engines.yardsticks import PLAIN
from biopsy.layerwise.tensor_errors import Judge
from biopsy.model.index import ModelIndex
from biopsy.tactics.setting_changes import ENGINE_PLACE, SETTINGS_PLACE

DEFAULT_SECONDS = 600.0
"""How long a diagnosis may take."""

Words: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Samples:
    """The inputs of the model: what was said about them, and the ``files`` that hold them, for checks.

    ``made_up``: nobody gave them, so other random ones are as good.
    """

    inputs: Inputs = field(default_factory=Inputs)
    files: tuple[Path, ...] = ()
    made_up: bool = True


@dataclass(frozen=True, kw_only=True)
class Judging:
    """What counts as equal: ``judge`` and the options of ``biopsy run`` that say the same, and which failures do."""

    judge: Judge = field(default_factory=Judge)
    limits: Words = ()
    rules: Rules = field(default_factory=Rules)


@dataclass(frozen=True, kw_only=True)
class Effort:
    """What a diagnosis may cost: it may take ``seconds``, and ``jobs`` checks run at once.

    ``thorough``: what takes minutes is asked too. ``downloads``: other releases of an engine may be installed for that.
    """

    seconds: float = DEFAULT_SECONDS
    jobs: int = 1
    thorough: bool = False
    downloads: bool = True


@dataclass(frozen=True, kw_only=True)
class DiagnosisQuestion:
    """What to diagnose.

    ``engines`` are specs; the first is trusted where there are several. ``check`` are the words of a check that decides
    instead; the engines are then those that it runs, none if nobody knows. ``template`` are the words with ``{engine}``
    or ``{settings}`` in place of the last of the engines, if the check has them. ``folder`` keeps the evidence.
    ``weights_folder`` is where external weights stand if that is not the model's folder. ``fresh`` begins anew what was
    interrupted. ``tool`` is what the model goes through, as ``debug transform --by`` takes it; None if nobody said.
    """

    index: ModelIndex
    model: Path
    folder: Path
    engines: Words = ()
    check: Words | None = None
    template: Words | None = None
    samples: Samples = field(default_factory=Samples)
    judging: Judging = field(default_factory=Judging)
    weights_folder: Path | None = None
    effort: Effort = field(default_factory=Effort)
    fresh: bool = False
    tool: str | None = None

    @property
    def rivals(self) -> tuple[Words, ...]:
        """The engines to compare, the trusted one first; several rows are tried one after the other.

        One engine is compared with ONNX Runtime without its optimizer, then with the reference evaluator.
        """
        if len(self.engines) != 1:
            return (self.engines,)
        return tuple((trusted, *self.engines) for trusted in PLAIN if trusted != self.engines[0])

    @property
    def without_limits(self) -> DiagnosisQuestion:
        """The same question with the default tolerances."""
        return replace(self, judging=replace(self.judging, limits=()))

    def original_words(self, engines: Sequence[str], *more: str, files: Sequence[Path] | None = None) -> Words:
        """The words of ``biopsy run`` on the original model, whose weights may stand elsewhere."""
        weights = [] if self.weights_folder is None else ["--external-data-dir", as_word(self.weights_folder)]
        return self.words(engines, *weights, *more, files=files)

    def words(self, engines: Sequence[str], *more: str, files: Sequence[Path] | None = None) -> Words:
        """The words of ``biopsy run`` with some engines, on the samples or on other ``files`` of inputs."""
        named = [word for engine in engines for word in ("--engine", engine)]
        loaded = list(map(as_word, self.samples.files if files is None else files))
        inputs = [LOAD_INPUTS[0], *loaded] if loaded else []
        return (NAME, "run", "{}", *named, *inputs, *self.judging.limits, *more)


def require_no_place(paths: Iterable[Path], next_step: str) -> None:
    """Raise UsageError for a path that words of a check cannot hold: something else would be filled into it."""
    for path in paths:
        for place in (PLACEHOLDER, ENGINE_PLACE, SETTINGS_PLACE):
            if place in str(path):
                told = f"{path}: in a check, {place} stands for something else"
                raise errors.UsageError(told, next_steps=[next_step])


def with_inputs(words: Words, inputs: Path | None) -> Words:
    """The words of a check with a file of inputs in place of those that it loads, if it is a ``biopsy run``."""
    command = parse(words)
    if inputs is None or not isinstance(command, OwnRun):
        return words
    return command.without_option(LOAD_INPUTS).with_options(LOAD_INPUTS[0], as_word(inputs)).words


def without_weights_folder(words: Words) -> Words:
    """The words for a candidate, which stands where its weights are found."""
    command = parse(words)
    return command.without_option(["--external-data-dir"]).words if isinstance(command, OwnRun) else words


def with_engine_place(words: Words, engine: str) -> Words | None:
    """The words with ``{engine}`` where they name an engine, the last one of that spec; None if they do not name it."""
    command: CommandLine = parse(words)
    if not isinstance(command, OwnRun):
        return None
    places = command.engine_places
    for number in reversed(range(len(places))):
        first, count = places[number]
        named = command.words[first + count - 1].removeprefix("--engine=").removeprefix("--")
        if named == engine:
            return command.with_engine(number, ENGINE_PLACE)
    return None
