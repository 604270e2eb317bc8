"""A bundle is written completely or not at all, and nothing of anybody's is lost for it."""

from pathlib import Path

import pytest

from biopsy import errors
from biopsy.findings.bundle.packing import publish, require_target, write_archive


@pytest.fixture
def members(tmp_path: Path) -> list[Path]:
    """Two members, in a folder of their own."""
    folder = tmp_path / "members"
    folder.mkdir()
    (folder / "reproduce.py").write_text("pass\n")
    (folder / "ISSUE.md").write_text("# it\n")
    return [folder / "reproduce.py", folder / "ISSUE.md"]


def written(target: Path, members: list[Path]) -> Path:
    """The target, once a bundle is there."""
    archive = members[0].parent.parent / "archive.zip"
    write_archive(archive, members, compressed=True)
    publish(target, archive, members)
    return target


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_is_made_and_a_bundle_in_it_is_replaced(tmp_path: Path, members: list[Path]) -> None:
    folder = written(tmp_path / "bundle", members)
    assert names(folder) == ["ISSUE.md", "reproduce.py"]
    (folder / "NOT-REPRODUCED.txt").write_text("of an earlier one")
    members[1].write_text("# other\n")
    written(folder, members)
    assert names(folder) == ["ISSUE.md", "reproduce.py"]
    assert (folder / "ISSUE.md").read_text() == "# other\n"


def test_an_empty_folder_is_used(tmp_path: Path, members: list[Path]) -> None:
    (tmp_path / "bundle").mkdir()
    assert names(written(tmp_path / "bundle", members)) == ["ISSUE.md", "reproduce.py"]


@pytest.mark.parametrize("other", ["thesis.txt", "model.onnx/weights"])
def test_a_folder_with_other_things_is_left_alone(tmp_path: Path, members: list[Path], other: str) -> None:
    folder = tmp_path / "bundle"
    (folder / other).parent.mkdir(parents=True)
    (folder / other).write_text("mine")
    with pytest.raises(errors.UsageError, match="holds other things"):
        written(folder, members)
    assert (folder / other).read_text() == "mine"
    assert len(names(folder)) == 1


def test_links_are_not_followed(tmp_path: Path, members: list[Path]) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    with pytest.raises(errors.UsageError, match="a link of that name"):
        written(tmp_path / "link", members)
    folder = tmp_path / "bundle"
    folder.mkdir()
    (folder / "ISSUE.md").symlink_to(tmp_path / "precious")
    with pytest.raises(errors.UsageError, match="other things"):
        written(folder, members)
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "bundle.zip").symlink_to(tmp_path / "precious")
    written(tmp_path / "bundle.zip", members)
    assert (tmp_path / "precious").read_text() == "mine"
    assert not (tmp_path / "bundle.zip").is_symlink()


def test_where_nothing_can_be_written_it_is_said_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for name in ("bundle", "bundle.zip"):
        with pytest.raises(errors.UsageError, match="cannot write"):
            require_target(tmp_path / "file" / name)


def test_folders_that_are_missing_are_made(tmp_path: Path, members: list[Path]) -> None:
    assert names(written(tmp_path / "a" / "b" / "bundle", members)) == ["ISSUE.md", "reproduce.py"]


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "bundle").write_text("mine")
    with pytest.raises(errors.UsageError, match="a file of that name"):
        require_target(tmp_path / "bundle")


def test_what_fails_halfway_leaves_the_bundle_before(tmp_path: Path, members: list[Path]) -> None:
    folder = written(tmp_path / "bundle", members)
    members[1].unlink()
    with pytest.raises(errors.UsageError):
        publish(folder, tmp_path / "archive.zip", members)
    assert names(folder) == ["ISSUE.md", "reproduce.py"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["archive.zip", "bundle", "members"]
