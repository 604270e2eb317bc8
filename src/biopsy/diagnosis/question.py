"""The question of a diagnosis, and the inputs of the model, drawn once so that every step uses the same ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from biopsy import errors
from biopsy.checks.command_line import LOAD_INPUTS, PLACEHOLDER, OwnRun, parse
from biopsy.checks.judge import Rules
from biopsy.checks.words import NAME, as_word
from biopsy.engines.registry import PLAIN
from biopsy.engines.runner import Inputs, feeds_for
from biopsy.model.index import ModelIndex
from biopsy.model.tensor_type import TensorType
from biopsy.questions.builds.settings import ENGINE_PLACE, SETTINGS_PLACE
from biopsy.questions.layers.question import Judge
from biopsy.tensors.files import read_feeds, write_feeds
from biopsy.tensors.results import Feed, form_of
from biopsy.text import ListOption, line_of

DEFAULT_SECONDS = 600.0
"""How long a diagnosis may take."""

Words: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Samples:
    """The inputs of the model: how they were specified, and the ``files`` that hold them, for checks.

    ``made_up``: they are random, so others may take their place.
    """

    inputs: Inputs = field(default_factory=Inputs)
    files: tuple[Path, ...] = ()
    made_up: bool = True


@dataclass(frozen=True, kw_only=True)
class Judging:
    """What counts as equal outputs: ``judge``, and ``limits``, the same as options of ``biopsy run``.

    ``rules`` say which failures count as the same.
    """

    judge: Judge = field(default_factory=Judge)
    limits: Words = ()
    rules: Rules = field(default_factory=Rules)


@dataclass(frozen=True, kw_only=True)
class Effort:
    """What a diagnosis may cost: ``seconds``, with ``jobs`` checks at once.

    ``thorough`` also asks questions that take minutes; ``downloads`` lets them install other releases of an engine.
    ``answered``: nothing is asked that the folder does not answer.
    """

    seconds: float = DEFAULT_SECONDS
    jobs: int = 1
    thorough: bool = False
    downloads: bool = True
    answered: bool = False


@dataclass(frozen=True, kw_only=True)
class DiagnosisQuestion:
    """What to diagnose.

    ``engines`` are specs; of several, the first is trusted. ``check`` is a command that decides instead; the engines
    are then those that it runs, if known. ``template`` is that command with ``{engine}`` or ``{settings}`` in place of
    the last engine, if it has such a place. ``folder`` keeps the evidence. ``weights_folder`` holds the external
    weights, if the model's own folder does not. ``fresh`` asks again what the folder answers. ``tool`` transforms
    the model before it fails, as ``debug transform --by`` takes it. ``line`` are the words of the command line that
    asks this, for whoever reads the folder later.
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
    line: Words = ()

    @property
    def candidate(self) -> Path:
        """The path that candidates of searches are written to."""
        return self.folder / "candidate.onnx"

    @property
    def rivals(self) -> tuple[Words, ...]:
        """Rows of engines to compare one after the other, the trusted engine first.

        A single engine is compared with ONNX Runtime without its optimizer, then with the reference evaluator.
        """
        if len(self.engines) != 1:
            return (self.engines,)
        return tuple((trusted, *self.engines) for trusted in PLAIN if trusted != self.engines[0])

    @property
    def without_limits(self) -> DiagnosisQuestion:
        """The same question with the default tolerances."""
        return replace(self, judging=replace(self.judging, limits=()))

    def original_words(self, engines: Sequence[str], *more: str, files: Sequence[Path] | None = None) -> Words:
        """``words`` for the original model, whose weights may be in another folder."""
        weights = [] if self.weights_folder is None else ["--external-data-dir", as_word(self.weights_folder)]
        return self.words(engines, *weights, *more, files=files)

    def words(self, engines: Sequence[str], *more: str, files: Sequence[Path] | None = None) -> Words:
        """The words of ``biopsy run`` with these engines, on the samples or on other ``files`` of inputs."""
        engine_words = [word for engine in engines for word in ("--engine", engine)]
        file_words = list(map(as_word, self.samples.files if files is None else files))
        inputs = [LOAD_INPUTS[0], *file_words] if file_words else []
        return (NAME, "run", "{}", *engine_words, *inputs, *self.judging.limits, *more)


