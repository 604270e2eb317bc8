"""Outputs as functions of the user's get and give them: dictionaries, as Polygraphy has them."""

from __future__ import annotations

from typing import Any

import numpy as np

from biopsy.tensors.loader_script import tensors_of
from biopsy.tensors.results import Iteration, RunnerResult
from biopsy.tensors.user_script import UserScript


class ScriptOutputs(dict[str, Any]):
    """The outputs of one iteration, by name, and where they come from. ``runtime`` is in seconds."""

    def __init__(self, runner: str, iteration: Iteration) -> None:
        """Copies: whatever a function does to them, nothing else sees it."""
        super().__init__({name: np.array(value) for name, value in iteration.outputs.items()})
        self.runner_name = runner
        self.runtime = iteration.runtime


class Postprocessing:
    """A function of the user's that makes other outputs of those of an iteration, before they are compared."""

    def __init__(self, script: UserScript, name: str) -> None:
        """Load it. Raises as ``UserScript.function``."""
        self._script = script
        self._function = script.function(name)

    def __call__(self, result: RunnerResult) -> RunnerResult:
        """A runner with the outputs that the function gives. Raises DataError if it fails, or gives no tensors."""
        iterations = []
        for number, iteration in enumerate(result.iterations):
            with self._script.running():
                given = self._function(ScriptOutputs(result.runner, iteration))
            place = f"what {self._script.path} gives for iteration {number} of {result.runner}"
            made = tensors_of(place, given, 'return {"y": np.zeros((1, 3), np.float32)}')
            iterations.append(Iteration(made, iteration.runtime))
        return RunnerResult(result.runner, tuple(iterations))
