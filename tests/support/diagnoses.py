"""Facts of a diagnosis as steps leave them, for tests of what is said of them."""

from pathlib import Path

from biopsy.diagnosis.facts import (
    ComparisonSeen,
    FailureReport,
    FailureSeen,
    KnownFacts,
    LayersSeen,
    PieceFound,
    RoundingSeen,
    SettingsSeen,
    SteadinessSeen,
    SwitchSeen,
)
from biopsy.diagnosis.question import DiagnosisQuestion
from biopsy.model.index import index_bytes
from support.models import chain

TRUSTED, SUSPECT = "onnxrt:optimization=none", "onnxrt"
CHECK = ("biopsy", "run", "{}", "--engine", TRUSTED, "--engine", SUSPECT)


def question(folder: Path = Path("diagnosis")) -> DiagnosisQuestion:
    """About a model of three nodes that stands nowhere."""
    index = index_bytes(chain(3).SerializeToString())
    return DiagnosisQuestion(index=index, model=Path("model.onnx"), folder=folder, engines=(SUSPECT,))


def failure(kind: str = "mismatch", stage: str = "compare") -> FailureSeen:
    """A failure of ONNX Runtime beside itself without its optimizer."""
    said = FailureReport(signature=f"{stage} · {kind}", engine=SUSPECT, stage=stage, kind=kind)
    return FailureSeen(check=CHECK, said=said, trusted=TRUSTED, suspect=SUSPECT, tolerance_ratio=100.0)


def piece(*nodes: str, stopped: str | None = None) -> PieceFound:
    """A chain of nodes."""
    return PieceFound(
        path="diagnosis/piece.onnx",
        inputs=None,
        nodes=nodes,
        reads=tuple((place - 1,) if place else () for place in range(len(nodes))),
        kept=tuple(range(len(nodes))),
        nodes_before=10,
        signature="compare · mismatch",
        stopped=stopped,
    )


def switch(*optimizers: str, mends: bool = True, verified: bool = True, text: str = "") -> SwitchSeen:
    """A switch of optimizers, or of another setting by its text."""
    setting = f"disabled_optimizers={'+'.join(optimizers)}" if optimizers else text
    return SwitchSeen(
        text=text or f"when {' and '.join(optimizers)} is disabled",
        engine=f"onnxrt:{setting}",
        optimizers=optimizers,
        verified=verified,
        mends_original=mends,
    )


def settings(*switches: SwitchSeen, complete: bool = True) -> SettingsSeen:
    """What came of nine settings."""
    return SettingsSeen(tried=9, switches=switches, complete=complete)


def facts(**known: object) -> KnownFacts:
    """What is known of a mismatch that is more than rounding, and shows always; ``known`` replaces that."""
    usual: dict[str, object] = {
        "compared": ComparisonSeen(engines=((TRUSTED, "9.9"), (SUSPECT, "9.9"))),
        "failure": failure(),
        "rounding": RoundingSeen(verdicts=("bug",), times=1e5, wrong=(SUSPECT,), right=(TRUSTED,)),
        "steadiness": SteadinessSeen(failed=5, runs=5),
        "piece": piece("Pow 'a'", "Add 'b'"),
        "layers": LayersSeen(together=(("Pow 'a'", "Add 'b'"),), hides=True, layers=2),
    }
    return KnownFacts(**{**usual, **known})  # type: ignore[arg-type]
