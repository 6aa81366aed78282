"""What TensorFlow's roles need of sockets; with TensorFlow: ``tests/deep``."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest

from clustertune.remote import tensorflow_roles


@pytest.mark.parametrize("connected", [False, True])
def test_nobody_reaches_a_socket_that_was_shut(connected: bool) -> None:
    """Its owner still has it; who was connected hears that it is over."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as other:
        host, port = server.getsockname()
        place = f"{host}:{port}"
        assert tensorflow_roles._reached(place)
        server.accept()[0].close()
        if connected:
            other.connect((host, port))
            accepted, _ = server.accept()
        tensorflow_roles._shut(port)
        assert not tensorflow_roles._reached(place)
        assert server.fileno() >= 0
        if connected:
            with accepted:
                assert other.recv(1) == b""


def test_who_waits_for_a_server_can_be_told_to_stop() -> None:
    """And says for which."""
    with socket.create_server(("127.0.0.1", 0)) as there:
        places = [f"127.0.0.1:{there.getsockname()[1]}"]
        with socket.socket() as bound:  # nobody listens
            bound.bind(("127.0.0.1", 0))
            places.append(f"127.0.0.1:{bound.getsockname()[1]}")
            context = SimpleNamespace(spec={"ps": places}, wait=lambda seconds: True)
            with pytest.raises(
                RuntimeError, match=r"the TensorFlow server of ps 1 was"
            ):
                tensorflow_roles._await(context)
