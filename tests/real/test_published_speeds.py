"""The speeds that `tools.simulate` reckons with are those of AI Hub's own package."""

from tests.real.conftest import fetched
from tools.real_models.fetch import RealModels
from tools.simulate.published import DATA
from tools.simulate.wheel import NAME, read_wheel, text_of


def test_the_file_is_what_the_wheel_says(real_models: RealModels) -> None:
    assert DATA.read_text(encoding="utf-8") == text_of(read_wheel(fetched(real_models, NAME)))
