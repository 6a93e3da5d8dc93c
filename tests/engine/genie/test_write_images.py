"""What is written of images for Genie is what the reader understands."""

import pytest

from engine.bundle.model_spec import RopeSpec
from engine.errors import BundleError
from engine.genie.config import Fields, GenieConfig
from engine.genie.extras import genie_rope
from engine.genie.write import by_axis
from engine.models.config_fields import ConfigFields
from engine.models.rotary import RopeReading, read_rope


def config(scaling: dict[str, object]) -> GenieConfig:
    position = Fields({"type": "rope", "rope-dim": 64, "rope-theta": 5e6, "rope-scaling": scaling}, "x")
    return GenieConfig((), 512, 384, None, (2,), "tokenizer.json", (), position, 0.0)


@pytest.mark.parametrize(("sections", "is_woven"), [((24, 20, 20), True), ((16, 24, 24), False)])
def test_rotation_by_rows_and_columns(sections: tuple[int, ...], is_woven: bool) -> None:
    """Of Qwen3-VL and Qwen2.5-VL."""
    reading = RopeReading(128, 512, 512, theta=5e6, sections=sections, is_woven=is_woven)
    rope = read_rope(ConfigFields({}), reading)
    scaling = by_axis(rope, 2)
    assert scaling["mrope-section"] == list(sections)
    assert scaling["rope-type"] == ("qwen3vl-mrope" if is_woven else "qwen2vl-mrope")
    found: RopeSpec = genie_rope(config(scaling), Fields({}, "y"), 128, 512)
    assert found.axes == rope.axes
    assert found.inverse_frequencies == rope.inverse_frequencies


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ({"rope-type": "qwen3vl-mrope", "mrope-section": [24, 20]}, "mrope-section must be three numbers"),
        ({"rope-type": "qwen3vl-mrope", "mrope-section": [24, 20, 21]}, "mrope_section must add up to 64"),
        ({"rope-type": "llama3", "mrope-section": [24, 20, 20]}, "mrope-section must be three numbers, of qwen2vl"),
    ],
)
def test_sections_that_do_not_fit(scaling: dict[str, object], message: str) -> None:
    with pytest.raises(BundleError, match=message):
        genie_rope(config(scaling), Fields({}, "y"), 128, 512)
