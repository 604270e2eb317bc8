"""What a person must know of a failure that ``biopsy run`` found: whose it may be, and what makes it worth nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from biopsy.shell_words import ListOption, line_of

if TYPE_CHECKING:
    from biopsy.cli.run.findings import Findings
    from biopsy.engines.base import ModelInput
    from biopsy.tensors.results import RunnerResult


def random_hint(model: ModelInput) -> str | None:
    """That the model has random operators, so that no comparison of its values says anything; None if it has none."""
    from biopsy.model.random_operators import may_be_random, random_words

    if not may_be_random(model.data):
        return None
    from biopsy.model.index import index_bytes

    return random_words(index_bytes(model.data, model.folder))


def whose_fault(found: Findings, golden: Sequence[RunnerResult]) -> str | None:
    """That several engines fail alike, so that it is hardly the fault of one of them; None if they do not."""
    return _all_refuse(found) or _all_not_finite(found) or _all_differ(found, golden)


def guessed_shapes(guessed: Mapping[str, Sequence[int]]) -> str | None:
    """That sizes which nobody chose may be what fails; None if all were said."""
    if not guessed:
        return None
    shapes = [f"{name}:[{','.join(map(str, shape))}]" for name, shape in guessed.items()]
    return (
        f"this ran with {', '.join(shapes)}, made up because the model leaves the shape open: if the failure comes "
        f"from that, choose sizes with {line_of([ListOption('--input-shapes', shapes)])}"
    )


def nothing_compared(found: Findings, *, validated: bool) -> str:
    """That a run which passes compared nothing, and what to add; "" if it did compare.

    ``validated``: it looked for NaN and infinity.
    """
    if found.compared or found.noise:
        return ""
    if all(one.result is None for one in found.ran):
        return "it only builds the model: leave out --build-only, and it runs too"
    if validated:
        return "it finds neither NaN nor infinity: give the inputs that lead to them, with --load-inputs"
    return "it compares nothing: name a second engine behind the first, or golden values with --load-outputs"


def _all_refuse(found: Findings) -> str | None:
    engines = {one.engine.name for one in found.ran}
    if len(engines) < 2 or not all(one.failure is not None for one in found.ran):
        return None
    return (
        f"every engine fails on this model ({_listed(engines)}): either none of them supports it, or the model or its "
        "inputs are wrong"
    )


def _all_not_finite(found: Findings) -> str | None:
    labels = [one.engine.label for one in found.ran]
    odd = [{one.name for label, one in found.odd if label == other} for other in labels]
    if len({one.engine.name for one in found.ran}) < 2 or not set.intersection(*odd):
        return None
    names = _listed(map(repr, set.intersection(*odd)))
    return f"every engine gives NaN or infinity in {names}: probably the model or its inputs are wrong"


def _all_differ(found: Findings, golden: Sequence[RunnerResult]) -> str | None:
    """Engines that agree with each other, and not with golden values."""
    loaded = {one.runner for one in golden}
    against = [one for one in found.compared if one.expected in loaded]
    mutual = [one for one in found.compared if one.expected not in loaded]
    engines = {one.engine.name for one in found.ran if one.result is not None}
    everyone = {(one.engine.label, golden_one) for one in found.ran for golden_one in loaded}
    if not loaded or len(engines) < 2 or not mutual or not all(one.passed for one in mutual):
        return None
    if any(one.passed for one in against) or {(one.actual, one.expected) for one in against} != everyone:
        return None
    return (
        f"the engines agree with each other ({_listed(engines)}) and all differ from {_listed(loaded)}: either the "
        "golden values are wrong, or from another model or other inputs, or the engines share a bug"
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
