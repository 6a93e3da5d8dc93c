"""No row loses more than by rounding to nearest; codes have the form that is stored."""

from pathlib import Path

import numpy as np
import pytest

from engine.compile.arguments import CompileArguments, Quant
from engine.compile.quantisation.choose.form import (
    CodeForm,
    SharedInputs,
    Streams,
    choose_codes,
    compensated_codes,
    nearest,
)
from engine.compile.quantisation.methods.integer_blocks import int4_blocks
from engine.compile.quantisation.methods.table import METHODS
from engine.compile.quantisation.rounding import codes as rounding
from engine.compile.quantisation.rounding.codes import DAMPING, Coding, output_errors
from engine.compile.quantisation.rounding.gptq import has_multiples, searched_multiples, units_of

TOKENS = 4000
FORMS = {
    "int4": CodeForm(32, Coding.SYMMETRIC),
    "asymmetric": CodeForm(32, Coding.ASYMMETRIC),
    "blocks of 128": CodeForm(128, Coding.SYMMETRIC),
    "w4": CodeForm(32, Coding.SYMMETRIC, in_half=True),
    "w4a16": CodeForm(32, Coding.POSITIVE, has_multiples=True),
}


def random_case(seed: int, block: int = 32) -> tuple[np.ndarray, SharedInputs]:
    """A matrix [24, 256], and inputs that are correlated and of different sizes."""
    inputs = SharedInputs.measured(random_inputs(seed, TOKENS), block)
    return np.random.default_rng(seed + 100).standard_normal((24, 256)).astype(np.float32), inputs


def random_inputs(seed: int, tokens: int) -> Streams:
    """The last tokens of one text [tokens, 256]."""
    random = np.random.default_rng(seed)
    loadings, sizes = random.standard_normal((8, 256)), random.gamma(1.0, size=256)
    mixed, own = random.standard_normal((TOKENS, 8)) @ loadings, random.standard_normal((TOKENS, 256))
    x = ((mixed + own) * sizes).astype(np.float32)[-tokens:]
    return Streams([x], [x])


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_no_row_loses_more_than_by_rounding_to_nearest(form: CodeForm) -> None:
    weight, inputs = random_case(3, form.block)
    codes, error = choose_codes(weight, inputs, form)
    before, after = (output_errors(weight, each.floats(), inputs.hessian) for each in (nearest(weight, form), codes))
    assert (after <= before * (1 + 1e-6)).all()
    np.testing.assert_allclose([error.nearest, error.chosen], [before.sum(), after.sum()], rtol=1e-5)
    assert codes.grid.block == form.block
    assert (codes.grid.zeros is not None) == (form.coding is Coding.ASYMMETRIC)


@pytest.mark.parametrize("form", [form for form in FORMS.values() if form.block == 32])
def test_correlated_inputs_let_codes_gain_much(form: CodeForm) -> None:
    _, error = choose_codes(*random_case(4), form)
    assert error.chosen < 0.5 * error.nearest


def test_codes_of_few_tokens_lose_less_of_others_by_their_damping(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, others = random_case(8)
    few = random_inputs(8, 200)
    expected = choose_codes(weight, SharedInputs.measured(few, 32), FORMS["int4"])[0]
    monkeypatch.setattr(rounding, "damping_of", lambda inputs, tokens: DAMPING)
    plain = choose_codes(weight, SharedInputs.measured(few, 32), FORMS["int4"])[0]
    found, before = (output_errors(weight, codes.floats(), others.hessian).sum() for codes in (expected, plain))
    assert found < 0.96 * before


def test_units_are_searched_with_the_importance_of_their_own_inputs() -> None:
    weight, inputs = random_case(9)
    importance = np.diagonal(inputs.curvature.hessian)
    assert np.array_equal(inputs.factor.of_inputs(), inputs.factor.importance[np.argsort(inputs.factor.order)])
    wanted = units_of(searched_multiples(weight, 32, importance).scales)
    found = units_of(compensated_codes(weight, inputs.factor, FORMS["w4a16"]).grid.scales)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_scales_have_the_form_that_is_stored() -> None:
    weight, inputs = random_case(5)
    codes = {name: choose_codes(weight, inputs, form)[0] for name, form in FORMS.items() if form.block == 32}
    assert has_multiples(codes["w4a16"].grid.scales)
    halves = codes["w4"].grid.scales
    assert np.array_equal(halves.astype(np.float16).astype(np.float32), halves)
    assert not np.array_equal(codes["int4"].grid.scales.astype(np.float16), codes["int4"].grid.scales)


@pytest.mark.parametrize("block", [32, 128])
@pytest.mark.parametrize("asymmetric", [True, False])
def test_nearest_is_what_int4_stores(block: int, asymmetric: bool) -> None:
    weight = np.random.default_rng(1).standard_normal((6, 256)).astype(np.float32)
    codes = nearest(weight, CodeForm(block, Coding.ASYMMETRIC if asymmetric else Coding.SYMMETRIC)).blocks()
    expected = int4_blocks(weight, block, asymmetric)
    assert np.array_equal(codes.codes, expected.codes)
    assert np.array_equal(codes.scales, expected.scales)


@pytest.mark.parametrize(
    ("quant", "block", "asymmetric"), [("int4", 128, True), ("w4", 32, False), ("w4a16", 32, False)]
)
def test_forms_of_methods(quant: str, block: int, asymmetric: bool) -> None:
    arguments = CompileArguments(Path("a"), Path("b"), block=block, asymmetric=asymmetric)
    form = CodeForm.of(METHODS[Quant(quant)], arguments)
    assert form is not None
    assert (form.block, form.coding is Coding.ASYMMETRIC) == (block, asymmetric)
    assert (form.has_multiples, form.in_half) == (quant == "w4a16", quant == "w4")


@pytest.mark.parametrize("quant", ["fp32", "int8", "keep", "fp16"])
def test_other_methods_have_nothing_to_choose(quant: str) -> None:
    assert CodeForm.of(METHODS[Quant(quant)], CompileArguments(Path("a"), Path("b"))) is None
