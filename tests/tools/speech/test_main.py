"""How the measurement ends."""

import pytest

from engine.compile.check.parity import Interval
from tools.speech import __main__ as speech
from tools.speech.report import Listener, Sound, table

OTHER = Listener({"programs": [10]}, [10.0], [20.0])


@pytest.mark.parametrize(
    ("own", "status"),
    [
        (Listener({"programs": [10]}, [9.0], [10.0]), 0),
        (Listener({"programs": [11]}, [9.0], [10.0]), 1),
        (Listener({"programs": [10]}, [11.0], [10.0]), 1),
        (Listener({"programs": [10]}, [9.0], [15.0]), 1),
    ],
)
def test_a_missed_bar_ends_with_1(
    own: Listener, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written = table(own, OTHER, OTHER, Sound({"programs": [100]}, 50.0, 100.0), {"int8": Interval(0.1, 0.1, 0.1)})
    monkeypatch.setattr(speech, "measured", lambda options: written)
    monkeypatch.setattr("sys.argv", ["speech"])
    assert speech.main() == status
    assert capsys.readouterr().out == f"{written}\n"
