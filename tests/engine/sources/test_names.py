"""What a name stands for, and which files of a repository it needs: by texts alone."""

import pytest

from engine.sources.names import (
    Address,
    AiHubName,
    CatalogueName,
    FetchableName,
    FetchFailed,
    LocalPath,
    RepositoryName,
    needed_files,
    read_name,
)

SAFE = ("config.json", "tokenizer.json")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("small", CatalogueName("small")),
        ("Qwen/Qwen3-0.6B", RepositoryName("Qwen/Qwen3-0.6B", "")),
        ("Qwen/Qwen3-0.6B-GGUF:Q4_K_M", RepositoryName("Qwen/Qwen3-0.6B-GGUF", "Q4_K_M")),
        ("unsloth/x:UD-Q4_K_XL", RepositoryName("unsloth/x", "UD-Q4_K_XL")),
        ("ms:Qwen/Qwen3-0.6B", RepositoryName("Qwen/Qwen3-0.6B", "", "ms:")),
        ("ms:Qwen/Qwen3-GGUF:Q8_0", RepositoryName("Qwen/Qwen3-GGUF", "Q8_0", "ms:")),
        ("hub:qwen3_4b", AiHubName("qwen3_4b")),
        ("hub:qwen3_4b:w4@some-chip", AiHubName("qwen3_4b", "w4", "some-chip")),
        ("https://a.b/c.gguf?d=e", Address("https://a.b/c.gguf?d=e")),
        *(
            (text, LocalPath(text))
            for text in (
                "ms:small",
                "hub:",
                "hub:a/b",
                "ftp://a/b.gguf",
                "Small",
                "demo",
                "models/tiny.gguf",
                "a/b/c",
                "./a/b",
                "../a",
                "~/a",
            )
        ),
        *(
            (text, LocalPath(text))
            for text in ("/a/b", "C:\\models\\a", "a/b:", "a/b:c/d", "a--b/c", "a/b..c", "a/" * 50)
        ),
    ],
)
def test_names(text: str, meant: FetchableName | LocalPath) -> None:
    assert read_name(text, {"small"}) == meant
    assert meant.text == text


@pytest.mark.parametrize(
    ("page", "meant"),
    [
        ("https://huggingface.co/Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"),
        ("https://huggingface.co/Qwen/Qwen3-0.6B/", "Qwen/Qwen3-0.6B"),
        ("https://huggingface.co/Qwen/Qwen3-0.6B/tree/main", "Qwen/Qwen3-0.6B"),
        ("hf.co/bartowski/Some-GGUF:Q4_K_M", "bartowski/Some-GGUF:Q4_K_M"),
        ("https://huggingface.co/a/b/blob/main/b-Q8_0.gguf", "a/b:b-Q8_0"),
        ("https://huggingface.co/a/b/resolve/main/Q8/b-Q8_0-00001-of-00002.gguf?download=true", "a/b:b-Q8_0"),
        ("https://www.modelscope.cn/models/Qwen/Qwen3-0.6B/summary", "ms:Qwen/Qwen3-0.6B"),
        ("https://modelscope.cn/models/a/b/resolve/master/b.gguf", "ms:a/b:b"),
    ],
)
def test_a_page_of_a_hub_is_its_repository(page: str, meant: str) -> None:
    assert read_name(page, {}).text == meant


def test_a_name_that_leaves_its_folder_is_no_file_of_a_model() -> None:
    names = ("../m-Q8_0.gguf", "/m-Q8_0.gguf", "a\\m-Q8_0.gguf", "m-Q8_0.gguf")
    assert needed_files("a/b", names, "") == ("m-Q8_0.gguf",)


TOOL_TEMPLATE = "additional_chat_templates/tool_use.jinja"


def test_a_checkpoint_needs_its_facts_and_its_weights() -> None:
    facts = (
        *(*SAFE, "generation_config.json", "tokenizer_config.json", "chat_template.jinja", "modules.json"),
        *("config_sentence_transformers.json", "preprocessor_config.json", "processor_config.json"),
    )
    beside = (
        "README.md",
        "onnx/model.onnx",
        "pytorch_model.bin",
        "original/tokenizer.json",
        "consolidated.safetensors",
    )
    parts = ("1_Pooling/config.json", "2_Dense/model.safetensors", "sentence_bert_config.json", TOOL_TEMPLATE)
    assert set(needed_files("a/b", (*facts, *beside, *parts, "model.safetensors"), "")) == {
        *(*facts, *parts, "model.safetensors")
    }
    for shard in ("model-0000{}-of-00002.safetensors", "model.safetensors-0000{}-of-00002.safetensors"):
        shards = ("model.safetensors.index.json", *map(shard.format, (1, 2)))
        assert set(needed_files("a/b", (*SAFE, *shards, *beside), "")) == {*SAFE, *shards}
        assert shards[1] not in needed_files("a/b", (*SAFE, *shards, "model.safetensors"), "")


@pytest.mark.parametrize(
    ("names", "quant", "reason"),
    [
        (
            ("config.json", "pytorch_model.bin"),
            "",
            "a/b has no weights that hexserve reads: neither safetensors nor GGUF",
        ),
        (("model.bin", *SAFE), "", "a/b has no weights that hexserve reads"),
        (("config.json", "model.safetensors"), "", "a/b has weights but no tokenizer.json"),
        (("m-Q8_0.gguf",), "Q4_0", "a/b has no GGUF model of Q4_0: name one as a/b:QUANT, of Q8_0"),
        (("m-Q8_0.gguf", "n-Q8_0.gguf"), "Q8_0", "a/b has 2 GGUF models of Q8_0"),
        (("m-Q8_0.gguf", "m-IQ4_XS.gguf"), "", "a/b has 2 GGUF models: name one as a/b:QUANT, of IQ4_XS, Q8_0"),
        (("m-Q8_0-00002-of-00002.gguf",), "Q8_0", "a/b has 1 of the 2 parts of m-Q8_0.gguf"),
        ((), "", "a/b has no weights"),
    ],
)
def test_what_is_no_model_is_one_sentence(names: tuple[str, ...], quant: str, reason: str) -> None:
    with pytest.raises(FetchFailed, match=reason):
        needed_files("a/b", names, quant)


def test_a_whisper_of_ctranslate2() -> None:
    names = ("README.md", *SAFE, "model.bin", "preprocessor_config.json", "vocabulary.txt")
    assert set(needed_files("a/b", names, "")) == {*SAFE, "model.bin", "preprocessor_config.json"}


def test_of_two_quants_that_end_alike_the_one_that_is_named() -> None:
    names = ("m-Q4_K_M.gguf", "m-UD-Q4_K_M.gguf")
    assert needed_files("a/b", names, "q4_k_m") == names[:1]
    assert needed_files("a/b", names, "UD-Q4_K_M") == names[1:]


def test_the_only_gguf_model_needs_no_quant() -> None:
    assert needed_files("a/b", ("m.Q8_0.gguf", "config.json"), "") == ("m.Q8_0.gguf",)


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (("mmproj-q8_0.gguf", "mmproj-F16.gguf", "mmproj-BF16.gguf"), "mmproj-F16.gguf"),
        (("mmproj-m-Q8_0.gguf",), "mmproj-m-Q8_0.gguf"),
        (("other/mmproj-f16.gguf", "mmproj.txt"), ""),
    ],
)
def test_what_reads_images_comes_behind_the_model(names: tuple[str, ...], found: str) -> None:
    """Whatever the repository is called."""
    assert needed_files("a/b", ("m-Q4_0.gguf", *names), "Q4_0") == ("m-Q4_0.gguf", *[found] * bool(found))
