"""Live servers for clients, one of each kind for the session."""

from collections.abc import Iterator

import pytest

from tests.clients.servers import Servers


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Live servers by name."""
    made = Servers(tmp_path_factory.mktemp("scripted"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def scripted(servers: Servers) -> str:
    """Address of the scripted server."""
    return servers("scripted").url


@pytest.fixture(scope="session")
def demo_server(servers: Servers) -> str:
    """Address of a server of the embedded model."""
    return servers("demo").url
