"""A hub without a network, for the real client library."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.engine.sources.ai_hub.stand_ins import store
from tests.engine.sources.fake_hub import FakeHub, serving_hub

__all__ = ["store"]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """All that `huggingface_hub` knows; it reads its environment when it is imported, so the constants are set."""
    from huggingface_hub import close_session, constants, file_download

    with serving_hub(FakeHub()) as served:
        monkeypatch.setattr(constants, "ENDPOINT", served.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", served.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setattr(file_download, "time", SimpleNamespace(sleep=lambda seconds: None))
        yield served
        close_session()
