"""Every change of many models: onnx's own tests of its operators."""

from contextlib import closing
from pathlib import Path

import onnx
import pytest

from biopsy.checks.outcome import FunctionCheck
from biopsy.questions.variation.features import FedModel
from biopsy.questions.variation.vary import TrialMaker, features_of
from support.node_tests import node_tests


@pytest.mark.slow
@pytest.mark.parametrize("part", range(32))  # making all tests takes seconds, which collecting this one shall not
def test_whatever_is_changed_is_valid_and_leaves_the_model_alone(part: int, tmp_path: Path):
    test = node_tests()[part * len(node_tests()) // 32]
    before = test.model.SerializeToString(deterministic=True)
    fed = FedModel(test.model, [dict(test.inputs)])
    with closing(TrialMaker(fed, FunctionCheck(bool, takes="model"), tmp_path)) as trial_maker:
        for feature in features_of(trial_maker, 16):
            for alternative in feature.alternatives:
                made = alternative.edit(fed)
                told = None if made is None else trial_maker.validity.validated(made.model)
                if told is not None:
                    onnx.checker.check_model(told)
    assert test.model.SerializeToString(deterministic=True) == before
