"""A file for a bug that is not known yet: from a piece and how it fails, with what a person has to fill in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from biopsy import errors
from biopsy.engines.registry import find_class
from biopsy.filesystem.write import write_whole
from biopsy.known_failures.catalogue import SUFFIX, users_folder
from biopsy.known_failures.entry import release_of
from biopsy.known_failures.fingerprint import Fingerprint, pattern_in
from biopsy.known_failures.lookup import SeenFailure
from biopsy.text import first_of, printable

_MOST_NAMED = 6


def entry_text(fingerprint: Fingerprint, seen: SeenFailure, title: str = "", issue: str = "") -> str:
    """The text of a file that can be read as it is; comments say what else a person may know.

    Raises UsageError if nobody has said which engine fails, or if the fingerprint is not exact.
    """
    import yaml

    if not seen.engine:
        raise errors.UsageError(
            "which engine fails is not known, and a known failure is one of an engine",
            next_steps=["--engine NAME", "--check COMMAND ...    runs it once, to see how it fails"],
        )
    if not fingerprint.exact:
        raise errors.UsageError("this piece is too symmetrical for a fingerprint that only it has: reduce it further")

    def told(key: str, value: object) -> str:
        text: str = yaml.safe_dump({key: value}, sort_keys=False, allow_unicode=True, width=100)
        return text

    return "".join(_parts(fingerprint, seen, title or _title(fingerprint, seen), issue, told))


def _parts(
    fingerprint: Fingerprint, seen: SeenFailure, title: str, issue: str, told: Callable[[str, object], str]
) -> Iterator[str]:
    version = release_of(seen.release)
    yield told("biopsy_known", "1")
    yield "# What is wrong, in a sentence.\n"
    yield told("title", title)
    yield "# The address of a public report: https://github.com/OWNER/NAME/issues/NUMBER; '' if there is none.\n"
    yield told("issue", issue)
    yield told("engine", seen.engine)
    yield told("package", _package(seen.engine))
    yield "# Releases that were tried: those that fail, and those in which it is mended ('' for none).\n"
    yield told("fails", "" if version is None else f"=={version}")
    yield told("mended", "")
    yield "# How it shows: the stage (load, build, run or compare), and the kinds that releases call it.\n"
    yield told("signatures", [_signature(seen)] if seen.stage or seen.kind else [])
    yield "# What else must hold, such as a level of the optimizer; a sentence each.\n"
    yield told("conditions", [])
    yield "# What avoids it: text: a sentence; engine: with settings, such as onnxrt:optimization=basic.\n"
    yield told("workarounds", [])
    yield "# What this piece looks like, made by biopsy: more pieces of the same bug may follow.\n"
    yield f"patterns:\n  - fingerprint: {fingerprint.digest}\n    graph: |\n"
    yield "".join(f"      {line}\n" for line in fingerprint.text.splitlines())


def _package(engine: str) -> str:
    """The distribution that has the releases of an engine; the engine's own name where nobody knows."""
    try:
        return next(iter(find_class(engine).distributions), engine)
    except errors.EngineMissing:
        return engine


def _signature(seen: SeenFailure) -> dict[str, object]:
    found: dict[str, object] = {"stage": seen.stage} if seen.stage else {}
    return {**found, "kinds": [seen.kind]} if seen.kind else found


def _title(fingerprint: Fingerprint, seen: SeenFailure) -> str:
    pattern = pattern_in(fingerprint.text)
    operators = [pattern.vertices[place].label for place in pattern.nodes]
    return f"{seen.engine} fails on {first_of(operators, _MOST_NAMED)}"


def new_file(name: str) -> Path:
    """Where ``--add NAME`` puts a file: in the user's folder. Raises UsageError for what is no name, or no home."""
    folder = users_folder()
    if folder is None:
        raise errors.UsageError("there is no home folder to add it to", next_steps=["--save FILE.yaml"])
    stem = name.removesuffix(SUFFIX)
    if not stem or stem.startswith(".") or not all(char.isalnum() or char in "-_." for char in stem):
        raise errors.UsageError(
            f"--add {printable(name)!r}: it is a name of letters, digits, '-', '_' and '.'",
            next_steps=["--add my-bug", "--save FILE.yaml    writes it anywhere"],
        )
    return folder / f"{stem}{SUFFIX}"


def write_entry(path: Path, text: str) -> None:
    """Write a new file, whole or not at all. Raises UsageError if it is there already, or cannot be written."""
    if path.exists() or path.is_symlink():
        raise errors.UsageError(
            f"{path} is there already: nothing was written", next_steps=["give another name, or remove it"]
        )
    write_whole(path, [text.encode()])
