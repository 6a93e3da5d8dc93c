"""How the measurement ends."""

import pytest

from tools.speech import __main__ as speech
from tools.speech.report import Listener, table

OTHER = Listener(10, [10.0], [20.0])


@pytest.mark.parametrize(
    ("own", "status"),
    [
        (Listener(10, [9.0], [10.0]), 0),
        (Listener(11, [9.0], [10.0]), 1),
        (Listener(10, [11.0], [10.0]), 1),
        (Listener(10, [9.0], [15.0]), 1),
    ],
)
def test_a_missed_bar_ends_with_1(
    own: Listener, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written = table(own, OTHER, 100, 50.0, 100.0)
    monkeypatch.setattr(speech, "measured", lambda options: written)
    monkeypatch.setattr("sys.argv", ["speech"])
    assert speech.main() == status
    assert capsys.readouterr().out == f"{written}\n"
