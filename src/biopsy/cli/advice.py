"""Complete command lines for a user to type next, with their purposes."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.checks.words import as_word
from biopsy.cli.commands import REST_OPTIONS
from biopsy.cli.console import Console
from biopsy.text import line_of

if TYPE_CHECKING:
    from biopsy.model.index import ModelIndex


@dataclass(frozen=True)
class Advice:
    """A command line to paste, and ``why``: what it finds out, in a few words; "" if the line itself says that."""

    line: str
    why: str = ""


def folder_of_diagnosis(model: Path) -> Path:
    """The folder of a diagnosis of a model, unless an option names one."""
    return Path(f"{model.stem}_diagnosis")


def of_diagnosis(model: Path) -> list[Advice]:
    """What to type to add workarounds and releases to the diagnosis whose folder holds a model, or that was made of it.

    Its page and its issue say what it finds itself, not what another command does. Empty if there is no such diagnosis.
    """
    from biopsy.diagnosis.evidence import STATE, line_of_evidence

    for folder in (model.parent, folder_of_diagnosis(model)):
        if (folder / STATE).is_file():
            with contextlib.suppress(errors.UsageError):
                words = line_of_evidence(folder)
                if "--thorough" not in words:
                    line = line_with(words, REST_OPTIONS, "diagnose", ["--thorough"])
                    return [Advice(line, f"adds this to the page and the issue of {folder}")]
    return []


def say_advice(console: Console, advice: Sequence[Advice]) -> None:
    """Show what to type next. Each command line has a line of its own, below its purpose."""
    if advice:
        console.note("")
    for number, step in enumerate(advice):
        head = "Next" if number == 0 else ""
        if step.why:
            console.note(f"{head:<8} {step.why}:", f"{'':<8}   {step.line}")
        else:
            console.note(f"{head:<8} {step.line}")


def resume_line(words: Sequence[str], rest: Collection[str], without: Collection[str] = ()) -> str:
    """The line that resumes an interrupted command: its words without ``--fresh``.

    Options in ``without``, which have one value each, are left out too. The words after one of ``rest``, the options
    that take the rest of the line, stay as they are.
    """
    return line_with(words, rest, "", (), without)


@contextlib.contextmanager
def resumable(words: Sequence[str], rest: Collection[str], command: str, *, has_journal: bool = True) -> Iterator[None]:
    """Add to an error the line that resumes a search, or begins it anew, if it has a journal.

    ``command`` is the last word of its name; ``rest`` is as in ``resume_line``.
    """
    try:
        yield
    except errors.Interrupted as stop:
        if stop.kept is None or not has_journal:
            raise
        raise errors.Interrupted(stop.message, kept=stop.kept, resume=resume_line(words, rest)) from stop
    except errors.CheckChanged as error:
        if not has_journal:
            raise
        kept, line = error.kept or "nothing was written", line_with(words, rest, command, ["--fresh"])
        raise errors.CheckChanged(error.summary, details=error.details, kept=kept, next_steps=[line]) from error


def line_with(
    words: Sequence[str], rest: Collection[str], command: str, added: Sequence[str], without: Collection[str] = ()
) -> str:
    """The line of ``words_with``."""
    return line_of(words_with(words, rest, command, added, without))


def words_with(
    words: Sequence[str], rest: Collection[str], command: str, added: Sequence[str], without: Collection[str] = ()
) -> list[str]:
    """The words of a command with options ``added`` after ``command``, the last word of its name.

    Otherwise like ``resume_line``.
    """
    end = next((place for place, word in enumerate(words) if word in rest), len(words))
    kept, skip = list[str](), False
    for word in words[:end]:
        if not skip and word not in without and word.partition("=")[0] not in {"--fresh", *without}:
            kept.append(word)
        skip = not skip and word in without
    kept += words[end:]
    place = kept.index(command) + 1 if command else len(kept)
    return ["biopsy", *kept[:place], *added, *kept[place:]]


CUT_INPUTS = "cut_inputs.npz"
"""The file into which an advised reduction writes the inputs of each candidate, for its check to load."""


def spec_of(golden: Path, inputs: Path | None = None) -> str:
    """The ``--engine`` text of the engine that returns the golden values in a file, recorded with ``inputs``."""
    from biopsy.engines.recorded import GoldenValues
    from biopsy.engines.registry import EngineSpec

    settings = {"file": str(golden)}
    if inputs is not None and inputs != golden:
        settings["inputs"] = str(inputs)
    return EngineSpec(GoldenValues.name, settings).text


def file_of(spec: str | None) -> Path | None:
    """The file of golden values that an ``--engine`` text names, or None."""
    from biopsy.engines.recorded import GoldenValues
    from biopsy.engines.registry import parse_spec

    if spec is None:
        return None
    named = parse_spec(spec)
    file = named.settings.get("file") if named.name == GoldenValues.name else None
    return None if file is None else Path(file)


def recording_options(spec: str, inputs: Sequence[str]) -> list[str]:
    """Options with which a reduction cuts only at tensors that have golden values; ``inputs``: words of files."""
    return ["--record-with", spec, "--load-inputs", *inputs, "--iter-inputs", CUT_INPUTS]


def holds_inner_values(golden: Path, index: ModelIndex) -> bool:
    """Whether a file has values of tensors inside a model, not only of its outputs."""
    outputs = set(index.outputs)
    return not {index.names[tensor] for tensor in index.producer if tensor not in outputs}.isdisjoint(_names(golden))


def missing_inputs(golden: Path, index: ModelIndex) -> list[str]:
    """The inputs of a model that have no value in a file."""
    held = _names(golden)
    return [index.names[tensor] for tensor in index.fed_inputs() if index.names[tensor] not in held]


def merge_words(files: Sequence[Path], output: str) -> list[str]:
    """The command line, in words, that merges files into one file of inputs."""
    return ["biopsy", "data", "to-input", *dict.fromkeys(map(as_word, files)), "-o", output]


def _names(golden: Path) -> set[str]:
    from biopsy.tensors.files import read_results

    try:
        results = read_results(golden)
    except (errors.BiopsyError, OSError):
        return set()
    return {name for result in results for iteration in result.iterations for name in iteration.outputs}
