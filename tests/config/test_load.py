"""From files to rows and runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from ablate import config
from ablate.cli.app import app
from ablate.config import RunSpec
from ablate.config.runs import locate
from ablate.config.tree import Mark, Mistake, Source
from ablate.errors import SpecError
from ablate.registry import Choice
from tests.config.loading import Folder, names
from tests.made_up_runs import EXPERIMENT


def test_the_smallest_experiment_is_the_base_model(folder: Folder) -> None:
    experiment = folder.load("corpus: synthetic")
    model, training = experiment.rows[0].spec.model, experiment.rows[0].spec.training
    assert (model.dims.d_model, model.dims.d_k, model.n_layers) == (512, 64, 6)
    assert model.position.name == "sinusoidal"
    assert (training.steps, training.schedule.name) == (100_000, "noam")
    assert experiment.seeds == (1, 2, 3)


def test_a_variant_may_change_the_heads_and_d_k_follows(folder: Folder) -> None:
    text = "model: {dims: {d_model: 64, n_heads: 4}}\nvariants: {a: {model.dims.n_heads: 16}}"
    assert folder.load(text).rows[1].spec.model.dims.d_k == 4


def test_canonical_runs_are_experiments(folder: Folder) -> None:
    run = folder.baseline(
        "model:\n"
        "  n_layers: {encoder: 2, decoder: 1}\n"
        "  norm: rms\n"
        "  encoder: {position: none, dropout: {residual: 0.5}}\n"
        "  decoder: {cross_attention: {bias: false}}\n"
        "training: {epochs: 3, average: {best: 2}, clip: 25}\n"
        "decoding: greedy\n"
    )
    plain = run.model_dump(mode="json")
    plain.pop("seed")
    assert folder.baseline(yaml.safe_dump(plain)) == run
    assert RunSpec.model_validate(run.model_dump(mode="json")) == run
    assert plain["model"]["position"] == {"name": "none"}
    assert "encoder" not in plain["model"]
    assert set(plain["model"]["decoder"]) == {"position", "cross_attention", "dropout"}


# extends


def test_the_right_parent_wins_with_all_it_inherits(folder: Folder) -> None:
    folder.write("root.yaml", "question: a\nmodel: {norm: layer, residual: pre}")
    folder.write("left.yaml", "extends: root.yaml\nmodel: {norm: rms, scaling: none}")
    folder.write("right.yaml", "extends: root.yaml\nmodel: {residual: post}")
    experiment = folder.load("extends: [left.yaml, right.yaml]")
    assert experiment.question == "a"
    model = experiment.rows[0].spec.model
    assert (model.norm.name, model.residual.name, model.scaling.name) == ("layer", "post", "none")


def test_rows_are_inherited_by_name(folder: Folder) -> None:
    folder.write("parent.yaml", "variants: {a: {model.norm: rms}, b: {model.norm: none}}")
    experiment = folder.load(
        "extends: parent.yaml\nvariants: {c: {model.residual: pre}, a: {model: {norm: {eps: 0.5}}}}"
    )
    assert names(experiment) == ["baseline", "a", "b", "c"]
    assert experiment.rows[1].spec.model.norm.options == {"eps": 0.5}


def test_a_metric_of_a_child_merges_as_every_part_does(folder: Folder) -> None:
    folder.write("parent.yaml", "metrics: {name: comet, model: w.ckpt, batch_size: 2}")
    (other,) = folder.load("extends: parent.yaml\nmetrics: {name: chrf}").metrics
    assert (other.name, other.options) == ("chrf", {})
    (same,) = folder.load("extends: parent.yaml\nmetrics: {batch_size: 8}").metrics
    assert (same.name, same.options["batch_size"]) == ("comet", 8)
    assert folder.load("extends: parent.yaml\nmetrics: []").metrics == ()
    folder.write("parent.yaml", "metrics: bleu")
    for metrics in ("{batch_size: 8}", "[{batch_size: 8}]"):
        assert folder.reasons(f"extends: parent.yaml\nmetrics: {metrics}") == [
            "unknown option; metric 'bleu' has tokenize"
        ]


def test_a_row_that_is_null_is_no_longer_inherited(folder: Folder) -> None:
    folder.write("parent.yaml", "variants: {a: {model.norm: rms}, b: {model.norm: none}}")
    child = folder.write("child.yaml", "extends: parent.yaml\nvariants: {a: null}")
    assert names(config.load(child)) == ["baseline", "b"]
    assert names(config.load(child, ["variants.b=null"])) == ["baseline"]
    again = folder.load("extends: child.yaml\nvariants: {a: {model.residual: pre}}")
    assert again.rows[1].changes == {"model.residual": "pre"}


def test_a_section_that_is_null_is_no_longer_inherited(folder: Folder) -> None:
    rows = "variants: {a: {model.norm: rms}}\npublished: {source: x, rows: {a: {bleu: 20}}}\n"
    one_out = "leave_one_out: [{model.residual: pre}, {model.dims.n_heads: 2}]\n"
    folder.write("parent.yaml", f"{rows}{one_out}grid: {{model.norm: [none]}}\n")
    child = folder.write("child.yaml", "extends: parent.yaml\ngrid: null\nleave_one_out: null\n")
    assert names(config.load(child)) == ["baseline", "a"]
    nothing = config.load(child, ["variants=null"])
    assert (names(nothing), nothing.published) == (["baseline"], None)
    again = "extends: child.yaml\nvariants: null\ngrid: {model.norm: [rms]}\n"
    assert names(folder.load(again)) == ["baseline", "norm=rms"]
    folder.write("other.yaml", "variants: {a: {model.norm: none}}\n")
    assert names(folder.load("extends: [child.yaml, other.yaml]\nvariants: null")) == ["baseline"]
    folder.write("contexts.yaml", "contexts: {x: {}, y: {model.norm: rms}}\n")
    assert not folder.load("extends: contexts.yaml\ncontexts: null").contexts
    assert folder.reasons("extends: contexts.yaml\ngrid: null")[0].startswith("is empty, and noth")


def test_null_for_all_rows_removes_those_that_its_own_file_inherits(folder: Folder) -> None:
    folder.write("study.yaml", "variants: {a: {model.norm: rms}}\n")
    folder.write("other.yaml", "variants: {b: {model.norm: none}}\n")
    folder.write("bare.yaml", "extends: other.yaml\nvariants: null\n")
    assert names(folder.load("extends: [study.yaml, bare.yaml]")) == ["baseline", "a"]
    none = "extends: [study.yaml, bare.yaml]\nvariants: null"
    assert names(folder.load(none)) == ["baseline"]


def test_overrides_are_no_single_text(folder: Folder) -> None:
    with pytest.raises(SpecError, match=r"overrides are a list, as in \['model.norm=rms'\]"):
        config.load(folder.write("x.yaml", "question: a\n"), "model.norm=rms")


def test_a_null_row_that_is_not_inherited_names_those_that_are(folder: Folder) -> None:
    folder.write("parent.yaml", "variants: {learned: {model.norm: rms}, b: {model.norm: none}}")
    reasons = folder.reasons("extends: parent.yaml\nvariants: {lerned: null}")
    assert reasons == [
        "leaves out a row that is not inherited: no row is called 'lerned'; did you mean "
        "'learned'? known: b, learned"
    ]


def test_parents_with_one_name_for_two_rows_are_refused(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write("root.yaml", "variants: {none: {model.position: none}}")
    folder.write("left.yaml", "extends: root.yaml\nvariants: {a: {model.scaling: none}}")
    folder.write("right.yaml", "variants: {none: {model.norm: {name: none}}}")
    folder.write("twin.yaml", "variants: {none: {model: {position: {name: none}}}}")
    monkeypatch.chdir(folder.path)
    text = "extends: [left.yaml, twin.yaml, right.yaml]"
    assert folder.reasons(text) == [
        "the row 'none' is not the same in root.yaml and in right.yaml; rename one, or remove both "
        "here by variants: {none: null}"
    ]
    assert names(folder.load(f"{text}\nvariants: {{none: null}}")) == ["baseline", "a"]
    assert names(folder.load("extends: [left.yaml, twin.yaml]")) == ["baseline", "none", "a"]


def test_two_unreadable_parents_and_a_typo_are_reported_together(folder: Folder) -> None:
    text = "extends: [no.yaml, where.yaml]\ncorpsu: synthetic"
    assert len(folder.reasons(text)) == 3


def test_a_parent_is_named_as_the_user_named_the_file(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write("presets/p.yaml", "modle: {}")
    folder.write("sub/x.yaml", "extends: ../presets/p.yaml")
    monkeypatch.chdir(folder.path)
    for path in (Path("sub/x.yaml"), folder.path / "sub" / "x.yaml"):
        with pytest.raises(SpecError, match=r"^presets/p\.yaml:1:1: modle: "):
            config.load(path)


# overrides


def test_an_override_changes_the_baseline_below_the_rows(folder: Folder) -> None:
    text = "variants: {a: {model.norm: rms}}"
    overrides = ("model.norm={name: layer, eps: 0.5}", "training.steps=7", "seeds=[4]")
    experiment = folder.load(text, *overrides)
    assert [row.spec.model.norm.name for row in experiment.rows] == ["layer", "rms"]
    assert {row.spec.training.steps for row in experiment.rows} == {7}
    assert experiment.seeds == (4,)


def test_a_later_override_wins_and_options_merge(folder: Folder) -> None:
    overrides = ("model.position=learned", "model.position.init_std=0.5", "training.clip=1")
    run = folder.baseline("training: {clip: 2}", *overrides, "training.clip=3")
    assert run.model.position == Choice(name="learned", options={"init_std": 0.5})
    assert run.training.clip == 3


def test_overrides_reach_rows_too(folder: Folder) -> None:
    overrides = ("variants.a.model.norm=rms", "grid.model.residual=[pre]")
    assert names(folder.load("corpus: synthetic", *overrides)) == ["baseline", "a", "residual=pre"]


# seeds, names and positions


def test_runs_are_row_by_row_then_seed_by_seed(folder: Folder) -> None:
    experiment = folder.load("seeds: [5, 4]\nvariants: {a: {model.norm: rms}}")
    runs = config.expand(experiment)
    assert [(r.variant, r.seed) for r in runs] == [
        (v, s) for v in ("baseline", "a") for s in (5, 4)
    ]
    assert [(r.variant, r.seed) for r in config.expand(experiment, [9], ["a"])] == [("a", 9)]


def test_experiments_are_named_by_folder_and_file(folder: Folder) -> None:
    for path, name in (("experiments/pe.yaml", "pe"), ("experiments/real/pe.yaml", "real/pe")):
        assert config.load(folder.write(path, "corpus: synthetic")).name == name


@pytest.mark.parametrize(
    "taken", ["runs", "probes", "matches", "sessions", "exports", "slurm", "experiments"]
)
def test_no_table_is_written_among_the_runs(folder: Folder, taken: str) -> None:
    assert config.load(folder.write(f"{taken}/pe.yaml", "corpus: synthetic")).name == "pe"
    file = folder.write(f"real/{taken}.yaml", "corpus: synthetic")
    assert config.load(file).name == f"real/{taken}"
    for above in ("experiments", taken):
        with pytest.raises(SpecError, match=rf"1:1: .* cannot be called '{taken}', .*; rename"):
            config.load(folder.write(f"{above}/{taken}.yaml", "corpus: synthetic"))


@pytest.mark.parametrize("name", [b"sp\xe9c.yaml", b"a\x1bb.yaml", b"caf\xe9/pe.yaml"])
@pytest.mark.parametrize("command", ["run", "plan"])
def test_an_experiment_that_no_record_could_name_is_refused(
    command: str, name: bytes, tmp_path: Path
) -> None:
    spec = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
    spec.parent.mkdir(exist_ok=True)
    spec.write_text(EXPERIMENT, encoding="utf-8")
    words = [command, str(spec), "--results", str(tmp_path / "results")]
    printed = CliRunner().invoke(app, words)
    assert printed.exit_code == 2
    assert ":1:1: an experiment cannot be called" in printed.stderr
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("row", "path", "line"),
    [
        ("baseline", "model.position.base", 2),
        ("baseline", "model.decoder.position", 2),
        ("a", "model.encoder.position", 5),
        ("b", "model.decoder.norm", 6),
        ("b", "model.decoder.cross_attention", 3),
        ("baseline", "model.scaling", 1),
        ("baseline", "decoding", 1),
    ],
)
def test_a_value_is_located_where_it_is_given_or_at_what_holds_it(
    folder: Folder, row: str, path: str, line: int
) -> None:
    experiment = folder.load(
        "model:\n  position: {name: sinusoidal, base: 5}\n  attention: full\n"
        "variants:\n  a: {model.position: learned}\n  b: {model.decoder.norm: rms}\n"
    )
    assert locate(experiment.origins[row].tree, path.split("."))[0].mark.line == line


def test_mistakes_at_one_position_keep_their_order() -> None:
    at = Mark(Source("x.yaml", ("x",)), 1, 1)
    mistakes = [Mistake(at, "", reason) for reason in ("one", "two", "one", "three")]
    assert [each.reason for each in config.MistakesError(mistakes).mistakes] == [
        "one",
        "two",
        "three",
    ]


def test_later_mistakes_are_located_at_their_cause(folder: Folder) -> None:
    experiment = folder.load(
        "model:\n"
        "  position: learned\n"
        "variants:\n"
        "  a: {model.dims.n_heads: 16}\n"
        "  b: {model.decoder.norm: rms}\n"
    )
    error = config.mistakes_error(
        experiment,
        [
            ("baseline", "model.encoder.position", "is refused"),
            ("a", "model.encoder.position", "is refused"),
            ("a", "model.decoder.attention", "is odd"),
            ("b", "model.decoder.norm", "is bad"),
        ],
    )
    mistakes = [(m.mark.line, m.path, m.reason) for m in error.mistakes]
    assert mistakes == [
        (2, "model.position", "is refused"),
        (4, "model.decoder.attention", "is odd (in the row 'a')"),
        (5, "variants.b.model.decoder.norm", "is bad"),
    ]


@pytest.mark.parametrize("seeds", [[], [-1], [1, 1], [2**44]])
def test_all_unknown_rows_and_bad_seeds_are_reported_together(
    folder: Folder, seeds: list[int]
) -> None:
    experiment = folder.load("variants: {a: {model.norm: rms}}")
    with pytest.raises(SpecError) as caught:
        config.expand(experiment, seeds, only=["b", "a", "c"])
    lines = str(caught.value).splitlines()
    assert [line.split(";")[0] for line in lines] == [
        "no row is called 'b'",
        "no row is called 'c'",
        "seeds must be distinct whole numbers from 0 to 2^44 - 1, at least one",
    ]


def test_a_row_in_place_of_a_list_of_rows_is_refused(folder: Folder) -> None:
    experiment = folder.load("variants: {a: {model.norm: rms}}")
    with pytest.raises(SpecError, match=r"^only is a list, as in \['a'\]; this is a text$"):
        config.expand(experiment, only="a")
