"""What ``-h`` shows: the options that most people need, examples, and which command comes next; one screen."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from itertools import pairwise

ESSENTIAL: dict[tuple[str, ...], tuple[str, ...]] = {
    ("run",): (
        "model",
        "--onnxrt",
        "--reference",
        "--openvino",
        "--trt",
        "--engine",
        "--load-inputs",
        "--save-inputs",
        "--load-outputs",
        "--save-outputs",
        "--onnx-outputs",
        "--atol",
        "--rtol",
    ),
    ("diagnose",): (
        "model",
        "--onnxrt",
        "--openvino",
        "--engine",
        "--load-inputs",
        "--input-shapes",
        "--atol",
        "--rtol",
        "--check",
        "--max-time",
        "--dir",
    ),
    ("debug", "reduce"): (
        "model",
        "--output",
        "--mode",
        "--check",
        "--fail-regex",
        "--hide-fail-output",
        "--load-inputs",
        "--max-time",
        "--simplify",
    ),
    ("debug", "precision"): ("model", "--output", "--list", "--fp16", "--bf16", "--mode", "--dir", "--check"),
    ("debug", "repeat"): ("--until", "--check", "--fail-regex", "--artifacts", "--art-dir", "--jobs"),
    ("debug", "build"): ("model", "--until", "--vary", "--save-tactics", "--artifacts", "--art-dir", "--check"),
    ("debug", "flags"): ("model", "--engine", "--output", "--check", "--fail-regex"),
    ("debug", "version"): (
        "model",
        "--package",
        "--good",
        "--bad",
        "--versions",
        "--with",
        "--all",
        "--reduce",
        "--report",
        "--check",
    ),
    ("debug", "workaround"): (
        "model",
        "--engine",
        "--output",
        "--only",
        "--piece",
        "--nodes",
        "--reference-engine",
        "--load-inputs",
        "--atol",
        "--rtol",
        "--max-time",
        "--check",
    ),
    ("debug", "transform"): (
        "model",
        "--by",
        "--passes",
        "--package",
        "--output",
        "--engine",
        "--load-inputs",
        "--atol",
        "--rtol",
        "--report",
        "--max-time",
        "--check",
    ),
    ("debug", "layers"): (
        "model",
        "--suspect",
        "--reference-engine",
        "--onnxrt",
        "--openvino",
        "--engine",
        "--load-inputs",
        "--atol",
        "--rtol",
        "--report",
    ),
    ("inspect", "capability"): ("model", "--output", "--onnxrt", "--openvino", "--trt", "--engine"),
    ("convert",): ("model", "--output", "--convert-to", "--fp-to-fp16", "--input-shapes", "--trt", "--engine"),
    ("check", "lint"): ("model", "--output", "--onnxrt", "--engine", "--load-inputs", "--input-shapes"),
    ("surgeon", "extract"): (
        "model",
        "--output",
        "--inputs",
        "--outputs",
        "--model-input-shapes",
        "--force-fallback-shape-inference",
        "--load-inputs",
        "--save-external-data",
    ),
    ("surgeon", "insert"): (
        "model",
        "--output",
        "--op",
        "--name",
        "--inputs",
        "--outputs",
        "--attrs",
        "--save-external-data",
    ),
    ("surgeon", "sanitize"): (
        "model",
        "--output",
        "--fold-constants",
        "--cleanup",
        "--toposort",
        "--override-input-shapes",
        "--outputs",
        "--save-external-data",
    ),
}
"""The options of a command that ``-h`` shows, if not all of them."""

NEXT: dict[tuple[str, ...], tuple[str, ...]] = {
    ("run",): ("debug reduce    the smallest part that still fails", "debug layers    the layers that are wrong"),
    ("torch",): (
        "debug layers --load-outputs    each layer, held against PyTorch",
        "debug known    whether the piece is a bug that is known",
    ),
    ("debug", "reduce"): (
        "inspect model    what is left",
        "debug known    whether it is a bug that is known",
        "debug flags    the setting that switches the failure off",
        "debug workaround    the smallest change of the whole model that avoids it",
    ),
    ("debug", "layers"): ("debug reduce --order-by    the smallest part that still fails",),
    ("debug", "flags"): (
        "debug workaround    other changes, verified",
        "debug version    the release that broke it, or mended it",
    ),
    ("debug", "version"): (
        "debug flags    the setting that avoids it in a release that fails",
        "debug workaround    what avoids it, if you cannot change the release",
        "debug known    whether it is a bug that is known",
    ),
    ("debug", "transform"): ("debug known    whether the piece is a bug that is known",),
    ("debug", "known"): (
        "debug workaround    the smallest change with which the model is right",
        "debug version    the release that broke it, or mended it",
    ),
    ("debug", "workaround"): ("run    the patched model, beside the original",),
    ("debug", "build"): ("debug diff-tactics    what goes with the bad builds",),
    ("debug", "repeat"): ("debug build    varies what an engine chooses",),
    ("inspect", "capability"): ("surgeon extract    a part as a model of its own",),
    ("check", "lint"): ("surgeon extract    a faulty part as a model of its own",),
    ("convert",): ("run    the written model, beside the original",),
    ("cache", "list"): ("cache clear    removes them",),
    ("data", "to-input"): ("debug reduce    with these inputs",),
    ("doctor",): ("demo    a real bug, found",),
    ("demo",): ("run    compares engines on your own model",),
}
"""What a person does after a command."""


def essential(parser: argparse.ArgumentParser, words: tuple[str, ...]) -> list[argparse.Action]:
    """The actions of a command that its short help shows, in the order of ``ESSENTIAL`` or of the parser."""
    named = ESSENTIAL.get(words)
    if named is None:
        groups = [group for group in parser._action_groups if not (group.title or "").startswith("messages")]
        return [action for group in groups for action in group._group_actions]
    by_name = {name: action for action in parser._actions for name in action.option_strings or [action.dest]}
    return [by_name[name] for name in named]


def brief(action: argparse.Action) -> str:
    """The first clause of the help of an option."""
    text = action.help or ""
    if action.choices is not None and any(text.startswith(f"{choice}:") for choice in action.choices):
        return f"default: {action.default}"
    return re.split(r"; |: |\. | \(|, such as|, as in", text)[0]


def examples(epilog: str | None) -> list[str]:
    """The examples of an epilog, as lines; nothing if it has none."""
    lines = (epilog or "").rstrip().split("\n")
    start = next((place for place, line in enumerate(lines) if line.startswith("  ")), len(lines))
    end = next((place for place in range(start, len(lines)) if not lines[place]), len(lines))
    return lines[start:end]


def within(lines: list[str], most: int) -> list[str]:
    """The lines up to the last example that ends within ``most`` of them."""
    if len(lines) <= most:
        return lines
    least = min(map(_indent, lines))
    begins = [
        place
        for place, (before, line) in enumerate(pairwise(lines), 1)
        if _indent(line) == least and (_indent(before) > least or before.lstrip().startswith("biopsy "))
    ]  # a line of text goes on with more text, or with its command
    return lines[: max((place for place in begins if place <= most), default=0)]


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def next_lines(program: str, words: Sequence[str]) -> list[str]:
    """The lines that name the commands that come next."""
    rows = [row.split("    ") for row in NEXT.get(tuple(words), ())]
    width = max((len(f"{program} {name}") for name, _ in rows), default=0)
    return [f"  {f'{program} {name}':<{width}}  {what}" for name, what in rows]
