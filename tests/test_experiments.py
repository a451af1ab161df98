"""Every experiment and preset that we ship is valid, and keeps what its comments promise."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from ablate import config
from ablate.config import ModelSpec
from ablate.model import assemble
from ablate.parts.attention import Attention
from ablate.parts.embedding import Vocabulary
from ablate.parts.roles import linear_layers
from ablate.parts.schedule import Schedule
from ablate.registry import build, slots
from ablate.runner.check import blueprint, check
from tests.presets import ROOT, load, preset
from tests.test_parameter_counts import TABLE_3, V, joint

pytestmark = pytest.mark.full

FILES = sorted(ROOT.rglob("*.yaml"))
STUDIES = [
    path
    for path in FILES
    if path.parent.name != "presets" and path.stem not in {"corpus", "laptop"}
]
TWICE = {"pe", "norm", "heads", "scaling", "vaswani_table3"}
"""The studies that are asked of real sentences too."""
ON_A_LAPTOP = {"pe", "norm", "heads", "scaling"}
"""Those that are asked of real sentences on a laptop, too."""
FULL_SIZE = {"vaswani_table2", "vaswani_table3"}
"""The studies that no laptop runs."""
SHORT = {"science", "reference", "registered"}
"""The folders whose studies ask one thing each."""


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def apart(n_src: int, n_tgt: int) -> Vocabulary:
    return Vocabulary(n_src=n_src, n_tgt=n_tgt, is_joint=False)


def count(model: ModelSpec, vocabulary: Vocabulary) -> int:
    with torch.device("meta"):
        built = assemble(model, vocabulary, 0)
    return sum(p.numel() for p in built.parameters())


def comment_of(path: Path) -> str:
    """Return the comment at the head of a file, as one line."""
    lines = path.read_text(encoding="utf-8").splitlines()
    comment = takewhile(lambda line: line.startswith("#"), lines)
    return " ".join(line.removeprefix("#").strip() for line in comment)


# all files


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_every_file_is_valid_and_begins_by_saying_what_it_is(path: Path) -> None:
    check(config.load(path))
    assert path.read_text().startswith("# ")


@pytest.mark.parametrize("path", STUDIES, ids=name_of)
def test_every_study_asks_something_and_has_rows_and_seeds(path: Path) -> None:
    experiment = config.load(path)
    assert (experiment.question or "").endswith("?")
    is_short = path.parent.name in SHORT or path.stem in {"vaswani_table2", "tuned"}
    is_alone = path.parent.name == "reference" or path.stem == "pruning"
    n_least = 1 if is_alone else 2 if is_short else 4
    assert len(experiment.rows) >= n_least
    assert len(experiment.seeds) >= 3


def test_studies_run_on_a_laptop_unless_they_say_otherwise() -> None:
    laptop = preset("laptop")
    for path in ROOT.glob("*.yaml"):
        experiment = load(path.stem)
        run = experiment.rows[0].spec
        if path.stem in FULL_SIZE:
            assert run.corpus.name == "wmt14"
        else:
            assert run.corpus.name == laptop.corpus.name
            assert run.corpus.options["size"] <= laptop.corpus.options["size"]
            assert run.decoding == laptop.decoding
            assert run.model.dims == laptop.model.dims or experiment.contexts
            assert (run.training.steps or 0) <= (laptop.training.steps or 0)


def test_a_blueprint_costs_no_memory() -> None:
    assert all(p.is_meta for p in blueprint(preset("vaswani_big")).parameters())


# the sizes of presets


@pytest.mark.parametrize(
    ("name", "vocabulary", "n"),
    [  # of others results/reference/goldens.yaml has the published sizes
        ("t2t_v1", joint(V), 63_045_632),
        ("t2t_v2", joint(V), 63_045_632 + 2 * 2 * 512),
        # that of multi30k_small with two tables in place of one
        ("fairseq_iwslt", joint(9_712), 36_515_840 + 9_712 * 512),
        # multi30k_base with a bias for every word, and 32 norms of one number in place of 1,024
        ("transformers_without_tears", joint(9_712), 49_111_040 + 9_712 - 30 * 1024 + 32),
    ],
)
def test_presets_have_the_sizes_of_their_models(name: str, vocabulary: Vocabulary, n: int) -> None:
    assert count(preset(name).model, vocabulary) == n


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_annotated_is_torch_s_own_transformer_but_for_the_words() -> None:
    theirs = torch.nn.Transformer(norm_first=True, device="meta")
    n_words = (100 + 2 * 90) * 512 + 90
    ours = count(preset("annotated").model, apart(100, 90)) - n_words
    assert ours == sum(p.numel() for p in theirs.parameters()) == 44_140_544


# the choices of presets


def values_of(name: str) -> dict[str, Any]:
    """Return what a preset comes to, as dotted paths to values."""
    plain = preset(name).model_dump(mode="json")

    def flat(value: Any, path: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            return {path: value}
        below = [flat(item, f"{path}.{key}" if path else key) for key, item in value.items()]
        return {key: item for of_key in below for key, item in of_key.items()}

    return flat(plain, "")


def changes(name: str, other: str) -> dict[str, Any]:
    """Return what a preset says that another does not."""
    before = values_of(other)
    return {k: v for k, v in values_of(name).items() if before.get(k, "nothing") != v}


DIFFERENCES: dict[tuple[str, str], dict[str, Any]] = {
    ("vaswani_big", "vaswani_base"): {  # as in the paper
        "model.dims.d_model": 1024,
        "model.dims.n_heads": 16,
        "model.feed_forward.d_ff": 4096,
        "model.dropout.embedding": 0.3,
        "model.dropout.residual": 0.3,
        "training.steps": 300_000,
        "training.evaluate_every": 600,
        "training.average.last": 20,
    },
    ("t2t_v1", "vaswani_base"): {  # as in its code
        "model.position.exponent": "t2t",
        "model.position.layout": "halves",
        "model.norm.eps": 1e-6,
        "training.batch_tokens": 4096,
        "training.accumulate": 8,
    },
    ("t2t_v2", "t2t_v1"): {
        "model.residual.name": "pre",
        "model.residual.final_norm": True,
        "model.dropout.attention": 0.1,
        "model.dropout.activation": 0.1,
        "training.schedule.factor": 2.0,
        "training.schedule.warmup": 8000,
    },
    ("notebook_0", "vaswani_base"): {},  # and the others as the audit says
    ("notebook_1", "notebook_0"): {},
    ("notebook_2", "vaswani_base"): {"model.position.exponent": "literal_2i"},
    ("notebook_3", "notebook_0"): {"model.dropout.embedding": 0.0},
}


@pytest.mark.parametrize(("name", "other"), DIFFERENCES)
def test_presets_differ_as_their_sources_do(name: str, other: str) -> None:
    assert changes(name, other) == DIFFERENCES[name, other]


@pytest.mark.parametrize(
    ("name", "peak_at", "rate"),
    [
        ("vaswani_base", 4000, 6.98771243e-04),
        ("vaswani_big", 4000, 4.94105884e-04),
        ("t2t_v2", 8000, 9.88211769e-04),
        # fairseq sets the rate after an update, so that one update more goes by
        ("tiny", 2001, 5e-3),
        ("fairseq_iwslt", 4001, 5e-4),
        # 3,000 batches are 300 steps of ten, and the rate at that batch is (512 * 3000)^-0.5
        ("annotated", 300, 8.06871531e-04),
    ],
)
def test_learning_rates_peak_where_they_should(name: str, peak_at: int, rate: float) -> None:
    run = preset(name)
    schedule = build(Schedule, run.training.schedule, run.model.dims, 100_000)
    rates = {step: schedule.rate(step) for step in range(1, 2 * peak_at)}
    assert max(rates, key=lambda step: rates[step]) == peak_at
    assert rates[peak_at] == pytest.approx(rate, rel=2e-5)


PROMISED = yaml.safe_load("""
annotated:
  {corpus.name: multi30k, model.norm.name: annotated, model.residual.name: pre,
   model.residual.final_norm: true, model.mask.name: causal_padding, model.attention.bias: true,
   model.embedding.name: separate, model.embedding.init: xavier,
   model.initialisation.name: xavier, model.dropout.attention: 0.1,
   training.objective.form: annotated, decoding.name: greedy}
