"""Values of a report as texts and tables: numbers, durations, names, and the description of a node or a tensor."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeAlias
from urllib.parse import quote

from biopsy.findings.document import Cell, Facts, Grid
from biopsy.findings.page.reading import Branch
from biopsy.text import count

OUT_OF_TOLERANCE = 1.0
"""The largest ratio of an error to its tolerance that passes."""

MOST_ROWS = 100
MOST_SHOWN = 30
"""The most attributes and tensors of a node that are listed, and names in a line."""


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
    if seconds < 60:
        digits = 2 if seconds < 1 else 1
        return f"{seconds * 1000:.2g} ms" if 0 < seconds < 0.1 else f"{seconds:.{digits}f} s"
    minutes, left = divmod(round(seconds), 60)
    return f"{minutes} min {left} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def cut(text: str, most: int) -> str:
    """The text, or its beginning and an ellipsis if it has more than ``most`` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def middle_cut(text: str, most: int = 80) -> str:
    """The text, or both of its ends around an ellipsis, since paths and names of layers differ at their ends."""
    if len(text) <= most:
        return text
    tail = (most - 1) * 2 // 3
    return f"{text[: most - 1 - tail]}…{text[-tail:]}"


def listed(texts: Iterable[str], separator: str = ", ", most: int = MOST_SHOWN, each: int = 120) -> str:
    """The first ``most`` texts in a line, without empty ones, each cut to ``each`` characters in its middle."""
    return separator.join([middle_cut(text, each) for text in texts if text][:most])


Column: TypeAlias = Callable[[Branch], Cell | str] | str
"""How a column of a table gets its text from the object of a row: a key, or a function of the object."""


def table(
    caption: str,
    entries: Sequence[Branch],
    columns: Mapping[str, Column],
    *,
    most: int = MOST_ROWS,
    folded_above: float = math.inf,
    more: int = 0,
) -> Grid:
    """A table with a row for each of the first ``most`` entries; the report itself has left out ``more`` entries.

    A table with more than ``folded_above`` rows is folded.
    """
    rows = [
        [cut(entry.loose(column), 300) if isinstance(column, str) else column(entry) for column in columns.values()]
        for entry in entries[:most]
    ]
    left = len(entries) - len(rows) + more
    return Grid(caption=caption, head=list(columns), rows=rows, folded=len(rows) > folded_above, left=left)


def code_of(key: str) -> Column:
    """A column of the value at a key as code, which is cut in the middle."""
    return lambda entry: code(middle_cut(entry.loose(key)))


def number_of(key: str, text: Callable[[float], str] = figure) -> Callable[[Branch], str]:
    """A column of the number at a key, written by ``text``."""
    return lambda entry: "" if (value := entry.number(key)) is None else text(value)


def code(text: str) -> Cell:
    """A text shown as code."""
    return Cell(text=cut(text, 400), code=True)


def plain_table(caption: str, keys: Sequence[str], entries: Sequence[Branch]) -> Grid:
    """A table with a column for each key."""
    return table(caption, entries, {key: code_of(key) for key in keys})


def facts(
    known: Mapping[str, str | None], in_code: Collection[str] = (), are_files: Collection[str] = ()
) -> list[Facts]:
    """A block of terms and their values, without terms that have none; an empty list if no term has a value.

    The values of ``are_files`` are paths from the page, and lead there.
    """
    rows = [
        (
            cut(term, 60),
            Cell(text=cut(text, 2000), code=term in in_code, link=_beside(text) if term in are_files else ""),
        )
        for term, text in known.items()
        if text
    ]
    return [Facts(rows=rows)] if rows else []


def _beside(path: str) -> str:
    """The address of a file by its path from the page; "" for another path. It is never that of another host."""
    return "" if path.startswith("/") else f"./{quote(path, errors='replace')}"


_ISSUE = re.compile(r"https://github\.com/[\w.-]+/[\w.-]+/(?:issues|pull)/\d+")


def link_of(text: str) -> str:
    """The text if it is the address of an issue on GitHub, else ""."""
    return text if _ISSUE.fullmatch(text) else ""


def error_text(tensor: Branch | None) -> str | None:
    """``✕ error 41× the tolerance``; None if it was not measured."""
    sign, amount, is_ratio = error_of(tensor)
    return None if not sign else f"{sign} error {amount} the tolerance" if is_ratio else f"{sign} {amount}"


