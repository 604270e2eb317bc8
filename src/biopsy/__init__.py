"""biopsy: find the smallest piece of a failing ONNX model that still fails in the same way.

    run, compare    do two engines, or two settings of one, agree?
    diagnose        why does a model fail, and what avoids it?
    reduce          which is its smallest failing piece?        vary     what may change in that?
    layers          which layers does an engine compute wrongly?
    flags           which setting makes the failure go away?    build    why do only some builds fail?
    releases        which release of a package broke it?        known    is it a known bug?
    workaround      with which change is the whole model right?
    precision       which layers need float32?                  transform    what does a tool break?
    hunt            which distinct bugs are in many models?

For example:

    import biopsy

    expected, actual = biopsy.run("model.onnx", ["reference", "onnxrt"])
    if not biopsy.compare(actual, expected, atol=1e-3).passed:
        diagnosis = biopsy.diagnose("model.onnx", ["reference", "onnxrt"], atol=1e-3, max_time=60)
        print(diagnosis.verdict.text)
        diagnosis.page("page.html")

A model is a path, bytes, or an ``onnx.ModelProto``. Arguments are the options of the commands, by the same names. The
names below are the public Python API; everything else may change without notice.
"""

# Names are loaded when first used, so that ``import biopsy`` costs nothing. Nothing at all is imported here, not even
# ``typing``: ``python -m biopsy`` has the current folder on its path until ``__main__`` takes it away, and there may be
# anything in that folder.

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from biopsy.api.diagnosing import DiagnosedModel as DiagnosedModel
    from biopsy.api.diagnosing import diagnose as diagnose
    from biopsy.api.diagnosing import known as known
    from biopsy.api.diagnosing import workaround as workaround
    from biopsy.api.engine_questions import build as build
    from biopsy.api.engine_questions import flags as flags
    from biopsy.api.engine_questions import releases as releases
    from biopsy.api.hunting import hunt as hunt
    from biopsy.api.model_questions import layers as layers
    from biopsy.api.model_questions import precision as precision
    from biopsy.api.model_questions import transform as transform
    from biopsy.api.reducing import RayExecutor as RayExecutor
    from biopsy.api.reducing import ReducedModel as ReducedModel
    from biopsy.api.reducing import reduce as reduce
    from biopsy.api.reducing import vary as vary
    from biopsy.api.running import compare as compare
    from biopsy.api.running import run as run
    from biopsy.checks.judge import Rules as Rules
    from biopsy.checks.outcome import Outcome as Outcome
    from biopsy.comparison.compare import OutputComparison as OutputComparison
    from biopsy.comparison.runs import RunComparison as RunComparison
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
    from biopsy.hunting.records import Hunt as Hunt
    from biopsy.questions.builds.building import BuildFindings as BuildFindings
    from biopsy.questions.builds.flags import Flags as Flags
    from biopsy.questions.known_failures.lookup import KnownLookup as KnownLookup
    from biopsy.questions.layers.findings import LayerFindings as LayerFindings
    from biopsy.questions.precision.search import PrecisionResult as PrecisionResult
    from biopsy.questions.releases.findings import ReleaseFindings as ReleaseFindings
    from biopsy.questions.transformations.question import TransformationFindings as TransformationFindings
    from biopsy.questions.variation.result import Variation as Variation
    from biopsy.questions.workarounds.question import Workarounds as Workarounds
    from biopsy.tensors.results import Iteration as Iteration
    from biopsy.tensors.results import RunnerResult as RunnerResult

    __version__: str

_HOMES = {
    "biopsy.api.engine_questions": (
        "build",
        "flags",
        "releases",
    ),
    "biopsy.api.running": (
        "compare",
        "run",
    ),
    "biopsy.api.diagnosing": (
        "DiagnosedModel",
        "diagnose",
        "known",
        "workaround",
    ),
    "biopsy.api.hunting": ("hunt",),
    "biopsy.api.model_questions": (
        "layers",
        "precision",
        "transform",
    ),
    "biopsy.api.reducing": (
        "RayExecutor",
        "ReducedModel",
        "reduce",
        "vary",
    ),
    "biopsy.questions.releases.findings": ("ReleaseFindings",),
    "biopsy.questions.transformations.question": ("TransformationFindings",),
    "biopsy.checks.judge": ("Rules",),
    "biopsy.checks.outcome": ("Outcome",),
    "biopsy.comparison.compare": ("OutputComparison",),
    "biopsy.comparison.runs": ("RunComparison",),
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
    "biopsy.hunting.records": ("Hunt",),
    "biopsy.questions.known_failures.lookup": ("KnownLookup",),
    "biopsy.questions.layers.findings": ("LayerFindings",),
    "biopsy.questions.precision.search": ("PrecisionResult",),
    "biopsy.questions.builds.building": ("BuildFindings",),
    "biopsy.questions.builds.flags": ("Flags",),
    "biopsy.tensors.results": (
        "Iteration",
        "RunnerResult",
    ),
    "biopsy.questions.variation.result": ("Variation",),
    "biopsy.questions.workarounds.question": ("Workarounds",),
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
