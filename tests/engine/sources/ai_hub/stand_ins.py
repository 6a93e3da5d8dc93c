"""What stands in for the network: a store with one archive, and Qualcomm's package with its catalogue."""

import io
import sys
import types
import zipfile
from collections.abc import Callable, Iterator

import pytest

from tests.engine.sources.file_server import Store, serving

FILES = {"genie_config.json": b"{}", "part1_of_2.bin": bytes(range(256)) * 4000}


def archive(files: dict[str, bytes], stem: str = "") -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as made:
        for name, content in files.items():
            made.writestr(stem + name, content)
    return stream.getvalue()


@pytest.fixture
def store() -> Iterator[Store]:
    with serving(Store(archive(FILES, "qwen3_4b/"))) as made:
        made.tell_the_truth()
        yield made


Answer = Callable[..., str]


@pytest.fixture
def catalogue(monkeypatch: pytest.MonkeyPatch) -> Callable[[Answer], None]:
    """Install a package with the two modules that are used of qai_hub_models_cli."""

    class UserError(Exception):
        pass

    class AssetNotFoundError(FileNotFoundError, UserError):
        pass

    def install(answer: Answer) -> None:
        package = types.ModuleType("qai_hub_models_cli")
        package.__path__ = []
        package.__spec__ = types.SimpleNamespace(origin="fake")  # type: ignore[assignment]
        fetch, errors = types.ModuleType("qai_hub_models_cli.fetch"), types.ModuleType("qai_hub_models_cli.errors")
        fetch.get_asset_url = answer  # type: ignore[attr-defined]
        errors.CLIUserError, errors.AssetNotFoundError = UserError, AssetNotFoundError  # type: ignore[attr-defined]
        for module in (package, fetch, errors):
            monkeypatch.setitem(sys.modules, module.__name__, module)

    return install
