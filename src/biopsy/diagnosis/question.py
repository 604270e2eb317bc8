"""What a diagnosis is asked: the model, the engines or the check, what counts as equal, its limits; and its inputs,
settled once so that every step sees the same ones.
"""

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
from biopsy.text import option_line

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


def path_of(name: str | None) -> Path | None:
    """A path of a record, if it has one."""
    return None if name is None else Path(name)


def feeds_in(files: Iterable[Path]) -> Sequence[Feed]:
    """The samples in files of inputs. Raises DataError."""
    return [feed for file in files for feed in read_feeds(file)]


def with_inputs(words: Words, inputs: Path | None) -> Words:
    """The words of a check with a file of inputs in place of those that it loads, if it is a ``biopsy run``."""
    command = parse(words)
    if inputs is None or not isinstance(command, OwnRun):
        return words
    return command.with_inputs(inputs).words


_TOLERANCES = (
    "--atol", "--abs-tol", "--absolute-tolerance", "--rtol", "--rel-tol", "--relative-tolerance",
)  # fmt: skip


def with_limits(command: OwnRun, limits: Words) -> Words:
    """The words of a run with other tolerances than it has."""
    return command.without_option(_TOLERANCES).with_options(*limits).words


def without_weights_folder(words: Words) -> Words:
    """The words for a candidate, which stands where its weights are found."""
    command = parse(words)
    return command.without_option(["--external-data-dir"]).words if isinstance(command, OwnRun) else words


def with_engine_place(words: Words, engine: str) -> Words | None:
    """The words with ``{engine}`` where they name an engine, the last one of that spec; None if they do not name it."""
    command = parse(words)
    if isinstance(command, OwnRun):
        for number, (first, size) in reversed(list(enumerate(command.engine_places))):
            if command.words[first + size - 1].removeprefix("--engine=").removeprefix("--") == engine:
                return command.with_engine(number, ENGINE_PLACE)
    return None


def with_engine(template: Sequence[str], engine: str) -> Words:
    """The words of a template with an engine, or its settings alone, in their places."""
    settings = engine.partition(":")[2]
    return tuple(word.replace(ENGINE_PLACE, engine).replace(SETTINGS_PLACE, settings) for word in template)


# The inputs of a diagnosis: settled once, so that every step sees the same ones; and others, to see what depends on
# them.

_ENDINGS = (".safetensors", ".json")
"""Forms of a file of inputs, the first one that can hold them."""

_TINY = 4
"""An open dimension of at most so many elements may be too small for a model: a picture of 1 x 1."""

_USUAL = (64, 224)
"""Sizes that are tried in its place."""

_EXAMPLE = 64


def settled(index: ModelIndex, inputs: Inputs, folder: Path, files: Sequence[Path] = ()) -> Samples:
    """The samples for a model; what is made up is written to ``folder``. ``files`` are those that hold what is given.

    Raises UsageError if nobody has said how large an input is whose size the model leaves open, and what ``feeds_for``
    and ``write_feeds`` raise.
    """
    wanted = index.fed_types()
    require_sizes(index, inputs)
    drawn = feeds_for(wanted, inputs) if wanted else None
    if drawn is None or (files and not drawn.made_up):
        return Samples(inputs=inputs, files=() if drawn is None else tuple(files), made_up=False)
    return Samples(inputs=inputs, files=(written(folder / "inputs", drawn.feeds),), made_up=inputs.given is None)


def feeds_of(index: ModelIndex, samples: Samples) -> Sequence[Feed]:
    """The samples themselves: those of the files, else random ones. Raises DataError."""
    return feeds_in(samples.files) or feeds_for(index.fed_types(), samples.inputs).feeds


