"""Prompt scoring: every token of a prompt gets the probability its own prefix gives it, whatever else runs."""

import math

import numpy as np
import pytest
import torch

from engine.core.rows import PROMPT_LOGPROB_ROWS
from engine.core.speculation import PromptLookup
from engine.request import FinishReason, TokenLogprob
from engine.runtime.interface import Logits, PackedBatch
from engine.sampling.sample_step import token_logprobs
from tests.engine.fake_runtime import expected_token
from tests.engine.worker.simulation import VOCAB, Simulation, by_hand, fixed, free, simulate

HIGH = 10.0 - math.log(math.exp(10.0) + VOCAB - 1)
LOW = -math.log(math.exp(10.0) + VOCAB - 1)


def prompt(length: int, seed: int = 5) -> tuple[int, ...]:
    return tuple((i * 11 + seed) % VOCAB for i in range(length))


def scores_by_hand(tokens: tuple[int, ...]) -> list[tuple[int, float, int]]:
    """(token, its log-probability, the likeliest token) for every token but the first."""
    made = []
    for place in range(1, len(tokens)):
        likeliest = expected_token(list(enumerate(tokens[:place])), VOCAB)
        made.append((tokens[place], HIGH if tokens[place] == likeliest else LOW, likeliest))
    return made


def check(world: Simulation, name: str, tokens: tuple[int, ...]) -> None:
    found = world.prompt_logprobs[name]
    assert [(entry.token_id, entry.top[0][0]) for entry in found] == [(a, c) for a, _, c in scores_by_hand(tokens)]
    assert [entry.logprob for entry in found] == pytest.approx([b for _, b, _ in scores_by_hand(tokens)], abs=1e-5)


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 16, 17, 60])
@pytest.mark.parametrize("max_tokens", [0, 1, 5])
def test_every_length_against_chunks_and_blocks(length: int, max_tokens: int) -> None:
    world = simulate(fixed((8, 120)))
    world.submit("a", prompt(length), max_tokens, prompt_logprobs=1)
    world.run()
    check(world, "a", prompt(length))
    assert world.outputs["a"] == by_hand(prompt(length), max_tokens)
    assert world.finishes["a"] is FinishReason.LENGTH


def test_a_likely_prompt_has_high_logprobs() -> None:
    tokens = (3, *by_hand((3,), 20))
    world = simulate(free(16, 128))
    world.submit("a", tokens, 0, prompt_logprobs=1)
    world.run()
    assert [entry.logprob for entry in world.prompt_logprobs["a"]] == pytest.approx([HIGH] * 20, abs=1e-5)


def test_a_known_prefix_has_its_logprobs_computed_again_and_shared_otherwise() -> None:
    world = simulate(fixed((8, 240)))
    for name, kwargs in (("plain", {}), ("with", {"prompt_logprobs": 1}), ("again", {})):
        world.submit(name, prompt(50), 3, **kwargs)
        world.run()
    check(world, "with", prompt(50))
    assert world.outputs["plain"] == world.outputs["with"] == world.outputs["again"]
    assert world.cached == {"plain": 0, "with": 0, "again": 48}


def test_among_others_with_guesses_and_preemption() -> None:
    world = simulate(fixed((4, 92), (16, 96)), lookup=PromptLookup(), lookup_rows=3)
    prompts = {f"s{i}": prompt(20 + 3 * i, i) for i in range(6)}
    for number, (name, tokens) in enumerate(prompts.items()):
        world.submit(name, tokens, 18, **({"prompt_logprobs": 1} if number % 2 else {}))
    world.run()
    assert world.loop.stats().preemptions > 0
    for number, (name, tokens) in enumerate(prompts.items()):
        assert world.outputs[name] == by_hand(tokens, 18)
        if number % 2:
            check(world, name, tokens)
        else:
            assert world.prompt_logprobs[name] == []


def test_preempted_in_the_middle_of_its_prompt() -> None:
    world = simulate(fixed((8, 144)))
    world.submit("old", prompt(30, 1), 40)
    world.submit("young", prompt(60, 2), 4, prompt_logprobs=1)
    for _ in range(7):
        world.step()
    young = world.scheduler.find("young")
    assert young is not None and 0 < len(young.prompt_logprobs) < 59
    world.scheduler._preempt(young)
    world.run()
    check(world, "young", prompt(60, 2))
    assert world.outputs["old"] == by_hand(prompt(30, 1), 40)


def test_the_next_worker_scores_once() -> None:
    """Before the first token everything is done again; after it the scores were delivered."""
    done = by_hand(prompt(20), 6)
    world = simulate(fixed((8, 120)))
    world.submit("early", prompt(20), 6, prompt_logprobs=1)
    world.submit("late", prompt(20), 6, prompt_logprobs=1, emitted=tuple(done[:2]))
    world.run()
    check(world, "early", prompt(20))
    assert world.prompt_logprobs["late"] == []
    assert world.outputs["early"] == world.outputs["late"] == done


def test_a_row_without_numbers_fails_its_request_alone() -> None:
    world = simulate(fixed((8, 120)))
    world.submit("good", (1, 2, 3), 6)
    world.submit("bad", prompt(12), 6, prompt_logprobs=0)
    run = world.runtime.run

    def poisoned(batch: PackedBatch) -> Logits:
        logits = run(batch)
        if len(world.runtime.steps) == 2:
            logits.decoded()[0] = np.nan
        return logits

    world.runtime.run = poisoned  # type: ignore[method-assign]
    world.run()
    assert list(world.failures) == ["bad"]
    assert world.outputs["good"] == by_hand((1, 2, 3), 6)


def test_scores_are_the_log_softmax_of_torch() -> None:
    logits = np.random.default_rng(3).normal(scale=6, size=(37, 1000)).astype(np.float32)
    tokens = [int(i) for i in np.random.default_rng(4).integers(0, 1000, 37)]
    found = token_logprobs(Logits.of(logits), tokens, 3)
    expected = torch.log_softmax(torch.from_numpy(logits).double(), dim=1).numpy()
    for row, (token, entry) in enumerate(zip(tokens, found, strict=True)):
        assert isinstance(entry, TokenLogprob) and entry.token_id == token
        assert entry.logprob == pytest.approx(expected[row, token], abs=1e-5)
        assert [i for i, _ in entry.top] == np.argsort(-expected[row], kind="stable")[:3].tolist()


def test_scoring_takes_few_rows_of_a_step_that_decodes() -> None:
    world = simulate(free(256, 1024))
    world.submit("talks", prompt(4), 12)
    world.step()
    for name in ("a", "b"):
        world.submit(name, prompt(100, 3), 1, prompt_logprobs=1)
    world.submit("plain", prompt(90, 9), 1)
    before = world.loop.stats().rows_used
    world.step()
    assert world.loop.stats().rows_used - before == 1 + PROMPT_LOGPROB_ROWS + 90
    world.run()
    for name in ("a", "b"):
        check(world, name, prompt(100, 3))
    assert world.outputs["talks"] == by_hand(prompt(4), 12)


def test_scoring_alone_takes_whole_steps() -> None:
    world = simulate(free(256, 1024))
    world.submit("a", prompt(200), 1, prompt_logprobs=1)
    world.step()
    assert world.finishes["a"] is FinishReason.LENGTH
