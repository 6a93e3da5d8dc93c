"""Texts for calibration: conversations through the model's template, where that can be used."""

from itertools import islice
from pathlib import Path

import pytest

from engine.bundle.manifest import TextSpec
from engine.compile.calibration.documents import calibration_documents, samples
from engine.demo.location import demo_folder
from engine.errors import BundleError
from engine.isolation.helper_pool import HelperLimits
from engine.text import template_pool

TEXT = TextSpec("tokenizer.json", "t", (), eos_token="</s>")
DOCUMENTS = [each for each in samples() if isinstance(each, str)]
CHATS = [each for each in samples() if not isinstance(each, str)]
QUESTION, ANSWER = (str(message["content"]) for message in CHATS[0].messages)


@pytest.mark.parametrize(
    ("template", "first"),
    [
        ("{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}", None),
        ("{{ raise_exception('no') }}", f"{QUESTION}\n{ANSWER}"),
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", f"{QUESTION}\n{ANSWER}"),
    ],
    ids=["rendered", "refused", "endless"],
)
def test_conversations_are_rendered_or_plain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str, first: str | None
) -> None:
    monkeypatch.setattr(template_pool, "LIMITS", HelperLimits(0.5))
    (tmp_path / "t").write_text(template)
    documents = list(islice(calibration_documents(tmp_path, None, tmp_path, TEXT), 100))
    assert documents[0] == (first or f"user: {QUESTION}</s>assistant: {ANSWER}</s>")
    assert documents[len(CHATS) : len(CHATS) + len(DOCUMENTS)] == DOCUMENTS
    asked = [each for each in documents if "in Python?" in each]  # of the standard library
    assert len(asked) > 10
    assert all(("user: " in each) == (first is None) for each in asked)
    assert len(documents) == len(set(documents)) == 100


def test_a_broken_template_is_said(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("{% if %}")
    with pytest.raises(BundleError, match="cannot be compiled"):
        next(iter(calibration_documents(tmp_path, None, tmp_path, TEXT)))


def test_shipped_models_are_calibrated_on_their_own_corpus(tmp_path: Path) -> None:
    first, again = (list(islice(calibration_documents(demo_folder(), None, tmp_path, TEXT), 50)) for _ in range(2))
    assert first == again  # they can be read twice
    assert any("<|im_start|>" in each for each in first)
