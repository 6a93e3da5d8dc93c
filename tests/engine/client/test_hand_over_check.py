"""How far two devices are apart, of the likeliest tokens alone."""

import math
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from engine.client.placement import TRIES, HandOverCheck, top_kl
from engine.client.recovery import PendingRequest
from engine.errors import EngineFailure
from engine.request import FinishReason, TokenEvent, TokenLogprob


def test_equal_ones_are_not_apart() -> None:
    tops = {1: math.log(0.7), 2: math.log(0.2)}
    assert top_kl(tops, tops) == pytest.approx(0.0)


def test_it_is_the_divergence_with_all_others_as_one() -> None:
    own, other = {1: math.log(0.5), 2: math.log(0.25)}, {1: math.log(0.25), 2: math.log(0.5)}
    assert top_kl(own, other) == pytest.approx(0.5 * math.log(2) - 0.25 * math.log(2))


def test_a_token_that_the_other_lacks_is_as_its_last_one() -> None:
    assert top_kl({7: math.log(0.9)}, {1: math.log(0.6), 2: math.log(1e-4)}) > 5


@dataclass
class FastWorker:
    """A supervisor whose first requests are at their end before anybody has asked for them."""

    check: HandOverCheck
    ends: int = 0
    is_read: bool = True  # whether it can make something of what another one gives
    pending: dict[str, PendingRequest] = field(default_factory=dict)

    def adopt(self, pending: PendingRequest) -> None:
        name, logprob = pending.request.id, TokenLogprob(1, -0.1, ((1, -0.1), (2, -3.0)))
        self.pending[name] = pending
        cached = 16 if pending.caches and self.is_read else 0
        self.check.settle(name, TokenEvent(name, (1,), (logprob,), cached_tokens=cached))
        if self.ends:
            self.ends -= 1
            del self.pending[name]
            self.check.settle(name, TokenEvent(name, (1,), (logprob,), FinishReason.LENGTH))

    def hand_over(self, request_id: str, caches: str) -> None:
        if request_id in self.pending:
            self.pending[request_id].caches = caches
            self.check.settle(request_id, self.pending[request_id])

    def abort(self, request_id: str) -> None:
        self.pending.pop(request_id, None)


async def test_a_prompt_that_ended_before_it_was_handed_over_is_tried_again() -> None:
    check = HandOverCheck()
    for ends in (0, 1, TRIES - 1):
        giver, taker = FastWorker(check, ends), FastWorker(check)
        assert await check.loss(giver, taker, (1, 2, 3), Path("check 0.caches")) == pytest.approx(0.0)  # type: ignore[arg-type]
        assert giver.ends == 0 and taker.pending == {}
    with pytest.raises(EngineFailure, match="8 prompts ended before one device could hand them to another"):
        await check.loss(FastWorker(check, TRIES), FastWorker(check), (1, 2, 3), Path("check 0.caches"))  # type: ignore[arg-type]


@pytest.mark.parametrize("gives", [True, False])
async def test_nothing_that_was_handed_over_is_as_far_apart_as_can_be(
    gives: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = HandOverCheck()
    giver, taker = FastWorker(check), FastWorker(check, is_read=not gives)
    if not gives:
        monkeypatch.setattr(giver, "hand_over", lambda name, _: check.settle(name, giver.pending[name]))
    assert await check.loss(giver, taker, (1, 2, 3), Path("check 0.caches")) == math.inf  # type: ignore[arg-type]
