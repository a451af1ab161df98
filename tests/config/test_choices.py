"""The sections ``match`` and ``tune``, and the candidates that they make."""

from __future__ import annotations

from pathlib import Path

import pytest

from ablate import config
from ablate.config import tuning_of, with_match, with_tuning
from tests.config.loading import load

ROWS = "variants: {rms: {model.norm: rms}, pre: {model.residual: pre}}\n"
MATCH = "match: {on: params, via: model.feed_forward.d_ff, tolerance: 2%}\n"
TUNE = "tune: {training.schedule.warmup: [10, 20], model.dropout.embedding: [0.0, 0.1]}\n"


def test_a_tolerance_is_a_share_or_a_percentage(tmp_path: Path) -> None:
    for text, share in (("2%", 0.02), ("0.05", 0.05), ("'0.5 %'", 0.005)):
        match = load(tmp_path, ROWS + MATCH.replace("2%", text)).match
        assert match is not None
        assert match.tolerance == pytest.approx(share)


def test_rows_opt_in_or_out(tmp_path: Path) -> None:
    for more, matched in (("", "rms pre"), (", rows: [pre]", "pre"), (", exclude: [pre]", "rms")):
        match = load(tmp_path, ROWS + MATCH.replace("2%", f"2%{more}")).match
        assert match is not None
        assert " ".join(row for row in ("rms", "pre") if match.applies_to(row)) == matched


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("match: {on: params}", r"match: needs 'via'"),
        ("match: {on: sizes, via: model.n_layers}", r"match\.on: needs 'params'"),
        (MATCH.replace("2%", "two"), r"match\.tolerance: needs a share .*1% or 0\.01"),
        (MATCH.replace("2%", "120%"), r"match\.tolerance: must be less than 1"),
        (MATCH.replace("2%", "2%, rows: [post]"), r"match: no variant is called 'post'"),
        (MATCH.replace("2%", "2%, rows: [pre], exclude: [rms]"), r"match: 'rows' and 'exclude'"),
        (MATCH.replace("2%", "2%, rows: [wide]"), r"; leave it out, or leave 'wide' out of match"),
        ("match: {on: params, via: model.norm}", r"model\.norm: is what `match` chooses .*'rms'"),
        ("tune: {training.schedule.lr: 1}", r"tune\.training\.schedule\.lr: needs a list"),
        (TUNE.replace("}", ", extends: 2}"), r"unknown option; did you mean 'extend'\?\n"),
        (TUNE.replace("}", ", traning.lr: 1}"), r"unknown option; did you mean 'training'\?\n"),
        ("tune: {seeds: [7]}", r"tune: needs a path with the values to try"),
        ("tune: {decoding: [greedy, beam]}", r"tune\.decoding: makes no difference to the NLL on"),
        ("tune: {tokenizer.vocab_size: [300]}", r"tune\.tokenizer\.vocab_size: makes other tokens"),
        (
            "tune: {training.schedule.warmup: [10, 20, 10]}",
            r"tune\.training\.schedule\.warmup: is given twice; first in line \d",
        ),
        ("tune: {model.norm: [rms, {name: rms}]}", r"tune\.model\.norm: is given twice"),
        ("tune: {training.schedule.warm: [1]}", r"warm: unknown option; did you mean 'warmup'\?"),
        ("tune: {corpus.size: [300]}", r"all rows share one corpus"),
        ("tune: {model.norm: [rms, layer]}", r"model\.norm: is what `tune` chooses"),
        (TUNE.replace("}", ", seeds: [3]}"), r"tune: tunes with seed 3, which the table reports"),
        ("tune: {training.steps: [10, 20]}", r"training\.epochs: excludes .* for every row; leave"),
        ("match: {on: flops, via: training.steps}", r"training\.epochs: excludes .*; leave it out"),
        (
            "tune: {model.feed_forward.name: [gelu]}",
            r"feed_forward: is what .*; leave it out",
        ),
        (
            f"{MATCH}tune: {{model.feed_forward: [gelu]}}",
            r"would undo .*\.d_ff, what the rows",
        ),
        (
            f"{MATCH}tune: {{model.feed_forward.name: [gelu]}}",
            r"would undo .*\.d_ff, what the",
        ),
    ],
)
def test_mistakes_are_located(tmp_path: Path, text: str, reason: str) -> None:
    rows = ROWS.replace("}}", "}, long: {training.epochs: 3}, wide: {model.feed_forward.d_ff: 64}}")
    rows = ROWS if MATCH in text else rows
    with pytest.raises(config.MistakesError, match=rf"x\.yaml:\d+:\d+: .*{reason}"):
        load(tmp_path, f"{rows}{text}\n")


