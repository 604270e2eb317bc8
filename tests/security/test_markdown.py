"""``ISSUE.md`` as a renderer of GitHub's flavour shows it: no name of a stranger is anything but text in code."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token
from onnx import helper, numpy_helper

from biopsy.engines.registry import create
from biopsy.findings.bundle.failure import ObservedFailure
from biopsy.findings.bundle.issue import IssueFacts, issue_text
from biopsy.findings.bundle.job import EarlierFindings
from biopsy.findings.bundle.reproduction import Reproduction
from biopsy.findings.report import versions_tree
from biopsy.findings.verdict import Note
from support.bundles import bundle_of, unpacked
from support.models import info, model, save

GITHUB = MarkdownIt("gfm-like", {"html": True})
GITHUB.linkify.set({"fuzzy_link": True, "fuzzy_email": True})  # type: ignore[union-attr]
"""GitHub makes links of ``www.`` and of addresses of mail too."""
_NO_LINK_ON_GITHUB = {"href": "http://reproduce.py"}
"""The name of our script: the renderer takes it for a host of Paraguay."""

ATTACKS = [
    "https://evil.example/fix",
    "see www.evil.com now",
    "ftp://evil.example",
    "a@evil.example",
    "mailto:a@evil.example",
    "[x](https://evil.example)",
    "![x](https://evil.example/x.png)",
    "<https://evil.example>",
    "[x]: https://evil.example",
    "<img src=x onerror=alert(1)>",
    "<b>",
    "&lt;b&gt; &#x5b;",
    "@somebody",
    "#123",
    "owner/name#123",
    "GH-123",
    "deadbeefdeadbeef",
    "`",
    "``",
    "`x` <img src=x>",
    "```\n<img src=x>",
    "~~~\n<img src=x>",
    "'<img src=x>",
    "it's <img src=x> it's",
    '" <img src=x> "',
    "\\'<img src=x>\\'",
    "a | b <img src=x>",
    "| a |\n|---|\n| <img src=x> |",
    "x\n# heading",
    "x\n\n# heading",
    "x\n===",
    "x\r# heading",
    "x\u2028# heading",
    "- item",
    "1. item",
    "> quote",
    "    indented",
    "---",
    " ",
    "",
    "*x* _x_ __x__ ~~x~~",
    "$`x`$ $$x$$",
    "x\\",
]

OURS = {"heading_open", "paragraph_open", "bullet_list_open", "list_item_open", "fence", "inline", "text", "softbreak",
        "code_inline", "strong_open"}  # fmt: skip


def tokens(text: str) -> Iterator[Token]:
    for token in GITHUB.parse(text):
        yield token
        yield from token.children or ()


def alive(text: str) -> list[str]:
    """What a renderer makes of a text besides text, code, and the headings, lists and paragraphs of ours."""
    seen = [token for token in tokens(text) if not token.hidden and not token.type.endswith("_close")]
    others = [token for token in seen if token.type not in OURS and token.attrs != _NO_LINK_ON_GITHUB]
    return [f"{token.type} {token.content} {token.attrs}" for token in others]


def headings(text: str) -> int:
    return sum(token.type == "heading_open" for token in tokens(text))


def plain(text: str) -> str:
    """What stands outside of code, where GitHub looks for mentions and numbers of issues."""
    return "\n".join(token.content for token in tokens(text) if token.type == "text")


@pytest.mark.parametrize("attack", ["https://evil.example/fix", "www.evil.com", "[x](https://e.example)", "<b>"])
def test_the_renderer_makes_something_of_an_attack_that_stands_bare(attack: str) -> None:
    assert alive(f"# {attack}\n")


def facts(attack: str) -> IssueFacts:
    """Every text of an issue that can hold a stranger's words, each as it is and in a sentence of ours."""
    quoted = f"ONNX Runtime computes {attack!r}, {attack} wrongly"
    return IssueFacts(
        failure=ObservedFailure(
            kind="engine failure", title=quoted, engine=create("onnxrt"), stage="run", name=attack, message=attack,
            against=attack,
        ),
        reproduction=Reproduction(reproduced="alone", status=1, output=attack),
        script=attack,
        versions=versions_tree(["onnxrt"]),
        excluded=[(attack, True), (f"the model: the same engine, run as '{attack}', gives the expected values", False)],
        earlier=EarlierFindings(
            notes=[Note(label=label, text=text, line=attack, code=[attack] if text == attack else [])
                   for label, text in (("found", quoted), ("cause", attack), ("cause", quoted),
                                       ("workaround", attack), ("workaround", quoted))]
        ),
        remarks=[attack, f"left out: {attack}: no such file"],
        members=["model.onnx", attack],
    )  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_text_of_a_stranger_is_markdown(attack: str) -> None:
    text = issue_text(facts(attack))
    harmless = issue_text(facts("harmless"))
    assert alive(text) == []
    assert headings(text) == headings(harmless)
    outside = plain(text)
    for sign in ("evil", "@", "#123", "GH-123", "deadbeef", "<", "heading"):
        assert sign not in outside.replace("<!--", "")


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_title_alone_is_markdown(attack: str) -> None:
    made = facts("harmless")
    for title in (attack, repr(attack), f"{attack} {attack!r} {attack}"):
        text = issue_text(replace(made, failure=replace(made.failure, title=title)))
        assert alive(text) == [] and headings(text) == headings(issue_text(made))


