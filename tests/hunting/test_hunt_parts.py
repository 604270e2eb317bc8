"""The parts of a hunt by themselves: which models it finds, what it asks of a diagnosis, and what it believes."""

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import biopsy
from biopsy import errors, events
from biopsy.checks.task import TaskSite
from biopsy.cli import hunt as command
from biopsy.cli.console import Console
from biopsy.cli.hunt import summary
from biopsy.engines.base import Engine, ModelInput
from biopsy.engines.registry import PLAIN
from biopsy.engines.worker import TIMES_THE_MODEL, memory_for, whole_size
from biopsy.findings.verdict import Verdict, Workaround
from biopsy.hunting import bugs
from biopsy.hunting.bugs import Examiner, Group, groups_of
from biopsy.hunting.hunt import gallery_of, hunt, read_hunt
from biopsy.hunting.models import FoundModel, find_models
from biopsy.hunting.records import Bug, BugExamination, Hunt, MatrixCell, ModelResult
from biopsy.hunting.sweep import HuntQuestion, ModelPreparation, Sweeper, releases_of
from biopsy.hunting.vote import EXPECTED, Vote, engine_for
from biopsy.model.index import index_bytes
from biopsy.processes.watch import Stop
from biopsy.records import plain
from biopsy.tensors.results import Iteration, RunnerResult
from biopsy.text import line_of
from support.hunts import unary, zoo
from support.planting import planted as planted


def names(folder: Path, *places: str) -> list[str]:
    return [str(found.path.relative_to(folder)) for found in find_models([str(folder / place) for place in places])]


def test_what_hunts_and_diagnoses_have_left_is_no_model_to_try(tmp_path: Path) -> None:
    left = ("hunted/bugs/b/bundle/model", "model_diagnosis/piece", "hunted/own", "bugs/mine", "here")
    zoo(tmp_path, dict.fromkeys(left, unary("Relu")))
    (tmp_path / "hunted" / "hunt.jsonl").touch()
    (tmp_path / "model_diagnosis" / "diagnosis.json").touch()
    assert names(tmp_path, ".") == ["bugs/mine.onnx", "here.onnx", "hunted/own.onnx"]


def test_of_a_pattern_only_models_are_taken_and_a_link_to_nothing_is_refused(tmp_path: Path) -> None:
    zoo(tmp_path, {"one": unary("Relu"), "deep/two": unary("Relu")})
    (tmp_path / "README.md").touch()
    assert names(tmp_path, "*") == ["deep/two.onnx", "one.onnx"]
    (tmp_path / "gone.onnx").symlink_to(tmp_path / "nothing")
    with pytest.raises(errors.UsageError):
        names(tmp_path, "gone.onnx")


def test_links_are_not_followed_and_archives_refused(tmp_path: Path) -> None:
    zoo(tmp_path, {"elsewhere/other": unary("Relu"), "zoo/good": unary("Relu")})
    (tmp_path / "zoo" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "zoo" / "link.onnx").symlink_to(tmp_path / "elsewhere" / "other.onnx")
    assert names(tmp_path, "zoo") == ["zoo/good.onnx"]
    (tmp_path / "models.zip").touch()
    with pytest.raises(errors.UsageError, match="unpack it"):
        names(tmp_path, "models.zip")


def test_inputs_beside_many_models_are_found_by_their_names(tmp_path: Path) -> None:
    zoo(tmp_path, dict.fromkeys(("a", "b", "deep/c"), unary("Relu")))
    for name in ("a.npz", "b_inputs.json", "inputs.npz", "c.npz", "deep/inputs.npz"):
        (tmp_path / name).touch()
    beside = {found.path.stem: [file.name for file in found.inputs] for found in find_models([str(tmp_path)])}
    assert beside == {"a": ["a.npz"], "b": ["b_inputs.json"], "c": ["inputs.npz"]}


@pytest.mark.parametrize("tree", [
    {"biopsy_hunt": 1, "bugs": [1], "models": []},
    {"biopsy_hunt": 1, "bugs": [], "models": [{"model": "m", "cells": [{}]}]},
    {"biopsy_hunt": 7, "bugs": [], "models": []},
    [],
])  # fmt: skip
def test_another_object_than_that_of_a_hunt_is_refused(tmp_path: Path, tree: object) -> None:
    (tmp_path / "hunt.json").write_text(json.dumps(tree))
    with pytest.raises(errors.UsageError):
        read_hunt(tmp_path)


