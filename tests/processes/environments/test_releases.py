"""Releases as an index tells of them, wherever this user has packages from."""

import datetime
import time
from pathlib import Path

import pytest

from biopsy import errors
from biopsy.processes.environments import interpreter
from biopsy.processes.environments.interpreter import Interpreter, interpreter_of
from biopsy.processes.environments.releases import Release, releases
from support.package_index import JSON, PackageIndex, wheel


@pytest.fixture(scope="module")
def here() -> Interpreter:
    return interpreter_of()


def versions(distribution: str, here: Interpreter) -> list[str]:
    return [release.version for release in releases(distribution, python=here)]


def test_releases_are_in_the_order_of_versions_with_the_day_of_the_first_wheel(
    index: PackageIndex, here: Interpreter
) -> None:
    index.add("bolt", "1.10", uploaded="2024-03-01T10:00:00Z")
    index.add("bolt", "1.9", uploaded="2024-02-01T10:00:00.5Z")
    index.add("bolt", "1.9", uploaded="2024-01-31T10:00:00Z", tag=here.tags[0])
    assert releases("Bolt", python=here) == [
        Release(version="1.9", date=datetime.date(2024, 1, 31)),
        Release(version="1.10", date=datetime.date(2024, 3, 1)),
    ]


def test_only_releases_that_can_be_installed_are_told(index: PackageIndex, here: Interpreter) -> None:
    index.add("bolt", "1.0")
    index.add("bolt", "1.1", yanked=True)
    index.add("bolt", "1.2rc1")
    index.add("bolt", "1.3.dev7")
    index.add("bolt", "1.4", requires_python="<3.2")
    index.add("bolt", "1.5", requires_python="no condition")
    index.add("bolt", "1.6", tag="cp27-cp27m-win32")
    index.add_file("bolt", "bolt-1.7.tar.gz", b"")
    index.add_file("bolt", "bolt-1.8-oops.whl", b"")
    assert versions("bolt", here) == ["1.0"]
    assert [each.version for each in releases("bolt", python=here, pre_releases=True)] == ["1.0", "1.2rc1", "1.3.dev7"]


def test_an_index_that_speaks_html_only_tells_no_days(index: PackageIndex, here: Interpreter) -> None:
    index.as_html = True
    index.add("bolt", "1.0", uploaded="2024-03-01T10:00:00Z")
    assert releases("bolt", python=here) == [Release(version="1.0", date=None)]