@pytest.mark.parametrize("via", ["model.feed_forward.dff", "model.ff.d_ff", "nodel.d_ff"])
@pytest.mark.parametrize("quote", ["", '"'])
def test_the_step_of_via_that_is_unknown_is_pointed_at(
    tmp_path: Path, via: str, quote: str
) -> None:
    experiment = load(tmp_path, f"{ROWS}match: {{on: params, via: {quote}{via}{quote}}}\n")
    with pytest.raises(config.MistakesError) as raised:
        with_match(experiment, {"rms": 1})
    (mistake,) = raised.value.mistakes
    unknown = next(step for step in ("dff", "ff", "nodel") if step in via.split("."))
    assert mistake.mark.excerpt[mistake.mark.column - 1 :].startswith(unknown)
    assert mistake.path == f"match.via.{via.partition(unknown)[0]}{unknown}"


def test_mistakes_of_rows_and_of_choices_come_together(tmp_path: Path) -> None:
    rows = "variants: {rms: {model.norm: rsm}, pre: {model.residual: pre}}\n"
    match = MATCH.replace("2%", "2%, rows: [rms, post]")
    tune = TUNE.replace("}", ", seeds: [3]}")
    with pytest.raises(config.InvalidExperimentError) as raised:
        load(tmp_path, rows + match + tune)
    norm, no_variant, shared_seed = (mistake.reason for mistake in raised.value.mistakes)
    assert "did you mean 'rms'?" in norm
    assert "no variant is called 'post'" in no_variant
    assert "tunes with seed 3" in shared_seed
    assert raised.value.valid is not None
    assert [row.name for row in raised.value.valid.rows] == ["baseline", "pre"]


def test_without_a_valid_baseline_no_row_is_valid(tmp_path: Path) -> None:
    with pytest.raises(config.InvalidExperimentError) as raised:
        load(tmp_path, f"{ROWS}model: {{norm: rsm}}\n")
    assert raised.value.valid is None


def test_null_takes_back_what_a_parent_chooses(tmp_path: Path) -> None:
    (tmp_path / "parent.yaml").write_text(ROWS + MATCH + TUNE)
    experiment = load(tmp_path, "extends: parent.yaml\nmatch: null\ntune: null\n")
    assert (experiment.match, experiment.tune) == (None, None)


def test_every_row_has_the_same_candidates(tmp_path: Path) -> None:
    experiment = load(tmp_path, ROWS + TUNE)
    tuning = tuning_of(experiment)
    assert {row: len(names) for row, names in tuning.candidates.items()} == {
        "baseline": 4,
        "rms": 4,
        "pre": 4,
    }
    assert tuning.experiment.seeds == (1001,)
    candidates = {row.name: row for row in tuning.experiment.rows}
    one = candidates["rms warmup=20 embedding=0"].spec
    assert one.model.norm.name == "rms"
    assert one.training.schedule.options["warmup"] == 20
    assert not {run.seed for run in config.expand(tuning.experiment)} & set(experiment.seeds)


@pytest.mark.parametrize("option", ["dropout: [0.0, 0.1]", "alpha: [0.1, 0.2]"])
def test_what_segments_training_text_anew_is_tuned(tmp_path: Path, option: str) -> None:
    name = "bpe" if option.startswith("dropout") else "unigram"
    text = f"tokenizer: {{name: {name}, vocab_size: 300}}\ntune: {{tokenizer.{option}}}\n"
    assert load(tmp_path, ROWS + text).tune is not None


def test_a_row_without_its_choice_has_no_runs(tmp_path: Path) -> None:
    experiment = load(tmp_path, ROWS + TUNE)
    tuning = tuning_of(experiment)
    best = "rms warmup=20 embedding=0.1"
    chosen = with_tuning(experiment, tuning, {"rms": best})
    assert {run.variant for run in config.expand(chosen)} == {"rms"}
    (row,) = (row for row in chosen.rows if row.name == "rms")
    assert row.spec.model.dropout.embedding == 0.1
    assert row.changes == {
        "model.norm": "rms",
        "training.schedule.warmup": 20,
        "model.dropout.embedding": 0.1,
    }
    assert set(row.chosen.values()) == {"tuned"}


def test_a_matched_value_is_part_of_the_run(tmp_path: Path) -> None:
    experiment = load(tmp_path, ROWS + MATCH)
    with_value = with_match(experiment, {"rms": 100})
    by_hand = load(tmp_path, "variants: {rms: {model.norm: rms, model.feed_forward.d_ff: 100}}\n")
    assert with_value.rows[1].spec == by_hand.rows[1].spec
    assert with_value.rows[1].chosen == {"model.feed_forward.d_ff": "matched"}
    assert with_value.rows[2] == experiment.rows[2]
