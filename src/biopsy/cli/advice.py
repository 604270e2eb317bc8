"""Lines to type next, complete, each with what it would tell: new ones made of options that were given or of golden
values, and the one that was typed, once more.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.checks.words import as_word
from biopsy.cli.console import Console
from biopsy.text import line_of

if TYPE_CHECKING:
    from biopsy.model.index import ModelIndex


@dataclass(frozen=True)
class Advice:
    """A line that a person can paste as it is, and why: what it would tell, in a few words, "" where it says that."""

    line: str
    why: str = ""


def say_advice(console: Console, advice: Sequence[Advice]) -> None:
    """Show what to type next, each line below what it would tell: it can be pasted as a whole."""
    if advice:
        console.note("")
    for number, one in enumerate(advice):
        head = "Next" if number == 0 else ""
        if one.why:
            console.note(f"{head:<8} {one.why}:", f"{'':<8}   {one.line}")
        else:
            console.note(f"{head:<8} {one.line}")


# The command line that was typed, once more: to go on with what it began, to begin anew, or with one more option.


def resume_line(words: Sequence[str], rest: Collection[str], without: Collection[str] = ()) -> str:
    """The line that goes on with what the words began.

    Without ``--fresh``, which would begin anew, and without the options ``without``, which have one value each. What
    stands behind one of ``rest``, the options that take all that follows, is left alone.
    """
    return line_with(words, rest, "", (), without)


def fresh_line(words: Sequence[str], rest: Collection[str], command: str) -> str:
    """The line that begins anew what the words of a ``command``, the last word of its name, began."""
    return line_with(words, rest, command, ["--fresh"])


def line_with(
    words: Sequence[str], rest: Collection[str], command: str, added: Sequence[str], without: Collection[str] = ()
) -> str:
    """The line that does the same once more, with options ``added`` behind the last word of the command's name.

    As ``resume_line`` otherwise.
    """
    end = next((place for place, word in enumerate(words) if word in rest), len(words))
    kept, skip = list[str](), False
    for word in words[:end]:
        if not skip and word not in without and word.partition("=")[0] not in {"--fresh", *without}:
            kept.append(word)
        skip = not skip and word in without
    kept += words[end:]
    place = kept.index(command) + 1 if command else len(kept)
    return line_of(["biopsy", *kept[:place], *added, *kept[place:]])


def begun_anew(error: errors.CheckChanged, line: str) -> errors.CheckChanged:
    """The same error with what is kept and the line to type next."""
    kept = error.kept or "nothing was written"
    return errors.CheckChanged(error.summary, details=error.details, kept=kept, next_steps=[line])


# Golden values of tensors inside a model in lines to type: they stand where an engine to trust is named otherwise.

CUT_INPUTS = "cut_inputs.npz"
"""Where a reduction writes the inputs of each candidate, for its check to load."""


def spec_of(golden: Path, inputs: Path | None = None) -> str:
    """The engine that gives what a file holds, as it is named; ``inputs``: the file of what they belong to."""
    from biopsy.engines.recorded import GoldenValues
    from biopsy.engines.registry import EngineSpec

    settings = {"file": str(golden)}
    if inputs is not None and inputs != golden:
        settings["inputs"] = str(inputs)
    return EngineSpec(GoldenValues.name, settings).text


def file_of(spec: str | None) -> Path | None:
    """The file behind such an engine; None of another engine."""
    from biopsy.engines.recorded import GoldenValues
    from biopsy.engines.registry import parse_spec

    if spec is None:
        return None
    named = parse_spec(spec)
    file = named.settings.get("file") if named.name == GoldenValues.name else None
    return None if file is None else Path(file)


def recording_options(spec: str, inputs: Sequence[str]) -> list[str]:
    """What a reduction needs to cut where there are golden values, and nowhere else; ``inputs`` are words."""
    return ["--record-with", spec, "--load-inputs", *inputs, "--iter-inputs", CUT_INPUTS]


def holds_inner_values(golden: Path, index: ModelIndex) -> bool:
    """Whether a file has values of tensors between the nodes of a model, and not only of its outputs."""
    outputs = set(index.outputs)
    return not {index.names[tensor] for tensor in index.producer if tensor not in outputs}.isdisjoint(_names(golden))


def lacking(golden: Path, index: ModelIndex) -> list[str]:
    """The inputs of a model of which a file has no value."""
    held = _names(golden)
    return [index.names[tensor] for tensor in index.fed_inputs() if index.names[tensor] not in held]


def merge_words(files: Sequence[Path], output: str) -> list[str]:
    """The line that puts what files hold into one file of inputs."""
    return ["biopsy", "data", "to-input", *dict.fromkeys(map(as_word, files)), "-o", output]


def _names(golden: Path) -> set[str]:
    from biopsy.tensors.files import read_results

    try:
        results = read_results(golden)
    except (errors.BiopsyError, OSError):
        return set()
    return {name for result in results for iteration in result.iterations for name in iteration.outputs}
