"""`python -m tools.simulate` as a user runs it."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tools.simulate.command import app
from tools.simulate.published import find

SMALL = ["--clients", "1,4", "--requests", "1", "--prompt", "64", "--output", "8"]


def output(*arguments: str) -> str:
    result = CliRunner().invoke(app, [*SMALL, *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_tables_bars_assumptions_and_json(tmp_path: Path) -> None:
    text = output("--json", str(tmp_path / "figures.json"))
    source = "published by AI Hub (qai-hub-models 0.65.0, geniex_qairt)"
    assert f"llama_v3_2_3b_instruct on x-elite ({source}): ar1_cl3969 53.8 ms, ar32_cl4000 68.4 ms" in text
    for title in ("Throughput and latency", "Steps", "as a multiple of serial", "Assumed:"):
        assert title in text
    assert re.search(r"(?m)^ *1\+1 +4 +\d+\.\d ", text)
    assert re.search(r"(?m)^ +4 hexserve [█#]{30,}\S* \d\.\d\dx$", text)
    document = json.loads((tmp_path / "figures.json").read_text())
    assert document["scenario"]["clients"] == [1, 4]
    (device,) = document["devices"]
    assert device["steps"][0] == {"rows": 1, "past": 3968, "milliseconds": pytest.approx(1000 / 18.593)}
    assert [(each["clients"], each["policy"]) for each in device["figures"]] == [
        (clients, policy) for clients in (1, 4) for policy in ("serial", "1+1", "hexserve")
    ]
    assert all(each["tokens"] == 8 * each["clients"] for each in device["figures"])
    serial, _, hexserve = device["figures"][3:]
    assert hexserve["of_serial"] == pytest.approx(hexserve["tokens_per_second"] / serial["tokens_per_second"])
    assert len(document["assumptions"]) == text.count("\n- ")


def test_fused_graphs_beside_the_others(tmp_path: Path) -> None:
    text = output("--slots", "1,4", "--slot-ms", "2.1", "--json", str(tmp_path / "figures.json"))
    (device,) = json.loads((tmp_path / "figures.json").read_text())["devices"]
    by_policy = {each["policy"]: each for each in device["figures"] if each["clients"] == 4}
    assert list(by_policy) == ["serial", "1+1", "fused 1", "fused 4", "hexserve"]
    assert all(each["tokens"] == 32 for each in by_policy.values())
    assert by_policy["fused 4"]["steps"] < by_policy["fused 1"]["steps"] < by_policy["serial"]["steps"]
    assert by_policy["fused 1"]["gap_longest_steps"] <= 4 < by_policy["1+1"]["gap_longest_steps"]
    assert re.search(r"(?m)^ *fused 4 +4 +\d+ +\d+\.\d ", text)
    assert "each cache of a graph beyond the first costs 2.1 ms" in " ".join(text.split())


def test_every_model_of_a_device() -> None:
    text = output("--device", "8-elite", "--model", "all")
    assert re.findall(r"(?m)^(\S+) on 8-elite", text) == [row.model for row in find("all", "8-elite")]


def test_the_same_seed_gives_the_same_figures_and_another_seed_others() -> None:
    first, again, other = (output("--rate", "0.5", "--seed", seed) for seed in ("1", "1", "2"))
    assert first == again != other


def test_a_table_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "costs.json"
    file.write_text('{"times": [[1, 96, 10.0], [64, 96, 20.0]]}')
    text = output("--costs", str(file), "--host-ms", "0", "--clients", "1")
    assert "costs.json (your file): ar1_cl97 10.0 ms, ar64_cl160 20.0 ms" in text
    assert "A step costs what your file says." in text
    # One step of 64 rows, seven of one: 8 tokens in 90 ms.
    assert re.search(r"(?m)^ *serial +1 +88\.9 +1\.00x +0\.02 +0\.02 +0\.01 +0\.01 *$", text)
    assert re.search(r"(?m)^ *hexserve +1 +88\.9 +1\.00x ", text)


def test_one_token_has_no_gaps() -> None:
    assert re.search(r"(?m)^ *serial +1 .* - +- *$", output("--output", "1"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rows", "1"], "--rows must name a variant of 2 rows or more, not only 1"),
        (["--rows", "1,256"], "--rows must be at most 128, the most published, not 256"),
        (["--rows", "1;2"], "--rows must be whole numbers with commas between, not '1;2'"),
        (["--context", "4097"], "--context must be at most 4096, as published, not 4097"),
        (["--context", "128"], "--context must be more than 128, the most rows, not 128"),
        (["--clients", "0"], "--clients must be at least 1 each, not '0'"),
        (["--clients", "1025"], "--clients must be 1 to 1024, not 1025"),
        (["--requests", "0"], "--requests must be 1 to 1000, not 0"),
        (["--prompt", "0"], "--prompt must be 1 to 1048576, not 0"),
        (["--output", "-1"], "--output must be 1 to 1048576, not -1"),
        (["--prompt", "3962"], "--prompt 3962 and --output 8 make 3970 tokens; the variants of llama_v3_2_3b"),
        (["--rate", "nan"], "--rate must be 0 to 1000000, not nan"),
        (["--host-ms", "-1"], "--host-ms must be 0 to 1000000, not -1"),
        (["--max-gap-ms", "0"], "--max-gap-ms must be 1 to 1000000, not 0"),
        (["--reserve-tokens", "-1"], "--reserve-tokens must be 0 to 1048576, not -1"),
        (["--model", "gpt"], "--model must be 'all' or one of falcon_v3_7b_instruct, llama_v3_1_8b"),
        (["--device", "m4"], "--device must be one of x-elite, x2-elite, 8-elite, 8-elite-gen5, not 'm4'"),
        (["--costs", "/nowhere"], "--costs /nowhere cannot be read: No such file or directory"),
        (["--costs", "costs.json", "--rows", "1,2"], "--rows goes without --costs: that file names its own variants"),
        (["--costs", "costs.json", "--kv-bytes", "0"], "--kv-bytes must be 1 to 16777216, not 0"),
        (["--slots", "0"], "--slots must be at least 1 each, not '0'"),
        (["--slots", "128"], "--slots 128 leave no rows for a prompt: the widest variant has 128"),
        (["--slot-ms", "-1"], "--slot-ms must be 0 to 1000000, not -1"),
        (["--lone", "--slots", "1"], "--slots goes without --lone: that compares published rates of one stream"),
        (["--kv-bytes", "9"], "--kv-bytes needs --costs or a model of hub: the others have their own"),
        (["--json", "/nowhere/x"], "--json /nowhere/x cannot be written: No such file or directory"),
    ],
)
def test_a_users_mistake_is_one_sentence(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, [*SMALL, *arguments])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {message}")
    assert result.stderr.count("\n") == 1


def test_the_drawing_of_the_page_is_what_the_command_draws(tmp_path: Path) -> None:
    """`python -m tools.simulate --svg docs/benchmarks/simulated.svg` made it, and makes it again."""
    made = tmp_path / "made.svg"
    result = CliRunner().invoke(app, ["--svg", str(made)])
    assert result.exit_code == 0 and f"Drawn in {made}" in result.output.replace("\n", "")
    assert made.read_text() == (Path(__file__).parents[3] / "docs" / "benchmarks" / "simulated.svg").read_text()


def test_a_drawing_that_cannot_be_written(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [*SMALL, "--svg", str(tmp_path / "no" / "made.svg")])
    assert result.exit_code == 2
    assert "--svg" in result.output and "cannot be written: No such file or directory" in result.output


def test_the_rates_of_the_page_on_fused_graphs_are_what_the_command_gives(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "explanation" / "fused.md").read_text(encoding="utf-8")
    (told,) = re.findall(r"`python -m tools.simulate ([^`]+)`(.+)", page)
    file = tmp_path / "figures.json"
    result = CliRunner().invoke(app, [*told[0].split(), "--json", str(file)])
    assert result.exit_code == 0, result.output
    (device,) = json.loads(file.read_text())["devices"]
    rates = {each["policy"]: f"{each['tokens_per_second']:.1f}" for each in device["figures"]}
    assert [rates[name] for name in ("fused 1", "fused 8", "hexserve")] == re.findall(r"\d+\.\d", told[1])
