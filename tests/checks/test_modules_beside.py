"""What a script imports of its own folder."""

from pathlib import Path

from biopsy.checks.command import CommandCheck
from biopsy.checks.words import modules_beside


def test_modules_beside_a_script_are_followed_and_no_others(tmp_path: Path) -> None:
    for name, text in {
        "check.py": "import os, one.two\ndef f():\n    from three import x\nfrom . import four\n",
        "one/__init__.py": "",
        "one/two.py": "import five",
        "three.py": "import check, json, six",
        "four.py": "",
        "five.py": "",
        "six.py": "this is no Python",
        "os.txt": "",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found = modules_beside(tmp_path / "check.py")
    assert [str(path.relative_to(tmp_path)) for path in found] == ["one/__init__.py", "six.py", "three.py"]
    check = CommandCheck(["python", str(tmp_path / "check.py"), "{}"], "c.onnx")
    assert check.programs == [tmp_path / "check.py", *found]
    assert set(check.programs) <= set(check.files)


def test_a_script_that_cannot_be_read_has_none(tmp_path: Path) -> None:
    (tmp_path / "check.py").write_bytes(b"\0import os")
    assert modules_beside(tmp_path / "check.py") == modules_beside(tmp_path / "nowhere.py") == []