def require_no_placeholder(paths: Iterable[Path], next_step: str) -> None:
    """Raise UsageError for a path that holds a placeholder of checks, which would be replaced."""
    for path in paths:
        for placeholder in (PLACEHOLDER, ENGINE_PLACE, SETTINGS_PLACE):
            if placeholder in str(path):
                message = f"{path}: in a check, {placeholder} stands for something else"
                raise errors.UsageError(message, next_steps=[next_step])


def path_of(name: str | None) -> Path | None:
    """The path of a name; None for None."""
    return None if name is None else Path(name)


def feeds_in(files: Iterable[Path]) -> Sequence[Feed]:
    """All samples in files of inputs. Raises DataError."""
    return [feed for file in files for feed in read_feeds(file)]


def with_inputs(words: Words, inputs: Path | None) -> Words:
    """The words of a check, loading ``inputs`` instead of its own; unchanged if it is not a ``biopsy run``."""
    command = parse(words)
    if inputs is None or not isinstance(command, OwnRun):
        return words
    return command.with_inputs(inputs).words


TOLERANCES = (
    "--atol", "--abs-tol", "--absolute-tolerance", "--rtol", "--rel-tol", "--relative-tolerance",
)  # fmt: skip


def with_limits(command: OwnRun, limits: Words) -> Words:
    """The words of a run with its tolerances replaced by ``limits``."""
    return command.without_option(TOLERANCES).with_options(*limits).words


def without_weights_folder(words: Words) -> Words:
    """The words without ``--external-data-dir``: a candidate lies in the folder of its weights."""
    command = parse(words)
    return command.without_option(["--external-data-dir"]).words if isinstance(command, OwnRun) else words


def with_engine_place(words: Words, engine: str) -> Words | None:
    """The words with ``{engine}`` in place of the last mention of ``engine``; None if there is none."""
    command = parse(words)
    if isinstance(command, OwnRun):
        for number, (first, size) in reversed(list(enumerate(command.engine_places))):
            if command.words[first + size - 1].removeprefix("--engine=").removeprefix("--") == engine:
                return command.with_engine(number, ENGINE_PLACE)
    return None


def with_engine(template: Sequence[str], engine: str) -> Words:
    """The words of a template with its places filled: an engine, or its settings alone."""
    settings = engine.partition(":")[2]
    return tuple(word.replace(ENGINE_PLACE, engine).replace(SETTINGS_PLACE, settings) for word in template)


ENDINGS = (".safetensors", ".json")
"""The endings that ``write_inputs`` may give to a file: it uses the first format that can hold the inputs."""

_TINY = 4
"""An open dimension of at most this size may be too small for the model, as in an image of 1 x 1 pixels."""

_USUAL = (64, 224)
"""Sizes to try instead of a tiny one."""

_EXAMPLE = 64
"""The size that an error message proposes for an open dimension."""


def resolved_samples(index: ModelIndex, inputs: Inputs, folder: Path, files: Sequence[Path] = ()) -> Samples:
    """The samples for a model. Random ones are written to ``folder``; ``files`` hold given inputs.

    Call ``require_sizes`` first. Raises what ``feeds_for`` and ``write_feeds`` raise.
    """
    wanted = index.fed_types()
    drawn = feeds_for(wanted, inputs) if wanted else None
    if drawn is None or (files and not drawn.made_up):
        return Samples(inputs=inputs, files=() if drawn is None else tuple(files), made_up=False)
    return Samples(inputs=inputs, files=(write_inputs(folder / "inputs", drawn.feeds),), made_up=inputs.given is None)


def feeds_of(index: ModelIndex, samples: Samples) -> Sequence[Feed]:
    """The values of the samples: those in the files, else random ones. Raises DataError."""
    return feeds_in(samples.files) or feeds_for(index.fed_types(), samples.inputs).feeds


def require_sizes(index: ModelIndex, inputs: Inputs) -> None:
    """Raise UsageError if random inputs have open dimensions without a given size. The message names them all."""
    wanted = index.fed_types()
    open_types = {name: kind for name, kind in wanted.items() if isinstance(kind, TensorType) and not kind.is_static}
    guessed = [name for name in feeds_for(wanted, inputs).guessed if name in open_types]
    if not guessed:
        return
    shown = [f"{name!r} is {open_types[name]}" for name in guessed]
    dims = {name: list(enumerate(open_types[name].shape or ())) for name in guessed}
    example = {
        name: [dim if isinstance(dim, int) else _EXAMPLE if place else 1 for place, dim in of_name]
        for name, of_name in dims.items()
    }
    raise errors.UsageError(
        f"the model leaves sizes of its inputs open, and none were given: {'; '.join(shown)}",
        details=["a size that nobody chose may be what fails, so none is made up here"],
        next_steps=[
            line_of([ListOption("--input-shapes", shape_words(example))]),
            "--load-inputs FILE    for real ones",
        ],
    )


