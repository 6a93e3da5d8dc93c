"""genie_config.json: what is read, and every refusal by its key."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from engine.errors import BundleError
from engine.genie.config import is_genie_folder, read_config

SPECULATING = ("spd", "lade", "multistream", "eaglet", "kv-share")
CONFIG: dict[str, Any] = {
    "dialog": {
        "version": 1,
        "type": "basic",
        "stop-sequence": ["</s>"],
        "context": {"version": 1, "size": 4096, "n-vocab": 128256, "bos-token": 128000, "eos-token": [128001, 128009]},
        "tokenizer": {"version": 1, "path": "tokenizer.json"},
        "engine": {
            "version": 1,
            "backend": {"type": "QnnHtp", "QnnHtp": {"rope-theta": 500000, "pos-id-dim": 64}},
            "model": {"type": "binary", "binary": {"ctx-bins": ["a.bin", "b.bin"]}},
        },
    }
}


def write(folder: Path, **changes: Any) -> Path:
    """Keys with '/' are paths below dialog."""
    config = copy.deepcopy(CONFIG)
    for path, value in changes.items():
        *parents, last = path.split("/")
        group = config["dialog"]
        for parent in parents:
            group = group.setdefault(parent, {})
        group[last] = value
    (folder / "genie_config.json").write_text(json.dumps(config))
    return folder


def test_what_is_read(tmp_path: Path) -> None:
    assert not is_genie_folder(tmp_path)
    config = read_config(write(tmp_path, **{"context/eot-token": 128008}))
    assert is_genie_folder(tmp_path)
    assert config.binaries == ("a.bin", "b.bin")
    assert (config.context_tokens, config.vocabulary, config.bos_id) == (4096, 128256, 128000)
    assert config.eos_ids == (128001, 128008, 128009)
    assert (config.stop_sequences, config.rope_theta, config.tokenizer) == (("</s>",), 500000.0, "tokenizer.json")


def test_an_end_token_may_be_a_number_and_bos_may_be_none(tmp_path: Path) -> None:
    config = read_config(write(tmp_path, **{"context/eos-token": 2, "context/bos-token": -1}))
    assert (config.eos_ids, config.bos_id) == ((2,), None)


@pytest.mark.parametrize("none", [-1, [-1], None, []])
def test_there_may_be_no_end_token(tmp_path: Path, none: Any) -> None:
    assert read_config(write(tmp_path, **{"context/eos-token": none, "context/eot-token": -1})).eos_ids == ()


def test_speculating_dialogs_are_served_as_ordinary_ones(tmp_path: Path) -> None:
    assert read_config(write(tmp_path, **{"type": "ssd-q1", "ssd-q1": {"version": 1}})).binaries


def test_graph_switching_changes_nothing(tmp_path: Path) -> None:
    """It makes Genie load a graph only when its turn comes; here all of them stay loaded."""
    switching = read_config(write(tmp_path, **{"engine/backend/QnnHtp/enable-graph-switching": True}))
    plain = read_config(write(tmp_path))
    assert (switching.binaries, switching.rope_theta) == (plain.binaries, plain.rope_theta)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        *((("type", kind, f"dialogs of type '{kind}' are not supported")) for kind in SPECULATING),
        ("engine", [], "dialog.engine is a list"),
        ("engine/backend/type", "QnnGpu", "the back end is QnnGpu"),
        ("engine/backend/QnnHtp/kv-update-method", "shift-concat", "SHIFT_CONCAT is deprecated"),
        ("engine/backend/QnnHtp/kv-update-method", "POINTER_SHIFT", "POINTER_SHIFT is deprecated"),
        ("engine/backend/QnnHtp/rope-theta", "x", "rope-theta must be a number"),
        ("engine/model/type", "library", "must be 'binary', not 'library'"),
        ("engine/model/binary/lora", {}, "LoRA adapters"),
        ("engine/model/binary/ctx-bins", [], "ctx-bins must name"),
        ("engine/model/binary/ctx-bins", [1], "ctx-bins must be a list of strings"),
        ("engine/longcontext", {"type": "sliding-window"}, r"longcontext \(sliding-window\) evicts"),
        ("context", 3, "dialog.context must be an object, it is 3"),
        ("context/size", 0, "dialog.context.size must be an integer from 1"),
        ("context/eos-token", -2, "dialog.context.eos-token must be an integer or a list"),
        ("context/eos-token", ["x"], "dialog.context.eos-token must be an integer or a list"),
    ],
)
def test_refusals_name_the_key(tmp_path: Path, path: str, value: Any, message: str) -> None:
    with pytest.raises(BundleError, match=message):
        read_config(write(tmp_path, **{path: value}))


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "cannot be read"), ("[]", "must hold a JSON object"), ('{"image-encoder": {}}', "only text dialogs")],
)
def test_other_documents(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "genie_config.json").write_text(text)
    with pytest.raises(BundleError, match=message):
        read_config(tmp_path)
