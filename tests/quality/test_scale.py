"""The cost model of many machines: what it counts, and that the page says what it comes to."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import scale
from benchmarks.scale import Parts, Recorded
from support.models import chain, save
from support.pages import blocks

PARTS = Parts(join=1.0, place=2.0, check=0.5, cancel=0.1, sent=scale.WEIGHTS / 4, own=0.5)
EVEN = Recorded(((1_000, 10.0), (1_000, 10.0), (500, 10.0), (1, 10.0)))


@pytest.mark.parametrize(("places", "rounds"), [(1, 19), (8, 7)])
def test_the_model_is_right_where_all_checks_last_equally_long(places: int, rounds: int) -> None:
    expected = 1 + 2 + 4 + rounds * 11
    assert scale.rounds("middle", places).time == rounds
    assert scale.predicted(PARTS, EVEN, "middle", places) == pytest.approx(expected)
    assert scale.replayed(PARTS, EVEN, "middle", places).time == pytest.approx(expected)


def test_a_round_lasts_as_long_as_its_largest_check() -> None:
    free = Parts(join=0.0, place=0.0, check=0.0, cancel=0.0, sent=float("inf"), own=0.0)
    largest = scale.rounds("middle", 8).largest
    assert (len(largest), largest[0]) == (scale.rounds("middle", 8).time, scale.NODES)
    by_size = Recorded(tuple((nodes, float(nodes)) for nodes in (1, 1, 1, 1_000, 1_000, 1_000)))
    expected = sum(1_000 if nodes > 500 else 1 for nodes in largest)
    assert scale.predicted(free, by_size, "middle", 8) == pytest.approx(expected)


def test_a_check_is_expected_to_last_as_long_as_the_three_of_the_nearest_size() -> None:
    recorded = Recorded(((1_000, 4.0), (1_000, 6.0), (900, 2.0), (10, 1.0)))
    assert recorded.expected(990) == pytest.approx(4.0)


def test_more_places_begin_more_checks_and_ask_about_the_same() -> None:
    alone, many = (scale.rounds("middle", places) for places in (1, 8))
    assert alone.checks == many.checks == alone.begun < many.begun
    assert 0 < alone.bytes < many.bytes


def test_a_check_lasts_as_long_as_the_recorded_ones_of_the_nearest_size_in_turn() -> None:
    lasts = Recorded(((1_000, 4.0), (1_000, 5.0), (10, 1.0))).times()
    assert [lasts(900), lasts(2_000), lasts(1_000), lasts(1)] == [4.0, 5.0, 4.0, 1.0]


def test_recorded_checks_are_scaled_by_those_of_the_whole_model() -> None:
    assert Recorded(((1_000, 2.0), (10, 1.0))).scaled().checks == ((1_000, 60.0), (10, 30.0))


@pytest.mark.parametrize(("jobs", "places", "expected"), [([1, 1, 1], 1, 3), ([3, 1, 1, 1], 2, 3), ([5], 9, 5)])
def test_each_job_begins_on_the_place_that_is_free_first(jobs: list[float], places: int, expected: float) -> None:
    assert scale.makespan(jobs, places) == expected


def test_the_page_has_the_parts_as_they_were_measured() -> None:
    parts, recorded = scale.kept()
    table = scale.parts_table(parts, recorded, scale.rounds("two far apart", 1))
    assert table in scale.PAGE.read_text(encoding="utf-8")
    assert all(len(checks.checks) > 100 for checks in recorded.values())


@pytest.mark.slow
def test_the_page_has_the_tables_that_follow_from_them() -> None:
    assert scale.page_with(scale.tables()) == scale.PAGE.read_text(encoding="utf-8")


OF_JOB = {"entrypoint", "shutdownAfterJobFinishes", "backoffLimit", "rayClusterSpec"}
OF_CLUSTER = {"rayVersion", "headGroupSpec", "workerGroupSpecs"}
OF_HEAD = {"rayStartParams", "template"}
OF_WORKERS = {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}
"""Fields that the reference of KubeRay's API has for ray.io/v1."""


def test_the_manifest_has_only_fields_that_kuberay_knows() -> None:
    yaml = pytest.importorskip("yaml")
    (text,) = (block.text for block in blocks(scale.PAGE) if block.language == "yaml")
    job = yaml.safe_load(text)
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert set(job["spec"]) == OF_JOB
    cluster = job["spec"]["rayClusterSpec"]
    assert set(cluster) == OF_CLUSTER
    assert set(cluster["headGroupSpec"]) == OF_HEAD
    assert [set(group) for group in cluster["workerGroupSpecs"]] == [OF_WORKERS]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    assert all(value == str(value) for group in groups for value in group["rayStartParams"].values())
    pods = [group["template"]["spec"] for group in groups]
    assert len({container["image"] for pod in pods for container in pod["containers"]}) == 1
    mounted = {mount["name"] for pod in pods for each in pod["containers"] for mount in each.get("volumeMounts", ())}
    assert mounted == {volume["name"] for pod in pods for volume in pod.get("volumes", ())}


def test_scripts_for_slurm_are_shell(tmp_path: Path) -> None:
    scripts = [block.text for block in blocks(scale.PAGE) if block.language == "bash"]
    assert len(scripts) == 2
    for script in scripts:
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


CORPUS = scale.PAGE.parents[1] / "how-to" / "reduce_corpus.py"


def corpus(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    words = [
        sys.executable,
        str(CORPUS),
        "models",
        "results",
        *options,
        "--check",
        "sh",
        str(folder / "check.sh"),
        "{}",
    ]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=100, env={**os.environ})


@pytest.fixture
def models_of_corpus(tmp_path: Path) -> Path:
    """Two models, of which one fails; the third file is none."""
    (tmp_path / "models").mkdir()
    save(chain(6, ("Abs", "Neg")), tmp_path / "models" / "fails.onnx")
    save(chain(6, ("Abs",)), tmp_path / "models" / "passes.onnx")
    (tmp_path / "models" / "wrong.onnx").write_bytes(b"no model")
    (tmp_path / "check.sh").write_text('grep -q Neg "$1" && exit 1; exit 0\n')
    return tmp_path


SAID = ["fails.onnx: reduced", "passes.onnx: does not fail", "wrong.onnx: status 4, see results/wrong/said.txt"]


def has_all(folder: Path) -> bool:
    report = json.loads((folder / "results" / "fails" / "report.json").read_text())
    return bool(report) and (folder / "results" / "fails" / "reduced.onnx").stat().st_size > 0


@pytest.mark.slow
def test_a_corpus_is_reduced_one_model_each_and_goes_on_where_it_stopped(models_of_corpus: Path) -> None:
    first = corpus(models_of_corpus, "--jobs", "2")
    assert (first.returncode, first.stdout.splitlines()) == (1, ["3 models", *SAID]), first.stderr
    assert has_all(models_of_corpus)
    again = corpus(models_of_corpus, "--jobs", "2")
    assert (again.returncode, again.stdout) == (0, "0 models\n")
