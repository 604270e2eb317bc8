"""The words by which a model can be known again: every text in it that is neither the standard's nor neutral."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biopsy.report.bundle import script_parts

if TYPE_CHECKING:
    from collections.abc import Collection

_NEUTRAL = re.compile(r"(t|n|g|f|d|a|domain|overload)\d+_*")
"""Names that --anonymize gives, and any model may have."""

_WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")


def words_of_model(path: Path) -> dict[str, str]:
    """The texts of a model -> what they are, for a person; without words that any bundle has.

    Weights are not read from files beside it. Raises ModelError.
    """
    from biopsy.model.load import parse, read_bytes

    found = dict.fromkeys(_texts(parse(read_bytes(path), path)), "a name or text of the original")
    found[path.stem] = "the name of the original's file"
    usual = usual_words()
    return {text: what for text, what in found.items() if text not in usual and not _NEUTRAL.fullmatch(text)}


def without_words_of(words: Mapping[str, str], result: Path) -> dict[str, str]:
    """Those words that a result has no more: the others were told when they were not replaced. Raises ModelError."""
    from biopsy.model.load import parse, read_bytes

    stay = set(_texts(parse(read_bytes(result), result)))
    return {text: what for text, what in words.items() if text not in stay}


def _texts(message: Any) -> Iterator[str]:
    """Every text in a message of protobuf and in all inside it."""
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in (value,) if hasattr(value, "ListFields") else value:
                yield from _texts(part)
        elif field.type == field.TYPE_STRING:
            yield from filter(None, (value,) if isinstance(value, str) else value)


@cache
def usual_words() -> Collection[str]:
    """Words of the standard, and of the texts that every bundle is made of."""
    from onnx import TensorProto, defs

    from biopsy.engines.titles import TITLES
    from biopsy.model.domains import PUBLIC_DOMAINS

    found = {*PUBLIC_DOMAINS, *(name.lower() for name in TensorProto.DataType.keys())}  # noqa: SIM118 -- no dictionary
    for schema in defs.get_all_schemas_with_history():
        found |= {schema.name, schema.domain, *schema.attributes}
    told = {"literals.py", "issue_forms.py", "issue_text.py", "exclusions.py", "failure.py", "regression_test.py"}
    bundle = resources.files(script_parts.__name__.rpartition(".")[0])
    files = [*resources.files(script_parts).iterdir(), *(file for file in bundle.iterdir() if file.name in told)]
    for file in files:
        if file.name.endswith(".py"):
            found.update(_WORD.findall(file.read_text(encoding="utf-8")))
    return found.union(*map(_WORD.findall, TITLES.values()))