def test_an_answer_that_is_nested_too_deep_is_told(
    index: PackageIndex, here: Interpreter, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.add("bolt", "1.0")
    deep = b'{"meta": {"api-version": "1.0"}, "files": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    monkeypatch.setattr(index, "page", lambda name: (JSON, deep))
    with pytest.raises(errors.CannotInstall, match="cannot be asked"):
        releases("bolt", python=here)


def test_an_index_with_very_many_releases_takes_seconds(index: PackageIndex, here: Interpreter) -> None:
    index.add("bolt", "1.0")
    (facts,) = index.files["bolt"].values()
    for number in range(12_000):
        name = f"bolt-2.{number}-py3-none-any.whl"
        index.files["bolt"][name] = {**facts, "filename": name}
    began = time.process_time()
    assert len(releases("bolt", python=here)) == 12_001
    assert time.process_time() - began < 8


def test_no_release_for_this_python_is_told_with_one_that_there_is(index: PackageIndex, here: Interpreter) -> None:
    platform = here.tags[0].rpartition("-")[2]
    index.add("bolt", "1.0", tag=f"cp36-cp36m-{platform}")
    with pytest.raises(errors.CannotInstall) as caught:
        releases("bolt", python=here)
    assert caught.value.kind == "no wheel"
    assert caught.value.next_steps == ("--python 3.6    if there is one on this machine",)


def test_what_nobody_knows_is_told(index: PackageIndex, here: Interpreter) -> None:
    with pytest.raises(errors.CannotInstall, match="there is no package 'bolt' in http://127") as caught:
        releases("bolt", python=here)
    assert caught.value.kind == "no such release"


@pytest.mark.parametrize("status", [401, 500])
def test_an_index_that_refuses_is_told_with_its_status(index: PackageIndex, here: Interpreter, status: int) -> None:
    index.status = status
    with pytest.raises(errors.CannotInstall, match=f"cannot be asked: it answers with status {status}") as caught:
        releases("bolt", python=here)
    assert caught.value.kind == "network"


def test_a_proxy_that_does_not_answer_is_told(
    index: PackageIndex, here: Interpreter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setattr("biopsy.processes.environments.releases._RETRIES", 0)
    with pytest.raises(errors.CannotInstall, match=r"its proxy does not answer: .*refused") as caught:
        releases("bolt", python=here)
    assert caught.value.kind == "network"


def test_an_answer_that_is_no_page_is_told(index: PackageIndex, here: Interpreter) -> None:
    index.files["bolt"] = {"a": {"filename": 7, "url": None}}
    with pytest.raises(errors.CannotInstall) as caught:
        releases("bolt", python=here)
    assert caught.value.kind == "network"
    assert len(caught.value.message.splitlines()) == 1


# Where packages come from


def test_indexes_and_folders_of_pip_are_asked_together(
    index: PackageIndex, here: Interpreter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.add("bolt", "1.0")
    folder = tmp_path / "wheels"
    folder.mkdir()
    (folder / "bolt-2.0-py3-none-any.whl").write_bytes(wheel("bolt", "2.0", {}))
    page = tmp_path / "more" / "bolt"
    page.mkdir(parents=True)
    (page / "index.html").write_text('<a href="../bolt-3.0-py3-none-any.whl">bolt-3.0-py3-none-any.whl</a>')
    settings = tmp_path / "pip.conf"
    settings.write_text(
        f"[global]\nindex-url = {index.address}\n[install]\nextra-index-url = file://{tmp_path}/more\n"
        f"find-links = {folder}\n"
    )
    monkeypatch.delenv("UV_DEFAULT_INDEX")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(settings))
    assert versions("bolt", here) == ["1.0", "2.0", "3.0"]


def test_of_the_indexes_of_uv_the_first_that_knows_a_package_is_the_only_one(
    index: PackageIndex, here: Interpreter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.add("bolt", "1.0")
    index.add("nut", "1.0")
    page = tmp_path / "more" / "bolt"
    page.mkdir(parents=True)
    (page / "index.html").write_text('<a href="../bolt-3.0-py3-none-any.whl">bolt-3.0-py3-none-any.whl</a>')
    monkeypatch.setenv("UV_INDEX", f"mine={tmp_path}/more")
    assert versions("bolt", here) == ["3.0"]
    assert versions("nut", here) == ["1.0"]


def test_settings_of_uv_are_read_where_its_user_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: PackageIndex
) -> None:
    settings = tmp_path / "uv.toml"
    settings.write_text(
        '[[index]]\nname = "a"\nurl = "https://a.example/simple"\n[[index]]\nurl = "https://b.example"\n'
        'default = true\n[[index]]\nname = "c"\nurl = "https://c.example"\nexplicit = true\n'
    )
    monkeypatch.delenv("UV_DEFAULT_INDEX")
    monkeypatch.setenv("UV_CONFIG_FILE", str(settings))
    found = interpreter.configured()
    assert (found.indexes, found.first_only) == (("https://a.example/simple", "https://b.example"), True)


def test_what_the_current_folder_says_is_not_read(
    index: PackageIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = interpreter.configured()
    (tmp_path / "uv.toml").write_text('index-url = "https://evil.example"\n')
    (tmp_path / "pyproject.toml").write_text('[tool.uv]\nindex-url = "https://evil.example"\n')
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = https://evil.example\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("UV_CONFIG_FILE")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    assert interpreter.configured() == before


def test_passwords_are_in_no_message() -> None:
    some = interpreter.Sources(indexes=("https://me:s3cret@index.example/simple",))
    assert interpreter.without_secrets("GET https://me:s3cret@index.example/simple/bolt", some) == (
        "GET https://****@index.example/simple/bolt"
    )
    assert interpreter.shown(some.indexes[0]) == "https://index.example/simple"


def test_both_installers_are_told_of_everything() -> None:
    some = interpreter.Sources(
        indexes=("https://more.example", "https://first.example"),
        links=("/wheels",),
        constraints=("/limits.txt",),
        certificate="/ca.pem",
        proxy="http://proxy:3128",
        trusted_hosts=("more.example",),
    )
    pip, uv = some.for_pip(), some.for_uv()
    assert (pip["PIP_INDEX_URL"], pip["PIP_EXTRA_INDEX_URL"]) == ("https://first.example", "https://more.example")
    assert (uv["UV_DEFAULT_INDEX"], uv["UV_INDEX"]) == ("https://first.example", "https://more.example")
    for told, value in (("FIND_LINKS", "/wheels"), ("CONSTRAINT", "/limits.txt")):
        assert pip[f"PIP_{told}"] == uv[f"UV_{told}"] == value
    assert (pip["PIP_CERT"], uv["SSL_CERT_FILE"]) == ("/ca.pem", "/ca.pem")
    assert (pip["PIP_PROXY"], uv["HTTPS_PROXY"]) == ("http://proxy:3128", "http://proxy:3128")
    assert (pip["PIP_TRUSTED_HOST"], uv["UV_INSECURE_HOST"]) == ("more.example", "more.example")


@pytest.mark.slow
def test_the_real_index_has_releases_that_can_be_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: Interpreter
) -> None:
    from biopsy.processes.environments.prepared import prepared

    monkeypatch.setenv("BIOPSY_CACHE_DIR", str(tmp_path / "cache"))
    found = releases("onnxruntime", python=here)
    assert Release(version="1.20.1", date=datetime.date(2024, 11, 21)) in found
    with prepared(["onnxruntime==1.20.1"], python=here) as environment:
        assert environment.packages.get("onnxruntime") == "1.20.1"
    if here.series == "3.11":
        with prepared(["onnxruntime==1.17.3"], python=here) as environment:
            assert environment.added == ("numpy<2",)
            assert (environment.packages.get("numpy") or "").startswith("1.")
