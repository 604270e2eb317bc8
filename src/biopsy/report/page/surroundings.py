"""What it was found with: the model, and everything that ran it."""

from __future__ import annotations

from biopsy.quantities import size_text
from biopsy.report.page.blocks import Block, Cell, Columns, Facts, Grid, Rows, Section
from biopsy.report.page.branch import Branch
from biopsy.report.page.figures import cut, middle_cut


def section(report: Branch) -> Section | None:
    """The section on model and versions; None if the report has neither."""
    blocks: list[Block] = []
    model, versions = report.part("model"), report.part("versions")
    facts = [_model_facts(model)] if model is not None else []
    facts += [_version_facts(report, versions)] if versions is not None else []
    if facts:
        blocks.append(Columns(blocks=[Facts(rows=rows) for rows in facts]))
    if model is not None:
        rows: Rows = []
        for key, kind in (("inputs", "input"), ("outputs", "output")):
            for value in model.parts(key)[:50]:
                name, shape = value.text("name") or "", value.loose("shape") or "[…]"
                rows.append(
                    [
                        kind,
                        Cell(text=middle_cut(name, 100), code=True),
                        Cell(text=cut(f"{value.text('dtype') or '?'} {shape}", 200), code=True),
                    ]
                )
        if rows:
            blocks.append(
                Grid(caption="Inputs and outputs", head=["", "name", "type"], rows=rows, folded=len(rows) > 8)
            )
    return Section(name="versions", title="Model and versions", blocks=blocks) if blocks else None


def _model_facts(model: Branch) -> list[tuple[str, Cell | str]]:
    size, opsets = model.whole("weight_bytes"), model.texts_by_name("opsets")
    told = {
        "model": model.text("path"),
        "SHA-256": model.text("sha256"),
        "nodes": model.text("nodes"),
        "opsets": ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in list(opsets.items())[:20]),
        "IR version": model.text("ir_version"),
        "weights": None if size is None else size_text(size),
        "producer": model.text("producer"),
    }
    return [(term, Cell(text=cut(text, 400), code=term in ("model", "SHA-256"))) for term, text in told.items() if text]


def _version_facts(report: Branch, versions: Branch) -> list[tuple[str, Cell | str]]:
    told = {"biopsy": versions.text("biopsy")}
    for engine in versions.parts("engines")[:20]:
        name = engine.text("label") or engine.text("name") or "engine"
        told[cut(name, 60)] = engine.text("version") or "?"
    told["python"] = versions.text("python")
    told |= {cut(name, 60): version for name, version in list(versions.texts_by_name("packages").items())[:40]}
    told["system"], told["CPU"] = versions.text("os"), versions.text("cpu")
    told["CPU features"] = ", ".join(versions.texts("cpu_features"))
    told["GPU"], told["driver"] = versions.text("gpu"), versions.text("driver")
    told["made"] = report.text("created")
    return [(term, cut(text, 300)) for term, text in told.items() if text]
