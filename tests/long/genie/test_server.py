"""`hexserve serve GENIE_FOLDER`: clients that ask at the same time get what the plain loop computes for each alone."""

import asyncio
from pathlib import Path

import pytest
from openai import AsyncOpenAI

from engine.bundle.manifest import load_manifest
from engine.bundle.variant import StepShape
from engine.demo.location import demo_folder
from engine.text.prompt import PromptMaker
from tests.engine.text.in_process import InProcess
from tests.genie.emulator import EMULATOR, compile_generated, emulated_greedy
from tests.genie.generator import Recipe, generate
from tests.genie.plain_loop import PlainLoop
from tests.genie.test_serving import cpu_run
from tests.genie.twin import convert_to_twin
from tests.live import LiveServer, serving

QUESTIONS = [
    "What is the capital of France?",
    "What is 17 + 25?",
    "Hello!",
    "Copy this list: apple, pear, plum",
    "What is the capital of Peru?",
    "Who are you?",
]
COUNT = 10
SHAPES = (StepShape(1, 255), StepShape(32, 224))


def prompts(folder: Path, questions: list[str]) -> list[list[int]]:
    manifest = load_manifest(folder)
    maker = InProcess.load(folder, manifest.text)
    turns = [[{"role": "user", "content": question}] for question in questions]
    return [list(maker.chat(turn, None, {}, manifest.max_context)) for turn in turns]


def texts(folder: Path, answers: list[list[int]]) -> list[str]:
    """Answers up to their end token as text, without control tokens, as the server shows them."""
    manifest = load_manifest(folder)
    tokenizer = PromptMaker.load(folder, manifest.text).tokenizer
    ends = [next((i for i, token in enumerate(answer) if token in manifest.text.stop_ids), COUNT) for answer in answers]
    pieces = [answer[:end] for answer, end in zip(answers, ends, strict=True)]
    shown = [[token for token in piece if not tokenizer.is_special(token)] for piece in pieces]
    return [b"".join(tokenizer.token_bytes(token) for token in piece).decode("utf-8", "replace") for piece in shown]


async def ask(server: LiveServer, questions: list[str]) -> list[str]:
    """Greedy answers, all asked at once."""

    async def one(client: AsyncOpenAI, model: str, question: str) -> str:
        turn = [{"role": "user", "content": question}]
        answer = await client.chat.completions.create(model=model, messages=turn, max_tokens=COUNT, temperature=0)
        return answer.choices[0].message.content or ""

    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        model = (await client.models.list()).data[0].id
        return list(await asyncio.gather(*(one(client, model, question) for question in questions)))


# As Llama-3.2-3B SSD is exported: no 1-row graphs, caches written in place, one for each head, a lone head.
SSD = Recipe(
    era="zoo",
    parts=4,
    head_alone=True,
    shapes=(StepShape(32, 224), StepShape(64, 192)),
    context_tokens=256,
    scatter=True,
    heads="_head_",
    index="uint32",
    ssd=True,
)


@pytest.mark.parametrize(
    ("recipe", "rows"),
    [
        (Recipe(era="0.46", parts=2, shapes=SHAPES, context_tokens=256), (32, 1)),
        (SSD, (64, 32)),
        (Recipe(head_alone=True, shapes=SHAPES, context_tokens=256, kv_only_rows=(32,)), (32, 1)),
    ],
    ids=["concat", "a folder for self-speculation", "prefill without logits"],
)
def test_on_the_cpu(tmp_path: Path, recipe: Recipe, rows: tuple[int, int]) -> None:
    folder = convert_to_twin(generate(demo_folder(), tmp_path / "bundle", recipe), tmp_path / "cache")
    loop = PlainLoop(load_manifest(folder), cpu_run(folder))
    expected = texts(folder, [loop.greedy(prompt, COUNT, *rows) for prompt in prompts(folder, QUESTIONS)])
    assert all(expected)  # weights this coarse say something, not always the right thing
    with serving("--bundle", str(folder), cache=tmp_path / "server") as server:
        assert asyncio.run(ask(server, QUESTIONS)) == expected


@pytest.mark.skipif(not EMULATOR, reason="the HTP emulator comes with onnxruntime-qnn for x86-64 Linux")
def test_in_the_emulator(tmp_path: Path) -> None:
    recipe = Recipe(parts=3, head_alone=True, shapes=(StepShape(8, 120),), same_hidden_names=False).for_emulator(128)
    made = generate(demo_folder(), tmp_path / "demo", recipe)
    compile_generated(made, tmp_path / "compile")
    with serving("--bundle", str(made.folder), "--deterministic", cache=tmp_path / "server") as server:
        answers = asyncio.run(ask(server, QUESTIONS[:2]))
    (folder,) = (tmp_path / "server").rglob("demo-genie-*")
    jobs = [(prompt, COUNT, 8, 8) for prompt in prompts(folder, QUESTIONS[:2])]
    assert answers == texts(folder, emulated_greedy(folder, jobs, tmp_path))
    assert all(answers)