fairseq_iwslt:
  {corpus.name: iwslt14, corpus.lowercase: true, model.position.first: 2,
   model.embedding.name: tied_target, model.initialisation.name: fairseq,
   model.initialisation.feed_forward: torch, training.objective.form: others,
   training.optimizer.name: adamw, training.optimizer.weight_decay: 0.0001,
   training.schedule.delay: 1, training.batch_tokens: 4096, training.clip: null,
   training.precision: fp32, decoding.size: 5, decoding.length_penalty: 1.0,
   decoding.penalty_form: power}
multi30k_tiny:
  {corpus.form: tok, model.position.exponent: t2t, model.position.layout: halves,
   model.position.first: 2, model.initialisation.name: fairseq,
   model.initialisation.feed_forward: xavier, model.dropout.attention: 0.0,
   training.steps: 8000, training.accumulate: 2, training.patience: 10,
   training.objective.form: uniform, training.optimizer.eps: 1.0e-8, training.schedule.delay: 1,
   training.clip: 25.0, training.average.last: 10, training.precision: fp32, decoding.size: 5,
   decoding.length_penalty: 1.0, decoding.penalty_form: power}
transformers_without_tears:
  {model.residual.name: pre, model.norm.name: scale, model.embedding.fix_norm: true,
   model.embedding.init: uniform, model.embedding.init_std: 0.0057735,
   model.initialisation.name: small, model.dropout.word: 0.1, model.dropout.word_form: unknown,
   model.embedding.mask_unwritten: true, training.objective.form: unmasked,
   model.dropout.attention: 0.3, training.clip: 1.0, training.schedule.name: plateau,
   training.schedule.warmup: 0}
