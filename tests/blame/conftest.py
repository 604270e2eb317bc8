"""The package index of the tests of environments."""

from environments.conftest import index as index
