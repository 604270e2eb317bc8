"""Numbers and short texts as the page writes them, and what it says of a node or a tensor."""

from __future__ import annotations

import math
from collections.abc import Mapping

from biopsy.findings.page.reading import Branch
from biopsy.text import count

OUT_OF_TOLERANCE = 1.0
"""A ratio of an error to its tolerance above this fails."""


def figure(value: float) -> str:
    """A number with four significant digits: ``0.0412``, ``1.2e-07``, ``12000``, ``nan``."""
    if math.isfinite(value) and value == int(value):
        return f"{value:.0f}" if abs(value) < 1e7 else f"{value:.3e}"
    return f"{value:.4g}"


def times(ratio: float) -> str:
    """A ratio: ``0.02×``, ``41×``."""
    if ratio < 1000 or not math.isfinite(ratio):
        return f"{ratio:.3g}×"
    return f"{ratio:,.0f}×" if ratio < 1e6 else f"{ratio:.1e}×"


def duration(seconds: float) -> str:
    """Seconds for people: ``1.3 ms``, ``0.28 s``, ``4.1 s``, ``3 min 20 s``, ``2 h 5 min``."""
    if not math.isfinite(seconds):
        return f"{seconds} s"
    if 0 < seconds < 0.1:
        return f"{seconds * 1000:.2g} ms"
    if seconds < 1:
        return f"{seconds:.2f} s"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def cut(text: str, most: int) -> str:
    """The text, or its beginning and an ellipsis if it has more than ``most`` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def middle_cut(text: str, most: int) -> str:
    """The text, or both of its ends around an ellipsis: paths and names of layers differ at their ends."""
    if len(text) <= most:
        return text
    tail = (most - 1) * 2 // 3
    return f"{text[: most - 1 - tail]}…{text[-tail:]}"


# What the page says of a node or a tensor: its type, its error, where it was made.

MOST_SHOWN = 30
"""Attributes and tensors of a node that are listed."""


def error_text(tensor: Branch | None) -> str | None:
    """``✕ error 41× the tolerance``; None where nobody has measured."""
    measured = error_of(tensor)
    if measured is None:
        return None
    sign, amount, is_ratio = measured
    return f"{sign} error {amount} the tolerance" if is_ratio else f"{sign} {amount}"


def error_of(tensor: Branch | None) -> tuple[str, str, bool] | None:
    """Sign and size of the error at a tensor, and whether that is a ratio; None where nobody has measured."""
    error = None if tensor is None else tensor.part("error")
    if error is None:
        return None
    ratio, passed = error.number("tolerance_ratio"), error.flag("passed")
    wrong = passed is False or (passed is None and ratio is not None and not ratio <= OUT_OF_TOLERANCE)
    amount = error.text("reason") or "error" if ratio is None else times(ratio)
    return "✕" if wrong else "✓", amount, ratio is not None


def style_of(tensor: Branch | None) -> str:
    """wrong, right or unmeasured."""
    measured = error_of(tensor)
    return "unmeasured" if measured is None else "wrong" if measured[0] == "✕" else "right"


def type_text(tensor: Branch) -> str:
    """``float32 [1, N, ?]``."""
    return f"{tensor.text('dtype') or '?'} {tensor.loose('shape') or '[…]'}"


def node_lines(node: Branch, tensors: Mapping[str, Branch]) -> list[str]:
    """All that is known of a node, the operator first."""
    number, name, domain = node.whole("number"), node.text("name"), node.text("domain")
    lines = [f"{cut(node.text('op_type') or '?', 200)}{f' of {cut(domain, 200)}' if domain else ''}"]
    lines += [f"name  {cut(name, 300)}"] if name else []
    lines += [f"node {number} of the original"] if number is not None else []
    attributes = list(node.texts_by_name("attributes").items())[:MOST_SHOWN]
    lines += [f"{cut(key, 100)} = {cut(text, 200)}" for key, text in attributes]
    for title, names in (("reads", node.texts("inputs")), ("writes", node.texts("outputs"))):
        for tensor in names[:MOST_SHOWN]:
            first, *more = tensor_lines(tensor, tensors)
            lines.append(f"{title}  {first}" if tensor else f"{title}  nothing (left out)")
            lines += [f"    {line}" for line in more]
    bodies = node.whole("bodies")
    lines += [f"{count(bodies, 'node')} in its bodies"] if bodies else []
    lines += source_lines(node)
    return lines


def source_lines(node: Branch) -> list[str]:
    """Where the exporter says that a node comes from: file and line, the code, the modules."""
    source = node.part("source")
    if source is None:
        return []
    file, line, function = source.text("file"), source.whole("line"), source.text("function")
    lines = []
    if file is not None:
        where = f"{middle_cut(file, 200)}{'' if line is None else f':{line}'}"
        lines.append(f"made at  {where}{f' in {cut(function, 100)}' if function else ''}")
    code, scopes = source.text("code"), source.texts("scopes")
    lines += [f"    {cut(code.strip(), 200)}"] if code else []
    lines += [f"module  {cut(scopes[-1], 200)}"] if scopes else []
    instead = source.text("stands_for")
    lines += [f"in place of {cut(instead, 100)}"] if instead else []
    return lines


def source_text(node: Branch) -> str:
    """Where the exporter says that a node comes from, in one line; "" if it does not."""
    return " · ".join(line.removeprefix("made at").strip() for line in source_lines(node))


def tensor_lines(name: str, tensors: Mapping[str, Branch]) -> list[str]:
    """All that is known of a tensor, the name first."""
    tensor = tensors.get(name)
    if tensor is None:
        return [cut(name, 300)]
    kind, values = tensor.text("kind"), tensor.loose("values")
    lines = [f"{cut(name, 300)}  {type_text(tensor)}{'' if kind in (None, 'inner') else f'  ({kind})'}"]
    lines += [f"values {cut(values, 200)}"] if values else []
    text = error_text(tensor)
    if text is not None:
        worst = (tensor.part("error") or tensor).part("worst")
        lines.append(text)
        if worst is not None:
            lines.append(
                f"worst at {worst.loose('index')}: {worst.loose('actual')} instead of {worst.loose('expected')}"
            )
    return lines
