"""Names that a person may have meant: the one place that knows what is near, and how it is asked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

QUESTION = "did you mean "
"""How a line begins that asks whether something similar was meant."""


_OTHER_NAMES = {
    "ort": "onnxrt",
    "onnxruntime": "onnxrt",
    "onnx-runtime": "onnxrt",
    "ov": "openvino",
    "tensorrt": "trt",
}
"""What people call the engines elsewhere, in no letters that are like those of the names here."""


def similar(name: str, known: Iterable[str], *, most: int = 3, cutoff: float = 0.5) -> list[str]:
    """The known names that are like this one, most alike first; letters of another case count as the same.

    What an engine is called elsewhere is like its name here, also as an option: ``--ort`` is like ``--onnxrt``.

    ``cutoff``: how alike they must be, from 0 to 1, by the ratio of ``difflib``.
    """
    from difflib import get_close_matches

    spellings: dict[str, list[str]] = {}
    for one in known:
        spellings.setdefault(one.casefold(), []).append(one)
    folded_name = name.casefold()
    bare = folded_name.lstrip("-")
    meant = folded_name.removesuffix(bare) + _OTHER_NAMES.get(bare, "")
    if meant in spellings:
        return spellings[meant][:most]
    close = get_close_matches(folded_name, spellings, n=most, cutoff=cutoff)
    return [one for folded in close for one in spellings[folded]][:most]


def did_you_mean(name: str, known: Iterable[str], *, most: int = 3, cutoff: float = 0.5) -> list[str]:
    """A line that asks whether one of the known names was meant; nothing if none is near."""
    return ask_for(similar(name, known, most=most, cutoff=cutoff))


def ask_for(names: Sequence[str]) -> list[str]:
    """A line that asks whether one of these was meant; nothing if there are none."""
    return [f"{QUESTION}{' or '.join(map(repr, names))}?"] if names else []
