"""Numbers in the prose of the pages and of the experiments are those of tables and records."""

from __future__ import annotations

import json
import math
import re
import tarfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import instrument
import pytest
import typer

from ablate import api, config
from ablate.cli.app import app
from ablate.config import Negligible
from ablate.config.experiment import (
    Average,
    DecoderDifference,
    Layers,
    ModelSpec,
    TrainingSpec,
)
from ablate.gate.check import KINDS
from ablate.gate.mean import MeanBlessing, MeanCheck
from ablate.gate.reference import read
from ablate.gate.tolerance import smallest_effect
from ablate.parts.dims import Dims, Dropout
from ablate.report.layout import FALSE_IF_ADDED
from ablate.report.values import MINUS, NOTHING, signed
from tests.test_readme import PAGES, README, ROOT, committed, tables

TEXT = " ".join(f"{README} {PAGES['experiments']}".split())
ROUNDED_UP = 0.1
"""How far a round number may lie from what it stands for, as a share."""


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def records(archive: str) -> list[dict[str, Any]]:
    """Return the records that an archive below ``results`` holds."""
    actual = []
    with tarfile.open(ROOT / "results" / archive) as file:
        for member in file:
            if member.name.endswith("/record.json"):
                content = file.extractfile(member)
                assert content is not None
                actual.append(json.load(content))
    return actual


def cells(results: str) -> dict[str, dict[str, str]]:
    """Return the rows of a table below ``results`` by their names, without marks."""
    rows = tables(committed(f"results/{results}/table.md"))[""]
    return {
        row[""].strip("*"): {key: cell.rstrip("†‡§") for key, cell in row.items()} for row in rows
    }


@pytest.mark.parametrize(
    ("experiment", "archive", "words", "n_passes"),
    [
        ("presets/laptop", "pe", "sees every sentence about three times", 3),
        ("multi30k/laptop", "multi30k/laptop_pe", "six passes over the text", 6),
        ("science/f12_dropout", "registered/small_corpus", "seen some thirty times", 30),
        ("reference/multi30k_en_de", "reference/multi30k_en_de", "75 epochs of 128 batches", 75),
    ],
)
def test_a_text_is_read_as_often_as_its_experiment_says(
    experiment: str, archive: str, words: str, n_passes: int
) -> None:
    text = (ROOT / "experiments" / f"{experiment}.yaml").read_text(encoding="utf-8")
    assert words in " ".join(text.replace("#", "").split())
    for record in records(f"{archive}/runs.tar.xz"):
        train = record["train"]
        actual = train["steps"] / train["batches_per_epoch"]
        assert actual == pytest.approx(n_passes, rel=ROUNDED_UP), record["hash"]


def test_verdicts_of_the_atlas_are_counted() -> None:
    counts = [
        Counter(row["verdict ±1 BLEU"].rstrip("°") for row in cells(name).values())
        for name in ("atlas", "atlas_tuned", "multi30k/atlas")
    ]
    whole, tuned, real = ([each[v] for v in ("better", "worse", "cannot tell")] for each in counts)
    better, worse, unknown = whole
    same = counts[0]["same as the baseline"]
    said = f"{better} are better than the baseline, {worse} worse, {same} compute the same, and "
    said += f"{unknown} cannot be told"
    assert said in TEXT
    assert tuned[0] == 4  # which are named
    assert f"of {sum(tuned)}, Muon, SOAP, cautious AdamW and the schedule WSD are better" in TEXT
    assert f"{tuned[1]} worse, {tuned[2]} cannot be told" in TEXT
    assert real[0] == 0
    assert f"none is better, {real[1]} are worse, and {real[2]} cannot be told" in TEXT
    asked = Counter(
        row["verdict ±1 BLEU"].rstrip("°") for row in cells("multi30k/atlas_fr").values()
    )
    assert asked["better"] == 0
    assert (
        f"`multi30k/atlas_fr` asks those {real[1]} and ten others in French, with as many seeds: "
        f"none is better, {asked['worse']} are worse, and {asked['cannot tell']} cannot be told"
    ) in TEXT


