"""A file that grows: one plain .safetensors at the end, and nothing that was committed is lost on the way."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import ml_dtypes
import numpy as np
import pytest
import safetensors
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from biopsy import errors
from biopsy.tensors.files import read_results, write_results
from biopsy.tensors.recording import AppendableStore, Place, results_of
from biopsy.tensors.results import Array, RunnerResult, same_values

IDENTITY = {"model": "a", "inputs": "b"}
names = st.text(st.characters(codec="utf-8"), max_size=8) | st.sampled_from(["#1", "x:0", "a/b", "__metadata__"])
arrays = st.one_of(
    hnp.arrays(
        hnp.integer_dtypes(endianness="=")
        | hnp.floating_dtypes(endianness="=", sizes=(16, 32, 64))
        | hnp.boolean_dtypes(),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
    ),
    st.just(np.array([1.5, -2], ml_dtypes.bfloat16)),
    st.just(np.array([["yes", "naïve"]])),
)


def grown(path: Path, feeds: list[list[dict[str, Array]]]) -> None:
    """Each runner's iterations, committed tensor by tensor."""
    places = [
        (runner, number, name) for runner, its in enumerate(feeds) for number, it in enumerate(its) for name in it
    ]
    with AppendableStore(path, IDENTITY, places) as file:
        for place in places:
            file.append(place, feeds[place[0]][place[1]][place[2]])
            file.commit()
        results = {
            runner: results_of(file, list(its[0]), runner, f"r{runner}", len(its)) for runner, its in enumerate(feeds)
        }
        file.finish(results)


@settings(deadline=None, max_examples=60)
@given(st.dictionaries(names, arrays, min_size=1, max_size=4), st.integers(1, 2), st.integers(1, 2))
def test_what_was_appended_comes_back(tensors: dict[str, Array], runners: int, iterations: int) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "f.safetensors"
        grown(path, [[tensors] * iterations] * runners)
        assert [found.name for found in Path(folder).iterdir()] == ["f.safetensors"]
        results = read_results(path)
        assert [len(result.iterations) for result in results] == [iterations] * runners
        for result in results:
            for iteration in result.iterations:
                assert list(iteration.outputs) == list(tensors)
                assert all(same_values(iteration.outputs[name], tensors[name]) for name in tensors)
        with safetensors.safe_open(path, framework="np") as opened:  # another reader: it judges offsets and gaps
            assert len(opened.keys()) >= len(tensors)


def test_other_programs_find_the_tensors_of_one_iteration_by_their_names(tmp_path: Path) -> None:
    import safetensors.numpy

    grown(tmp_path / "f.safetensors", [[{"odd": np.zeros(3, np.uint8), "x:0": np.arange(6.0)}]])
    loaded = safetensors.numpy.load_file(tmp_path / "f.safetensors")
    np.testing.assert_array_equal(loaded["x:0"], np.arange(6.0))


def test_every_tensor_is_aligned_and_mapped(tmp_path: Path) -> None:
    grown(tmp_path / "f.safetensors", [[{"odd": np.zeros(3, np.uint8), "x": np.arange(6.0), "z": np.zeros(1, bool)}]])
    outputs = read_results(tmp_path / "f.safetensors")[0].iterations[0].outputs
    assert all(array.flags.aligned and not array.flags.owndata for array in outputs.values())


def test_a_header_for_which_no_room_was_left_is_written_all_the_same(tmp_path: Path) -> None:
    deep = np.arange(2.0).reshape((1,) * 30 + (2,))
    tensors = {f"t{number}": deep for number in range(400)}
    path = tmp_path / "f.safetensors"
    with AppendableStore(path, IDENTITY, []) as file:
        for name, array in tensors.items():
            file.append((0, 0, name), array)
        file.commit()
        file.finish({0: results_of(file, list(tensors), 0, "r", 1)})
    outputs = read_results(path)[0].iterations[0].outputs
    assert all(same_values(outputs[name], tensors[name]) for name in tensors)


def test_a_tensor_that_the_engine_did_not_give_is_no_gap(tmp_path: Path) -> None:
    with AppendableStore(tmp_path / "f.safetensors", IDENTITY, [(0, 0, "a"), (0, 0, "b")]) as file:
        file.append((0, 0, "a"), None)
        file.append((0, 0, "b"), np.ones(2))
        file.commit()
        assert file.committed == {(0, 0, "a"), (0, 0, "b")}
        file.finish({0: results_of(file, ["a", "b"], 0, "r", 1)})
    assert list(read_results(tmp_path / "f.safetensors")[0].iterations[0].outputs) == ["b"]


# Going on


PLACES: list[Place] = [(0, 0, name) for name in "abc"]


def begun(path: Path) -> None:
    with AppendableStore(path, IDENTITY, PLACES) as file:
        file.append(PLACES[0], np.full(5, 1.0))
        file.commit()
        file.append(PLACES[1], np.full(5, 2.0))  # never committed


