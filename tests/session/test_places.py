"""Places: a number for each run, and a file of its own for each that the user knows by name."""

from pathlib import Path

from biopsy.session.pool import Places, numbered


def test_a_number_stands_before_the_ending() -> None:
    assert numbered(Path("a/in.npz"), 0) == Path("a/in.npz")
    assert numbered(Path("a/in.npz"), 2) == Path("a/in.2.npz")
    assert numbered(Path("folder"), 2) == Path("folder.2")


def test_no_two_runs_have_the_same_place(tmp_path: Path) -> None:
    places = Places(tmp_path / "c.onnx")
    assert [places.free(taken) for taken in ((), {0}, {1}, {0, 1})] == [0, 1, 0, 2]


def test_a_place_is_free_if_each_of_its_files_is(tmp_path: Path) -> None:
    (tmp_path / "in.1.npz").touch()
    (tmp_path / "c.2.onnx").symlink_to("nowhere")
    assert Places(tmp_path / "c.onnx", [tmp_path / "in.npz"]).free({0}) == 3


def test_a_file_of_the_user_is_never_that_of_a_place(tmp_path: Path) -> None:
    assert Places(tmp_path / "c.onnx", [tmp_path / "a.json", tmp_path / "a.1.json"]).free({0}) == 2


def test_only_what_was_made_is_removed(tmp_path: Path) -> None:
    places = Places(tmp_path / "c.onnx", [tmp_path / "in.npz", tmp_path / "by_heart.npz"])
    for name in ("c.onnx", "c.1.onnx", "c.2.onnx", "in.npz", "in.1.npz", "in.2.npz", "by_heart.npz"):
        (tmp_path / name).touch()
    for number in (0, 1, 3):
        places.candidate(number)
        places.files(number, lambda path: path.name == "in.npz")
    places.clear(keep_last=True)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"c.onnx", "c.2.onnx", "in.npz", "in.2.npz", "by_heart.npz"}
    places.clear()
    assert not (tmp_path / "c.onnx").exists()
