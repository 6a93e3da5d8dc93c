"""Batched decoding over caches against the definition, which computes everything anew in every step."""

import pytest
import torch

from tools.demo_model.diffusion.decoder import BlockDecoder, Decoding, DenoisedAnswer
from tools.demo_model.diffusion.rows import BLOCK
from tools.demo_model.network import DemoNetwork, Shape

MASK = 63
SHAPE = Shape(64, 32, 48, 2, 4, 2, 16)
PROMPTS = [[5, 6, 7], list(range(10, 21)), [9] * 8, [1] * 16]


@pytest.fixture(scope="module")
def network() -> DemoNetwork:
    torch.manual_seed(3)
    made = DemoNetwork(SHAPE)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return made


def answer_of(network: DemoNetwork, prompt: list[int], decoding: Decoding) -> DenoisedAnswer:
    """One sequence: a step is the whole text under the block-causal mask."""
    text, answer = list(prompt), DenoisedAnswer([])
    while True:
        start = len(text) // BLOCK * BLOCK
        text += [MASK] * (start + BLOCK - len(text))
        while MASK in text[start:]:
            blocks = torch.arange(len(text)) // BLOCK
            visible = (blocks.unsqueeze(0) <= blocks.unsqueeze(1)).unsqueeze(0).unsqueeze(0)
            with torch.no_grad():
                logits = network(torch.tensor([text]), torch.arange(start, len(text)), None, visible)
            logits[:, MASK] = -torch.inf
            sure, best = logits.softmax(-1).max(-1)
            places = sorted((place for place in range(BLOCK) if text[start + place] == MASK), key=lambda p: -sure[p])
            count = decoding.per_step or max(1, sum(float(sure[place]) > decoding.confidence for place in places))
            for place in places[:count]:
                text[start + place] = int(best[place])
            answer.steps += 1
        answer.tokens = text[len(prompt) :]
        ends = [index for index, token in enumerate(answer.tokens) if token in (0, 2)]
        if ends or len(answer.tokens) >= decoding.longest:
            answer.tokens = answer.tokens[: min(ends[0] + 1 if ends else decoding.longest, decoding.longest)]
            return answer


@pytest.mark.parametrize("decoding", [Decoding(MASK, 30, 0.3), Decoding(MASK, 9, per_step=1), Decoding(MASK, 12, 0.0)])
def test_a_batch_is_decoded_as_the_definition_says(network: DemoNetwork, decoding: Decoding) -> None:
    answers = BlockDecoder(network, decoding).answers(PROMPTS)
    assert answers == [answer_of(network, prompt, decoding) for prompt in PROMPTS]
    assert all(MASK not in answer.tokens for answer in answers)


def test_steps_are_counted_by_block(network: DemoNetwork) -> None:
    (answer,) = BlockDecoder(network, Decoding(MASK, 8, 0.0)).answers([[7] * 4])
    assert answer.steps == -(-len(answer.tokens) // BLOCK)
