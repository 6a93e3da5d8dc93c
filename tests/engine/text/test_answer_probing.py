"""Probing a chat template: in bounded time, and for bundles that were compiled before answers were described."""

from pathlib import Path

import msgspec

from engine.bundle.answer_format import AnswerFormat
from engine.bundle.manifest import load_manifest, save_manifest
from engine.text.answer_finding import load_described, probed_answer
from tests.call_formats import CODER
from tests.clients.scripted_bundle import write_bundle


def test_a_template_that_never_ends_is_given_up() -> None:
    endless = "{% for i in range(99999999) %}{% for j in range(99999999) %}{% endfor %}{% endfor %}"
    assert probed_answer(endless, None, None) == AnswerFormat()


def test_a_template_that_cannot_be_compiled_says_nothing() -> None:
    assert probed_answer("{% if %}", None, None) == AnswerFormat()
    assert probed_answer(None, None, None) is None


def test_a_bundle_of_an_earlier_version_is_described_when_it_is_loaded(tmp_path: Path) -> None:
    write_bundle(tmp_path, "coder")
    whole = load_manifest(tmp_path)
    assert whole.text.writes.calls == CODER
    save_manifest(tmp_path, msgspec.structs.replace(whole, text=msgspec.structs.replace(whole.text, answer=None)))
    assert load_manifest(tmp_path).text.answer is None
    assert load_described(tmp_path) == whole
