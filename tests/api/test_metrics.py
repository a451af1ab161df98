"""Metrics beyond BLEU and chrF: computed from stored translations, without a new run."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ablate import api, config
from ablate.config import MistakesError, identity
from ablate.data.corpus import Bitext, Corpus
from ablate.errors import DataError, SpecError
from ablate.hashing import sha256_of_file
from ablate.parts.metric import Metric, UnavailableError
from ablate.record import Scores
from ablate.registry import PluginError, build, choose, lookup
from ablate.store import Store
from tests.made_up_runs import EXPERIMENT, finish
from tests.registrations import temporary_registrations
from tests.report import made_up

METRICS = "plugins: my_metric.py\nmetrics: [bleu, chrf, {name: my_metric, n: 1}]\n"


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "experiments"
    folder.mkdir()
    monkeypatch.chdir(folder)
    with temporary_registrations():
        api.init(part="metric")
        (folder / "pe.yaml").write_text(EXPERIMENT + METRICS, encoding="utf-8")
        yield Path("pe.yaml")


def translated(path: Path, results: Path) -> None:
    """Finish all runs; those of the baseline translate perfectly, the others nothing."""
    selection, store = finish(path, results), Store(results)
    tests = build(Corpus, selection.experiment.rows[0].spec.corpus).load().tests
    for file in (results / "runs").glob("*/record.json"):
        record = store.load(file.parent.name) or {}
        for name in made_up.SETS:
            lines = tests[name].tgt if record["variant"] == "baseline" else ["x"] * len(tests[name])
            text = "".join(f"{line}\n" for line in lines)
            (file.parent / f"hypotheses.{name}.txt").write_text(text, encoding="utf-8")


def test_a_metric_of_ones_own_is_a_column_with_differences_and_no_new_run(path: Path) -> None:
    translated(path, Path("results"))
    options = api.RunOptions(device="cpu", figures=False)
    table = api.run(path, options).table  # every run is done: nothing is trained
    assert [cell.text for cell in table.column("test.test.my_metric")] == ["100.0", "0.0", "0.0"]
    assert table.column("test.test.my_metric.difference")[1].text == "\N{MINUS SIGN}100.0"
    titles = [column.title for block in table.blocks for column in block.columns]
    assert {"my_metric test", "Δmy_metric test", "chrF test"} <= set(titles)
    metrics = [json.loads(file.read_text()) for file in Path("results").glob("runs/*/metrics.json")]
    assert len(metrics) == 6
    assert {len(scores) for scores in metrics} == {len(made_up.SETS)}


def test_a_metric_gets_the_sources_the_translations_and_the_references(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    translated(path, Path("results"))
    asked: list[list[Any]] = []

    def score(_: Metric, *texts: Any) -> float:
        asked.append([list(each) for each in texts])
        return 1.0

    monkeypatch.setattr(lookup("metric", "my_metric").cls, "score_by_all", score)
    monkeypatch.setattr(Bitext, "references", property(lambda own: [own.tgt, own.src]))  # two
    api.report(path)
    tests = build(Corpus, config.load(path).rows[0].spec.corpus).load().tests
    perfect: list[list[Any]] = [
        [list(t.src), list(t.tgt), list(t.references)] for t in tests.values()
    ]
    empty: list[list[Any]] = [[src, ["x"] * len(src), references] for src, _, references in perfect]
    assert [asked.count(each) for each in perfect] == [2] * len(tests)  # seeds
    assert [asked.count(each) for each in empty] == [4] * len(tests)  # and two rows


def test_a_metric_of_no_plugin_is_refused(path: Path) -> None:
    """Its scores would be kept after its code has changed."""
    translated(path, Path("results"))
    text = Path("my_metric.py").read_text(encoding="utf-8").replace("my_metric", "in_a_cell")
    exec(text, {"__name__": "a_notebook"})
    path.write_text(f"{EXPERIMENT}metrics: in_a_cell\n", encoding="utf-8")
    with pytest.raises(PluginError, match=r"metric 'in_a_cell' .* module a_notebook, which is no"):
        api.report(path)


def test_two_sets_of_results_are_compared_by_the_metrics_of_their_experiment(path: Path) -> None:
    tests = build(Corpus, config.load(path).rows[0].spec.corpus).load().tests
    for results in (Path("before"), Path("after")):
        translated(path, results)
        for run in api.runs(results):
            record = Store(results).load(run.run) or {}
            if run.row == "rms":  # whose runs are of another text
                record["corpus"]["fingerprint"] = "other"
            Store(results).save(record)
            if (results.name, run.row) == ("after", "none"):
                text = "".join(f"{line}\n" for line in tests["test"].tgt)
                (results / "runs" / run.run / "hypotheses.test.txt").write_text(text, "utf-8")
    compared = api.compare("before", "after", path)
    metric = "test.test.my_metric"
    shifts = [row.shifts.get(metric) for row in compared.rows]
    assert [shift and (shift.method, shift.estimate) for shift in shifts] == [
        ("equal", 0.0),
        ("paired", 100.0),
        None,
    ]
    titles = [column.title for column in compared.table().columns]
    assert {"ΔchrF test", "Δmy_metric test"} <= set(titles)
    path.with_name("plain.yaml").write_text(EXPERIMENT, encoding="utf-8")
    assert metric in api.compare(path, "plain.yaml", results="after").rows[0].shifts


def test_a_comparison_takes_the_options_of_the_later_experiment(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    translated(path, Path("results"))
    text = EXPERIMENT + METRICS.replace("n: 1", "n: 2")
    path.with_name("later.yaml").write_text(text, encoding="utf-8")
    part: Any = lookup("metric", "my_metric").cls
    monkeypatch.setattr(part, "score_by_all", lambda own, *_: float(own.n))
    row = api.compare(path, "later.yaml", results="results").rows[0]
    assert [sample.mean for sample in row.samples["test.test.my_metric"]] == [2.0, 2.0]


def test_translations_are_not_scored_by_other_text_than_theirs(path: Path) -> None:
    """As where a file of the corpus is changed while its runs train: the score would be kept."""
    translated(path, Path("results"))
    store = Store(Path("results"))
    for run in api.runs("results"):
        record = store.load(run.run) or {}
        store.save({**record, "corpus": {**record["corpus"], "fingerprint": "0f" * 32}})
    with pytest.raises(DataError, match=r"and runs have read 0f0f0f0f0f0f: its files have changed"):
        api.report(path)
    assert not list(Path("results").glob("runs/*/metrics.json"))


def test_what_was_computed_is_not_computed_again(path: Path) -> None:
    translated(path, Path("results"))
    first = api.report(path)
    for file in Path("results").glob("runs/*/hypotheses.*.txt"):
        file.unlink()
    again = api.report(path)
    assert again.table.column("test.test.my_metric") == first.table.column("test.test.my_metric")
    path.write_text(EXPERIMENT + METRICS.replace("n: 1", "n: 2"), encoding="utf-8")
    with pytest.raises(Exception, match=r"hypotheses\.test\w*\.txt: cannot be read"):
        api.report(path)


def test_translations_that_were_made_again_are_scored_anew(path: Path) -> None:
    translated(path, Path("results"))
    store, columns = Store(Path("results")), []
    for _ in range(2):
        for file in Path("results").glob("runs/*/hypotheses.test.txt"):
            record = store.load(file.parent.name) or {}
            content = {"bytes": file.stat().st_size, "sha256": sha256_of_file(file)}
            store.save({**record, "files": {file.name: content}})
        columns.append([cell.text for cell in api.report(path).table.column("test.test.my_metric")])
        files = {file.stat().st_size: file for file in Path("results").glob("runs/*/hyp*.test.txt")}
        for file in Path("results").glob("runs/*/hypotheses.test.txt"):
            file.write_bytes(files[max(files)].read_bytes())
    assert columns == [["100.0", "0.0", "0.0"], ["100.0"] * 3]


def test_a_metric_that_fails_on_some_text_is_named_with_its_line(path: Path) -> None:
    plugin = Path("my_metric.py")
    code = plugin.read_text("utf-8")
    plugin.write_text(code.replace("max(n_words, 1)", "0"), encoding="utf-8")
    translated(path, Path("results"))
    with pytest.raises(SpecError, match=r"'my_metric': my_metric\.py:\d+, .*: ZeroDivisionError"):
        api.report(path)


def test_metrics_move_no_hash(path: Path) -> None:
    with_metrics = config.load(path).rows
    path.write_text(EXPERIMENT, encoding="utf-8")
    without = config.load(path).rows
    assert with_metrics == without
    hashes = [[identity(row.spec, "content", "fp32") for row in r] for r in (with_metrics, without)]
    assert hashes[0] == hashes[1]


@pytest.mark.parametrize(
    ("metrics", "reason"),
    [
        ("[bleu, my_metrik]", "no metric is called 'my_metrik'; did you mean 'my_metric'"),
        ("[{name: my_metric, m: 3}]", "unknown option"),
        ("[{name: my_metric, n: 0}]", "must be greater than 0; it is 0"),
        ("[comet]", "needs 'model'"),
    ],
)
def test_mistakes_are_reported_with_their_line(path: Path, metrics: str, reason: str) -> None:
    text = f"plugins: my_metric.py\nmetrics: {metrics}\n"
    path.write_text(EXPERIMENT + text, encoding="utf-8")
    with pytest.raises(MistakesError, match=reason) as error:
        config.load(path)
    assert str(error.value).startswith("pe.yaml:15:")


@pytest.mark.parametrize(
    "name", sorted({*Scores.__annotations__, "bleu_lc_tok"} - {"bleu", "chrf"})
)
def test_a_metric_may_not_replace_a_value_of_the_record(path: Path, name: str) -> None:
    api.init(name, part="metric")
    text = f"plugins: {name}.py\nmetrics: [bleu, {name}]\n"
    path.write_text(EXPERIMENT + text, encoding="utf-8")
    with pytest.raises(MistakesError, match=f"metrics: '{name}' names another value of records"):
        config.load(path)


def test_a_metric_without_a_column_is_refused(path: Path) -> None:
    """Columns are split at dots: it would be a mean under another name, and never compared."""
    file = api.init("f05", part="metric")
    file.write_text(file.read_text("utf-8").replace('"f05"', '"f0.5"'), encoding="utf-8")
    path.write_text(f"{EXPERIMENT}plugins: {file}\nmetrics: f0.5\n", encoding="utf-8")
    with pytest.raises(MistakesError, match=r"metrics: 'f0\.5' has a dot, .* rename the metric"):
        config.load(path)


def fake_comet(monkeypatch: pytest.MonkeyPatch, load: Callable[[str], Any]) -> None:
    fake = ModuleType("comet")
    fake.load_from_checkpoint = load  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "comet", fake)


def test_the_weights_of_comet_are_the_users_and_its_package_an_extra(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metric = build(Metric, choose(Metric, "comet", model="weights.ckpt"))
    monkeypatch.setitem(sys.modules, "comet", None)
    with pytest.raises(ValueError, match=r"pip install 'ablate-transformer\[comet\]'"):
        metric.score(["a"], ["b"], ["c"])
    calls: list[Any] = []

    def predict(samples: Any, **options: Any) -> Any:
        calls.append((samples, options))
        return SimpleNamespace(system_score=0.75)

    fake_comet(monkeypatch, lambda _: SimpleNamespace(predict=predict))
    with pytest.raises(UnavailableError, match=r"there is no file 'weights\.ckpt'"):
        metric.score(["a"], ["b"], ["c"])
    Path("weights.ckpt").touch()
    assert metric.score(["a"], ["b"], ["c"]) == 75.0
    assert calls == [([{"src": "a", "mt": "b", "ref": "c"}], {"batch_size": 16, "gpus": 0})]
    text = "metrics: {name: comet, model: weights.ckpt}\n"
    Path("below").mkdir()
    Path("below/x.yaml").write_text(EXPERIMENT + text, encoding="utf-8")
    (choice,) = config.load(Path("below/x.yaml")).metrics
    assert choice.options["model"] == "below/weights.ckpt"


def test_other_weights_under_the_same_path_score_anew(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = Path("weights.ckpt")

    def load(file: str) -> Any:
        score = float(Path(file).read_text(encoding="utf-8"))
        return SimpleNamespace(predict=lambda *_, **__: SimpleNamespace(system_score=score))

    fake_comet(monkeypatch, load)
    translated(path, Path("results"))
    path.write_text(EXPERIMENT + f"metrics: {{name: comet, model: {weights}}}\n", encoding="utf-8")
    scores = []
    for content in ("0.25", "0.75", None):
        if content is None:
            weights.unlink()  # as where others read the results
        else:
            weights.write_text(content, encoding="utf-8")
        scores.append(api.report(path).table.column("test.test.comet")[0].text)
    assert scores == ["25.0", "75.0", "75.0"]