def write_inputs(path: Path, feeds: Sequence[Feed]) -> Path:
    """Write feeds to ``path`` plus the suffix of the first file format that can hold them. Raises DataError."""
    file = path.with_name(f"{path.name}{ENDINGS[0]}")
    try:
        write_feeds(file, feeds)
    except errors.DataError:
        file = path.with_name(f"{path.name}{ENDINGS[1]}")
        write_feeds(file, feeds)
    return file


def inputs_of_other_seed(index: ModelIndex, samples: Samples, seed: int, folder: Path) -> Path | None:
    """A new file of other random inputs of the same shapes; None if the inputs were given or there are none."""
    if not samples.made_up or not samples.files:
        return None
    drawn = feeds_for(index.fed_types(), replace(samples.inputs, seed=samples.inputs.seed + seed))
    return write_inputs(folder / f"inputs_seed_{samples.inputs.seed + seed}", drawn.feeds)


def shapes_of(index: ModelIndex, samples: Samples) -> dict[str, tuple[int, ...]]:
    """The shapes of the model's inputs in the first sample of each file."""
    wanted = index.fed_types()
    feeds = [read_feeds(path)[0] for path in samples.files]
    return {name: form_of(feed, name).shape for feed in feeds for name in feed if name in wanted}


def shape_words(shapes: Mapping[str, Sequence[int | None]]) -> tuple[str, ...]:
    """Shapes as ``--input-shapes`` takes them; None is an open dimension."""
    return tuple(
        f"{name}:[{','.join('-1' if dim is None else str(dim) for dim in shape)}]" for name, shape in shapes.items()
    )


def larger_inputs(index: ModelIndex, samples: Samples, folder: Path) -> Iterator[tuple[tuple[str, ...], Path]]:
    """Random inputs with larger sizes in place of tiny open dimensions: yields their shapes and the file.

    The first dimension, the batch, stays. Yields nothing if no other open dimension is tiny.
    """
    shapes = shapes_of(index, samples)

    def grown(name: str, size: int) -> tuple[int, ...]:
        kind, shape = index.declared_type(name), shapes[name]
        if not isinstance(kind, TensorType) or kind.shape is None or len(kind.shape) != len(shape):
            return shape
        dims = enumerate(zip(kind.shape, shape, strict=True))
        return tuple(size if place and not isinstance(dim, int) and n <= _TINY else n for place, (dim, n) in dims)

    for size in _USUAL:
        larger_shapes = {name: grown(name, size) for name in shapes}
        if larger_shapes == shapes:
            return
        try:
            drawn = feeds_for(index.fed_types(), replace(samples.inputs, given=None, shapes=larger_shapes, symbols={}))
            path = write_inputs(folder / f"inputs_of_size_{size}", drawn.feeds)
        except errors.BiopsyError:
            continue  # contradictory sizes, or too much memory
        yield shape_words(larger_shapes), path


def other_inputs_of_same_size(index: ModelIndex, samples: Samples, folder: Path) -> Path:
    """A new file of other random inputs of the shapes of the first sample.

    Raises what ``feeds_for`` and ``write_feeds`` raise.
    """
    shapes = shapes_of(index, samples)
    other = replace(samples.inputs, given=None, shapes=shapes, symbols={}, seed=samples.inputs.seed + 1)
    return write_inputs(folder / "inputs_of_same_size", feeds_for(index.fed_types(), other).feeds)


def tiny_fixed_inputs(index: ModelIndex) -> tuple[str, ...]:
    """The inputs that the model declares as images of one pixel, with their types, in words."""
    return tuple(
        f"{name!r} is {kind}"
        for name, kind in index.fed_types().items()
        if isinstance(kind, TensorType) and len(kind.shape or ()) > 2 and set((kind.shape or ())[2:]) == {1}
    )