notebook_4:
  {model.dims.max_len: 100, model.position.name: learned, model.mask.name: causal,
   model.attention.name: per_head_shared, model.attention.bias: false,
   model.scaling.name: sqrt_dmodel, model.residual.name: post_dropout_last,
   model.feed_forward.name: relu, model.embedding.name: separate, model.embedding.scale: none,
   model.embedding.output_bias: true, model.dropout.attention: 0.0}
""")
"""Of presets, what they are known for; the init_std of 0.0057735 is of their U(-0.01, 0.01)."""


@pytest.mark.parametrize("name", PROMISED)
def test_presets_choose_what_they_are_known_for(name: str) -> None:
    chosen = values_of(name)
    assert {path: chosen[path] for path in PROMISED[name]} == PROMISED[name]


# studies


def test_studies_on_multi30k_start_from_transformer_tiny_and_its_published_number() -> None:
    tiny = load("presets/multi30k_tiny")
    for name in TWICE - {"vaswani_table3"}:
        study = load(f"multi30k/{name}")
        own_keys = {"position"} if name == "pe" else set()
        ours, theirs = study.rows[0].spec, tiny.rows[0].spec
        assert ours.model.model_dump(exclude=own_keys) == theirs.model.model_dump(exclude=own_keys)
        assert ours.model_dump(exclude={"model"}) == theirs.model_dump(exclude={"model"})
        assert study.published == tiny.published
        assert study.question == load(name).question


def test_studies_on_a_laptop_start_from_one_model_and_ask_what_the_others_ask() -> None:
    laptop = load("multi30k/laptop")
    for name in ON_A_LAPTOP:
        study = load(f"multi30k/laptop_{name}")
        assert study.rows[0].spec == laptop.rows[0].spec
        assert [row.name for row in study.rows] == [row.name for row in load(name).rows]
        assert study.question == load(name).question
        assert study.seeds == laptop.seeds == (101, 102, 103)


def test_the_reference_differs_from_the_published_protocol_in_how_long_it_trains() -> None:
    ours, published = (
        load(name).rows[0].spec for name in ("reference/multi30k_en_de", "presets/multi30k_tiny")
    )
    length = {"steps", "batch_tokens", "accumulate", "patience", "precision"}
    assert (ours.model, ours.decoding) == (published.model, published.decoding)
    assert ours.training.model_dump(exclude=length) == published.training.model_dump(exclude=length)
    assert ours.training.steps == 9600


def test_the_published_size_of_tiny_is_what_we_count() -> None:
    published = load("presets/multi30k_tiny").published
    assert published
    n = count(preset("multi30k_tiny").model, joint(9_712))
    assert published.of("baseline") == {"params": n, "bleu_lc_tok": 41.02}


def test_the_way_from_notebook_4_begins_at_it_and_ends_at_the_paper() -> None:
    rows = load("notebook_4_to_vaswani").rows
    assert rows[-1].name == "all"
    small = {"dims": {"d_model": 64, "n_heads": 4, "max_len": 64}, "n_layers": 2}
    small["feed_forward"] = {"name": "relu", "d_ff": 256}
    for row, name in ((rows[0], "notebook_4"), (rows[-1], "vaswani_base")):
        model = preset(name).model.model_dump() | small
        assert row.spec.model == ModelSpec.model_validate(model)


def test_table_2_is_of_the_two_presets() -> None:
    rows = {row.name: row.spec for row in load("vaswani_table2").rows}
    assert rows == {"baseline": preset("vaswani_base"), "big": preset("vaswani_big")}


def sizes(name: str) -> dict[str, float]:
    published = load(name).published
    assert published
    of_row = {row.name: published.of(row.name) for row in load(name).rows}
    return {name: row["params"] for name, row in of_row.items() if "params" in row}


def counts_of_table_3(vocabulary: int, names: Iterable[str]) -> dict[str, int]:
    rows = {row.name: row.spec.model for row in load("vaswani_table3").rows}
    return {name: count(rows[name], joint(vocabulary)) for name in names}


def test_table_3_counts_the_closed_form() -> None:
    assert counts_of_table_3(V, TABLE_3) == {name: n for name, (_, n) in TABLE_3.items()}


def test_the_note_of_table_3_tells_the_truth_about_the_paper_s_parameters() -> None:
    """One vocabulary gives every printed size but that of big, and none smaller or larger does."""

    def agrees(vocabulary: int) -> set[str]:
        printed = sizes("vaswani_table3")
        counts = counts_of_table_3(vocabulary, printed)
        return {name for name in counts if round(counts[name] / 1e6) == printed[name] / 1e6}

    everything = set(sizes("vaswani_table3"))
    assert agrees(41_004) == agrees(41_208) == everything - {"big"}
    assert agrees(41_003) == everything - {"big", "C d_ff=1024"}
    assert agrees(41_209) == everything - {"big", "C N=4"}
    assert agrees(V) == set()
    assert agrees(36_000) == {"big"}


def test_both_tables_3_have_the_same_rows() -> None:
    full, small = (load(name).rows for name in ("vaswani_table3", "multi30k/vaswani_table3"))
    kinds = [[row.name.split("=")[0] for row in rows] for rows in (full, small)]
    assert kinds[0] == kinds[1]
    assert len(full) == 20
    for ours, theirs in zip(full, small, strict=True):
        assert ours.changes.keys() - {"training.steps"} == theirs.changes.keys()
    assert load("multi30k/vaswani_table3").published is None


@pytest.mark.parametrize("name", ["vaswani_table3", "narang"])
def test_a_number_is_published_for_every_row(name: str) -> None:
    experiment = load(name)
    assert experiment.published
    assert set(experiment.published.rows) == {row.name for row in experiment.rows}
    if name == "vaswani_table3":
        known = [
            {key for key, value in row if value is not None}
            for row in experiment.published.rows.values()
        ]
        assert all({"bleu", "ppl"} <= keys for keys in known)


def test_rows_of_narang_et_al_keep_their_sizes() -> None:
    n = {row.name: count(row.spec.model, joint(500)) for row in load("narang").rows}
    for name in ("GLU", "GeGLU", "ReGLU", "SwiGLU", "LiGLU", "GeLU", "Swish"):
        assert n[name] == pytest.approx(n["baseline"], rel=1e-3)
    for name in ("twice as deep", "half as deep"):
        assert n[name] == pytest.approx(n["baseline"], rel=0.02)


def test_parts_of_narang_et_al_without_a_row_are_named() -> None:
    entries = [entry for table in slots().values() for entry in table.values()]
    theirs = {entry.name for entry in entries if "2102.11972" in entry.source}
    rows = " ".join(row.spec.model.model_dump_json() for row in load("narang").rows)
    missing = {name for name in theirs if f'"name":"{name}"' not in rows}
    assert missing == {"elu", "selu", "sigmoid", "softplus"}
    assert missing <= set(re.findall(r"\w+", comment_of(ROOT / "narang.yaml")))


def test_shared_projections_have_the_share_of_weights_that_the_comment_says() -> None:
    def n_weights(model: ModelSpec) -> int:
        with torch.device("meta"):
            built = assemble(model, joint(500), 0)
        attentions = [module for module in built.modules() if isinstance(module, Attention)]
        return sum(linear.weight.numel() for a in attentions for linear in linear_layers(a))

    full, shared = (row.spec.model for row in load("science/f07_shared_projections").rows)
    assert "(1 + 3 / h^2) / 4 of the weights" in comment_of(
        ROOT / "science" / "f07_shared_projections.yaml"
    )
    assert n_weights(shared) / n_weights(full) == (1 + 3 / full.dims.n_heads**2) / 4


def test_norm_and_depth_and_warm_up_are_crossed() -> None:
    rows = [row.spec for row in load("prenorm_postnorm").rows]
    points = {
        (r.model.residual.name, r.model.n_layers, r.training.schedule.options["warmup"])
        for r in rows
    }
    assert points == {(n, depth, w) for n in ("post", "pre") for depth in (2, 6) for w in (400, 0)}
    assert len(rows) == 8
    assert {r.training.clip for r in rows} == {None}
