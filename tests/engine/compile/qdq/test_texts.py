"""Texts for calibration: conversations through the model's template, where that can be used."""

from pathlib import Path

import pytest

from engine.bundle.manifest import TextSpec
from engine.compile.qdq.samples import CONVERSATIONS
from engine.compile.qdq.texts import calibration_documents
from engine.errors import BundleError
from engine.isolation.helper_pool import HelperLimits
from engine.text import template_pool

TEXT = TextSpec("tokenizer.json", "t", (), eos_token="</s>")
QUESTION, ANSWER = CONVERSATIONS[0]


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
    documents = calibration_documents(tmp_path, None, tmp_path, TEXT)
    assert documents[0] == (first or f"user: {QUESTION}</s>assistant: {ANSWER}</s>")
    assert len(documents) > len(CONVERSATIONS)


def test_a_broken_template_is_said(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("{% if %}")
    with pytest.raises(BundleError, match="cannot be compiled"):
        calibration_documents(tmp_path, None, tmp_path, TEXT)
