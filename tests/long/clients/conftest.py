"""Fixtures of the clients, for its long tests."""

from tests.clients.conftest import demo_server, scripted, servers

__all__ = ["demo_server", "scripted", "servers"]
