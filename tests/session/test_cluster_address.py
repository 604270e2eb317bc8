"""Where no Ray cluster answers: told at once, with what to type next, and without what libraries write."""

import os
import socket
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from biopsy import errors
from biopsy.session import ray_cluster
from biopsy.session.ray_cluster import Pulse, no_answer, overheard, require_listener


@pytest.fixture
def closed_port() -> int:
    """A port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.mark.parametrize("scheme", ["", "ray://", " "])
def test_a_port_on_which_nobody_listens_is_refused_at_once(scheme: str, closed_port: int) -> None:
    with pytest.raises(errors.UsageError, match=f"{scheme}127.0.0.1:{closed_port}: connection refused") as told:
        require_listener(f"{scheme}127.0.0.1:{closed_port}")
    assert any("ray start --head" in step for step in told.value.next_steps)
    assert any("ray://HOST:10001" in step for step in told.value.next_steps)


@pytest.mark.parametrize("address", ["no such host.invalid:6379", "127.0.0.1:99999", "[::1]:1", "ray://..:10001"])
def test_what_is_no_address_is_told(address: str) -> None:
    with pytest.raises(errors.UsageError, match="no Ray cluster answers at"):
        require_listener(address)


@pytest.mark.parametrize("address", ["", "auto", "local", "ray://", "anyscale://cluster", "namespace/host"])
def test_other_addresses_are_left_to_ray(address: str) -> None:
    require_listener(address)


def test_a_port_on_which_somebody_listens_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        require_listener(f"127.0.0.1:{server.getsockname()[1]}")


@pytest.mark.parametrize(("mode", "says"), [(None, "export RAY_AUTH_MODE=token"), ("token", "RAY_AUTH_TOKEN_PATH")])
def test_a_token_that_is_missing_is_asked_for(mode: str | None, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    if mode:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    told = no_answer("h:6379", ConnectionError("Failed to connect"), "W gcs_client: RPC error: InvalidAuthToken: ...")
    assert told.message == "the Ray cluster at h:6379 wants its token"
    assert says in told.next_steps[0]


@pytest.mark.parametrize(("address", "other"), [("h:10001", "ray://h:10001"), ("ray://h:6379", "h:6379")])
def test_the_port_for_the_other_kind_of_address_is_asked_about(address: str, other: str) -> None:
    assert f"--on {other} " in no_answer(address, ConnectionError("timeout"), "").next_steps[0]


@given(st.text(max_size=20), st.text(max_size=20), st.text(max_size=60))
def test_every_error_is_one_line_that_names_the_address(host: str, reason: str, heard: str) -> None:
    for address in (f"{host}:6379", f"ray://{host}:10001", "this machine"):
        told = no_answer(address, ConnectionError(reason), heard)
        assert address in told.message
        assert told.next_steps


def test_what_libraries_write_is_heard_and_not_shown(capfd: pytest.CaptureFixture[str]) -> None:
    with overheard() as heard:
        os.write(2, b"[W 1] gcs_client.cc:210: \xff\n")
        warnings.warn("connection timed out", stacklevel=1)
    os.write(2, b"after\n")
    assert "gcs_client.cc:210" in heard[0]
    assert capfd.readouterr().err == "after\n"


def test_stderr_comes_back_after_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConnectionError), overheard():
        raise ConnectionError
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "after\n"


def test_a_head_that_is_away_for_long_is_told(monkeypatch: pytest.MonkeyPatch, closed_port: int) -> None:
    monkeypatch.setattr(ray_cluster, "_BEAT", 0.0)
    pulse = Pulse(f"127.0.0.1:{closed_port}")
    pulse.require()  # it may come back
    monkeypatch.setattr(ray_cluster, "_AWAY", 0.0)
    for _ in range(2):
        with pytest.raises(errors.CheckError, match=f"its head, 127.0.0.1:{closed_port}, has been away"):
            pulse.require()
    assert pulse.is_gone


def test_a_head_that_answers_is_never_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "_BEAT", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        pulse = Pulse(f"127.0.0.1:{server.getsockname()[1]}")
        for _ in range(3):
            pulse.require()
    assert not pulse.is_gone
    Pulse("").require()  # nobody knows where it is