def require_sizes(index: ModelIndex, inputs: Inputs) -> None:
    """Raise UsageError for inputs to be made up whose sizes are open and were not said, with all of them by name."""
    wanted = index.fed_types()
    open_ones = {name: kind for name, kind in wanted.items() if isinstance(kind, TensorType) and not kind.is_static}
    guessed = [name for name in feeds_for(wanted, inputs).guessed if name in open_ones]
    if not guessed:
        return
    shown = [f"{name!r} is {open_ones[name]}" for name in guessed]
    dims = {name: list(enumerate(open_ones[name].shape or ())) for name in guessed}
    example = {
        name: [dim if isinstance(dim, int) else _EXAMPLE if place else 1 for place, dim in of_name]
        for name, of_name in dims.items()
    }
    raise errors.UsageError(
        f"the model leaves sizes of its inputs open, and none were given: {'; '.join(shown)}",
        details=["a size that nobody chose may be what fails, so none is made up here"],
        next_steps=[
            *(option_line("--input-shapes", text) for text in shape_words(example)),
            "--load-inputs FILE    for real ones",
        ],
    )


def written(path: Path, feeds: Sequence[Feed]) -> Path:
    """Write feeds to ``path`` plus the ending of the first file format that can hold them. Raises DataError."""
    whole = path.with_name(f"{path.name}{_ENDINGS[0]}")
    try:
        write_feeds(whole, feeds)
    except errors.DataError:
        whole = path.with_name(f"{path.name}{_ENDINGS[1]}")
        write_feeds(whole, feeds)
    return whole


def with_other_seed(index: ModelIndex, samples: Samples, seed: int, folder: Path) -> Path | None:
    """A file of other random inputs of the same shapes; None where inputs were given, or there are none."""
    if not samples.made_up or not samples.files:
        return None
    drawn = feeds_for(index.fed_types(), replace(samples.inputs, seed=samples.inputs.seed + seed))
    return written(folder / f"inputs_seed_{samples.inputs.seed + seed}", drawn.feeds)


def shapes_of(index: ModelIndex, samples: Samples) -> dict[str, tuple[int, ...]]:
    """The shapes of the first sample, of those inputs that the model takes."""
    wanted = index.fed_types()
    feeds = [read_feeds(path)[0] for path in samples.files]
    return {name: form_of(feed, name).shape for feed in feeds for name in feed if name in wanted}


def shape_words(shapes: Mapping[str, Sequence[int | None]]) -> tuple[str, ...]:
    """Shapes as ``--input-shapes`` takes them; None is a size that nobody says."""
    return tuple(
        f"{name}:[{','.join('-1' if dim is None else str(dim) for dim in shape)}]" for name, shape in shapes.items()
    )


def larger(index: ModelIndex, samples: Samples, folder: Path) -> Iterator[tuple[tuple[str, ...], Path]]:
    """Random inputs with larger sizes in place of tiny ones that the model leaves open: their shapes, and the file.

    None if no open dimension but the first, the batch, is tiny.
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
            path = written(folder / f"inputs_of_size_{size}", drawn.feeds)
        except errors.BiopsyError:
            continue  # sizes that contradict each other, or too much memory: nothing is learnt from them
        yield shape_words(larger_shapes), path


def of_same_size(index: ModelIndex, samples: Samples, folder: Path) -> Path:
    """Other random inputs of the shapes of the first sample: what fails with these too does not depend on values.

    Raises what ``feeds_for`` and ``write_feeds`` raise.
    """
    shapes = shapes_of(index, samples)
    other = replace(samples.inputs, given=None, shapes=shapes, symbols={}, seed=samples.inputs.seed + 1)
    return written(folder / "inputs_of_same_size", feeds_for(index.fed_types(), other).feeds)


def fixed_and_tiny(index: ModelIndex) -> tuple[str, ...]:
    """Inputs that the model itself declares as pictures of one pixel, with their types: nothing larger can be fed."""
    return tuple(
        f"{name!r} is {kind}"
        for name, kind in index.fed_types().items()
        if isinstance(kind, TensorType) and len(kind.shape or ()) > 2 and set((kind.shape or ())[2:]) == {1}
    )
