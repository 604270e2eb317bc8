"""A folder of models, reduced as tasks of a real cluster."""

from pathlib import Path

from quality.test_scale import SAID, corpus, has_all, models_of_corpus
from support.ray_nodes import MARKS, RayNodes

__all__ = ["models_of_corpus"]
pytestmark = MARKS


def test_a_corpus_is_reduced_as_tasks_of_a_cluster(models_of_corpus: Path, ray_nodes: RayNodes) -> None:
    done = corpus(models_of_corpus, "--on", ray_nodes.address)
    first, *others = done.stdout.splitlines()
    assert (done.returncode, first, sorted(others)) == (1, "3 models", SAID), done.stderr
    assert has_all(models_of_corpus)
