"""Other people's clients against live servers, each check judged by the client's own code in its own environment.

A client is a folder beside this file: what it needs (`requirements.txt` or `package.json`) and `checks.py` or
`checks.mjs`, which may name further servers of `servers.py` in a line `# servers: demo limited`, or another client
whose checks it runs: `# checks of: openai_python`.
"""

import json
import re
from dataclasses import dataclass

import pytest

from tests.clients.environments import CLIENTS as FOLDER
from tests.clients.environments import EnvironmentFailed, run_client, too_new
from tests.clients.servers import Servers

PYTHON_CHECK = re.compile(r"^@check\n(?:async )?def (\w+)", re.MULTILINE)
NODE_CHECK = re.compile(r"^check\('([^']+)'", re.MULTILINE)
SAME = re.compile(r"^# checks of: (\w+)$", re.MULTILINE)
SERVERS = re.compile(r"^(?:#|//) servers: (.*)$", re.MULTILINE)


def _source(name: str) -> str:
    script = FOLDER / name / "checks.py"
    text = (script if script.exists() else script.with_suffix(".mjs")).read_text(encoding="utf-8")
    same = SAME.search(text)
    return _source(same[1]) if same else text


CLIENTS = sorted(path.parent.name for pattern in ("*/checks.py", "*/checks.mjs") for path in FOLDER.glob(pattern))
CHECKS = [
    (client, check)
    for client in CLIENTS
    for check in (PYTHON_CHECK if (FOLDER / client / "checks.py").exists() else NODE_CHECK).findall(_source(client))
]


@dataclass(frozen=True, slots=True)
class Result:
    """What one check came to."""

    ok: bool
    detail: str


class Runs:
    """Each client runs once; its checks are looked up."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._results: dict[str, dict[str, Result]] = {}

    def __call__(self, client: str) -> dict[str, Result]:
        """The results of a client by check; a client that does not finish fails with all it wrote."""
        if client not in self._results:
            self._results[client] = {}
            self._results[client] = self._run(client)
        return self._results[client]

    def _run(self, client: str) -> dict[str, Result]:
        wanted = SERVERS.search(_source(client))
        variables = self._servers.variables(tuple(wanted[1].split()) if wanted else ())
        try:
            done = run_client(client, variables)
        except EnvironmentFailed as failed:
            pytest.fail(str(failed), pytrace=False)
        try:
            listed = json.loads(done.last_line())
            return {one["name"]: Result(one["ok"], one["detail"]) for one in listed}
        except (ValueError, TypeError, KeyError):
            pytest.fail(f"{client} ended with {done.code}\n{done.output}\n{done.errors}", pytrace=False)


@pytest.fixture(scope="module")
def runs(servers: Servers) -> Runs:
    return Runs(servers)


@pytest.mark.parametrize(("client", "check"), CHECKS, ids=[f"{client}-{check}" for client, check in CHECKS])
def test_client(runs: Runs, client: str, check: str) -> None:
    if reason := too_new(client):
        pytest.skip(reason)
    result = runs(client).get(check)
    if result is None:
        pytest.fail("the client did not come to this check", pytrace=False)
    if not result.ok:
        pytest.fail(result.detail, pytrace=False)


def test_every_client_has_checks() -> None:
    assert all(any(client == one for one, _ in CHECKS) for client in CLIENTS)
    assert len(CHECKS) == len(set(CHECKS))
