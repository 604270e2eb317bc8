"""The files that other tools look for: they call what exists."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.distributions import skip_without_setuptools
from support.pages import ROOT

yaml = pytest.importorskip("yaml")


def test_the_workflow_runs_what_must_pass_before_a_commit() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8"))
    commands = [step["run"] for step in workflow["jobs"]["test"]["steps"] if "run" in step]
    assert commands == ["make test"]
    declared = re.search(r'requires-python = ">=([\d.]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert declared is not None
    assert declared.group(1) in workflow["jobs"]["test"]["strategy"]["matrix"]["python"]


def test_the_hooks_before_a_commit_are_programs_of_the_environment() -> None:
    settings = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    programs = {hook["entry"].split()[0] for repository in settings["repos"] for hook in repository["hooks"]}
    assert programs == {".venv/bin/ruff", ".venv/bin/mypy", ".venv/bin/lint-imports"}
    made_by_make = (ROOT / "Makefile").read_text(encoding="utf-8")
    for program in programs:
        assert f"$(BIN)/{Path(program).name}" in made_by_make


def test_issue_templates_have_what_the_forge_wants() -> None:
    templates = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.md"))
    assert templates
    for template in templates:
        head = yaml.safe_load(template.read_text(encoding="utf-8").split("---\n")[1])
        assert {"name", "about"} <= set(head), template


@pytest.mark.slow
def test_what_the_dockerfile_copies_is_enough_to_install_from(tmp_path: Path) -> None:
    skip_without_setuptools()
    copied = re.findall(r"^COPY (.+) /biopsy(\S*)$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert copied
    for names, target in copied:
        for name in names.split():
            source, goal = ROOT / name, tmp_path / target.lstrip("/")
            if source.is_dir():
                shutil.copytree(source, goal)
            elif target.endswith("/"):
                goal.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, goal)
            else:
                goal.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, goal)
    wheels = tmp_path / "wheels"
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(wheels)]
    subprocess.run([*build, str(tmp_path)], check=True)
    assert [wheel.name.split("-")[0] for wheel in wheels.glob("*.whl")] == ["biopsy"]
