"""What a journal answers for: everything that outcomes depend on, and nothing that the search itself writes."""

from dataclasses import replace
from pathlib import Path

import pytest

from biopsy.checks.command import CommandCheck
from biopsy.model.index import index_file
from biopsy.session.checked_search import JournalIdentity, SearchOptions
from biopsy.session.files import Resume
from support.models import chain, save


@pytest.fixture
def identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JournalIdentity:
    monkeypatch.chdir(tmp_path)
    save(chain(2), tmp_path / "m.onnx")
    (tmp_path / "check.py").write_text("pass")
    return JournalIdentity(
        index=index_file(tmp_path / "m.onnx"),
        check=CommandCheck(["sh", "-c", 'python check.py "$0"', "{}"], "candidate.onnx"),
        search=SearchOptions(candidate=Path("candidate.onnx")),
        options={"--mode": "minimal"},
        written=[Path("result.onnx")],
    )


def differing(one: dict[str, str], other: dict[str, str]) -> set[str]:
    return {name for name in {**one, **other} if one.get(name) != other.get(name)}


def test_it_names_the_model_the_check_the_options_and_the_versions(identity: JournalIdentity) -> None:
    entries = dict(identity.entries())
    assert {"model", "check", "option --mode", "option --match", "option --check-timeout", "Python"} <= set(entries)
    assert "onnxruntime" in entries


def test_a_script_inside_a_word_is_a_condition(identity: JournalIdentity) -> None:
    before = dict(identity.entries())
    assert "file check.py" in before
    Path("check.py").write_text("raise SystemExit(1)")
    assert differing(before, dict(identity.entries())) == {"file check.py"}


def test_a_module_behind_m_is_a_condition(identity: JournalIdentity) -> None:
    Path("package").mkdir()
    Path("package/check.py").write_text("pass")
    asking = replace(identity, check=CommandCheck(["python", "-m", "package.check", "{}"], "candidate.onnx"))
    before = dict(asking.entries())
    Path("package/check.py").write_text("raise SystemExit(1)")
    assert differing(before, dict(asking.entries())) == {"file package/check.py"}


def test_another_model_or_option_is_named(identity: JournalIdentity) -> None:
    before = dict(identity.entries())
    other = replace(identity, options={"--mode": "linear"})
    assert differing(before, dict(other.entries())) == {"option --mode"}
    save(chain(3), Path("m.onnx"))
    assert differing(before, dict(replace(identity, index=index_file(Path("m.onnx"))).entries())) == {"model"}


def test_what_the_search_writes_is_no_condition(identity: JournalIdentity) -> None:
    files = (Path("result.onnx"), Path("j.journal"), Path("in.npz"))
    asking = replace(identity, search=replace(identity.search, resume=Resume(journal=files[1], files=files)))
    for path in files:
        path.write_bytes(b"before")
    before = dict(asking.entries())
    for path in files:
        path.write_bytes(b"after")
    assert differing(before, dict(asking.entries())) == {"file in.npz"}
