"""The reference run: made once, when the first value is needed, by the first engine that can."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from biopsy import events
from biopsy.model.index import ModelIndex, index_bytes
from biopsy.model.tensor_type import TensorType
from biopsy.recording.reference_run import Recording
from support.models import INT64, chain, info, model, weight

PLAIN = ("onnxrt:optimization=none",)


class Recorded:
    """A recording of a model, and what was said about it."""

    def __init__(
        self, made: onnx.ModelProto, samples: Sequence[dict[str, np.ndarray]], folder: Path, **more: object
    ) -> None:
        self.index: ModelIndex = index_bytes(made.SerializeToString())
        self.events: list[events.Event] = []
        self.asked = 0

        def given() -> Sequence[dict[str, np.ndarray]]:
            self.asked += 1
            return samples

        options = {"engines": PLAIN, "every_tensor": True, **more}
        self.recording = Recording(self.index, given, folder, self.events.append, **options)

    @property
    def runs(self) -> list[str]:
        return [event.engine for event in self.events if isinstance(event, events.Recorded)]


SAMPLES = [{"t0": np.full((2, 2), value, np.float32)} for value in (1, -2)]


def test_nothing_runs_before_a_value_is_needed_and_then_only_once(tmp_path: Path) -> None:
    recorded = Recorded(chain(3, ["Neg"]), SAMPLES, tmp_path)
    assert (recorded.asked, recorded.runs) == (0, [])
    first, second = recorded.recording.values("t2") or ()
    assert (first[0, 0], second[0, 0]) == (1, -2)
    assert recorded.recording.tensor_type("t1") == TensorType(1, (2, 2))
    assert recorded.recording.size("t3") == 32 and "t3" in recorded.recording and "nobody" not in recorded.recording
    assert (recorded.asked, recorded.runs) == (1, [*PLAIN])


def test_inner_tensors_that_the_user_gave_are_believed_without_a_run(tmp_path: Path) -> None:
    recorded = Recorded(chain(3), [{**sample, "t1": np.full((2, 2), 7, np.float32)} for sample in SAMPLES], tmp_path)
    values = recorded.recording.values("t1")
    assert recorded.recording.holds_inner and values is not None and values[0][0, 0] == 7
    assert recorded.runs == []


def test_if_the_first_engine_fails_the_next_one_records(tmp_path: Path) -> None:
    recorded = Recorded(chain(3), SAMPLES, tmp_path, engines=["fake:refuse=build", "reference"])
    assert recorded.recording.values("t3") is not None
    assert recorded.runs == ["reference"]


def test_what_does_not_depend_on_a_failing_node_is_recorded_and_that_is_told(tmp_path: Path) -> None:
    recorded = Recorded(chain(6), SAMPLES, tmp_path, engines=["fake:refuse.n3=run"])
    assert recorded.recording.values("t3") is not None and recorded.recording.values("t4") is None
    remarks = [event.text for event in recorded.events if isinstance(event, events.Remark)]
    assert len(remarks) == 1 and "fails at Relu 'n3'" in remarks[0]
    assert len(recorded.runs) == 1  # what was tried to find that node is not told


def test_if_no_engine_can_run_anything_nothing_is_known_and_that_is_told(tmp_path: Path) -> None:
    recorded = Recorded(chain(2), SAMPLES, tmp_path, engines=["fake:refuse=build"])
    assert recorded.recording.values("t1") is None
    (remark,) = (event for event in recorded.events if isinstance(event, events.Remark))
    assert remark.text.startswith("the original could not be run") and "fake:refuse=build" in remark.lines[0]
    recorded.recording.include(recorded.index.producer)
    assert recorded.recording.values("t1") is None and recorded.runs == []


def test_only_what_a_border_may_freeze_is_recorded_unless_more_is_included(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Shape", ["a"], ["s"]),
        helper.make_node("Reshape", ["a", "s"], ["y"]),
    ]
    samples = [{"x": np.ones((2, 2), np.float32)}]
    made = model(nodes, [info("x")], [info("y")], value_info=[info("a"), info("s", (2,), INT64)])
    shaped = Recorded(made, samples, tmp_path, every_tensor=False)
    assert shaped.recording.values("s") is not None and shaped.recording.values("a") is None
    shaped.recording.include([shaped.index.ids["a"]])
    assert shaped.recording.values("a") is not None and len(shaped.runs) == 2


def test_of_made_up_samples_only_what_depends_on_no_value_is_constant(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Exp", ["w"], ["e"]),
        helper.make_node("Mul", ["a", "e"], ["y"]),
    ]
    made = model(nodes, [info("x")], [info("y")], [weight("w", 0.0)])
    samples = [{"x": np.ones((2, 2), np.float32)}] * 2
    theirs, random = (Recorded(made, samples, tmp_path, made_up=made_up).recording for made_up in (False, True))
    assert theirs.constant_value("a") is not None and random.constant_value("a") is None
    for recording in (theirs, random):
        shape, constant = recording.constant_value("s"), recording.constant_value("e")
        assert shape is not None and shape.tolist() == [2, 2] and constant is not None and constant.tolist() == [1]


def test_a_node_that_no_engine_knows_is_left_out_of_the_run(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Neg", ["x"], ["a"]),
        helper.make_node("Secret", ["a"], ["b"], domain="acme"),
        helper.make_node("Neg", ["b"], ["y"]),
    ]
    made = model(nodes, [info("x")], [info("y")], domains=["acme"])
    recorded = Recorded(made, [{"x": np.ones((2, 2), np.float32)}], tmp_path)
    assert recorded.recording.values("a") is not None and recorded.recording.values("y") is None
    assert recorded.runs == [*PLAIN]
