"""Live servers for clients, one of each kind for the session."""

from collections.abc import Iterator

import pytest

from tests.clients.servers import Servers


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Live servers by name."""
    made = Servers(tmp_path_factory.mktemp("obedient"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def obedient(servers: Servers) -> str:
    """Address of the obedient server."""
    return servers("obedient").url


@pytest.fixture(scope="session")
def demo_server(servers: Servers) -> str:
    """Address of a server of the embedded model."""
    return servers("demo").url
