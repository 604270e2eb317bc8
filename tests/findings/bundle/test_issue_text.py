"""The text of an issue fits the form of the engine's tracker, and nothing in it is anything but text."""

import re
from dataclasses import replace

import pytest

from biopsy.engines.registry import create
from biopsy.findings.bundle.failure import ObservedFailure
from biopsy.findings.bundle.issue import IssueFacts, issue_text
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
        script="pass",
        versions=versions_tree([engine]),
        excluded=[
            ("rounding (it is larger)", False),
            ("chance (it is flaky)", True),
            ("the model (another engine agrees)", False),
        ],
        members=["model.onnx"],
    )


def found(**texts: str) -> EarlierFindings:
    return EarlierFindings(notes=[Note(label=label, text=text) for label, text in texts.items()])


@pytest.mark.parametrize(
    ("engine", "headings", "field"),
    [
        ("onnxrt", ["Describe the issue", "To reproduce", "System information"], "ONNX Runtime Version or Commit ID"),
        ("openvino", ["Issue description", "Step-by-step reproduction", "System information"], "OpenVINO Version"),
        ("trt", ["Description", "Steps To Reproduce", "Environment"], "Operating System"),
        ("reference", ["Describe the bug", "Reproduction instructions", "System information"], "ONNX version"),
        ("fake", ["What happens", "How to reproduce it", "Environment"], "Python"),
    ],
)
def test_headings_and_fields_are_those_of_the_form(engine: str, headings: list[str], field: str) -> None:
    text = issue_text(facts(engine))
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == headings
    assert f"\n- {field}: " in text


def test_it_says_what_happens_what_was_excluded_and_on_what() -> None:
    text = issue_text(facts("onnxrt"))
    assert text.startswith("# It fails\n")
    assert "- Excluded: rounding (it is larger); the model (another engine agrees)." in text
    assert "- Not excluded: chance (it is flaky)." in text
    assert "Attached: `model.onnx`." in text
    assert "- Processor: " in text


@pytest.mark.parametrize(("against", "is_named"), [("onnxrt:optimization=none", True), ("", False)])
def test_what_gives_the_expected_values_is_named_with_its_version(against: str, is_named: bool) -> None:
    given = facts("openvino")
    versions = versions_tree(["openvino", "onnxrt"])
    compared = replace(given, failure=replace(given.failure, against=against), versions=versions)
    assert ("onnxruntime " in issue_text(compared)) == is_named


def test_it_is_short_however_much_is_known() -> None:
    long = "\n".join(f"line {number}" for number in range(200))
    notes = [Note(label="found", text="It is wrong."), *(Note(label="cause", text="why") for _ in range(50))]
    notes += [Note(label="workaround", text="it passes", code=["session = 1"], line="biopsy run m")] * 5
    full = replace(facts("onnxrt", long), script=long, earlier=EarlierFindings(notes=notes))
    assert len(issue_text(full).splitlines()) <= 60


def printed_in(text: str) -> str:
    """What the text says that the script prints."""
    return text.partition("It prints:")[2].partition("```text\n")[2].partition("\n```")[0]


def test_of_a_script_that_prints_nothing_its_end_is_told() -> None:
    crashed = Reproduction(reproduced="alone", status=-8, output="")
    text = issue_text(replace(facts("onnxrt"), reproduction=crashed))
    assert "It prints nothing, and ends with signal SIGFPE." in text and "It prints:" not in text


def test_what_a_script_prints_is_cut_between_lines_that_tell_nothing() -> None:
    rows = [f"       [{row}, {row}]," for row in range(40)]
    numpy = ["AssertionError: ", "Not equal to tolerance rtol=1e-05", "", "Mismatched elements: 2 / 80 (2.5%)"]
    numpy += ["Mismatch at indices:", " [0, 1]: 1.5 (ACTUAL), 1.0 (DESIRED)", " [3, 0]: 7 (ACTUAL), 3.0 (DESIRED)"]
    made = facts("onnxrt")
    long = replace(made.reproduction, output="\n".join([*numpy, " ACTUAL: array([[0, 0],", *rows]))
    assert printed_in(issue_text(replace(made, reproduction=long))).splitlines() == [numpy[3], *numpy[5:]]
    shapes = [
        "AssertionError: ",
        "Not equal to tolerance",
        "(shapes (2, 2), (1, 2, 2) mismatch)",
        " ACTUAL: array([[0],",
        *rows,
    ]
    of_shape = replace(made.reproduction, output="\n".join(shapes))
    assert printed_in(issue_text(replace(made, reproduction=of_shape))).splitlines() == shapes[2:4]
    colours = "\x1b[1;31m2026 [E:onnxruntime] no\x1b[m\nTraceback (most recent call last):\n"
    raised = f'{colours}  File "a.py", line 1, in f\n    f()\n    ~^^\nFail: no\n  by the way'
    ended = replace(made.reproduction, output=raised)
    assert printed_in(issue_text(replace(made, reproduction=ended))) == "Fail: no\n  by the way"


def test_lines_of_the_script_s_own_traceback_are_left_out() -> None:
    printed = 'Traceback (most recent call last):\n  File "reproduce.py", line 3, in <module>\n    f()\nValueError: no'
    made = facts("onnxrt")
    text = issue_text(replace(made, reproduction=replace(made.reproduction, output=printed)))
    assert "\nValueError: no\n```" in text and "Traceback" not in text


@pytest.mark.parametrize(
    ("word", "shown"),
    [("(*a*)", "(`*a*`)"), ("f(*x*),", "`f(*x*)`,"), ("(f(*x)).", "(`f(*x)`)."), ("((a*b", "((`a*b`")],
)
def test_parentheses_around_a_word_in_code_stay_outside(word: str, shown: str) -> None:
    assert f"why {shown}" in issue_text(
        replace(facts("onnxrt"), earlier=EarlierFindings(notes=[Note(label="cause", text=f"why {word}")]))
    )


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
    earlier = found(found="Its optimizer is wrong.", cause="It needs any x.")
    workaround = Note(label="workaround", text="Fusion off: it passes.", line="biopsy run m")
    text = issue_text(replace(facts("onnxrt"), earlier=replace(earlier, notes=[*earlier.notes, workaround])))
    assert "\nIts optimizer is wrong.\n" in text and "\n- It needs any x.\n" in text
    assert "- Workaround: Fusion off: it passes: `biopsy run m`" in text


ISSUE = "https://github.com/owner/name/issues/7"


def test_a_reference_of_our_catalogue_is_a_link_and_that_of_anybody_else_is_code() -> None:
    words = {"found": "It looks like owner/name#7: 'x'.", "cause": "owner/name#7: as known, owner/name#8"}
    text = issue_text(replace(facts("onnxrt"), earlier=replace(found(**words), links={"owner/name#7": ISSUE})))
    assert f"\nIt looks like [owner/name#7]({ISSUE}): `x`.\n" in text
    assert f"\n- [owner/name#7]({ISSUE}): as known, `owner/name#8`\n" in text
    assert "\n- `owner/name#7`: as known, `owner/name#8`\n" in issue_text(
        replace(facts("onnxrt"), earlier=found(**words))
    )


def test_what_was_not_reproduced_is_said_first() -> None:
    assert "**NOT REPRODUCED" in issue_text(facts("onnxrt", reproduced="not")).split("\n## ")[0]
    assert "only where biopsy is installed" in issue_text(facts("onnxrt", reproduced="with biopsy")).split("\n## ")[0]
