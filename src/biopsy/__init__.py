"""biopsy: find the smallest piece of a failing ONNX model that still fails in the same way.

The public Python API. Everything else may change without notice. Names are loaded when first used, so that
``import biopsy`` costs nothing. Nothing at all is imported here, not even ``typing``: ``python -m biopsy`` has the
current folder on its path until ``__main__`` takes it away, and there may be anything in that folder.
"""

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from biopsy.api.build import build as build
    from biopsy.api.compare import compare as compare
    from biopsy.api.diagnose import diagnose as diagnose
    from biopsy.api.flags import flags as flags
    from biopsy.api.known import known as known
    from biopsy.api.layers import layers as layers
    from biopsy.api.precision import precision as precision
    from biopsy.api.ray_executor import RayExecutor as RayExecutor
    from biopsy.api.reduce import reduce as reduce
    from biopsy.api.releases import releases as releases
    from biopsy.api.run import run as run
    from biopsy.api.transform import transform as transform
    from biopsy.api.vary import vary as vary
    from biopsy.api.workaround import workaround as workaround
    from biopsy.blame.releases.findings import ReleaseFindings as ReleaseFindings
    from biopsy.blame.transformations.findings import TransformationFindings as TransformationFindings
    from biopsy.checks.judge import Rules as Rules
    from biopsy.checks.outcome import Outcome as Outcome
    from biopsy.comparison.compare import OutputComparison as OutputComparison
    from biopsy.comparison.runs import RunComparison as RunComparison
    from biopsy.diagnosis.facts import Diagnosis as Diagnosis
    from biopsy.errors import BiopsyError as BiopsyError
    from biopsy.errors import CannotCompare as CannotCompare
    from biopsy.errors import CannotInstall as CannotInstall
    from biopsy.errors import CheckError as CheckError
    from biopsy.errors import DataError as DataError
    from biopsy.errors import EngineFailure as EngineFailure
    from biopsy.errors import EngineMissing as EngineMissing
    from biopsy.errors import HighPrecisionFails as HighPrecisionFails
    from biopsy.errors import Interrupted as Interrupted
    from biopsy.errors import ModelError as ModelError
    from biopsy.errors import OriginalPasses as OriginalPasses
    from biopsy.errors import UnknownEngine as UnknownEngine
    from biopsy.errors import UsageError as UsageError
    from biopsy.known_failures.lookup import KnownLookup as KnownLookup
    from biopsy.layerwise.findings import LayerFindings as LayerFindings
    from biopsy.mixed_precision.result import PrecisionResult as PrecisionResult
    from biopsy.reduction.job import Border as Border
    from biopsy.reduction.result import Reduction as Reduction
    from biopsy.reduction.schedule import Passes as Passes
    from biopsy.session.budget import Budget as Budget
    from biopsy.session.flakiness import Repeating as Repeating
    from biopsy.session.pool import Parallelism as Parallelism
    from biopsy.tactics.build_findings import BuildFindings as BuildFindings
    from biopsy.tactics.flags import Flags as Flags
    from biopsy.tensors.results import Iteration as Iteration
    from biopsy.tensors.results import RunnerResult as RunnerResult
    from biopsy.variation.result import Variation as Variation
    from biopsy.workarounds.result import Workarounds as Workarounds

    __version__: str

_HOMES = {
    "biopsy.api.build": ("build",),
    "biopsy.api.compare": ("compare",),
    "biopsy.api.diagnose": ("diagnose",),
    "biopsy.api.flags": ("flags",),
    "biopsy.api.known": ("known",),
    "biopsy.api.layers": ("layers",),
    "biopsy.api.precision": ("precision",),
    "biopsy.api.ray_executor": ("RayExecutor",),
    "biopsy.api.reduce": ("reduce",),
    "biopsy.api.releases": ("releases",),
    "biopsy.api.run": ("run",),
    "biopsy.api.transform": ("transform",),
    "biopsy.api.vary": ("vary",),
    "biopsy.api.workaround": ("workaround",),
    "biopsy.blame.releases.findings": ("ReleaseFindings",),
    "biopsy.blame.transformations.findings": ("TransformationFindings",),
    "biopsy.checks.judge": ("Rules",),
    "biopsy.checks.outcome": ("Outcome",),
    "biopsy.comparison.compare": ("OutputComparison",),
    "biopsy.comparison.runs": ("RunComparison",),
    "biopsy.diagnosis.facts": ("Diagnosis",),
    "biopsy.errors": (
        "BiopsyError",
        "CannotCompare",
        "CannotInstall",
        "CheckError",
        "DataError",
        "EngineFailure",
        "EngineMissing",
        "HighPrecisionFails",
        "Interrupted",
        "ModelError",
        "OriginalPasses",
        "UnknownEngine",
        "UsageError",
    ),
    "biopsy.known_failures.lookup": ("KnownLookup",),
    "biopsy.layerwise.findings": ("LayerFindings",),
    "biopsy.mixed_precision.result": ("PrecisionResult",),
    "biopsy.reduction.job": ("Border",),
    "biopsy.reduction.result": ("Reduction",),
    "biopsy.reduction.schedule": ("Passes",),
    "biopsy.session.budget": ("Budget",),
    "biopsy.session.flakiness": ("Repeating",),
    "biopsy.session.pool": ("Parallelism",),
    "biopsy.tactics.build_findings": ("BuildFindings",),
    "biopsy.tactics.flags": ("Flags",),
    "biopsy.tensors.results": ("Iteration", "RunnerResult"),
    "biopsy.variation.result": ("Variation",),
    "biopsy.workarounds.result": ("Workarounds",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = list(_HOME_OF)


def __getattr__(name: str) -> "Any":
    import importlib

    if name == "__version__":
        from importlib.metadata import version

        return version("biopsy")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'biopsy' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
