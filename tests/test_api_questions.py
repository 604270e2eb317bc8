"""The Python API: what asks further about a failure (layers, flags, precision, build), and how results look."""

import dataclasses
import math
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import onnx
import pytest

import biopsy
from biopsy import errors, events
from biopsy.cli.app import main
from support.models import chain, save
from support.real_failures import normalization_of_columns
from support.varied_models import softmax

RUN = ["biopsy", "run", "{}", "--engine", "onnxrt:optimization=none"]
WRONG = "fake:scale.n1=1.5"
HOSTILE = "<script>alert('n\x1b[31m')</script>"


def forms(made: onnx.ModelProto, folder: Path) -> list[object]:
    return [save(made, folder / "m.onnx"), str(folder / "m.onnx"), made.SerializeToString(), made]


@pytest.mark.slow
def test_layers_take_a_model_in_every_form_and_find_the_one_that_is_wrong(tmp_path: Path) -> None:
    for model in forms(chain(3, ("Neg", "Exp")), tmp_path):
        found = biopsy.layers(model, WRONG)  # type: ignore[arg-type]
        assert [suspect.labels for suspect in found.suspects] == [("Exp 'n1'",)]
        assert not found.passed


@pytest.mark.slow
def test_layers_take_inputs_tolerances_and_a_choice_of_nodes() -> None:
    feed = {"t0": np.full((2, 2), 0.5, np.float32)}
    assert biopsy.layers(chain(3), WRONG, inputs=feed, rtol=1.0).passed
    assert len(biopsy.layers(chain(3), WRONG, inputs=feed, nodes="n[12]").layers) == 2
    with pytest.warns(UserWarning, match="float64 to float32"):
        biopsy.layers(chain(1), "onnxrt", inputs={"t0": np.full((2, 2), 0.1)})


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"nodes": "nothing"}, "no layer has a name"),
        ({"nodes": "("}, "it is not a regular expression"),
        ({"atol": {"mistyped": 1.0}}, "mistyped"),
        ({"check_error_stat": "maximum"}, "stat='maximum'"),
        ({"record_memory": 0}, "record_memory=0"),
        ({"run_timeout": math.nan}, "run_timeout=nan"),
        ({"inputs": {"other": np.zeros(1)}}, "t0"),
    ],
)
def test_layers_refuse_what_cannot_be_used(options: dict[str, object], told: str) -> None:
    with pytest.raises((errors.UsageError, errors.CannotCompare), match=told.replace("(", r"\(")):
        biopsy.layers(chain(3), WRONG, **options)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_diagnosis_says_what_fails_and_keeps_the_evidence(tmp_path: Path) -> None:
    found = biopsy.diagnose(chain(3, ("Neg", "Exp")), WRONG, directory=tmp_path / "found", atol={"": 1e-4})
    assert found.failed and found.verdict.kind == "reduced" and "one node, Exp 'n1'" in found.verdict.text
    assert found.facts.piece is not None and Path(found.facts.piece.path).is_file()
    assert repr(found).startswith("<DiagnosedModel: reduced: The engine 'fake'") and "<table>" in found._repr_html_()
    assert found.page(tmp_path / "page.html").read_text(encoding="utf-8").count("<h1>") == 1
    assert found.issue().startswith("# The engine 'fake'") and "## How to reproduce it" in found.issue()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"engines": "onnxrtt"}, "there is no engine 'onnxrtt'"),
        ({"check": "check.sh"}, "check='check.sh'"),
        ({"check": print}, "a command as a list of words"),
        ({"max_time": 0}, "max_time=0"),
        ({"jobs": 0}, "jobs=0"),
    ],
)
def test_a_diagnosis_refuses_what_cannot_be_used(tmp_path: Path, options: dict[str, object], told: str) -> None:
    with pytest.raises((errors.UsageError, errors.UnknownEngine), match=told):
        biopsy.diagnose(chain(1), directory=tmp_path / "found", **options)  # type: ignore[arg-type]
    assert not (tmp_path / "found").exists()


def test_flags_find_the_setting_that_a_script_looks_at(tmp_path: Path) -> None:
    script = tmp_path / "check.py"
    script.write_text("import sys\nsys.exit('threads=1' not in sys.argv[2])\n")
    told: list[events.Event] = []
    found = biopsy.flags(chain(1), "onnxrt", [sys.executable, str(script), "{}", "{engine}"], listener=told.append)
    assert [switch.text for switch in found.switches] == ["with threads=1"]
    assert found.switches[0].verified
    assert found.checks == sum(isinstance(event, events.Checked) for event in told)