def test_what_is_committed_stays_and_the_rest_is_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "f.safetensors"
    begun(path)
    with AppendableStore(path, IDENTITY, PLACES) as file:
        assert file.committed == {PLACES[0]}
        for number in (1, 2):
            file.append(PLACES[number], np.full(5, number + 1.0))
        file.commit()
        file.finish({0: results_of(file, list("abc"), 0, "r", 1)})
    outputs = read_results(path)[0].iterations[0].outputs
    assert [outputs[name][0] for name in "abc"] == [1, 2, 3]


@pytest.mark.parametrize("torn", [b'{"tensors"', b"\0\0\0"])
def test_a_journal_that_was_cut_short_loses_its_last_line_only(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "f.safetensors"
    begun(path)
    with (tmp_path / ".f.safetensors.recording.json").open("ab") as stream:
        stream.write(torn)
    for _ in range(2):
        with AppendableStore(path, IDENTITY, PLACES) as file:
            assert file.committed == {PLACES[0]}
            assert same_values(file.array(PLACES[0]), np.full(5, 1.0))  # type: ignore[arg-type]


def test_a_process_that_is_killed_loses_no_batch(tmp_path: Path) -> None:
    code = (
        "import numpy as np, os, signal; from pathlib import Path;"
        "from biopsy.tensors.recording import AppendableStore;"
        f"file = AppendableStore(Path('f.safetensors'), {IDENTITY!r}, {PLACES!r});"
        "file.append((0, 0, 'a'), np.full(5, 1.0)); file.commit(); file.append((0, 0, 'b'), np.ones(10**6));"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path)
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "f.safetensors").exists()
    with AppendableStore(tmp_path / "f.safetensors", IDENTITY, PLACES) as file:
        assert file.committed == {PLACES[0]}
        assert file.size == 40


def test_a_recording_of_something_else_is_refused_by_name(tmp_path: Path) -> None:
    begun(tmp_path / "f.safetensors")
    with pytest.raises(errors.UsageError, match="not of the same inputs") as caught:
        AppendableStore(tmp_path / "f.safetensors", {**IDENTITY, "inputs": "c"}, PLACES)
    assert caught.value.next_steps[0].startswith(f"rm -- {tmp_path}/.f.safetensors.recording ")


def test_two_at_a_time_are_refused(tmp_path: Path) -> None:
    with (
        AppendableStore(tmp_path / "f.safetensors", IDENTITY, PLACES),
        pytest.raises(errors.UsageError, match="another"),
    ):
        AppendableStore(tmp_path / "f.safetensors", IDENTITY, PLACES)


def test_what_came_to_nothing_leaves_nothing(tmp_path: Path) -> None:
    with AppendableStore(tmp_path / "f.safetensors", IDENTITY, PLACES) as file:
        file.append(PLACES[0], np.ones(3))
    assert list(tmp_path.iterdir()) == []


def test_values_can_be_read_after_the_end_and_after_everything_was_removed(tmp_path: Path) -> None:
    with AppendableStore(tmp_path / "f.safetensors", IDENTITY, PLACES) as file:
        file.append(PLACES[0], np.ones(3))
        file.commit()
        file.discard()
    assert list(tmp_path.iterdir()) == []
    assert same_values(file.outputs(0, 0, ["a"])["a"], np.ones(3))


def test_an_older_file_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "f.safetensors"
    write_results(path, [RunnerResult("old", tuple(read_results_of({"a": np.zeros(1)})))])
    begun(path)
    assert read_results(path)[0].runner == "old"


def read_results_of(tensors: dict[str, Array]) -> list[object]:
    from biopsy.tensors.results import Iteration

    return [Iteration(tensors)]


def test_the_journal_is_lines_of_json(tmp_path: Path) -> None:
    begun(tmp_path / "f.safetensors")
    head, line = (tmp_path / ".f.safetensors.recording.json").read_text().splitlines()
    assert json.loads(head)["identity"] == IDENTITY
    assert json.loads(line)["tensors"] == [[0, 0, "a", "<f8", [5], 0, 40]]


def test_what_has_no_identity_leaves_nothing(tmp_path: Path) -> None:
    with AppendableStore(tmp_path / "f.safetensors", None, PLACES) as file:
        file.append(PLACES[0], np.ones(3))
        file.commit()
    assert list(tmp_path.iterdir()) == []
    assert same_values(file.outputs(0, 0, ["a"])["a"], np.ones(3))


def test_the_end_of_one_recording_does_not_touch_the_next(tmp_path: Path) -> None:
    path = tmp_path / "f.safetensors"
    with AppendableStore(path, None, PLACES) as file:
        file.append(PLACES[0], np.ones(3))
        file.commit()
        (tmp_path / ".f.safetensors.recording").rename(tmp_path / "elsewhere")
        begun(path)
    with AppendableStore(path, IDENTITY, PLACES) as file:
        assert file.committed == {PLACES[0]}
