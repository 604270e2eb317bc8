"""A comparison function of the user's, which decides in the place of tolerances: Polygraphy's contract for scripts.

It takes the outputs of one iteration twice, what is judged and what is expected, and returns a verdict for each output
by name, or one for all. Nothing but a clear yes is a pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Number
from typing import Any

from biopsy import errors
from biopsy.tensors.outputs_for_scripts import ScriptOutputs
from biopsy.tensors.user_script import UserScript
from biopsy.text import first_line, printable


class ComparisonFunction:
    """A function that judges outputs."""

    def __init__(self, script: UserScript, name: str) -> None:
        """Load it. Raises as ``UserScript.function``."""
        self._script = script
        self._function = script.function(name)
        self.label = f"{script.path.name}:{name}"

    def judge(self, actual: ScriptOutputs, expected: ScriptOutputs, common: Sequence[str]) -> dict[str, str | None]:
        """Of each of the ``common`` outputs that it judges: why it fails; None where it passes.

        A verdict for a name that is no such output, and one for all, holds for all of them. An assertion that does not
        hold is a no. Raises CannotCompare, which says nothing of a candidate, if the function fails in another way, or
        gives anything that is no verdict.
        """
        with self._script.running(errors.CannotCompare):
            try:
                said = self._function(actual, expected)
            except AssertionError as error:
                why = printable(first_line(str(error).strip())) or "an assertion does not hold"
                return dict.fromkeys(common, f"{self.label}: {why}")
            verdicts = self._verdicts(said)
        others = {name: passes for name, passes in verdicts.items() if name not in common}
        wrong = [name for name, passes in others.items() if not passes]
        judged = common if others else [name for name in common if name in verdicts]
        return {name: self._reason(verdicts.get(name, True), wrong) for name in judged}

    def _verdicts(self, said: Any) -> dict[str, bool]:
        if not isinstance(said, Mapping):
            return {"": self._truth("what it returns", said)}
        if not said:
            raise self._no_verdict("what it returns is empty")
        return {str(name): self._truth(f"what it says of {name!r}", value) for name, value in said.items()}

    def _truth(self, what: str, value: Any) -> bool:
        """Whether a value is a yes. Numbers are neither yes nor no: a distance of 0 would be a no, any other a yes."""
        dtype = getattr(value, "dtype", None)
        if isinstance(value, bool):
            return value
        if dtype is not None and "bool" in str(dtype):
            return bool(value)  # raises for several values, of which nobody said whether all or any must hold
        has_truth = hasattr(type(value), "__bool__") and value is not None
        if dtype is not None or isinstance(value, Number) or not has_truth:
            raise self._no_verdict(f"{what} is of type {type(value).__name__}")
        return bool(value)

    def _no_verdict(self, what: str) -> errors.CannotCompare:
        return errors.CannotCompare(
            f"{self.label} gives no verdict: {what}",
            next_steps=["it must return True or False, or a dictionary of them by the names of outputs"],
        )

    def _reason(self, passes: bool, wrong: Sequence[str]) -> str | None:
        if passes and not wrong:
            return None
        named = ", ".join(printable(repr(name)) for name in wrong if name)
        return f"{self.label} says no{f' to {named}' if passes and named else ''}"
