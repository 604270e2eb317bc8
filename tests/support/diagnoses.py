"""Facts of a diagnosis as steps leave them, for tests of what is said of them."""

from pathlib import Path

from biopsy.comparison.mismatch import Mismatch
from biopsy.diagnosis.facts import (
    EngineComparison,
    FailingPiece,
    FailureReport,
    KnownFacts,
    LayerFacts,
    MendingSwitch,
    ModelFailure,
    RoundingFacts,
    SettingFacts,
    Steadiness,
)
from biopsy.diagnosis.question import DiagnosisQuestion
from biopsy.model.index import index_bytes
from biopsy.questions.builds.settings import change_of
from support.models import chain

TRUSTED, SUSPECT = "onnxrt:optimization=none", "onnxrt"
CHECK = ("biopsy", "run", "{}", "--engine", TRUSTED, "--engine", SUSPECT)


def question(folder: Path = Path("diagnosis")) -> DiagnosisQuestion:
    """About a model of three nodes that stands nowhere."""
    index = index_bytes(chain(3).SerializeToString())
    return DiagnosisQuestion(index=index, model=Path("model.onnx"), folder=folder, engines=(SUSPECT,))


def failure(kind: str = "mismatch", stage: str = "compare") -> ModelFailure:
    """A failure of ONNX Runtime beside itself without its optimizer."""
    report = FailureReport(signature=f"{stage} · {kind}", engine=SUSPECT, stage=stage, kind=kind)
    mismatch = Mismatch(output="y", kind=kind, times_tolerance=100.0)
    return ModelFailure(check=CHECK, report=report, trusted=TRUSTED, suspect=SUSPECT, mismatch=mismatch)


def piece(*nodes: str, stopped: str | None = None) -> FailingPiece:
    """A chain of nodes."""
    return FailingPiece(
        path="diagnosis/piece.onnx",
        inputs=None,
        nodes=nodes,
        reads=tuple((place - 1,) if place else () for place in range(len(nodes))),
        kept=tuple(range(len(nodes))),
        nodes_before=10,
        signature="compare · mismatch",
        stopped=stopped,
    )


def switch(*optimizers: str, mends: bool = True, verified: bool = True, text: str = "") -> MendingSwitch:
    """A switch of optimizers, or of another setting by its text."""
    setting = f"disabled_optimizers={'+'.join(optimizers)}" if optimizers else text.removeprefix("with ")
    return MendingSwitch(
        change=change_of(setting),
        engine=f"onnxrt:{setting}",
        optimizers=optimizers,
        verified=verified,
        mends_original=mends,
    )


def settings(*switches: MendingSwitch, complete: bool = True) -> SettingFacts:
    """What came of nine settings."""
    return SettingFacts(tried=9, switches=switches, complete=complete)


def facts(**known: object) -> KnownFacts:
    """What is known of a mismatch that is more than rounding, and shows always; ``known`` replaces that."""
    usual: dict[str, object] = {
        "compared": EngineComparison(engines=((TRUSTED, "9.9"), (SUSPECT, "9.9"))),
        "failure": failure(),
        "rounding": RoundingFacts(verdicts=("bug",), times=1e5, wrong=(SUSPECT,), right=(TRUSTED,)),
        "steadiness": Steadiness(failed=5, runs=5),
        "piece": piece("Pow 'a'", "Add 'b'"),
        "layers": LayerFacts(together=(("Pow 'a'", "Add 'b'"),), hides=True, layers=2),
    }
    return KnownFacts(**{**usual, **known})  # type: ignore[arg-type]
