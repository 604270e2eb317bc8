"""Nobody waits for a cluster that is not there."""

import socket

import pytest

from biopsy.session.cluster_address import silence_at


@pytest.mark.parametrize("form", ["{}", "ray://{}", " {}\n"])
def test_it_is_told_whether_anybody_listens(form: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = form.format(f"127.0.0.1:{server.getsockname()[1]}")
        assert silence_at(address) == ""
    assert "refused" in silence_at(address)


@pytest.mark.parametrize("address", ["127.0.0.1:99999", "no.such.host.invalid:1", "a..b:1"])
def test_what_cannot_be_reached_is_told(address: str) -> None:
    assert silence_at(address)


@pytest.mark.parametrize("address", ["auto", "local", "", "ray://", "namespace/host"])
def test_what_names_no_port_is_left_to_ray(address: str) -> None:
    assert silence_at(address) == ""
