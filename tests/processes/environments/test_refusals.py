"""What installers print when they fail, as one error."""

from pathlib import Path

import pytest

from biopsy.processes.environments.interpreter import Sources
from biopsy.processes.environments.prepared import refusal
from biopsy.processes.watch import Ended

PRINTED = {
    "network": [
        "error: Request failed after 3 retries in 10.7s\n  cause: Failed to fetch: http://127.0.0.1:9/simple/foo/",
        "ERROR: Could not install packages due to an OSError: HTTPSConnectionPool(host='files.example', port=443): "
        "Max retries exceeded (Caused by NewConnectionError('Connection refused'))",
    ],
    "disk full": [
        "error: Failed to install: bolt-1.0\n  cause: No space left on device (os error 28)",
        "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
        "error: failed to copy file\n  cause: Disk quota exceeded (os error 122)",
    ],
    "no wheel": [
        "error: No solution found when resolving dependencies\n  cause: Because nut==1.0 has no wheels with a matching "
        "Python ABI tag (e.g., `cp311`) and you require nut==1.0, your requirements are unsatisfiable.",
        "ERROR: No matching distribution found for nut==1.0",
    ],
    "conflict": [
        "error: No solution found when resolving dependencies\n  cause: Because bolt==1.0 depends on nut<2 and you "
        "require nut==2.0, we can conclude that your requirements are unsatisfiable.",
        "ERROR: Cannot install bolt==1.0 and nut==2.0 because these package versions have conflicting dependencies.\n"
        "ERROR: ResolutionImpossible: for help visit https://pip.pypa.io/en/latest/topics/dependency-resolution",
    ],
    "other": ["something that nobody has thought of", "", "\x1b[31mred"],
}


@pytest.mark.parametrize(("kind", "printed"), [(kind, text) for kind, texts in PRINTED.items() for text in texts])
def test_the_kind_is_told_by_what_was_printed(kind: str, printed: str) -> None:
    ended = Ended(status=1, cause="itself", output=printed.encode())
    error = refusal(ended, ["bolt==1.0"], Sources(), Path("/cache"))
    assert error.kind == kind
    assert "bolt==1.0" in error.summary
    assert all(line.isprintable() for line in error.details)


def test_passwords_are_left_out() -> None:
    sources = Sources(indexes=("https://me:s3cret@index.example/simple",))
    printed = b"error: Failed to fetch: https://me:s3cret@index.example/simple/bolt/ with s3cret"
    error = refusal(Ended(status=1, cause="itself", output=printed), ["bolt"], sources, Path("/cache"))
    assert "s3cret" not in error.message


def test_a_python_that_cannot_make_environments_is_told_with_what_helps() -> None:
    printed = b"The virtual environment was not created successfully because ensurepip is not\navailable."
    error = refusal(Ended(status=1, cause="itself", output=printed), ["bolt"], Sources(), Path("/cache"))
    assert error.next_steps == ("pip install uv",)


def test_an_installer_that_was_ended_is_told_with_the_signal() -> None:
    error = refusal(Ended(status=-9, cause="itself", output=b""), ["bolt"], Sources(), Path("/cache"))
    assert (error.kind, error.message) == ("other", "the installation of bolt ended with SIGKILL")