def test_deep_models_learn_at_the_rate_that_the_page_on_claims_names() -> None:
    usual, other = (
        config.load(ROOT / "experiments" / "registered" / f"{name}.yaml").rows[0].spec.training
        for name in ("depth", "depth_rate")
    )
    assert usual.schedule.options["lr"] == 5 * other.schedule.options["lr"]
    assert "at a fifth of it they do" in page("claims.md")
    rows = cells("registered/depth_rate")
    verdicts = [rows[name]["verdict ±1 BLEU"] for name in ("admin", "b2t")]
    assert verdicts == ["cannot tell", "cannot tell"]  # beside Pre-LN


def test_further_studies_of_multi30k_cost_what_their_tables_say() -> None:
    costs = {
        (study, row): of["ΔBLEU test2016"].lstrip(MINUS)
        for study in ("norm", "heads", "scaling")
        for row, of in cells(f"multi30k/laptop_{study}").items()
    }
    assert f"the last norm costs {costs['norm', 'dropout last']} BLEU" in TEXT
    one, sixteen = costs["heads", "1 head"], costs["heads", "16 heads"]
    assert f"where one costs {one} and sixteen cost {sixteen}" in TEXT
    wide, narrow = (costs["scaling", f"scaling=none n_heads={n}"] for n in (4, 16))
    assert f"costs {wide} with keys of 32 dimensions and {narrow} with keys of 8" in TEXT


@pytest.mark.parametrize(
    ("archive", "words"),
    [
        ("runs", "and `none` have {:.2f} and {:.2f} BLEU on this kind"),
        ("runs_avx2", "{:.2f} and {:.2f} with AVX2"),
        ("runs_intel", "{:.2f} and {:.2f} on an Intel Xeon with AVX-512"),
    ],
)
def test_other_cpus_give_the_numbers_of_their_records(archive: str, words: str) -> None:
    bleu: dict[str, list[float]] = {}
    for record in records(f"pe_500/{archive}.tar.xz"):
        bleu.setdefault(record["variant"], []).append(record["test"]["test"]["bleu"])
    assert words.format(mean(bleu["baseline"]), mean(bleu["none"])) in TEXT


def test_the_first_command_trains_as_many_models_as_is_said() -> None:
    seeds = Counter(record["variant"] for record in records("pe/runs.tar.xz"))
    assert f"trains {seeds.total()} small Transformers" in TEXT
    assert f"with `--seeds 1,2,3`, which is {3 * len(seeds)} of them" in TEXT


def test_the_length_of_the_atlas_on_real_text_is_that_of_its_pilots() -> None:
    text = (ROOT / "experiments" / "multi30k" / "atlas.yaml").read_text(encoding="utf-8")
    comment = " ".join(text.partition("extends")[0].replace("#", "").split())
    found = {}
    for record in records("multi30k/atlas/pilots.tar.xz"):
        chosen = record["spec"]["training"]
        key = chosen["steps"], chosen["batch_tokens"], chosen["precision"]
        found[key] = f"{record['test']['test2016']['bleu']:.1f}"
    assert f"to {found[2000, 1536, 'fp32']} BLEU on test2016 after 2,000 steps of 1,536" in comment
    assert f"and to {found[4000, 768, 'fp32']} after 4,000 of 768" in comment
    assert f"gives {found[4000, 1536, 'fp32']} (4,000 of 1,536)" in comment
    assert f"and {found[8000, 768, 'fp32']} (8,000 of 768)" in comment
    assert f"the third has {found[4000, 1536, 'bf16']}." in comment


def test_the_column_of_real_text_in_the_atlas_is_that_of_its_records() -> None:
    bleu: dict[str, dict[int, float]] = defaultdict(dict)
    for record in records("multi30k/atlas/runs.tar.xz"):
        bleu[record["variant"]][record["seed"]] = record["test"]["test2016"]["bleu"]
    lines = [line.split(" | ") for line in page("atlas.md").splitlines() if line.startswith("| [")]
    shown = {line[0][3 : line[0].index("]")]: line[5].partition("<br>")[0] for line in lines}
    baseline = bleu.pop("baseline")
    assert {row: text for row, text in shown.items() if text} == {
        row: signed(mean([of_row[seed] - baseline[seed] for seed in of_row]), 1)
        for row, of_row in bleu.items()
    }


