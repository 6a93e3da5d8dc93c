"""From a name to an answer: `hexserve run` and `hexserve models`, with an empty home and a hub made here."""

import time
from pathlib import Path

import pytest

from tests.engine.sources.fake_hub import FakeHub, serving_hub
from tests.server.commands.test_chat import run


def test_from_an_empty_home_to_an_answer_and_again_without_a_network(
    tiny_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub = FakeHub(is_redirecting=True)
    hub.add("org/tiny", tiny_checkpoint)
    hub.repositories["org/tiny"]["pytorch_model.bin"] = b"pickle"
    started = time.monotonic()
    with serving_hub(hub):
        first = run(tmp_path, "run", "org/tiny", "--max-tokens", "4", typed="Hello\n", HF_ENDPOINT=hub.url)
    with capsys.disabled():
        print(f"\nhexserve run org/tiny, from an empty home to its end: {time.monotonic() - started:.1f} s")
    assert first.returncode == 0, first.stderr
    assert f"org/tiny: {len(hub.names())} files, " in first.stderr and f"MB, from {hub.url}" in first.stderr
    assert "4 tokens in" in first.stdout + first.stderr and "pytorch_model.bin" not in hub.names()
    again = run(tmp_path, "chat", "org/tiny", "--max-tokens", "4", typed="Hello\n", HF_HUB_OFFLINE="1")
    assert again.returncode == 0, again.stderr
    listed = run(tmp_path, "models")
    assert "smollm2" in listed.stdout and "org/tiny" in listed.stdout
    assert str(tmp_path / ".cache" / "huggingface") in run(tmp_path, "models", "show", "org/tiny").stdout.replace(
        "\n", ""
    )
    assert run(tmp_path, "models", "remove", "org/tiny").stdout.startswith("org/tiny is removed, ")
    gone = run(tmp_path, "compile", "org/tiny", "-o", "out", HF_HUB_OFFLINE="1")
    assert (gone.returncode, gone.stderr) == (
        2,
        "error: org/tiny is no file or folder here, the cache does not have it, and HF_HUB_OFFLINE is set: run the "
        "same command without it once\n",
    )
