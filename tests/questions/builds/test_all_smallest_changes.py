"""Every smallest change that helps is named, or the answer says that it is not complete. The truth is planted."""

import functools
import json
import os
import random
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import onnx
import pytest

from biopsy.checks.judge import Rules
from biopsy.checks.outcome import Evidence, Judged, Outcome
from biopsy.engines.onnxrt_optimizers import KNOWN_RULES, RULES
from biopsy.engines.registry import parse_spec
from biopsy.events import ignore
from biopsy.questions.builds import flags
from biopsy.questions.builds.flags import Flags, SettingProbe, switches_of
from biopsy.questions.builds.optimizers import optimizers_of
from biopsy.questions.builds.settings import CheckTemplate, SettingChange, varied_check
from biopsy.session.trial import CheckRuns
from support import planted_engine, plug_ins
from support.models import chain, save

NAMES = (
    *("EliminateIdentity", "DivMulFusion", "CastElimination"),  # rules of a level, which run as one optimizer
    *("NchwcTransformer", "MatmulTransposeFusion", "ConstantFolding", "GeluFusionL2", "MatMulAddFusion"),
)


class Formula(SettingProbe):
    """A check that passes if a formula holds of the optimizers that are off; a level of rules is all its rules."""

    def __init__(self, truth: frozenset[frozenset[str]], spoiled_by: str = "") -> None:
        template = CheckTemplate(("./check", "{engine}"), parse_spec("onnxrt"))
        super().__init__(varied_check(template, "c.onnx"), Path("m.onnx"), CheckRuns("flags", Rules(), ignore), ignore)
        self.template, self._truth, self._spoiled_by = template, truth, spoiled_by

    def once(self, change: SettingChange, description: str, *, cold: bool = False) -> Judged:
        """The outcome by the formula."""
        off = set((change.settings.get("disabled_optimizers") or "").split("+"))
        level = change.settings.get("optimization") == "none"
        off |= set(KNOWN_RULES) if any(name.endswith(RULES) for name in off) else set()
        passes = level or (self._spoiled_by not in off and any(names <= off for names in self._truth))
        outcome = Outcome.PASSES if passes else Outcome.REPRODUCES
        return Judged(outcome, "", Evidence(status=int(not passes)))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(chain(3), tmp_path_factory.mktemp("model") / "m.onnx")


looked_up = functools.cache(lambda model, spec: optimizers_of(model, parse_spec(spec)))


@pytest.fixture(autouse=True)
def looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flags, "optimizers_of", lambda model, spec, folder: looked_up(model, spec.text))


def answer(model: Path, truth: frozenset[frozenset[str]], spoiled_by: str = "") -> Flags:
    probe = Formula(truth, spoiled_by)
    return switches_of(probe, probe.template, model, None)


def planted(seed: int) -> frozenset[frozenset[str]]:
    """A random monotone formula: sets of which none holds another."""
    rng = random.Random(seed)
    drawn = {frozenset(rng.sample(NAMES, rng.choice((1, 1, 2, 2, 3)))) for _ in range(rng.randint(1, 6))}
    return frozenset(names for names in drawn if not any(other < names for other in drawn))


@pytest.mark.parametrize("seed", [*range(24), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(24, 60))])
def test_the_optimizers_named_are_all_the_smallest_sets_that_help(seed: int, model: Path) -> None:
    truth = planted(seed)
    found = answer(model, truth)
    named = [frozenset(switch.optimizers) for switch in found.switches if switch.optimizers]
    least = min(map(len, truth))
    brute_force = {
        frozenset(names)
        for names in combinations(NAMES, least)
        if any(helping <= frozenset(names) for helping in truth)
    }
    assert len(set(named)) == len(named)
    assert found.complete and set(named) == brute_force


def test_more_sets_than_are_searched_for_are_not_called_all(model: Path) -> None:
    found = answer(model, frozenset(map(frozenset, combinations(NAMES, 2))))
    assert not found.complete and all(len(switch.optimizers) == 2 for switch in found.switches if switch.optimizers)


def test_an_optimizer_that_changes_the_model_is_named_even_if_it_helps_only_alone(tmp_path: Path) -> None:
    transposed = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[4,4] x) => (float[4,4] y) { t = Transpose (x) y = MatMul (t, x) }
    """)
    model = save(transposed, tmp_path / "m.onnx")
    assert "MatmulTransposeFusion" in looked_up(model, "onnxrt").changed
    found = answer(model, frozenset({frozenset({"MatmulTransposeFusion"})}), spoiled_by="GeluFusionL2")
    assert [switch.optimizers for switch in found.switches] == [("MatmulTransposeFusion",)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([["pass_a", "pass_b"]], [{"pass_a"}, {"pass_b"}]),
        ([["pass_a"], ["pass_b"]], [{"pass_a", "pass_b"}]),
        (
            [["pass_a", "pass_b"], ["pass_b", "pass_c"], ["pass_a", "pass_c"]],
            [{"pass_a", "pass_b"}, {"pass_a", "pass_c"}, {"pass_b", "pass_c"}],
        ),
    ],
    ids=["each alone", "both together", "three in pairs"],
)
def test_the_passes_of_a_planted_engine_are_all_named(rules: list[list[str]], expected: list[set[str]], tmp_path):
    plug_ins.install(
        tmp_path / "plug_ins",
        "biopsy-planted",
        Path(planted_engine.__file__).read_text(),
        "planted = biopsy_planted:Planted",
    )
    save(chain(3), tmp_path / "m.onnx")
    planted_rules = [{"op": "Relu", "does": "add", "by": 3, "unless": passes} for passes in rules]
    (tmp_path / "rules.json").write_text(json.dumps(planted_rules))
    engine = f"planted:rules={tmp_path / 'rules.json'}"
    check = ("biopsy", "run", "{}", "--reference", "--engine", engine)
    words = [sys.executable, "-m", "biopsy", "debug", "flags", "m.onnx", "-o", "r.json", "--check", *check]
    ended = subprocess.run(
        words, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path / "plug_ins")}, capture_output=True
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads((tmp_path / "r.json").read_text())["settings"]
    assert found["complete"] and all(one["verified"] for one in found["switches"])
    named = [set(one["settings"]) for one in found["switches"]]
    assert len(named) == len(expected) and all(names in named for names in expected)
