"""Two reductions at once in one folder."""

import re

import pytest

from support.command_line import wait_until

SLOW = "time.sleep(0.1)\nsys.exit('n5' in names)"
WAITS = "while not os.path.exists('go.txt'): time.sleep(0.01)\nsys.exit('n5' in names)"


def end(*processes) -> list[tuple[int, str]]:
    return [(process.communicate(timeout=60)[0], process.returncode)[::-1] for process in processes]


def test_two_that_are_told_where_their_candidates_stand_both_end_right(place) -> None:
    place.model(12)
    other = place.check("time.sleep(0.1)\nsys.exit('n8' in names)", "other.py")
    first = place.start("m.onnx", "-o", "a.onnx", "--check", *place.check(SLOW))
    second = place.start("m.onnx", "-o", "b.onnx", "--check", *other)
    (status, told), (status_of_second, told_of_second) = end(first, second)
    assert (status, status_of_second) == (0, 0), told + told_of_second
    assert (place.nodes("a.onnx"), place.nodes("b.onnx")) == (["n5"], ["n8"])
    assert place.files() == {"m.onnx", "a.onnx", "b.onnx"}


def test_a_second_one_whose_check_knows_the_place_by_itself_is_refused(place) -> None:
    place.model(12)
    check = place.check(WAITS)[:-1]
    code = (place.folder / "check.py").read_text().replace("sys.argv[1]", "'polygraphy_debug.onnx'")
    (place.folder / "check.py").write_text(code)
    first = place.start("m.onnx", "-o", "a.onnx", "--check", *check)
    assert wait_until((place.folder / "polygraphy_debug.onnx").exists)
    second = place.reduce("m.onnx", "-o", "b.onnx", "--check", *check)
    assert second.status == 2
    assert "another reduction in this folder" in second.told
    (place.folder / "go.txt").touch()
    ((status, told),) = end(first)
    assert (status, place.nodes("a.onnx")) == (0, ["n5"]), told
    assert place.files() == {"m.onnx", "a.onnx"}


def test_a_second_one_with_the_same_result_is_refused_and_told_who_has_it(place) -> None:
    place.model(12)
    line = ["m.onnx", "-o", "a.onnx", "--check", *place.check(WAITS)]
    first = place.start(*line)
    assert wait_until((place.folder / "polygraphy_debug.onnx").exists)
    second = place.reduce(*line)
    assert second.status == 2
    assert re.search(rf"in use by another biopsy \(process {first.pid}\)", second.told), second.told
    (place.folder / "go.txt").touch()
    ((status, told),) = end(first)
    assert (status, place.nodes("a.onnx")) == (0, ["n5"]), told
    assert place.files() == {"m.onnx", "a.onnx"}


@pytest.mark.slow
def test_three_that_begin_at_the_same_moment_do_not_get_in_each_others_way(place) -> None:
    place.model(12)
    line = ["m.onnx", "-o", "a.onnx", "--check", *place.check(SLOW)]
    ended = end(*[place.start(*line) for _ in range(3)])
    assert sorted(status for status, _ in ended)[0] == 0, ended
    assert {status for status, _ in ended} <= {0, 2}
    assert all("Traceback" not in told for _, told in ended)
    assert all("in use by another biopsy" in told for status, told in ended if status == 2), ended
    assert place.nodes("a.onnx") == ["n5"]


def test_a_second_one_that_would_write_what_checks_of_the_first_read_is_refused(place) -> None:
    place.model(12)
    check = [*place.check(WAITS), "inputs.npz"]
    first = place.start("m.onnx", "-o", "a.onnx", "--iter-inputs", "inputs.npz", "--check", *check)
    assert wait_until((place.folder / "inputs.npz").exists)
    second = place.reduce("m.onnx", "-o", "b.onnx", "--iter-inputs", "inputs.npz", "--check", *check)
    assert second.status == 2
    assert "another biopsy in this folder writes to inputs.npz" in second.told
    (place.folder / "go.txt").touch()
    ((status, told),) = end(first)
    assert (status, place.nodes("a.onnx")) == (0, ["n5"]), told
    assert place.files() == {"m.onnx", "a.onnx", "inputs.npz"}