def test_vary_tells_what_a_failure_depends_on() -> None:
    def fails(model: onnx.ModelProto) -> bool:
        return any(dim.dim_value % 2 for dim in model.graph.input[0].type.tensor_type.shape.dim[1:])

    found = biopsy.vary(softmax(), fails, takes="model", values="free")
    assert {one.title: one.short for one in found.fixed if one.what == "size"}["size of axis 1 of x"] == "odd"
    assert "size of axis 1 of x is odd" in found.sentence
    assert "size of axis 1 of x" in found._repr_html_()
    assert repr(found).startswith("<Variation: fails ")
    kept = biopsy.vary(softmax(), fails, takes="model")
    assert kept.kept and not kept.free
    with pytest.raises(biopsy.UsageError, match="values="):
        biopsy.vary(softmax(), fails, values="some")  # type: ignore[arg-type]


def test_flags_refuse_a_check_in_which_nothing_would_vary() -> None:
    with pytest.raises(errors.UsageError, match="would keep its settings") as raised:
        biopsy.flags(chain(1), "onnxrt", [*RUN, "--onnxrt"])
    assert "{engine}" in raised.value.next_steps[0]
    with pytest.raises(errors.UsageError, match="for some settings need a fresh process"):
        biopsy.flags(chain(1), "onnxrt", lambda path: True)  # type: ignore[arg-type]
    with pytest.raises(errors.EngineMissing):
        biopsy.flags(chain(1), "no-such-engine", [*RUN, "{engine}"])
    with pytest.warns(UserWarning, match="BIOPSY_ENGINE"), pytest.raises(errors.OriginalPasses):
        biopsy.flags(chain(1), "onnxrt", ["true", "{}"])


def test_known_and_releases_take_no_function_as_their_check() -> None:
    with pytest.raises(errors.UsageError, match="it is a command as a list of words"):
        biopsy.known(chain(1), check=lambda path: True)  # type: ignore[arg-type]
    with pytest.raises(errors.UsageError, match="it is a command as a list of words"):
        biopsy.releases(chain(1), "onnxruntime", lambda path: True)  # type: ignore[arg-type]


def test_precision_finds_the_layer_that_fp16_is_not_enough_for(tmp_path: Path) -> None:
    model = chain(3, ("Neg", "Exp"))
    feed = {"t0": np.full((2, 2), 0.7, np.float32)}
    (golden,) = biopsy.run(model, inputs=feed)

    def fails(path: Path) -> bool:
        return not biopsy.compare(biopsy.run(path, inputs=feed)[0], golden, atol=0, rtol=1e-6).passed

    found = biopsy.precision(model, fails, tmp_path / "mixed.onnx")
    assert found.high
    assert found.output == tmp_path / "mixed.onnx"
    assert not fails(tmp_path / "mixed.onnx")
    with pytest.raises(errors.HighPrecisionFails):
        biopsy.precision(model, lambda path: True)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"low": "fp4"}, "low='fp4': it is one of"),
        ({"low": "int8"}, "calibrated with inputs"),
        ({"low": "int8", "high": "float16", "inputs": [{}]}, "needs -p float32"),
        ({"low": "int8", "form": "native", "inputs": [{}]}, "form='native' has no effect"),
        ({"inputs": [{}]}, "only int8 is calibrated"),
        ({"direction": "up"}, "direction='up'"),
        ({"max_checks": 0}, "checks=0"),
    ],
)
def test_precision_refuses_what_cannot_be_used(options: dict[str, object], told: str) -> None:
    with pytest.raises(errors.UsageError, match=told):
        biopsy.precision(chain(3), lambda path: True, **options)  # type: ignore[arg-type]


@pytest.mark.slow
def test_builds_are_counted_and_what_the_bad_ones_share_is_named() -> None:
    def is_bad(path: Path, engine: str) -> bool:
        assert path.exists()
        return "threads=2" in engine

    found = biopsy.build(chain(1), "onnxrt", is_bad, until=12, vary={"threads": [1, 2]})
    assert (found.runs, found.good, found.bad) == (12, 6, 6)
    assert found.difference.decided[0].representative.text == "threads=2"
    assert biopsy.build(chain(1), "onnxrt", is_bad, until="good", vary={"threads": [1]}).runs == 1


