"""The documentation: what it shows is what happens, what it links to exists, and every option stands in it.

See ``support.pages`` for the conventions that pages follow.
"""

import argparse
import dataclasses
import importlib.util
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest

import biopsy
from biopsy import events
from biopsy.checks import verdict
from biopsy.cli.commands import COMMANDS
from biopsy.cli.parser import parser_of
from biopsy.engines import registry
from biopsy.reduction import schedule
from support.bug import skip_without_it
from support.pages import ROOT, anchors, blocks, compare, follow, links, pages

PAGES = pages()
QUICK = [page for page in PAGES if any(not block.slow for block in blocks(page))]
SLOW = [page for page in PAGES if any(block.slow for block in blocks(page))]

SHOW_THE_BUG = {
    "docs/tutorial/in-five-minutes.md",
    "docs/tutorial/reduce-your-first-model.md",
    "docs/how-to/find-what-may-vary.md",
    "docs/how-to/read-the-report.md",
}
"""Pages that must be written anew when onnxruntime has mended the bug that they show."""

LONG = {
    "diagnose-a-model.md",
    "find-a-bad-build.md",
    "find-an-accuracy-error.md",
    "find-a-slowdown.md",
    "find-the-first-bad-layer.md",
    "find-the-release.md",
    "find-a-workaround.md",
    "find-the-setting.md",
    "find-the-transformation.md",
    "find-what-may-vary.md",
    "in-five-minutes.md",
    "measure-a-flaky-failure.md",
    "reduce-a-flaky-failure.md",
    "reduce-with-dynamic-shapes.md",
    "run-on-another-release.md",
    "send-a-bug.md",
    "share-a-model.md",
    "use-from-python.md",
    "use-several-samples.md",
    "write-a-check.md",
}
"""Pages whose commands take long: make test-all follows them."""


WITH_PYTORCH = {"from-pytorch.md"}
"""Pages whose commands need PyTorch: tests/pytorch follows them."""


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def marked(pages: list[Path]) -> list[Any]:
    """Pages as parameters, those that take long marked as slow, those that need PyTorch as skipped."""
    marks = {page: [pytest.mark.slow] for page in pages if page.name in LONG}
    elsewhere = pytest.mark.skip(reason="needs PyTorch: make test-torch follows it")
    marks |= {page: [elsewhere] for page in pages if page.name in WITH_PYTORCH}
    return [pytest.param(page, id=name(page), marks=marks.get(page, [])) for page in pages]


@pytest.mark.parametrize("page", marked(QUICK))
def test_what_a_page_shows_is_what_happens(page: Path, tmp_path: Path) -> None:
    if name(page) in SHOW_THE_BUG:
        skip_without_it()
    follow(page, tmp_path, slow=False)


@pytest.mark.slow
@pytest.mark.parametrize("page", SLOW, ids=name)
def test_what_a_page_shows_of_the_demonstration_is_what_happens(page: Path, tmp_path: Path) -> None:
    skip_without_it()
    follow(page, tmp_path, slow=True)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"], ids=name)
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    for link in links(page):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_is_found_from_the_readme() -> None:
    found, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in found:
            continue
        found.add(page)
        targets = ((page.parent / link.partition("#")[0]).resolve() for link in links(page) if "://" not in link)
        waiting += [target for target in targets if target.suffix == ".md"]
    assert set(PAGES) <= found


def test_every_how_to_page_answers_a_question_of_one_group() -> None:
    first = ROOT / "docs" / "how-to" / "README.md"
    _, *groups = re.split(r"^## ", first.read_text(encoding="utf-8"), flags=re.MULTILINE)
    listed = sorted(page for group in groups for page in re.findall(r"\]\(([a-z0-9-]+\.md)\)", group))
    assert listed == sorted({page.name for page in first.parent.glob("*.md")} - {"README.md"})
    assert len(groups) == 5


def test_a_page_that_shows_something_else_than_is_printed_is_noticed() -> None:
    compare(["6 nodes in 0.5 s", "...", "end"], "6 nodes in 1.25 s\na\nb\nend\n", "")
    for shown in (["7 nodes in 0.5 s", "...", "end"], ["6 nodes in 0.5 s", "end"], ["..."] * 2 + ["END"]):
        with pytest.raises(AssertionError):
            compare(shown, "6 nodes in 1.25 s\na\nb\nend\n", "")


def test_nobody_is_sent_to_a_command_that_does_not_exist() -> None:
    known = {" ".join(command.words) for command in COMMANDS}
    for page in PAGES:
        for block in blocks(page):
            for words in re.findall(r"^\$ (?:biopsy|polygraphy) ([a-z]+(?: [a-z-]+)?)", block.text, re.MULTILINE):
                assert words in known or words.split()[0] in known, f"{page.name}:{block.line}: {words}"


def lines_of_the_first_table() -> list[str]:
    """What README's table of questions says to type."""
    table = (ROOT / "README.md").read_text(encoding="utf-8").partition("| what to type |")[2].partition("\n\n")[0]
    return re.findall(r"`(biopsy [^`]* [^`]*\S\.\S[^`]*)`", table)  # those that name a file, or a module


@pytest.mark.parametrize("line", lines_of_the_first_table())
def test_what_the_first_page_says_to_type_is_what_the_command_takes(line: str) -> None:
    words = line.split()[1:]
    command = next(each for each in COMMANDS if each.words == tuple(words[: len(each.words)]))
    parser_of("biopsy", command).parse_args(words[len(command.words) :])


