"""The clock on the wall jumps: nothing but names of artifacts and times that are shown depend on it."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import biopsy

JUMPS = r"""
#define _GNU_SOURCE
#include <time.h>
#include <sys/time.h>
#include <sys/syscall.h>
#include <unistd.h>
static long jump(void) {
  static volatile long calls;
  return (__sync_fetch_and_add(&calls, 1) % 3 - 1) * 86400 * 400;
}
int clock_gettime(clockid_t id, struct timespec *t) {
  int failed = syscall(SYS_clock_gettime, id, t);
  if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) t->tv_sec += jump();
  return failed;
}
int gettimeofday(struct timeval *t, void *zone) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  t->tv_sec = now.tv_sec; t->tv_usec = now.tv_nsec / 1000;
  return 0;
}
time_t time(time_t *t) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (t) *t = now.tv_sec;
  return now.tv_sec;
}
"""
"""Every look at the clock gives today, a year ago, or a year ahead."""


@pytest.fixture
def jumping(tmp_path: Path, place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is started in the place sees a clock that jumps."""
    compiler = shutil.which("cc")
    library = tmp_path / "jumps.so"
    (tmp_path / "jumps.c").write_text(JUMPS)
    if (
        compiler is None
        or subprocess.run([compiler, "-shared", "-fPIC", "-o", library, tmp_path / "jumps.c"]).returncode
    ):
        pytest.skip("there is no compiler for C")
    monkeypatch.setenv("LD_PRELOAD", str(library))
    look = "import time; print(len({time.gmtime().tm_year for _ in range(3)}))"
    if subprocess.run([sys.executable, "-c", look], capture_output=True, text=True).stdout.strip() == "1":
        pytest.skip("the clock cannot be made to jump here")


@pytest.mark.slow
@pytest.mark.usefixtures("jumping")
def test_a_clock_that_jumps_by_a_year_changes_neither_timeouts_nor_the_result(place) -> None:
    place.model(8)
    check = place.check("if 'n6' not in names and len(names) > 1: time.sleep(60)\nsys.exit('n3' in names)")
    ran = place.reduce("m.onnx", "-o", "r.onnx", "--check-timeout", "2", "--max-time", "1h", "--check", *check)
    assert (ran.status, place.nodes()) == (0, ["n3"]), ran.told
    assert "timed out" in ran.told


@pytest.mark.slow
@pytest.mark.usefixtures("jumping")
def test_a_reduction_goes_on_whatever_the_clock_says_by_then(place) -> None:
    place.model(12)
    line = ["m.onnx", "-o", "r.onnx", "--check", *place.check("sys.exit('n3' in names and 'n9' in names)")]
    assert place.reduce("--max-checks", "7", *line).status == 5
    ran = place.reduce(*line)
    assert ran.status == 0
    assert "remembered" in ran.told


def test_candidates_whose_times_jump_are_the_same_candidates(place) -> None:
    place.model(12)
    code = "os.utime(sys.argv[1], (0, 0) if len(names) % 2 else (4e9, 4e9))\n"
    line = ["m.onnx", "-o", "r.onnx", "--check", *place.check(code + "sys.exit('n3' in names)")]
    assert place.reduce(*line).status == 0
    assert place.nodes() == ["n3"]


def test_no_source_looks_at_the_clock_on_the_wall_to_measure() -> None:
    """Those who do show a time to a person, or hold one that others wrote.

    A report says when its command began. A release has the date that its index gives. An environment is as old as the
    file system says: a jump may remove one too early, which is then made anew.
    """
    wall = re.compile(r"\btime\.time(_ns)?\(|\bdatetime\b|\bCLOCK_REALTIME\b|\butcnow\b")
    root = Path(biopsy.__file__).parent
    found = {
        str(path.relative_to(root)) for path in root.rglob("*.py") if wall.search(path.read_text(encoding="utf-8"))
    }
    reports = {"cli/app.py", "api/diagnosing.py", "api/reducing.py", "findings/report.py"}
    releases = {
        "questions/releases/findings.py",
        "processes/environments/releases.py",
    }
    ages = {"cli/cache.py", "processes/environments/cache.py"}
    assert found == reports | releases | ages
