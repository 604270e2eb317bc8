"""What a test does with the fixture ``onnx_engines``: engines are compared on a model, in processes of their own, and a
failure becomes a message of a few lines with the evidence beside it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pytest

from biopsy import errors
from biopsy.api.running import (
    GivenInputs,
    GivenRanges,
    Model,
    inputs_of,
    model_file,
    tolerance_words,
    tolerances_by_name,
)
from biopsy.checks.command import run_biopsy
from biopsy.checks.words import as_word
from biopsy.comparison.tolerance import DEFAULT_TOLERANCE
from biopsy.engines.registry import PLAIN, EngineSpec, create
from biopsy.engines.runner import Inputs
from biopsy.findings.page.reading import Branch, nodes_of
from biopsy.findings.page.sections import verdict_in
from biopsy.findings.report import Tree
from biopsy.findings.verdict import notes_of
from biopsy.processes.writing import write_whole
from biopsy.tensors.files import write_feeds
from biopsy.text import first_of, printable, shortened, similar

Settings: TypeAlias = "bool | Mapping[str, object] | Sequence[Mapping[str, object]]"
"""How an engine is run: True with its usual settings, a dictionary of settings, or several of these."""

Effort = Literal["off", "reduce", "diagnose"]

_MOST_LINES = 15
_MOST_OUTPUTS = 3
_MOST_NODES = 6
_LONGEST_LINE = 600


@dataclass(frozen=True, kw_only=True)
class OnnxEngines:
    """The fixture ``onnx_engines``.

    ``root`` is the folder of relative paths, ``scratch`` the folder of the test. The evidence of a failure goes to
    a folder of the ``test`` in ``kept``, or to ``scratch`` if that is None. ``effort`` and ``max_time`` are the options
    ``--biopsy`` and ``--biopsy-max-time``.
    """

    root: Path
    scratch: Path
    kept: Path | None
    test: str
    effort: Effort
    max_time: str

    def check(
        self,
        model: Model,
        *,
        inputs: GivenInputs = None,
        atol: float | Mapping[str, float] = DEFAULT_TOLERANCE,
        rtol: float | Mapping[str, float] = DEFAULT_TOLERANCE,
        iterations: int = 1,
        seed: int = 1,
        val_range: GivenRanges = None,
        input_shapes: Mapping[str, tuple[int, ...]] | None = None,
        **engines: Settings,
    ) -> None:
        """Fail the test unless the engines give the same for ``model``.

        ``engines`` are keyword arguments with the names of engines, such as ``onnxrt=True`` or
        ``openvino={"precision": "f32"}``: True for the usual settings, a dictionary of settings, or a list of these.
        The first is what all others are compared with. One alone, by default ``onnxrt``, is compared with ONNX Runtime
        without its optimizer. All other arguments are those of ``biopsy.run`` and ``biopsy.compare``. A relative path
        begins at pytest's rootdir.

        The failure's message is the verdict, with the paths of what was kept and the line to type next. A test fails
        too if nothing could be compared, such as for an engine that is not installed.
        """
        __tracebackhide__ = True
        try:
            specs = _specs(engines)
            words = [word for spec in specs for word in ("--engine", spec)]
            inputs = self._from_root(inputs)
            drawn = inputs_of(None if isinstance(inputs, Path) else inputs, iterations, seed, val_range, input_shapes)
            words += self._words(inputs, drawn)
            for name, limits in (("atol", atol), ("rtol", rtol)):
                tolerances_by_name(name, limits)
            words += tolerance_words(atol=atol, rtol=rtol)
            with model_file(self._from_root(model), None) as (path, _):
                shown = path if isinstance(model, str | PathLike) else self._written(path)
                message = self._failure(as_word(shown), words)
        except errors.BiopsyError as error:
            message = "\n".join(map(printable, [error.message, *error.next_steps]))
        if message:
            pytest.fail(message, pytrace=False)

    def _words(self, inputs: GivenInputs, drawn: Inputs) -> Iterator[str]:
        """The options of ``biopsy run`` for given inputs, or for random ones."""
        if isinstance(inputs, Path):
            yield from ("--load-inputs", str(inputs))
        elif drawn.given is not None:
            file = _new(self.scratch, "inputs.safetensors")
            write_feeds(file, drawn.given)
            yield from ("--load-inputs", str(file))
        yield from () if drawn.iterations == 1 else ("--iterations", str(drawn.iterations))
        yield from () if drawn.seed == 1 else ("--seed", str(drawn.seed))
        for option, values in (("--val-range", drawn.val_range), ("--input-shapes", drawn.shapes)):
            texts = {name: "[" + ",".join(map(str, value)) + "]" for name, value in values.items()}
            yield from [option, *(f"{name}:{text}" if name else text for name, text in texts.items())] if texts else ()

    def _from_root(self, file: Any) -> Any:
        """A path that begins at the rootdir, as it is written from the current folder; anything else as it is.

        Raises UsageError if there is no such file.
        """
        if not isinstance(file, str | PathLike):
            return file
        path = self.root / file
        if not path.is_file():
            raise errors.UsageError(
                f"{path}: there is no such file", next_steps=[f"relative paths begin at {self.root}"]
            )
        return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path

    def _written(self, path: Path) -> Path:
        """A copy of a model that has no file of its own, which outlives the test."""
        copy = _new(self.scratch, "model.onnx")
        write_whole(copy, [path.read_bytes()])
        return copy

    def _failure(self, model: str, words: Sequence[str]) -> str:
        """The message about a model that fails; "" if it passes."""
        report = _new(self.scratch, "run.json")
        status, printed = run_biopsy("run", model, *words, "--report", str(report))
        if status == 0:
            return ""
        if status != errors.EngineFailure.status:
            return "\n".join(map(printable, [f"{model}: nothing could be compared", *_end(printed)]))
        tree = _read(report)
        if self.effort == "off" or tree is None:
            said = _end(printed) if tree is None else [*_verdict_lines(tree), *_differences(tree)]
            return _message(model, said, tree)
        folder = _new(self.scratch if self.kept is None else self.kept, re.sub(r"[^\w.-]+", "-", self.test)[-100:])
        folder.mkdir(parents=True)
        report, bundle = folder / "report.json", folder / "bundle"
        asked = ["--max-time", self.max_time, "--report", str(report), "--bundle", str(bundle)]
        if self.effort == "reduce":
            result = ["-o", str(folder / "reduced.onnx"), "--hide-fail-output"]
            check = ["--check", "biopsy", "run", "{}", *words]
            status, printed = run_biopsy("debug", "reduce", model, *result, *asked, *check)
        else:
            status, printed = run_biopsy("diagnose", model, *words, "--dir", str(folder / "diagnosis"), *asked)
        deeper = _read(report)
        if deeper is None or deeper["verdict"]["kind"] in ("passes", "unknown"):
            why = [f"{self.effort} ended with status {status}:", *_end(printed)[-2:]]
            return _message(model, [*_verdict_lines(tree), *why, f"kept       {folder}"], tree)
        kept = [f"{name:<10} {path}" for name, path in (("bundle", bundle), ("report", report)) if path.exists()]
        if nodes := nodes_of(deeper):
            kept.insert(0, f"{'piece':<10} {first_of(nodes, _MOST_NODES)}")
        return _message(model, [*_verdict_lines(tree)[:1], *_differences(tree), *_verdict_lines(deeper), *kept], deeper)


def _specs(engines: Mapping[str, Settings]) -> list[str]:
    """The specs of engines given by name. Raises UnknownEngine, EngineMissing, UsageError."""
    arguments = ("inputs", "atol", "rtol", "iterations", "seed", "val_range", "input_shapes")
    specs = []
    for name, given in engines.items():
        try:
            create(name)
        except errors.UnknownEngine as error:
            near = [f"did you mean {each}=...?" for each in similar(name, arguments, most=1)]
            raise errors.UsageError(error.message, next_steps=[*near, *error.next_steps]) from error
        for settings in given if isinstance(given, list | tuple) else [given]:
            if not isinstance(settings, bool | Mapping):
                raise errors.UsageError(f"{name}={given!r}: it is True, a dictionary of settings, or a list of these")
            texts = settings.items() if isinstance(settings, Mapping) else ()
            written = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in texts}
            specs += [EngineSpec(name, written).text] if settings is not False else []
    for spec in specs:
        create(spec)
    if engines and not specs:
        raise errors.UsageError(f"no engine is left to run: {', '.join(engines)} is False")
    specs = specs or ["onnxrt"]
    return specs if len(specs) > 1 else [next(each for each in PLAIN if each != specs[0]), *specs]


def _differences(report: Tree) -> list[str]:
    """A line for each of the first outputs that differ, by the report of ``biopsy run``."""
    comparisons = (report.get("run") or {}).get("comparisons") or ()
    outputs = [each for one in comparisons for run in one["iterations"] for each in run["outputs"]]
    lines = []
    for output in [output for output in outputs if not output["passed"]][:_MOST_OUTPUTS]:
        worst = (output.get("measured") or {}).get("worst_absolute")
        values = [] if worst is None else [worst["actual"], worst["expected"]]
        texts = [f"{value:.7g}" if isinstance(value, float) else str(value) for value in values]
        place = f", the greatest difference at {worst['index']}: {texts[0]}, expected {texts[1]}" if worst else ""
        lines.append(f"{output['name']!r}: {output['reason']}{place}")
    return lines


def _verdict_lines(report: Tree) -> list[str]:
    """The verdict of a report in words, and its notes."""
    verdict = verdict_in(Branch(report))
    lines = [verdict.text, *verdict.reasons]
    for note in notes_of(verdict):
        lines += [f"{note.label:<10} {note.text}", *([f"{'':<10} {note.line}"] if note.line else [])]
    return lines


def _message(model: str, lines: Sequence[str], report: Tree | None) -> str:
    """At most 15 lines: what was found, what was kept, and what to type next."""
    following = next(iter((report or {}).get("next") or ()), None)
    after = [f"{'next':<10} {following['why']}:", f"{'':<10} {following['line']}"] if following else []
    head, *others = lines
    most = _MOST_LINES - len(after)
    shown = [f"{model}: {head}", *others]
    if len(shown) > most:
        kept = [line for line in shown if line.startswith(("piece ", "bundle ", "report ", "kept "))]
        shown = [*[line for line in shown if line not in kept][: most - len(kept)], *kept]
    texts = [shortened(printable(line), _LONGEST_LINE) for line in shown]
    return "\n".join([*texts, *(printable(line) for line in after)])


def _end(printed: str) -> list[str]:
    return [line for line in printed.splitlines() if line.strip()][-8:]


def _read(report: Path) -> Tree | None:
    try:
        tree = json.loads(report.read_bytes())
    except (OSError, ValueError):
        return None
    return tree if isinstance(tree, dict) and isinstance(tree.get("verdict"), dict) else None


def _new(folder: Path, name: str) -> Path:
    """A path in a folder at which there is nothing yet."""
    stem, dot, ending = name.rpartition(".") if not name.startswith(".") else ("", "", name)
    for number in range(1, 10_000):
        path = folder / (name if number == 1 else f"{stem}-{number}{dot}{ending}" if dot else f"{name}-{number}")
        if not path.exists():
            return path
    raise errors.UsageError(f"{folder} is full of {name}")
