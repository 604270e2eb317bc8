"""A folder of models for ``biopsy hunt``, the bugs that an engine has on them, and what a hunt finds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
from onnx import helper

from support.command_line import Ran, typed
from support.models import chain, info, model, save, weight

RULES: tuple[dict[str, Any], ...] = (
    {"op": "Tanh", "does": "scale"},
    {"op": "Exp", "does": "crash run"},
    {"op": "Cos", "does": "hang run"},
    {"op": "Sinh", "does": "refuse build"},
    {"op": "Cosh", "does": "refuse run"},
    {"op": "Add", "does": "scale", "by": 1.0000001},
    {"op": "Atan", "does": "nan"},
)


def unary(*ops: str) -> onnx.ModelProto:
    return chain(len(ops), ops)


ZOO = {
    "good": unary("Relu", "Neg"),
    "deep/wrong_one": unary("Tanh"),
    "deep/wrong_two": unary("Relu", "Abs", "Tanh", "Neg", "Abs", "Neg"),
    "crash": unary("Relu", "Exp"),
    "refuse": unary("Sinh"),
    "fail": unary("Cosh"),
    "rounding": model(
        [helper.make_node("Add", ["x", "large"], ["sum"]), helper.make_node("Sub", ["sum", "large"], ["y"])],
        [info("x")],
        [info("y")],
        [weight("large", 1e4)],
    ),
    "nan": unary("Atan"),
    "random": model([helper.make_node("RandomNormalLike", ["x"], ["y"])], [info("x")], [info("y")]),
    "own_nan": model(
        [helper.make_node("Log", ["x"], ["l"]), helper.make_node("Tanh", ["l"], ["y"])], [info("x")], [info("y")]
    ),
}


def zoo(folder: Path, models: Mapping[str, onnx.ModelProto] = ZOO) -> Path:
    for name, made in models.items():
        path = folder / f"{name}.onnx"
        path.parent.mkdir(parents=True, exist_ok=True)
        save(made, path)
    return folder


def read(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "hunt.json").read_text())


def kinds(folder: Path, engine: str) -> dict[str, str]:
    """The kind of each model in an engine, by the model's name."""
    return {
        Path(each["model"]).stem: cell["kind"]
        for each in read(folder)["models"]
        for cell in each["cells"]
        if cell["engine"] == engine
    }


def hunt(folder: Path, *words: object, **options: Any) -> Ran:
    return typed("hunt", *words, "--dir", folder / "found", "--jobs", 2, folder=folder, **options)