@pytest.mark.parametrize(
    ("reference", "measure", "title", "promise"),
    [
        (
            "multi30k_en_de",
            "bleu_lc_tok",
            "lower-cased BLEU of Moses tokens",
            "catch a loss of {} BLEU, of three seeds {}; of dev loss, {} nats are",
        ),
        (
            "multi30k_en_de_cased",
            "bleu",
            "cased BLEU",
            "catch a loss of {0} BLEU or {2} nats",
        ),
        (
            "multi30k_en_fr",
            "bleu_lc_tok",
            "lower-cased BLEU of Moses tokens, into French",
            "catch a loss of {} BLEU, of three seeds {}; of dev loss, {} nats:",
        ),
    ],
)
def test_a_reference_of_multi30k_is_that_of_its_records(
    reference: str, measure: str, title: str, promise: str
) -> None:
    """With the checks that a further one is to have; the README has the BLEU of the first."""
    of_seed = {run["seed"]: run for run in records(f"reference/{reference}/runs.tar.xz")}
    runs = [of_seed[seed] for seed in sorted(of_seed)]
    (row,) = (row for row in tables(page("gate.md"))[title] if "this reference" in row.values())
    bleu = {t: [run["test"][t][measure] for run in runs] for t in ("test2016", "test2017")}
    for name, values in bleu.items():
        assert row[name] == f"{mean(values):.2f} ± {stdev(values):.2f}"
    first = bleu["test2016"]
    assert row["seeds"] == ", ".join(f"{value:.2f}" for value in first)
    if reference == "multi30k_en_de":
        of_first = f"comes to {mean(first):.1f} ± {stdev(first):.1f} lower-cased BLEU of tokens"
        assert f"{of_first} on test2016 over ten seeds" in TEXT

    actual = read(ROOT / "results" / "reference" / f"{reference}.yaml").reference
    model = read(ROOT / "docs" / "multi30k.checks.yaml").reference
    assert actual.alpha == model.alpha == 0.05
    assert actual.checks.keys() == model.checks.keys()
    of_measure = {"dev nll": [run["dev"]["nll"] for run in runs]}
    of_measure["both tests"] = [mean(pair) for pair in zip(*bleu.values(), strict=True)]
    losses = {}
    for name, values in of_measure.items():
        terms = {**model.checks[name].terms(model.alpha)}
        terms["measure"] = str(terms["measure"]).replace("bleu_lc_tok", measure)
        if (reference, name) == ("multi30k_en_fr", "both tests"):
            terms["min_effect"] = 3.5
        check = actual.checks[name]
        assert {**check.terms(model.alpha)} == terms
        assert isinstance(check, MeanCheck)
        assert isinstance(check.blessed, MeanBlessing)
        assert check.blessed.values == pytest.approx(values)
        for n_new in (1, 3):
            asked = check.promise(model.alpha / len(of_measure), n_new)
            losses[name, n_new] = smallest_effect(stdev(values), len(values), asked)
    of_bleu = (f"{losses['both tests', n_new]:.1f}" for n_new in (1, 3))
    said = promise.format(*of_bleu, f"{losses['dev nll', 1]:.2f}")
    assert said in " ".join(page("gate.md").split())


def percent(share: float, n_decimals: int) -> str:
    return f"{100 * share:.{n_decimals}f}%"


def lines(name: str) -> set[tuple[str, ...]]:
    """Return the rows of all tables of a page."""
    found = re.findall(r"^\|(.*)\|$", page(name), re.MULTILINE)
    return {tuple(cell.strip() for cell in line.split("|")) for line in found}


def test_the_rates_of_wrong_tables_are_those_that_were_simulated() -> None:
    file = ROOT / "results" / "benchmarks" / "table_errors.json"
    simulated, written = json.loads(file.read_text(encoding="utf-8")), lines("statistics.md")
    for each in simulated["false_differences"]:
        of, paired, n = each["setting"], each["wrong_paired"], each["n_simulations"]
        rates = percent(each["wrong"], 2), percent(each["wrong_error"], 2)
        others = percent(paired, 1), percent(math.sqrt(paired * (1 - paired) / n), 1)
        assert (of["name"], str(of["variants"]), str(of["seeds"]), *rates, *others) in written
    for each in simulated["power"]:
        names = "power", "power_error", "holm", "holm_error"
        rates_of_both = (percent(each[key], 1) for key in names)
        assert ("", str(each["variants"]), str(each["seeds"]), *rates_of_both) in written
    added = simulated["added_seeds"]
    assert max(round(each["wrong"], 2) for each in added) == FALSE_IF_ADDED
    for each in added:
        rates = percent(each["wrong"], 2), percent(each["wrong_error"], 2)
        assert (str(each["variants"]), *rates) in written