@pytest.mark.parametrize("name", ["found", "found/bugs", "found/inputs"])
@pytest.mark.parametrize("is_link", [True, False])
def test_nothing_is_written_through_a_link_or_over_a_file(tmp_path: Path, name: str, is_link: bool) -> None:
    zoo(tmp_path / "zoo", {"good": unary("Relu")})
    (elsewhere := tmp_path / "elsewhere").mkdir()
    place = tmp_path / name
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(elsewhere) if is_link else place.touch()
    with pytest.raises(errors.UsageError, match=place.name):
        hunt(HuntQuestion(places=[str(tmp_path / "zoo")], engines=("onnxrt",), folder=tmp_path / "found"))
    assert not list(elsewhere.iterdir())


@pytest.mark.parametrize("piece", [None, "piece.onnx"])
def test_a_diagnosis_that_ends_before_the_smallest_part_accuses_no_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: str | None
) -> None:
    cell = MatrixCell(engine="onnxrt", kind="wrong", trusted="reference", text="1.5 of 'y'")
    (group,) = groups_of([ModelResult(model=str(tmp_path / "m.onnx"), state="", cells=(cell,), nodes=99)])

    def diagnosed(*words: str, seconds: float) -> tuple[int, str]:
        verdict = Verdict(kind="fails", text="It is wrong.")
        tree = {"verdict": plain(verdict), "piece": piece and {"path": piece}, "steps": [{"outcome": "stopped"}]}
        Path(words[words.index("--report") + 1]).write_text(json.dumps(tree))
        return 1, ""

    monkeypatch.setattr(bugs, "run_biopsy", diagnosed)
    monkeypatch.setattr(bugs, "page_of", lambda tree: "")
    monkeypatch.setattr(bugs, "nodes_of", lambda tree: [])
    bug = Examiner(folder=tmp_path, seconds=1, at_most=2).bug(group)
    assert bug.is_confirmed == bool(piece)
    assert bug.text == ("It is wrong." if piece else "1.5 of 'y'")


@pytest.mark.parametrize(
    ("engine", "trusted", "words"),
    [
        ("onnxrt", "reference", "--engine reference --engine onnxrt"),
        ("reference", "onnxrt", "--check biopsy run {} --engine onnxrt --engine reference"),
        ("reference", "expected", "--engine reference"),
        ("reference", "", "--engine reference"),
    ],
)
def test_the_reference_evaluator_is_compared_with_another_engine_by_a_check_alone(
    tmp_path: Path, engine: str, trusted: str, words: str
) -> None:
    cell = MatrixCell(engine=engine, kind="wrong", trusted=trusted)
    (group,) = groups_of([ModelResult(model="m.onnx", state="", cells=(cell,), nodes=99)])
    assert Examiner(folder=tmp_path).bug(group).line == f"biopsy diagnose m.onnx {words}"


def test_a_failed_diagnosis_says_why_and_a_killed_one_that_its_time_was_over(tmp_path: Path) -> None:
    cell = MatrixCell(engine="onnxrt", kind="wrong", trusted="reference")
    (group,) = groups_of([ModelResult(model=str(tmp_path / "gone.onnx"), state="", cells=(cell,))])
    whole = Examiner(folder=tmp_path, seconds=40)
    assert (whole.within(inf).seconds, whole.within(inf).at_most) == (40, 110)
    assert whole.within(5).at_most == 5 and 0 < whole.within(5).seconds < 5
    failed, killed = (examiner.bug(group).examination for examiner in (whole.within(inf), whole.within(0.01)))
    assert failed and killed and "gone.onnx" in failed.verdict
    assert "limit of time" in killed.verdict and "limit of time" not in failed.verdict
    assert killed.cut_short and not (failed.confirmed or failed.refuted or failed.cut_short)


@pytest.fixture
def question(tmp_path: Path, planted: Callable[..., str]) -> Iterator[HuntQuestion]:
    engines = ("onnxrt", planted({"op": "Tanh", "does": "scale"}))
    yield HuntQuestion(places=[str(tmp_path / "zoo")], engines=engines, folder=tmp_path / "found", per_bug=0, jobs=2)


def test_after_a_model_has_changed_the_old_verdict_is_not_shown(tmp_path: Path, question: HuntQuestion) -> None:
    zoo(tmp_path / "zoo", {"a": unary("Tanh")})
    (before,) = hunt(question).bugs
    zoo(tmp_path / "zoo", {"a": unary("Tanh", "Tanh"), "b": unary("Tanh", "Tanh", "Tanh")})
    (now,) = hunt(question).bugs
    assert before.graph.count("Tanh") == 1 and now.graph.count("Tanh") == 2
    assert before.name == now.name and [Path(model).stem for model in now.models] == ["a", "b"]


