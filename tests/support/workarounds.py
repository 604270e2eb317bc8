"""Searches for workarounds on small models that engines really fail on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx

from biopsy import events
from biopsy.engines.registry import PLAIN, parse_spec
from biopsy.engines.runner import Inputs, feeds_for
from biopsy.model.index import index_file
from biopsy.questions.builds.settings import CheckTemplate
from biopsy.questions.workarounds.find import find_workarounds
from biopsy.questions.workarounds.question import Kind, WhatIsRight, WorkaroundQuestion, Workarounds

OWN_RUN = ("biopsy", "run", "{}", "--engine", PLAIN[0], "--engine", "{engine}")


def question(
    model: onnx.ModelProto,
    folder: Path,
    *,
    engine: str = "onnxrt",
    words: Sequence[str] = OWN_RUN,
    kinds: tuple[Kind, ...] = ("mark",),
    nodes: tuple[str, ...] = (),
    references: tuple[str, ...] = PLAIN,
    named: bool = False,
    inputs: Inputs | None = None,
) -> WorkaroundQuestion:
    """What may be asked of a model, written into a folder; all its nodes are looked at."""
    path = folder / "model.onnx"
    onnx.save(model, path)
    index = index_file(path)
    wanted = index.fed_types()
    drawn = inputs or Inputs()
    return WorkaroundQuestion(
        index=index,
        model=path,
        template=CheckTemplate(tuple(words), parse_spec(engine), is_own_run=words[0] == "biopsy"),
        right=WhatIsRight(samples=feeds_for(wanted, drawn).feeds, drawn=drawn, references=references, named=named),
        kinds=kinds,
        nodes=nodes or tuple(name for node in model.graph.node for name in node.output),
        default_name=str(folder / "candidate.onnx"),
    )


def found(asked: WorkaroundQuestion, listener: events.Listener = events.ignore) -> Workarounds:
    """What a search finds."""
    return find_workarounds(asked, listener)
