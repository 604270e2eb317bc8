"""Settings and a failure that is flaky: none is said to switch it off by luck. The truth is planted."""

import random
from pathlib import Path

import pytest

from biopsy import errors
from biopsy.checks.judge import Rules
from biopsy.checks.outcome import Evidence, Judged, Outcome
from biopsy.engines.registry import parse_spec
from biopsy.events import ignore
from biopsy.questions.builds.flags import Flags, SettingProbe, switches_of
from biopsy.questions.builds.settings import CheckTemplate, SettingChange, varied_check
from biopsy.session.trial import CheckRuns


class Flaky(SettingProbe):
    """A check that fails in a share of its runs, but never with the setting ``mends``."""

    def __init__(self, share: float, seed: int, mends: str = "") -> None:
        template = CheckTemplate(("./check", "{engine}"), parse_spec("openvino"))
        super().__init__(varied_check(template, "c.onnx"), Path("m.onnx"), CheckRuns("flags", Rules(), ignore), ignore)
        self.template, self._share, self._mends, self._chance = template, share, mends, random.Random(seed)

    def once(self, change: SettingChange, description: str, *, cold: bool = False) -> Judged:
        """The outcome by chance."""
        is_mended = bool(self._mends) and self._mends in change.settings
        fails = self._chance.random() < self._share and not is_mended
        return Judged(Outcome.REPRODUCES if fails else Outcome.PASSES, "it fails", Evidence(status=int(fails)))

    def answer(self) -> Flags:
        """The switches; raises OriginalPasses if no run fails."""
        self.begin()
        return switches_of(self, self.template, Path("m.onnx"), None)


@pytest.mark.parametrize("share", [0.4, 0.7, 0.9])
def test_no_setting_is_said_to_switch_a_flaky_failure_off_by_luck(share: float) -> None:
    """Of 100 searches, one or two may err."""
    by_luck = 0
    for seed in range(100):
        try:
            by_luck += bool(Flaky(share, seed).answer().switches)
        except errors.OriginalPasses:
            continue
    assert by_luck <= 2


@pytest.mark.parametrize("share", [0.4, 0.9, 1.0])
def test_the_setting_that_mends_a_flaky_failure_is_named(share: float) -> None:
    for seed in range(20):
        found = Flaky(share, seed, mends="threads").answer()
        named = [switch for switch in found.switches if switch.verified and set(switch.change.settings) == {"threads"}]
        assert named, seed