def test_intervals_for_new_sentences_hold_as_often_as_was_simulated() -> None:
    record = json.loads(committed("results/benchmarks/sentence_errors.json"))
    written = lines("statistics.md")
    for each in record["rates"]:
        label = f"all seeds share {each['shared']:.1f} BLEU"
        rates = percent(each["held"], 2), percent(each["error"], 2)
        assert (label, str(each["seeds"]), *rates) in written
        assert each["held"] > 0.95 - 3 * each["error"]


def test_the_rates_of_wrong_gates_are_those_that_were_simulated() -> None:
    file = ROOT / "results" / "benchmarks" / "gate_errors.json"
    written = lines("gate.md")
    for each in json.loads(file.read_text(encoding="utf-8"))["rates"]:
        of = each["setting"]
        shape = of["shape"].partition(" (")[0] + (", further off" if of["further"] > 1 else "")
        blessed = (percent(each[key][0], 1) for key in ("blessed_at_once", "blessed"))
        rates = (
            " ± ".join(percent(rate, 2) for rate in each[key]) for key in ("false_alarms", "power")
        )
        setting = f"`{of['kind']}`", shape, f"{of['std']:g}", str(of["n_checks"])
        assert (*setting, *blessed, f"{each['seeds']:.1f}", *rates) in written


@pytest.mark.parametrize("path", sorted((ROOT / "experiments" / "science").glob("*.yaml")), ids=str)
def test_a_finding_has_the_words_of_its_experiment(path: Path) -> None:
    comment = takewhile(lambda line: line.startswith("#"), path.read_text("utf-8").splitlines())
    literature = " ".join(line.removeprefix("#").strip() for line in comment)
    assert f"\n\n{literature}\n\n" in page("findings.md"), "copy the comment to the page"


FILES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "CHANGELOG.md")