# The reference


def section(page: Path, heading: str) -> str:
    """What stands below a heading, to the next one of its level."""
    level = heading.partition(" ")[0]
    text = page.read_text(encoding="utf-8")
    assert f"\n{heading}\n" in text, f"{page.name} has no section '{heading}'"
    return re.split(rf"\n{level} ", text.partition(f"\n{heading}\n")[2])[0]


REFERENCE = ROOT / "docs" / "reference"


def generator() -> ModuleType:
    """docs/reference/generate.py, which is not a part of a package."""
    spec = importlib.util.spec_from_file_location("generate", REFERENCE / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", generator().pages(), ids=name)
def test_generated_parts_are_those_of_the_program(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert generator().renewed(text) == text, "run: python docs/reference/generate.py"


def test_every_command_has_a_page_and_no_other_has() -> None:
    expected = {generator().page_of(" ".join(command.words)) for command in COMMANDS}
    assert set((REFERENCE / "commands").iterdir()) == expected


@pytest.mark.parametrize("words", [" ".join(command.words) for command in COMMANDS])
def test_every_option_of_a_command_stands_on_its_page(words: str) -> None:
    command = next(command for command in COMMANDS if " ".join(command.words) == words)
    described = generator().page_of(words).read_text(encoding="utf-8")
    assert described.startswith(f"# biopsy {words}\n")
    if "The same as" in described:
        return
    actions = generator().parser_of(words)._actions
    for action in (action for action in actions if action.help != argparse.SUPPRESS):
        for option in action.option_strings:
            assert f"`{option}" in described, f"{command.module} has {option}"


def test_every_engine_and_every_option_of_it_stands_in_the_reference() -> None:
    for engine in registry.BUILT_IN:
        described = section(REFERENCE / "engines.md", f"## {engine}")
        for option in registry.find_class(engine).options_declared:
            assert f"`{option.name}`" in described


def test_every_public_name_and_argument_stands_in_the_reference() -> None:
    text = (REFERENCE / "python-api.md").read_text(encoding="utf-8")
    for public in biopsy.__all__:
        assert public in text
    for function in filter(inspect.isfunction, (getattr(biopsy, name) for name in biopsy.__all__)):
        described = section(REFERENCE / "python-api.md", f"## biopsy.{function.__name__}")
        for argument, parameter in inspect.signature(function).parameters.items():
            simple = isinstance(parameter.default, int | float | str | None)
            shown = f"{argument}={parameter.default!r}".replace("'", '"') if simple else argument
            assert shown.replace("1e-05", "1e-5") in described, argument
    described = section(REFERENCE / "python-api.md", "## Rules")
    assert all(f"`{field.name}`" in described for field in dataclasses.fields(biopsy.Rules))


def test_every_status_of_an_exception_is_as_the_reference_says() -> None:
    text = (REFERENCE / "python-api.md").read_text(encoding="utf-8")
    for row in re.findall(r"^\| `(\w+)` \| (\d) \|", text, re.MULTILINE):
        assert getattr(biopsy, row[0]).status == int(row[1])


def test_every_event_and_its_keys_stand_in_the_reference() -> None:
    described = section(REFERENCE / "file-formats.md", "## Events")
    for event in events.Event.__subclasses__():
        row = next(line for line in described.splitlines() if line.startswith(f"| `{event.kind}` |"))
        fields = [field.name for each in (event, *event.__subclasses__()) for field in dataclasses.fields(each)]
        assert re.findall(r"`(\w+)`", row)[1:] == list(dict.fromkeys(fields))


def test_every_outcome_and_every_key_of_the_verdict_file_stand_in_the_reference() -> None:
    outcomes = (REFERENCE / "outcomes.md").read_text(encoding="utf-8")
    for outcome in biopsy.Outcome:
        assert f"| `{outcome.name}` | {outcome.value} |" in outcomes
    described = section(REFERENCE / "file-formats.md", "## Verdict file")
    for field in dataclasses.fields(verdict.VerdictFile):
        assert f"| `{field.name}` |" in described


def test_every_mode_and_its_passes_stand_in_the_reference() -> None:
    described = generator().page_of("debug reduce").read_text(encoding="utf-8")
    for mode in get_args(schedule.Mode):
        row = next(line for line in described.splitlines() if line.startswith(f"| `{mode}` |"))
        if mode == "minimal":
            passes = schedule.schedule_of(mode)
            assert all(f"`{one.name}`" in row for one in (*passes.once, *passes.repeated))


def test_the_passes_that_keep_values_are_those_that_the_explanation_names() -> None:
    page = ROOT / "docs" / "explanation" / "how-reducing-works.md"
    told = section(page, "## Which passes keep values").partition("All others")[0]
    nodes = {named.name for named in schedule.PASSES if named.name != "bypass"}
    model = {named.name for named in schedule.MODEL_PASSES if named.keeps_values}
    assert set(re.findall(r"`([\w-]+)`", told)) == nodes | model


def test_every_dependency_has_its_reason() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    reasons = (ROOT / "docs" / "explanation" / "dependencies.md").read_text(encoding="utf-8")
    for package in re.findall(r'^ {4}"([a-z][a-z0-9-]*)(?=[>=])', project, re.MULTILINE):
        assert re.search(rf"\b{package}\b", reasons), package
