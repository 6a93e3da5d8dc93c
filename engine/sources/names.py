"""What a name stands for, read from its text alone: nothing is looked up."""

import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from engine.demo.location import SHIPPED
from engine.errors import BundleError
from engine.files import GGUF_PART, GGUF_SUFFIX, PROJECTOR, is_gguf

# Hugging Face's rules: both parts of letters, digits, "-", "_" and ".", at most 96 together, without "--" and "..".
_REPOSITORY = re.compile(r"(ms:)?(\w[\w.-]*/\w[\w.-]*?)(?::(\w[\w.-]*))?", re.ASCII)
_LONGEST = 96
NAMED = (
    f"a bundle folder, a Hugging Face folder, a {GGUF_SUFFIX} file, ORG/NAME of the hub, ms:ORG/NAME of ModelScope, "
    f"hub:NAME of Qualcomm AI Hub, an https address, a name of `hexserve models`, {' or '.join(map(repr, SHIPPED))}"
)
ARCHIVE = ".zip"
MODEL_SUFFIXES = (GGUF_SUFFIX, ARCHIVE)  # of what an address may name
_AI_HUB = re.compile(r"hub:(\w[\w.-]*)(?::(\w+))?(?:@(\w[\w-]*))?", re.ASCII)
# A page of a hub as a browser shows it: a repository, or one file of its newest commit.
_PAGE = re.compile(
    r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co|(modelscope\.cn/models))/(\w[\w.-]*/[\w.-]+?(?::\w[\w.-]*)?)"
    r"(?:/|/(?:tree|files|summary).*|/(?:blob|resolve)/ma(?:in|ster)/(?:[^?]+/)?([^/?]+?)(?:-\d{5}-of-\d{5})?\.gguf(?:\?.*)?)?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class RepositoryName:
    """A repository of a hub."""

    repository: str
    quant: str  # of the GGUF file that is wanted, "" = whatever weights the repository has
    site: str = ""  # "" for Hugging Face's, "ms:" for ModelScope

    @property
    def title(self) -> str:
        """As the user writes it, without the quant."""
        return f"{self.site}{self.repository}"

    @property
    def text(self) -> str:
        return f"{self.title}:{self.quant}" if self.quant else self.title


@dataclass(frozen=True, slots=True)
class AiHubName:
    """A bundle of Qualcomm AI Hub. precision, chipset: "" = what suits best of what is published."""

    model: str
    precision: str = ""
    chipset: str = ""

    @property
    def text(self) -> str:
        named = f"hub:{self.model}" + f":{self.precision}" * bool(self.precision)
        return named + f"@{self.chipset}" * bool(self.chipset)


@dataclass(frozen=True, slots=True)
class Address:
    """A GGUF file, or a zip of a folder, on a server."""

    text: str


@dataclass(frozen=True, slots=True)
class CatalogueName:
    """A short name of the catalogue."""

    text: str


@dataclass(frozen=True, slots=True)
class LocalPath:
    """A file or folder, whether it exists or not."""

    text: str


FetchableName = RepositoryName | AiHubName | Address | CatalogueName


def read_name(text: str, catalogue: Container[str]) -> FetchableName | LocalPath:
    """What a text is where no file or folder has this path."""
    if text in catalogue:
        return CatalogueName(text)
    if match := _AI_HUB.fullmatch(text):
        return AiHubName(match[1], match[2] or "", match[3] or "")
    if match := _PAGE.fullmatch(text):
        text = f"{'ms:' if match[1] else ''}{match[2]}" + (f":{match[3]}" if match[3] else "")
    elif text.startswith(("http://", "https://")):
        return Address(text)
    match = _REPOSITORY.fullmatch(text)
    site, name, quant = match.groups("") if match else ("", "", "")
    is_odd = len(name) > _LONGEST or "--" in name or ".." in name or name.endswith((".git", "-", "."))
    is_path = not name or is_odd or (is_gguf(name) and not site)
    return LocalPath(text) if is_path else RepositoryName(name, quant, site)


CONFIG, TOKENIZER = "config.json", "tokenizer.json"
SINGLE_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"
SHARDS = ("model-*.safetensors", "model.safetensors-*-of-*.safetensors")
_FACTS = (
    *(CONFIG, "generation_config.json", "tokenizer*", "chat_template*"),
    *("modules.json", "sentence_*_config.json", "config_sentence_transformers.json"),
    *("preprocessor_config.json", "processor_config.json"),
)
# A Whisper of CTranslate2; a pickle may have that name too, but no such list of words beside it.
WHISPER, WHISPER_WORDS = "model.bin", "vocabulary.*"
# Of a sentence-transformers model; and the template of a chat with tools, where it is one of its own.
_PARTS = ("[0-9]_*/config.json", "[0-9]_*/model.safetensors", "additional_chat_templates/tool_use.jinja")
_BESIDE_MODELS = (PROJECTOR, "imatrix")
_TYPES_OF_IMAGES = {name: rank for rank, name in enumerate(("F16", "BF16", "F32", "Q8_0"))}
_QUANT = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q\d\w*|TQ\d\w*|MXFP4\w*|BF16|F16|F32))(?:-\d{5}-of-\d{5})?\.gguf", re.IGNORECASE
)


