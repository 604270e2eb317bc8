"""The text of an issue fits the form of the engine's tracker, and nothing in it is anything but text."""

import re
from dataclasses import replace

import pytest

from biopsy.engines.registry import create
from biopsy.findings.bundle.issue import IssueFacts, ObservedFailure, issue_text
from biopsy.findings.bundle.job import EarlierFindings
from biopsy.findings.bundle.reproduction import Reproduced, Reproduction
from biopsy.findings.report import versions_tree
from biopsy.findings.verdict import Note


def facts(
    engine: str, message: str = "it fails", reproduced: Reproduced = "alone", title: str = "It fails"
) -> IssueFacts:
    status = 1 if reproduced != "not" else 0
    return IssueFacts(
        failure=ObservedFailure(
            kind="engine failure", title=title, engine=create(engine), stage="build", message=message
        ),
        reproduction=Reproduction(reproduced=reproduced, status=status, output=message),
        model=message,
        script="pass",
        versions=versions_tree([engine]),
        excluded=["rounding: it is larger"],
        sizes={"model.onnx": 118},
    )


def found(**texts: str) -> EarlierFindings:
    return EarlierFindings(notes=[Note(label=label, text=text) for label, text in texts.items()])


@pytest.mark.parametrize(
    ("engine", "headings"),
    [
        ("onnxrt", ["Describe the issue", "To reproduce", "ONNX Runtime Version or Commit ID", "Execution Provider"]),
        (
            "openvino",
            ["OpenVINO Version", "Device used for inference", "Issue description", "Step by step reproduction"],
        ),
        ("trt", ["Description", "Environment", "Steps To Reproduce"]),
        ("reference", ["Describe the bug", "System information", "Reproduction instructions"]),
        ("fake", ["What happens", "How to reproduce it", "Environment"]),
    ],
)
def test_headings_are_those_of_the_form(engine: str, headings: list[str]) -> None:
    told = re.findall(r"^## (.*)$", issue_text(facts(engine)), re.MULTILINE)
    assert [heading for heading in told if heading in headings] == headings


def test_it_says_what_happens_what_was_excluded_and_on_what() -> None:
    text = issue_text(facts("onnxrt"))
    assert text.startswith("# It fails\n")
    assert "- rounding: it is larger" in text
    assert "- `model.onnx`, 118 bytes" in text
    assert "- processor: " in text


def test_the_lines_that_the_nodes_come_from_stand_in_code() -> None:
    places = [f"m.py:{number} in M.forward: ```@all" for number in range(10)]
    text = issue_text(replace(facts("onnxrt"), places=places))
    assert "\n````text\nm.py:0 in M.forward: ```@all\n" in text
    assert "m.py:7 in M.forward: ```@all\nand 2 more\n````\n" in text
    assert "lines of code" not in issue_text(facts("onnxrt"))


@pytest.mark.parametrize("chain", ["Pow -> Add -> Sqrt", "one node, Pow"])
def test_a_conclusion_that_holds_no_markdown_is_read_as_a_sentence(chain: str) -> None:
    verdict = f"The optimizer computes something else for {chain}. They fail together: a fusion."
    assert f"\n{verdict}\n" in issue_text(replace(facts("onnxrt"), earlier=found(found=verdict)))


HOSTILE = "@everyone #1 ![x](http://x)\n# heading\n```\n<script>alert(1)</script>\n````\n\x1b[31m"


def test_a_strangers_text_is_never_markdown() -> None:
    text = issue_text(facts("onnxrt", HOSTILE, title=HOSTILE.replace("\n", " ")))
    outside, fence = [], ""
    for line in text.splitlines():
        ticks = re.match("`{3,}", line)
        if not fence and ticks:
            fence = ticks[0]
        elif fence and line == fence:
            fence = ""
        elif not fence:
            outside.append(re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", line))
    assert fence == ""
    told = "\n".join(outside)
    assert not re.search(r"everyone|<script|\n *# *heading|[!`\[\]<>]", told)
    assert "\x1b" not in text


def test_what_a_diagnosis_has_found_stands_beside_the_failure() -> None:
    earlier = found(**{"found": "Its optimizer is wrong.", "may vary": "any x"})
    workaround = Note(label="workaround", text="Fusion off: it passes.", line="biopsy run m")
    text = issue_text(replace(facts("onnxrt"), earlier=replace(earlier, notes=[*earlier.notes, workaround])))
    assert "Its optimizer is wrong." in text and "as far as it was tried: any x\n" in text
    assert "A workaround that was tried: Fusion off: it passes.\n\n```text\nbiopsy run m\n```" in text


ISSUE = "https://github.com/owner/name/issues/7"


def test_a_reference_of_our_catalogue_is_a_link_and_that_of_anybody_else_is_code() -> None:
    words = {"found": "It looks like owner/name#7: 'x'.", "known": "owner/name#7: the same fingerprint, owner/name#8"}
    text = issue_text(replace(facts("onnxrt"), earlier=replace(found(**words), links={"owner/name#7": ISSUE})))
    assert f"\nIt looks like [owner/name#7]({ISSUE}): `x`.\n" in text
    assert f"known failure: [owner/name#7]({ISSUE}): the same fingerprint, `owner/name#8`\n" in text
    text = issue_text(replace(facts("onnxrt"), earlier=found(**words)))
    assert "How it compares with a known failure: `owner/name#7:` the same fingerprint, `owner/name#8`\n" in text


def test_what_was_not_reproduced_is_said_first() -> None:
    assert "**NOT REPRODUCED" in issue_text(facts("onnxrt", reproduced="not")).split("\n## ")[0]
    assert "only where biopsy is installed" in issue_text(facts("onnxrt", reproduced="with biopsy")).split("\n## ")[0]
