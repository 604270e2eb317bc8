"""Golden values as an engine: they come from a file, belong to what is fed, and nothing is made up."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from biopsy import errors
from biopsy.engines.base import Engine, GivenTensors, ModelInput
from biopsy.engines.registry import EngineSpec, create
from biopsy.model.extract import mark_outputs
from biopsy.tensors.files import write_feeds, write_results
from biopsy.tensors.results import Array, Iteration, RunnerResult
from support.models import chain

MODEL = ModelInput(mark_outputs(chain(2).SerializeToString(), ["t1", "t2"]), Path())


def sample(value: float, **more: float) -> dict[str, Array]:
    given = {"t1": -value, "t2": value, **more}
    return {name: np.full((2, 2), number, np.float32) for name, number in given.items()}


def engine(folder: Path, samples: Sequence[Mapping[str, Array]], **settings: str) -> Engine:
    write_feeds(folder / "golden.safetensors", samples)
    return create(EngineSpec("recorded", {"file": str(folder / "golden.safetensors"), **settings}))


def fed(value: float) -> dict[str, Array]:
    return {"t0": np.full((2, 2), value, np.float32)}


def test_a_file_of_one_sample_gives_its_tensors(tmp_path: Path) -> None:
    session = engine(tmp_path, [sample(3)]).build(MODEL)
    assert {name: value.flat[0] for name, value in session.run(fed(3)).items()} == {"t1": -3, "t2": 3}


def test_of_several_samples_it_gives_the_one_that_belongs_to_what_is_fed_in_any_order(tmp_path: Path) -> None:
    session = engine(tmp_path, [sample(n, t0=n) for n in (1, 2, 3)]).build(MODEL)
    assert [session.run(fed(n))["t2"].flat[0] for n in (3, 1, 1, 2)] == [3, 1, 1, 2]


def test_inputs_may_stand_in_a_file_of_their_own(tmp_path: Path) -> None:
    write_feeds(tmp_path / "inputs.npz", [fed(1), fed(2)])
    session = engine(tmp_path, [sample(1), sample(2)], inputs=str(tmp_path / "inputs.npz")).build(MODEL)
    assert session.run(fed(2))["t2"].flat[0] == 2


def test_values_of_other_inputs_are_refused(tmp_path: Path) -> None:
    session = engine(tmp_path, [sample(1, t0=1)]).build(MODEL)
    with pytest.raises(errors.CannotCompare, match="other values of 't0' than those fed"):
        session.run(fed(2))


def test_several_samples_of_unknown_inputs_are_refused(tmp_path: Path) -> None:
    session = engine(tmp_path, [sample(1), sample(2)]).build(MODEL)
    with pytest.raises(errors.CannotCompare, match="which sample belongs to them is not known"):
        session.run(fed(2))


def test_samples_of_the_same_inputs_with_other_values_are_refused(tmp_path: Path) -> None:
    session = engine(tmp_path, [sample(1, t0=1), {**sample(1, t0=1), "t2": np.zeros((2, 2), np.float32)}]).build(MODEL)
    with pytest.raises(errors.CannotCompare, match="the same inputs and different golden values of 't2'"):
        session.run(fed(1))
    twice = engine(tmp_path, [sample(1, t0=1), sample(1, t0=1)]).build(MODEL)
    assert twice.run(fed(1))["t2"].flat[0] == 1


def test_other_counts_of_inputs_and_values_are_refused(tmp_path: Path) -> None:
    write_feeds(tmp_path / "inputs.npz", [fed(1)])
    with pytest.raises(errors.UsageError, match=r"golden values of 2 samples, and .*inputs\.npz has 1"):
        engine(tmp_path, [sample(1), sample(2)], inputs=str(tmp_path / "inputs.npz")).build(MODEL)


def test_it_says_which_tensors_it_has_and_their_sizes_and_refuses_the_others(tmp_path: Path) -> None:
    golden = engine(tmp_path, [{"t1": np.ones((2, 2), np.float32), "other": np.ones(4)}])
    assert golden.tensors_given(MODEL) == GivenTensors({"t1": 16})
    with pytest.raises(errors.EngineFailure, match="has no golden value of 't2'"):
        golden.build(MODEL)
    assert create("onnxrt").tensors_given(MODEL) is None


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (np.ones((2, 3), np.float32), "it is float32[2,3], and the model computes float32[2,2]"),
        (np.ones(4, np.float32), "it is float32[4], and the model computes float32[2,2]"),
        (np.ones((2, 2), np.int32), "it is int32[2,2], and the model computes float32[2,2]"),
        (np.ones((2, 2), np.float16), "it is float16[2,2], and the model computes float32[2,2]"),
        (np.ones((2, 2), bool), "it is bool[2,2], and the model computes float32[2,2]"),
    ],
)
def test_what_the_model_does_not_compute_is_refused(tmp_path: Path, value: Array, told: str) -> None:
    given = engine(tmp_path, [{"t1": value, "t2": np.ones((2, 2), np.float32)}]).tensors_given(MODEL)
    assert given == GivenTensors({"t2": 16}, {"t1": told})


def test_values_may_be_wider_floats_than_the_model_computes(tmp_path: Path) -> None:
    assert engine(tmp_path, [{"t1": np.ones((2, 2))}]).tensors_given(MODEL) == GivenTensors({"t1": 32})


def test_the_sample_that_does_not_fit_is_named(tmp_path: Path) -> None:
    given = engine(tmp_path, [sample(1), {**sample(2), "t1": np.ones(1, np.float32)}]).tensors_given(MODEL)
    assert given is not None
    assert given.refused["t1"].startswith("in sample 1 it is float32[1]")


def test_open_dimensions_are_as_large_as_in_the_inputs_beside_the_values(tmp_path: Path) -> None:
    open_model = chain(2)
    for value in (*open_model.graph.input, *open_model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "N"
    asked = ModelInput(open_model.SerializeToString(), Path())
    golden = [{"t0": np.ones((n, 2), np.float32), "t1": np.ones((3, 2), np.float32)} for n in (3, 2)]
    given = engine(tmp_path, golden).tensors_given(asked)
    assert given is not None
    assert given.refused == {"t1": "in sample 1 it is float32[3,2], and the model computes float32[2,2]"}


def test_values_of_several_runners_need_a_name(tmp_path: Path) -> None:
    path = tmp_path / "golden.safetensors"
    write_results(path, [RunnerResult(name, (Iteration(sample(n)),)) for n, name in enumerate("ab")])
    with pytest.raises(errors.UsageError, match="values of 2 runners: whose are golden"):
        create(f"recorded:file={path}").build(MODEL)
    assert create(f"recorded:file={path},runner=b").build(MODEL).run(fed(1))["t2"].flat[0] == 1
    with pytest.raises(errors.UsageError, match="has not one runner that is called 'c'"):
        create(f"recorded:file={path},runner=c").build(MODEL)


@pytest.mark.parametrize("content", [b"", b"\x00" * 16, b"PK\x03\x04"])
def test_a_file_that_holds_nothing_is_refused_by_its_name(tmp_path: Path, content: bytes) -> None:
    for ending in ("safetensors", "npz", "json"):
        path = tmp_path / f"golden.{ending}"
        path.write_bytes(content)
        with pytest.raises((errors.DataError, errors.UsageError), match=rf"golden\.{ending}"):
            create(f"recorded:file={path}").tensors_given(MODEL)


def test_without_a_file_it_says_how_to_name_one() -> None:
    with pytest.raises(errors.UsageError, match="has no file"):
        create("recorded").build(MODEL)


def test_a_file_name_with_a_comma_is_kept_whole(tmp_path: Path) -> None:
    folder = tmp_path / "a,b"
    folder.mkdir()
    spec = EngineSpec("recorded", {"file": str(folder / "golden.safetensors")}).text
    write_feeds(folder / "golden.safetensors", [sample(1)])
    assert create(spec).build(MODEL).run(fed(1))["t2"].flat[0] == 1