def error_of(tensor: Branch | None) -> tuple[str, str, bool]:
    """Sign and size of the error of a tensor, and whether the size is a ratio; empty texts if it was not measured."""
    error = None if tensor is None else tensor.part("error")
    if error is None:
        return "", "", False
    ratio, passed = error.number("tolerance_ratio"), error.flag("passed")
    if error.text("form"):  # a type or a shape has no size
        ratio = None
    wrong = passed is False or (passed is None and ratio is not None and not ratio <= OUT_OF_TOLERANCE)
    return "✕" if wrong else "✓", error.text("reason") or "error" if ratio is None else times(ratio), ratio is not None


def style_of(tensor: Branch | None) -> str:
    """The style of a tensor: wrong, right or unmeasured."""
    return {"✕": "wrong", "✓": "right"}.get(error_of(tensor)[0], "unmeasured")


def type_text(tensor: Branch) -> str:
    """``float32 [1, N, ?]``."""
    return f"{tensor.text('dtype') or '?'} {tensor.loose('shape') or '[…]'}"


def attributes_of(node: Branch, most: int = MOST_SHOWN) -> list[str]:
    """The first attributes of a node: ``keepdims = 0``."""
    return [f"{name} = {cut(text, 200)}" for name, text in list(node.texts_by_name("attributes").items())[:most]]


def node_lines(node: Branch, tensors: Mapping[str, Branch]) -> list[str]:
    """Everything that the report says about a node, beginning with the operator."""
    number, name, domain, bodies = node.whole("number"), node.text("name"), node.text("domain"), node.whole("bodies")
    lines = [f"{cut(node.text('op_type') or '?', 200)}{f' of {cut(domain, 200)}' if domain else ''}"]
    lines += [f"name  {cut(name, 300)}"] if name else []
    lines += [f"node {number} of the original"] if number is not None else []
    lines += attributes_of(node)
    for title, names in (("reads", node.texts("inputs")), ("writes", node.texts("outputs"))):
        for tensor in names[:MOST_SHOWN]:
            first, *more = tensor_lines(tensor, tensors)
            lines.append(f"{title}  {first}" if tensor else f"{title}  nothing (left out)")
            lines += [f"    {line}" for line in more]
    lines += [f"{count(bodies, 'node')} in its bodies"] if bodies else []
    return lines + source_lines(node)


def source_lines(node: Branch) -> list[str]:
    """The source of a node according to the exporter: file and line, the code, the module."""
    source = node.part("source")
    if source is None:
        return []
    file, function, line = source.text("file"), source.text("function"), source.whole("line")
    place = f"{middle_cut(file, 200)}{'' if line is None else f':{line}'}"
    lines = [f"made at  {place}{f' in {cut(function, 100)}' if function else ''}"] if file else []
    known = {"   ": source.text("code").strip(), "module ": (source.texts("scopes") or [""])[-1]}
    known["in place of"] = source.text("stands_for")
    return lines + [f"{title} {cut(text, 200)}" for title, text in known.items() if text]


def source_text(node: Branch) -> str:
    """The source of a node in one line; "" if it is not known."""
    return " · ".join(line.removeprefix("made at").strip() for line in source_lines(node))


def source_cell(node: Branch) -> Cell:
    """The source of a node as code."""
    return code(source_text(node))


def tensor_lines(name: str, tensors: Mapping[str, Branch]) -> list[str]:
    """Everything that the report says about a tensor, beginning with the name."""
    tensor = tensors.get(name)
    if tensor is None:
        return [cut(name, 300)]
    kind, values, text = tensor.text("kind"), tensor.loose("values"), error_text(tensor)
    lines = [f"{cut(name, 300)}  {type_text(tensor)}{'' if kind in ('', 'inner') else f'  ({kind})'}"]
    lines += [f"values {cut(values, 200)}"] if values else []
    lines += [text] if text is not None else []
    worst = (tensor.part("error") or tensor).part("worst")
    return lines + ([f"worst at {worst_text(worst)}"] if text is not None and worst is not None else [])


def worst_text(element: Branch, where: str = "") -> str:
    """``[0, 3]: 1.5 instead of 1``."""
    return f"{element.loose('index')}{where}: {element.loose('actual')} instead of {element.loose('expected')}"
