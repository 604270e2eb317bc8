"""What makes builds bad, planted: a period that no setting has, one setting, two together, one without the other.

The simulations run the product's own order of builds and its own analysis; only building and checking are left out.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from biopsy.questions.builds import difference as chance
from biopsy.questions.builds.difference import (
    LEVEL,
    Build,
    Choice,
    Difference,
    Table,
    builds_to_decide,
    difference,
    exchanged_in_blocks,
    fisher,
)
from biopsy.questions.builds.settings import VariedSetting, changes

THREADS = VariedSetting("threads", ("1", "2"))
PRECISION = VariedSetting("precision", ("f32", "bf16"))
CACHE = VariedSetting("env.CACHE", ("on", "off"))

Fails = Callable[[int, dict[str, str]], bool]
"""Whether build number N with these settings is bad."""


def more_builds(table: Table, tests: int, level: float) -> int | None:
    """How many more builds decide if they go on as those in the table, of so many choices that are compared."""
    return builds_to_decide([table], table.all_bad + table.all_good, level / tests)


def simulated(variations: Sequence[VariedSetting], builds: int, seed: int, fails: Fails) -> Difference:
    found = []
    for number, drawn in enumerate(changes(variations, seed, builds)):
        settings = {**drawn.change.settings, **{f"env.{k}": v for k, v in drawn.change.environment.items()}}
        choices = {
            Choice("", "environment" if key.startswith("env.") else "option", f"{key}={value}")
            for key, value in settings.items()
        }
        found.append(Build(str(number), fails(number, settings), frozenset(choices), (seed, drawn.block)))
    return difference(found)


def best(found: Difference) -> str:
    return found.decided[0].representative.text if found.decided else "undecided"


# Nothing that varies is to blame


@pytest.mark.parametrize("period", [2, 5, *(pytest.param(period, marks=pytest.mark.slow) for period in (3, 4, 8, 10))])
@pytest.mark.parametrize("builds", [10, 16, pytest.param(40, marks=pytest.mark.slow)])
@pytest.mark.parametrize("variations", [[THREADS], [THREADS, PRECISION]], ids=["one", "two"])
def test_an_innocent_setting_is_accused_of_a_period_in_at_most_the_stated_share(
    period: int, builds: int, variations: list[VariedSetting]
) -> None:
    """Of 200 runs, each with a lot of its own; 5 % and what chance adds to it in 200 (three deviations)."""
    accused = sum(
        bool(simulated(variations, builds, seed, lambda number, _: number % period == 0).decided) for seed in range(200)
    )
    assert accused <= 200 * LEVEL + 3 * (200 * LEVEL * (1 - LEVEL)) ** 0.5


@pytest.mark.parametrize("builds", [10, 20, 40])
def test_an_innocent_setting_is_not_accused_of_what_drifts_or_alternates_between_blocks(builds: int) -> None:
    for fails in (lambda n, _: n >= builds // 2, lambda n, _: n // 10 % 2 == 0, lambda n, _: n % 20 < 10):
        accused = sum(bool(simulated([THREADS], builds, seed, fails).decided) for seed in range(200))
        assert accused <= 200 * LEVEL + 3 * (200 * LEVEL * (1 - LEVEL)) ** 0.5


def test_fishers_test_alone_would_be_misled_by_a_period_that_is_as_long_as_a_block() -> None:
    """One of each two builds is bad, and the lot was drawn in pairs: then the settings' split is a toss of coins."""
    tossed = [Table(1, 1, 0, 1)] * 8 + [Table(0, 1, 1, 1)] * 2
    together = Table(8, 10, 2, 10)
    assert fisher(together) < 0.02 < exchanged_in_blocks(tossed) == pytest.approx(56 / 1024)


# A cause is found


@pytest.mark.parametrize("seed", range(10))
def test_a_single_setting_is_named_and_no_pair_in_its_place(seed: int) -> None:
    found = simulated([THREADS, PRECISION], 12, seed, lambda _, settings: settings["precision"] == "bf16")
    assert best(found) == "precision=bf16" and len(found.decided) == 1
    found = simulated([THREADS, PRECISION], 48, seed, lambda n, settings: settings["precision"] == "bf16" and n % 3 > 0)
    assert best(found) == "precision=bf16"


