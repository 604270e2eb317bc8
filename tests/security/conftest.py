"""What the tests of hostile files share."""

from collections.abc import Iterator

import pytest

from support.confined import Confinement


@pytest.fixture(scope="session")
def confined() -> Iterator[Confinement]:
    """One process for all of them: importing what it forks with takes seconds."""
    with Confinement() as made:
        yield made
