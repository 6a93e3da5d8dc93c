"""What llama-perplexity prints is read whole or refused by name; what is stored is found by name."""

import pytest

from tools.llama_cpp.figures import FirstWindows, LlamaFigures, PrintedMean, fidelity_in

PLACE = ("smollm2", "Q4_0", "own")
PRINTED = """
chunk        PPL            ln(PPL(Q)/PPL(base))       KL Divergence           Δp RMS            Same top p
   1   12.5000 ± 1.2500    0.00100 ± 0.00050    0.00300 ± 0.00020     1.500 ±  0.100 %    95.000 ±  1.000 %
   2   13.5000 ± 0.2500   -0.00100 ± 0.00050    0.00310 ± 0.00010     1.500 ±  0.100 %    96.500 ±  0.300 %

====== Perplexity statistics ======
Mean PPL(Q)                   :  13.250000 ±   0.200000
Mean PPL(base)                :  13.125000 ±   0.190000
Cor(ln(PPL(Q)), ln(PPL(base))):  99.90%
Mean ln(PPL(Q)/PPL(base))     :   0.009479 ±   0.000700
Mean PPL(Q)/PPL(base)         :   1.009524 ±   0.000710

====== KL divergence statistics ======
Mean    KLD:   0.003050 ±   0.000080
Maximum KLD:   0.250000

====== Token probability statistics ======
Mean    Δp: -0.012 ± 0.030 %
Same top p: 96.250 ± 0.210 %
"""


def test_every_figure_is_read_with_its_error() -> None:
    found = fidelity_in(PRINTED, PLACE, 2)
    assert (found.model, found.kind, found.floats) == PLACE
    assert found.kl == PrintedMean(0.00305, 0.00008) and found.same_top == PrintedMean(0.9625, 0.0021)
    assert found.perplexity.mean == 13.25 and found.float_perplexity.mean == 13.125
    assert found.ratio == PrintedMean(1.009524, 0.00071)
    assert found.beginning == FirstWindows(2, PrintedMean(0.0031, 0.0001), PrintedMean(0.965, 0.003))


@pytest.mark.parametrize(
    ("lost", "name"), [("Mean    KLD", "kl"), ("Same top p:", "same_top"), ("Mean PPL(Q) ", "perplexity")]
)
def test_output_without_a_figure_is_refused(lost: str, name: str) -> None:
    with pytest.raises(ValueError, match=rf"printed no {name}$"):
        fidelity_in(PRINTED.replace(lost, "?"), PLACE, 2)


def test_output_without_the_row_on_the_way_is_refused() -> None:
    with pytest.raises(ValueError, match="printed no row of 8 windows"):
        fidelity_in(PRINTED, PLACE, 8)


def test_stored_figures_are_found_by_name() -> None:
    one = fidelity_in(PRINTED, PLACE, 2)
    figures = LlamaFigures("llama-cpp-python 0", {}, "", 512, 16, 255, {}, (one,))
    assert figures.of("smollm2", "Q4_0") is one
    with pytest.raises(KeyError, match="Q4_0 of smollm2 beside the published floats"):
        figures.of("smollm2", "Q4_0", "published")