class FetchFailed(BundleError):
    """A model could not be fetched; the message is one sentence that says why, and what to do where that is known."""


def needed_files(repository: str, names: Iterable[str], quant: str) -> tuple[str, ...]:
    """The files to fetch, in order of their names: a checkpoint's, or of the GGUF file of `quant` every part. Without a
    quant a repository whose only model is a GGUF file stands for that. Behind the parts comes the file that reads
    images, if there is one. FetchFailed when there is no such model, or more than one."""
    found = sorted(name for name in names if ".." not in name and not name.startswith("/") and "\\" not in name)
    if not quant and (SINGLE_FILE in found or INDEX_FILE in found):
        return _checkpoint(repository, found, (SINGLE_FILE,) if SINGLE_FILE in found else (INDEX_FILE, *SHARDS))
    models = gguf_models(found)
    if not quant and not models and WHISPER in found and any(_fits(name, (WHISPER_WORDS,)) for name in found):
        return _checkpoint(repository, found, (WHISPER,))
    if not models:
        raise FetchFailed(f"{repository} has no weights that hexserve reads: neither safetensors nor GGUF files")
    fitting = {title: parts for title, parts in models.items() if not quant or _has_quant(title, quant)}
    if len(fitting) > 1:  # Q4_K_M is not UD-Q4_K_M, where a repository has both
        fitting = {title: parts for title, parts in fitting.items() if _quant_of(parts) == quant.upper()} or fitting
    if len(fitting) != 1:
        raise FetchFailed(_which(repository, quant, models))
    ((title, parts),) = fitting.items()
    if (shard := GGUF_PART.fullmatch(parts[0])) and len(parts) != int(shard[3]):
        raise FetchFailed(f"{repository} has {len(parts)} of the {int(shard[3])} parts of {title}{GGUF_SUFFIX}")
    return (*parts, *_projector(found, parts[0]))


def _projector(names: Sequence[str], model: str) -> tuple[str, ...]:
    """The file in a model's folder that reads images, of several that of the likeliest type: half precision."""
    folder = PurePosixPath(model).parent
    there = (name for name in names if PurePosixPath(name).parent == folder and is_gguf(name))
    found = [name for name in there if PROJECTOR in name.lower()]
    return tuple(sorted(found, key=lambda name: (_TYPES_OF_IMAGES.get(_quant_of((name,)), 9), name))[:1])


def gguf_models(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Each GGUF model's parts in order, by its name without number and suffix. names: sorted."""
    models: dict[str, tuple[str, ...]] = {}
    for name in names:
        if is_gguf(name) and not any(word in name.lower() for word in _BESIDE_MODELS):
            shard = GGUF_PART.fullmatch(name)
            title = shard[1] if shard else name[: -len(GGUF_SUFFIX)]
            models[title] = (*models.get(title, ()), name)
    return models


def _checkpoint(repository: str, names: Sequence[str], weights: Sequence[str]) -> tuple[str, ...]:
    for needed in (CONFIG, TOKENIZER):
        if needed not in names:
            raise FetchFailed(f"{repository} has weights but no {needed}, which hexserve needs")
    facts = [name for name in names if _fits(name, _FACTS) and "/" not in name]
    return (*facts, *(name for name in names if _fits(name, (*weights, *_PARTS)) and name not in facts))


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _has_quant(title: str, quant: str) -> bool:
    """Whether a model's name ends with the quant, behind a sign that parts words."""
    return re.search(rf"(?:^|[-._/]){re.escape(quant)}$", title, re.IGNORECASE) is not None


def _quant_of(parts: Sequence[str]) -> str:
    match = _QUANT.search(parts[0])
    return match[1].upper() if match else ""


def _which(repository: str, quant: str, models: dict[str, tuple[str, ...]]) -> str:
    quants = sorted({_quant_of(parts) for parts in models.values()} - {""})
    there = f"name one as {repository}:QUANT, of {', '.join(quants)}" if quants else "their names tell no quant"
    if not quant:
        return f"{repository} has {len(models)} GGUF models: {there}"
    fitting = sum(_has_quant(title, quant) for title in models)
    return f"{repository} has {fitting or 'no'} GGUF model{'s' * (fitting > 1)} of {quant}: {there}"


@dataclass(frozen=True, slots=True)
class Located:
    """path: of a file or folder that exists. name: of the model, "" = its path's."""

    path: Path
    name: str