def test_models_that_fail_alike_are_confirmed_by_the_smallest_part_and_its_switch(
    tmp_path: Path, planted: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    suspect = planted({"op": "Tanh", "does": "scale", "unless": "pass_a"}, {"op": "Sinh", "does": "scale"})
    made = {
        "a": unary("Relu", "Tanh", "Neg", "Neg"),
        "cured": unary("Neg", "Relu", "Tanh", "Neg", "Neg"),
        "bare": unary("Neg", "Neg", "Tanh", "Neg", "Neg", "Neg"),
        "uncured": unary("Neg", "Relu", "Tanh", "Sinh", "Neg", "Neg", "Neg"),
    }
    pieces = {"a": unary("Relu", "Tanh"), "bare": unary("Tanh"), "uncured": unary("Sinh")}
    zoo(tmp_path / "zoo", made)
    asked = list[str]()

    def bug(examiner: Examiner, group: Group) -> Bug:
        """What a diagnosis of the smallest member would say: it takes half a minute."""
        first, cell = group.smallest
        name = Path(first.model).stem
        asked.append(name)
        zoo(examiner.folder, {name: pieces[name]})
        right = f"{suspect},pass_a=false"
        found = BugExamination(verdict="", confirmed=name != "uncured", piece=f"{name}.onnx", right_with=right)
        return Bug(name=name, engines=group.engines, example=cell, models=group.models, examination=found)

    monkeypatch.setattr(Examiner, "bug", bug)
    question = HuntQuestion(
        places=[str(tmp_path / "zoo")], engines=("onnxrt", suspect), folder=tmp_path / "found", jobs=2
    )
    for _ in range(2):  # the second time, the journal answers
        found = [
            [[Path(name).stem for name in names] for names in (bug.models, bug.unconfirmed)]
            for bug in hunt(question).bugs
        ]
        assert asked == ["a", "bare", "uncured"]
        assert found == [[["a", "cured"], []], [["bare", "uncured"], ["uncured"]]]


def test_what_a_model_is_called_does_not_end_the_hunt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a'b\n.onnx"
    cell = MatrixCell(engine="onnxrt", kind="wrong", trusted="reference")
    (group,) = groups_of([ModelResult(model=str(path), state="", cells=(cell,), nodes=99)])
    said = "onnxrt:optimization=basic"
    ways = [
        Workaround(text="", line=line_of(["biopsy", "run", str(path), "--engine", spec]), engine=spec)
        for spec in ("onnxrt", "openvino", said, "onnxrt:threads=1")
    ]

    def diagnosed(*words: str, seconds: float) -> tuple[int, str]:
        verdict = Verdict(kind="fails", text="", workarounds=[Workaround(text=""), *ways])
        Path(words[words.index("--report") + 1]).write_text(json.dumps({"verdict": plain(verdict)}))
        return 1, ""

    monkeypatch.setattr(bugs, "run_biopsy", diagnosed)
    monkeypatch.setattr(bugs, "page_of", lambda tree: "")
    found = Examiner(folder=tmp_path, seconds=1, at_most=2).bug(group).examination
    assert found is not None and found.confirmed and found.right_with == said


FEW = ("a", "b", "c", "d", "e")
REFUTED = {"refuted": True}


@pytest.mark.parametrize(("verdicts", "expected"), [
    ([REFUTED, {}], [("bcde", "bcde")]),
    ([REFUTED] * 3, [("de", "de")]),
    ([REFUTED] * 5, [("de", "de")]),
    ([{"confirmed": True}] * 3, [("abcde", "bcde")]),  # without a piece nothing speaks against the others
    ([REFUTED, {"confirmed": True}], [("bcde", "cde")]),
    ([{"confirmed": True, "piece": "gone.onnx"}, REFUTED, {}], [("acde", "cde")]),
])  # fmt: skip
def test_no_model_is_lost_with_a_refuted_one_and_none_counted_as_another_bug_without_a_piece(
    tmp_path: Path,
    question: HuntQuestion,
    monkeypatch: pytest.MonkeyPatch,
    verdicts: list[dict[str, Any]],
    expected: list[tuple[str, str]],
) -> None:
    zoo(tmp_path / "zoo", {name: unary("Tanh", *["Neg"] * (9 + place)) for place, name in enumerate(FEW)})
    answers = iter(verdicts)

    def bug(examiner: Examiner, group: Group) -> Bug:
        found = BugExamination(verdict="The inputs are at fault", **next(answers)) if examiner.seconds else None
        models, (_, cell) = group.models, group.smallest
        return Bug(
            name=group.name,
            engines=group.engines,
            example=cell,
            models=models,
            unconfirmed=models,
            examination=found,
        )

    monkeypatch.setattr(Examiner, "bug", bug)
    found = hunt(replace(question, per_bug=60.0))
    stems = [
        tuple("".join(Path(name).stem for name in names) for names in (bug.models, bug.unconfirmed))
        for bug in found.bugs
    ]
    assert (stems, found.status) == (expected, 1)
    assert sorted(model for bug in (*found.bugs, *found.refuted) for model in bug.models) == [
        str(tmp_path / "zoo" / f"{name}.onnx") for name in FEW
    ]
    counts = {"wrong": len(FEW) - len(found.refuted), "refuted": len(found.refuted)}
    assert found.counts == {kind: number for kind, number in counts.items() if number}
    told, page = "\n".join(summary(found, Path("found"))), gallery_of(found)
    for bug in found.refuted:
        assert f"{bug.models[0]} ({bug.engines[0]}): The inputs are at fault" in told
        assert f"<code>{bug.models[0]}</code> in" in page and ": The inputs are at fault" in page


def test_a_warm_machine_tries_a_model_with_the_seed_and_limits_of_its_hunt(tmp_path: Path) -> None:
    folder, sweepers = tmp_path, dict[Any, Any]()
    zoo(folder, {"wrong": unary("Tanh")})
    here = HuntQuestion(places=(), engines=("onnxrt",), folder=tmp_path)
    try:
        for question in (here, here, replace(here, seed=2, seconds=50.0, memory=1 << 33)):
            task = ModelPreparation(
                model=str(folder / "wrong.onnx"),
                inputs=(),
                samples=(str(folder / "kept" / "samples.npz"),),
                question=question,
                releases=releases_of(question.engines),
            )
            with task.prepared(TaskSite(Path, sweepers), Stop()) as made:
                assert made.report["result"].worst == "right"
            zoo(folder, {"wrong": unary("Tanh")})  # what was sent is removed
        assert [(each._question.seed, each._question.seconds, each._question.memory) for each in sweepers.values()] == [
            (1, 60.0, None), (2, 50.0, 1 << 33)
        ]  # fmt: skip
    finally:
        for sweeper in sweepers.values():
            sweeper.close()


def test_a_fault_of_biopsy_and_a_dead_server_blame_no_engine(tmp_path: Path, question: HuntQuestion) -> None:
    zoo(tmp_path / "zoo", {"good": unary("Relu"), "other": unary("Neg"), "wrong": unary("Tanh")})
    question.folder.mkdir()
    (question.folder / "inputs").touch()  # so that the samples of a failing model cannot be kept
    with Sweeper(question) as sweeper:
        models = [*find_models(question.places), FoundModel(tmp_path / "gone.onnx")]
        server = sweeper._server
        assert sweeper.try_model(models[0]).worst == "right"
        server.kill()
        kinds = {Path(result.model).stem: result.worst for result in sweeper.results(models)}
        assert sweeper._ended_servers == [server]
    assert kinds == {"good": "right", "other": "right", "wrong": "error", "gone": "every engine"}


def test_a_refusal_for_what_the_machine_lacks_blames_no_engine(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (string[1] x) => (string[n] y)
        { y = StringNormalizer <case_change_action = "LOWER", locale = "xx_XX.UTF-8"> (x) }"""
    zoo(tmp_path, {"locale": onnx.parser.parse_model(text)})
    with Sweeper(HuntQuestion(places=(), engines=("onnxrt",), folder=tmp_path / "found")) as sweeper:
        result = sweeper.try_model(FoundModel(tmp_path / "locale.onnx"))
    assert (result.worst, "install" in result.cells[0].text) == ("unsupported", True)


def test_the_limit_of_memory_counts_the_weights_in_other_files(tmp_path: Path) -> None:
    made = onnx.helper.make_model(
        onnx.helper.make_graph([], "g", [], [], [onnx.numpy_helper.from_array(np.zeros(5000, np.float32), "w")])
    )
    path = tmp_path / "m.onnx"
    onnx.save(made, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    size = whole_size(ModelInput(b"", tmp_path, path))
    assert size == path.stat().st_size + (tmp_path / "w.bin").stat().st_size >= 20_000
    settings = ["onnxrt:optimization=none", "onnxrt"]  # of one engine, whose memory counts once
    assert memory_for(settings, size) - memory_for(["onnxrt"], 0) == TIMES_THE_MODEL * size


def test_a_cell_says_that_it_was_compared_with_recorded_outputs() -> None:
    def run(engine: Engine, *_: int) -> RunnerResult:
        raise engine.failure("refused", "run", "none")

    data = unary("Relu").SerializeToString()
    name = onnx.load_model_from_string(data).graph.output[0].name
    one, two = (
        RunnerResult(runner, (Iteration({name: np.full((2, 2), value, np.float32)}),))
        for runner, value in (("openvino", 1), (EXPECTED, 9))
    )
    vote = Vote(index=index_bytes(data, Path()), run=run, inner=lambda _: None)
    cell = vote.cells({"openvino": one}, two)["openvino"]
    assert (cell.kind, cell.trusted, engine_for(cell.trusted)) == ("differs", EXPECTED, PLAIN[-1])


def test_the_summary_shows_the_first_sentence_of_a_bug() -> None:
    cell = MatrixCell(engine="onnxrt", kind="wrong", text="1.5 of 'y' is wrong. And so on")
    bug = Bug(name="b", engines=("onnxrt",), example=cell, models=("m",))
    lines = [*summary(Hunt(engines={"onnxrt": "1.32.0"}, models=(), bugs=(bug,)), Path("found"))]
    assert any(line.endswith("1.5 of 'y' is wrong") for line in lines)
    assert "bugs       1, in 1 model" in lines


def test_only_a_bundle_whose_script_shows_the_failure_is_one_to_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = MatrixCell(engine="onnxrt", kind="wrong", trusted="reference")
    (group,) = groups_of([ModelResult(model="m.onnx", state="", cells=(cell,), nodes=99)])

    def diagnosed(*words: str, seconds: float) -> tuple[int, str]:
        verdict = Verdict(kind="fails", text="")
        Path(words[words.index("--report") + 1]).write_text(json.dumps({"verdict": plain(verdict)}))
        Path(words[words.index("--bundle") + 1]).mkdir(exist_ok=True)
        return 1, ""

    monkeypatch.setattr(bugs, "run_biopsy", diagnosed)
    monkeypatch.setattr(bugs, "page_of", lambda tree: "")
    examiner = Examiner(folder=tmp_path, seconds=1, at_most=2)
    found = examiner.bug(group).examination
    assert found is not None and found.bundle == f"bugs/{group.name}/bundle"
    (tmp_path / found.bundle / "NOT-REPRODUCED.txt").touch()
    found = examiner.bug(group).examination
    assert found is not None and found.bundle is None and found.page


@pytest.mark.parametrize(("spec", "title"), [
    ("onnxrt", "ONNX Runtime 1.32.0"), ("onnxrt:threads=1", "ONNX Runtime 1.32.0 (threads=1)"),
    ("mine", "The engine 'mine' 1.32.0"),
])  # fmt: skip
def test_the_summary_names_the_engine_of_a_bug_once(spec: str, title: str) -> None:
    examination = BugExamination(verdict=f"{title} computes wrong values for Tanh. And so on", confirmed=True)
    bug = Bug(
        name="b",
        engines=(spec,),
        example=MatrixCell(engine=spec, kind="wrong"),
        models=("m", "n"),
        unconfirmed=("n",),
        examination=examination,
    )
    lines = [*summary(Hunt(engines={spec: "1.32.0"}, models=(), bugs=(bug,)), Path("found"))]
    end = f"{spec} (1 of the models not confirmed): computes wrong values for Tanh"
    assert any(line.endswith(end) for line in lines), lines


def test_from_python_a_hunt_is_that_of_the_command(tmp_path: Path, question: HuntQuestion) -> None:
    zoo(tmp_path / "zoo", {"good": unary("Relu"), "wrong": unary("Tanh")})
    found = biopsy.hunt(tmp_path / "zoo", question.engines, directory=tmp_path / "found", per_bug=0)
    assert (found.status, [bug.kind for bug in found.bugs]) == (1, ["wrong"])
    assert "1 distinct bug in 2 models" in repr(found)
    assert read_hunt(tmp_path / "found")["status"] == 1
    with pytest.raises(errors.UsageError):
        biopsy.hunt([], question.engines, directory=tmp_path / "other")
    with pytest.raises(errors.UsageError):
        biopsy.hunt(tmp_path / "zoo", [], directory=tmp_path / "other")


@pytest.mark.parametrize(("between", "lines"), [(0.0, 2), (1000.0, 0)])
def test_progress_is_told_now_and_then_where_there_is_no_terminal(
    between: float, lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_BETWEEN_LINES", between)
    out, err = io.StringIO(), io.StringIO()
    with command.HuntProgress(Console(out, err), None) as progress:
        for done in (1, 2):
            progress(events.ModelTried(model="a.onnx", worst="right", done=done, total=2, counts={"right": done}))
    told = [line for line in f"{out.getvalue()}{err.getvalue()}".splitlines() if line.startswith("models ")]
    assert len(told) == lines and all(" of 2 · " in line for line in told)