@pytest.mark.parametrize("seed", range(10))
def test_a_cause_of_two_settings_together_is_named(seed: int) -> None:
    def fails(_: int, settings: dict[str, str]) -> bool:
        return settings["precision"] == "bf16" and settings["threads"] == "2"

    found = simulated([THREADS, PRECISION], 32, seed, fails)
    assert best(found) == "precision=bf16 and threads=2"
    assert found.decided[0].table.is_perfect
    assert best(simulated([CACHE, PRECISION, THREADS], 64, seed, fails)) == "precision=bf16 and threads=2"


@pytest.mark.parametrize("seed", range(10))
def test_a_cause_of_one_setting_without_the_other_is_named(seed: int) -> None:
    def fails(_: int, settings: dict[str, str]) -> bool:
        return (settings["precision"] == "bf16") != (settings["env.CACHE"] == "on")

    found = simulated([CACHE, PRECISION], 32, seed, fails)
    assert best(found) in (
        "env.CACHE=on or precision=bf16, but not both",
        "env.CACHE=off or precision=f32, but not both",
    )
    assert found.decided[0].table.is_perfect


def test_where_two_settings_are_the_cause_and_builds_are_few_the_number_that_is_told_decides() -> None:
    def fails(_: int, settings: dict[str, str]) -> bool:
        return settings["precision"] == "bf16" and settings["threads"] == "2"

    found = simulated([THREADS, PRECISION], 12, 1, fails)
    assert not found.decided and found.more is not None
    assert best(simulated([THREADS, PRECISION], 12 + 2 * found.more, 1, fails)) == "precision=bf16 and threads=2"


def test_pairs_are_counted_among_what_was_compared() -> None:
    found = simulated([THREADS, PRECISION], 8, 1, lambda number, _: number < 4)
    assert found.groups_compared == 4 + 4 + 2  # each value, both values at once, one without the other


# How many more builds: counted, not timed


def scanned(table: Table, tests: int, level: float) -> int | None:
    """The same number, step by step from the first."""
    builds = table.all_bad + table.all_good
    then = builds
    while table.tends_to_fail and then < chance.MOST_BUILDS:
        then += max(1, then // 50)
        grown = Table(*(round(n * then / builds) for n in (table.bad, table.all_bad, table.good, table.all_good)))
        if fisher(grown) * tests <= level:
            return then - builds
    return None


def test_the_number_of_builds_that_would_decide_is_what_looking_at_each_number_gives(monkeypatch) -> None:
    monkeypatch.setattr(chance, "MOST_BUILDS", 600)
    chance._sizes.cache_clear()
    tables = [
        Table(bad, all_bad, good, all_good)
        for all_bad in (1, 3, 7, 10)
        for all_good in (2, 5, 9)
        for bad in range(all_bad + 1)
        for good in range(0, all_good + 1, 2)
    ]
    for table in tables:
        for tests in (1, 40):
            assert more_builds(table, tests, LEVEL) == scanned(table, tests, LEVEL), (table, tests)
    chance._sizes.cache_clear()


def test_the_number_of_builds_that_would_decide_is_sought_in_few_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """200 files, half of them bad, and a choice that is hardly more frequent there: 10,000 builds would not decide."""
    seen: list[Table] = []
    real = chance._log_chance
    monkeypatch.setattr(chance, "_log_chance", lambda table: seen.append(table) or real(table))
    assert more_builds(Table(51, 100, 50, 100), 2000, LEVEL) is None
    assert len(seen) <= 90
    seen.clear()
    assert more_builds(Table(60, 100, 50, 100), 2000, LEVEL) is not None
    assert len(seen) <= 90


def test_a_table_is_weighed_once_however_many_choices_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """200 files with 3,000 choices each; what is compared is what differs, and equal tables are one."""
    del monkeypatch
    fisher.cache_clear()
    builds = [
        Build(str(n), n % 2 == 0, frozenset(Choice(f"n{i}", "kernel", str(n % (i % 40 + 2))) for i in range(300)))
        for n in range(60)
    ]
    found = difference(builds)
    assert found.groups_compared > 500
    assert fisher.cache_info().misses <= 150


def test_records_tell_the_block_and_are_compared_by_it(tmp_path: Path) -> None:
    from biopsy.questions.builds.difference import build_of
    from biopsy.questions.builds.record import TacticRecord, tactics_below, write_record

    write_record(TacticRecord(engine="onnxrt", seed=7, block=2), tmp_path / "new.json")
    write_record(TacticRecord(engine="onnxrt"), tmp_path / "old.json")
    found = {path.name: build_of(path.name, one, is_bad=True).block for path, one in tactics_below(tmp_path).items()}
    assert found == {"new.json": (7, 2), "old.json": None}