def test_a_name_in_a_heading_stands_in_code_and_the_rest_is_a_sentence() -> None:
    made = facts("harmless")
    title = "ONNX Runtime computes 'https://evil.example/fix' wrongly"
    text = issue_text(replace(made, failure=replace(made.failure, title=title)))
    assert text.startswith("# ONNX Runtime computes `https://evil.example/fix` wrongly\n")


def test_sentences_of_ours_are_prose_around_ordinary_names() -> None:
    verdict = (
        "ONNX Runtime 1.32.0's optimizer LayerNormFusion computes something else, by more than rounding, for Pow "
        "-> Add in 'logits' [3, 4]. With inputs of x:[1,2] it doesn't fail. float16 differs (9.25e+05 times)."
    )
    variation = "fails only with keepdims = 0 of 'Reduce Mean'; values of x_1, y may be anything; 'w' was <= 3"
    notes = [
        Note(label="found", text=verdict),
        Note(label="cause", text=variation),
        Note(label="cause", text="name-7: it has the pattern of <x>, as known"),
    ]
    excluded = [("the model: run as 'x', it's right", False)]
    text = issue_text(replace(facts("harmless"), earlier=EarlierFindings(notes=notes), excluded=excluded))
    outside = "".join("¤" if token.type == "code_inline" else token.content for token in tokens(text) if not token.map)
    for sentence in (
        "ONNX Runtime 1.32.0's optimizer LayerNormFusion computes something else, by more than rounding, for Pow "
        "-> Add in ¤ ¤. With inputs of x:¤ it doesn't fail. float16 differs (9.25e+05 times).",
        "fails only with keepdims = 0 of ¤; values of x_1, y may be anything; ¤ was ¤ 3",
        "name-7: it has the pattern of ¤, as known",
        "the model: run as ¤, it's right",
    ):
        assert sentence in outside


def test_no_mixture_of_signs_is_markdown() -> None:
    signs = ["'", '"', "`", "``", "\\", "<b>", "[x](y)", "![", "[", "]", "*", "_", "~~", "@x", "don't", "a", ":x:", "-",
             "1.", "#", "&lt;", "www.e.com", " ", " ", " ", "  ", "\t"]  # fmt: skip
    dice = random.Random(0)
    made = facts("harmless")
    expected = headings(issue_text(made))
    for _ in range(100):
        words = "".join(dice.choices(signs, k=dice.randint(1, 12)))
        text = issue_text(
            replace(made, failure=replace(made.failure, title=words), excluded=[(words, True), (f"the {words}", False)])
        )
        assert alive(text) == [] and headings(text) == expected, words
        assert not any(sign in plain(text) for sign in ("<b", "@x", "www", "](", ":x:")), words


EVIL = "https://evil.example/fix ![x](https://e.example) <img src=x> @somebody #123 `` | www.evil.com a@evil.example"


def test_no_name_of_a_real_model_is_markdown_in_its_bundle(tmp_path: Path) -> None:
    names = {label: f"{label}\n# {EVIL}" for label in ("x", "t", "y", "n", "m", "w", "N", "graph", "maker", "doc")}
    nodes = [
        helper.make_node("Exp", [names["x"]], [names["t"]], name=names["n"], doc_string=names["doc"]),
        helper.make_node("Add", [names["t"], names["w"]], [names["y"]], name=names["m"]),
    ]
    ends = [info(names["x"], (1, 2))], [info(names["y"], (1, 2))]
    made = model(nodes, *ends, [numpy_helper.from_array(np.ones(2, np.float32), names["w"])])
    made.graph.name = made.producer_name = names["maker"]
    made.metadata_props.add(key=names["graph"], value=names["graph"])
    nodes[0].metadata_props.add(key="pkg.torch.onnx.stack_trace", value=f'File "{EVIL}", line 1, in {EVIL}')
    path = save(made, tmp_path / "m.onnx")
    engines = ("--onnxrt", "--engine", "fake:offset.Exp=5")
    bundle_of(path, tmp_path / "bundle.zip", "biopsy", "run", "{}", *engines)
    text = (unpacked(tmp_path / "bundle.zip", tmp_path / "out") / "ISSUE.md").read_text()
    assert "evil.example" in text
    assert alive(text) == [], text
    assert not any(sign in plain(text) for sign in ("evil", "@", "#123", "<"))