def test_without_a_check_a_build_that_fails_is_bad() -> None:
    assert biopsy.build(chain(1), "onnxrt", until=2).good == 2
    assert biopsy.build(chain(1, ("Foo",)), "onnxrt", until=2).bad == 2


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"until": 0}, "until=0"),
        ({"until": "never"}, "until='never'"),
        ({"vary": {"threads": "12"}}, "its values are a list"),
        ({"vary": {"threads": ["many"]}}, "threads"),
        ({"vary": {"env.A": ["1"]}, "check": lambda path, engine: True}, "env.A may have no effect"),
        ({"check_timeout": 1, "check": lambda path, engine: True}, "check_timeout has no effect"),
        ({"check": [*RUN, "--onnxrt"]}, "would keep its settings"),
    ],
)
def test_build_refuses_what_cannot_be_used(options: dict[str, object], told: str) -> None:
    with pytest.raises(errors.UsageError, match=told):
        biopsy.build(chain(1), "onnxrt", **options)  # type: ignore[arg-type]


def test_what_a_notebook_shows_is_short_and_escaped_whatever_the_names_are() -> None:
    made = chain(2)
    made.graph.node[1].name = HOSTILE
    made.graph.node[1].output[0] = made.graph.output[0].name = HOSTILE

    (result,) = biopsy.run(made)
    compared = biopsy.compare(result, {HOSTILE: np.full((2, 2), 7.0)})
    shown = [
        result, result.iterations[0], compared, compared.failures[0][1],
        biopsy.layers(made, "fake:scale.Relu=3", val_range=(1.0, 2.0)),
    ]  # fmt: skip
    for one in shown:
        table = one._repr_html_()  # type: ignore[attr-defined]
        assert "script&gt;" in table
        for text in (table, repr(one)):
            assert text.isprintable()
            assert len(text) < 2000
        assert "<script" not in table
        assert len(repr(one)) < 300


class Tags(HTMLParser):
    """The tags of a page, each with its attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_a_reduced_model_shows_itself_as_a_table_and_a_page_without_scripts(tmp_path: Path) -> None:
    made = chain(3)
    made.graph.node[1].name = HOSTILE

    def fails(model: onnx.ModelProto) -> bool:
        return any(node.name == HOSTILE for node in model.graph.node)

    reduced = biopsy.reduce(made, fails, tmp_path / "r.onnx")
    assert repr(reduced).startswith("<ReducedModel: 1 of 3 nodes in ")
    assert repr(reduced).isprintable()
    assert len(repr(reduced)) < 300
    (frame,) = (attributes for tag, attributes in Tags(reduced._repr_html_()).tags if tag == "iframe")
    assert {tag for tag, _ in Tags(reduced._repr_html_()).tags} <= {
        "table", "caption", "thead", "tbody", "tr", "th", "td", "iframe",
    }  # fmt: skip
    assert frame["sandbox"] in (None, "")
    page = reduced.page(tmp_path / "page.html").read_text(encoding="utf-8")
    assert frame["srcdoc"] == page
    assert {"svg", "h1"} <= {tag for tag, _ in Tags(page).tags}
    assert HOSTILE not in page


def test_a_long_table_says_how_much_it_leaves_out() -> None:
    outputs = {f"t{number}": np.zeros(1) for number in range(100)}
    assert "and 80 more" in biopsy.Iteration(outputs)._repr_html_()
    assert "and 97 more" in repr(biopsy.Iteration(outputs))


def test_results_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        biopsy.Flags().failure = "none"  # type: ignore[misc]


def test_asking_for_one_function_does_not_load_what_the_others_need() -> None:
    code = "import sys, biopsy; biopsy.compare; print(*(name for name in sys.modules if name.startswith('biopsy.')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    rooms = {name.split(".")[1] for name in done.stdout.split()}
    assert not rooms & {"reduction", "questions", "session", "cli"}


@pytest.mark.slow
def test_the_text_for_an_issue_is_that_of_a_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(normalization_of_columns(), "model.onnx")
    found = biopsy.diagnose("model.onnx", directory="other")
    assert main(["diagnose", "model.onnx", "--onnxrt", "--bundle", "bundle"]) == 1
    told = Path("bundle/ISSUE.md").read_text(encoding="utf-8")
    assert found.issue() == told
    assert len(told.splitlines()) <= 60