def commands(path: Path) -> Iterator[list[str]]:
    """Yield the words of every command of ours that stands in a page, in a line or in a block."""
    text = re.sub(r"\\\n\s*", "", path.read_text(encoding="utf-8"))
    inline = re.findall(r"`(ablate\s[^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))
    blocks = re.findall(r"^```bash\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [part for block in blocks for line in block.splitlines() for part in line.split("&&")]
    for each in (*inline, *lines):
        words = each.split("#")[0].partition("|")[0].split()
        if words and words[0].rpartition("/")[2] == "ablate":
            yield words[1:]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_command_and_option_of_a_page_is_there(path: Path) -> None:
    root = typer.main.get_command(app)
    for words in commands(path):
        command = root
        while isinstance(command, typer.core.TyperGroup) and words and words[0][0] != "-":
            assert words[0] in command.commands, words
            command = command.commands[words.pop(0)]
        known = {option for each in command.params for option in each.opts} | {"--help"}
        if command.name == "ablate":
            known |= {"--install-completion"}
        for word in words:
            option = word.partition("=")[0].rstrip(",.;:)]")
            assert not option.startswith("--") or option in known, (command.name, option)


def samples(name: str, language: str) -> list[str]:
    """Return the blocks of a page in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page(name), re.MULTILINE | re.DOTALL)


def test_the_checks_of_the_page_on_the_gate_are_a_reference(tmp_path: Path) -> None:
    (sample,) = (each for each in samples("gate.md", "yaml") if "checks:" in each)
    (tmp_path / "x.yaml").write_text(sample, encoding="utf-8")
    checks = read(tmp_path / "x.yaml").reference.checks
    assert {check.kind for check in checks.values()} == set(KINDS)


def test_the_page_on_experiments_has_every_key_of_a_file_with_its_default(tmp_path: Path) -> None:
    text = page("experiments.md").partition("<!-- language -->")[2]
    block = text.partition("```yaml\n")[2].partition("```")[0]
    (tmp_path / "x.yaml").write_text(block, encoding="utf-8")
    (tmp_path / "nothing.yaml").write_text("seeds: [1, 2, 3]", encoding="utf-8")
    assert config.load(tmp_path / "x.yaml").rows == config.load(tmp_path / "nothing.yaml").rows
    models = ModelSpec, DecoderDifference, Layers, Dims, Dropout, TrainingSpec, Average
    keys = {key for model in models for key in model.model_fields}
    assert keys <= set(re.findall(r"\w+", block))
    others = {key for row in tables(text)["key"] for key in re.findall(r"\w+", row["key"])}
    assert (
        others | set(re.findall(r"^\w+", block, re.MULTILINE)) == api.schema()["properties"].keys()
    )


def test_the_keys_of_the_page_on_statistics_are_those_of_an_experiment(tmp_path: Path) -> None:
    text = "extends: ablate:presets/laptop\nvariants: {deep: {model.n_layers: 3}}\n"
    blocks = samples("statistics.md", "yaml")
    assert len(blocks) == 3
    for block in blocks:
        (tmp_path / "x.yaml").write_text(text + block, encoding="utf-8")
        assert config.load(tmp_path / "x.yaml").negligible == Negligible()


def test_rates_over_contexts_are_those_simulated() -> None:
    text = page("statistics.md").partition("<!-- contexts -->")[2].partition("<!-- end of")[0]
    record = json.loads(committed("results/benchmarks/contexts.json"))

    def span(lines: list[dict[str, Any]], key: str) -> str:
        values = [line[key] for line in lines]
        return f"{min(values):.1%} to {max(values):.1%}" if None not in values else NOTHING

    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in text.strip().splitlines()]
    for n, row in zip(range(2, 7), rows[2:], strict=True):
        every = [line for line in record["lines"] if line["contexts"] == n]
        apart = [[line for line in every if line["unequal"] is kind] for kind in (False, True)]
        means = [span(lines, "mean") for lines in apart]
        assert row == [str(n), *means, span(every, "prediction"), span(every, "trend")]
        assert min(line["mean"] for line in every) > 0.945 - 3 * every[0]["error"]


def test_recipes_and_their_errors_are_those_measured() -> None:
    recipes = json.loads(committed("results/benchmarks/instrument.json"))["recipes"]
    text = page("statistics.md").partition("<!-- recipes -->")[2].partition("<!-- end of")[0]
    rows = [row.strip("|").split("|") for row in text.strip().splitlines()[2:]]
    stated = [tuple(cell.strip() for cell in row) for row in rows]
    assert stated == instrument.lines(recipes)
    preset = config.load(ROOT / "experiments" / "presets" / "laptop.yaml").rows[0].spec.training
    best = min(stated, key=lambda row: int(row[5]))[0]
    assert best == f"{preset.batch_tokens} x {preset.steps}, lr 3e-3"
    assert preset.schedule.options["lr"] == 3e-3


def test_what_width_changes_is_in_its_table() -> None:
    of_rows = cells("width")
    text = " ".join(page("experiments.md").split())
    rotary, unscaled = of_rows["rotary"], of_rows["unscaled"]
    trend = "trend per doubling"
    assert f"grows by {rotary[trend].strip('+')} BLEU with each doubling" in text
    first, last = (rotary[f"{name} ΔBLEU"] for name in ("narrow", "wide"))
    assert first.endswith("?")
    assert f"from {first.strip('?')}, which three seeds cannot tell" in text
    assert f"to {last.strip('↑')};" in text
    assert f"loses {unscaled[trend].strip(MINUS)} more" in text


def test_each_gate_notices_every_sabotage() -> None:
    for file in ("sabotage", "sabotage_multi30k"):
        record = json.loads(committed(f"results/benchmarks/{file}.json"))
        nothing, *others = record["sabotages"]
        assert (nothing["exit_status"], nothing["failed"]) == (0, [])
        assert all(each["exit_status"] == 1 and each["failed"] for each in others)
        assert len(others) == 9
    assert "notices all nine" in page("gate.md")
