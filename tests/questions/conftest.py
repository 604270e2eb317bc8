"""The package index of the tests of environments."""

from processes.environments.conftest import index as index
