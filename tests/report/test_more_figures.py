"""Forest plot, costs and lengths: every number that is drawn, and nothing that is not known."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, pairwise, product
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
from matplotlib.figure import Figure
from matplotlib.text import Text

from ablate.analysis.measures import Sentences
from ablate.analysis.sentences import bleu
from ablate.config import Experiment, load
from ablate.errors import StoreError
from ablate.measuring import SentenceStatistics
from ablate.report.figures import (
    draw_costs,
    draw_curves,
    draw_differences,
    draw_interactions,
    draw_layers,
    draw_lengths,
)
from ablate.report.figures.costs import pareto_front
from ablate.report.figures.lengths import bins_of
from ablate.report.figures.style import COLOURS, set_up_lines
from ablate.report.results import Results
from tests.report import made_up
from tests.report.test_figures import drawn, saved, texts, write_curve

pytestmark = pytest.mark.figures

WORDS = "the small dog sees a large red house near that old river".split()


def _lines(numbers: Path) -> dict[tuple[str, str], dict[str, str]]:
    with numbers.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    return {(first, second): line for line in lines for first, second, *_ in [line.values()]}


def _texts(n: int = 200) -> tuple[list[str], list[str]]:
    """Return references of 2 to 10 words, and translations of which a word in ten is wrong."""
    draw = np.random.default_rng(0)
    references = [" ".join(draw.choice(WORDS, 2 + i % 9)) for i in range(n)]
    wrong = [" ".join(w if draw.random() > 0.1 else "x" for w in r.split()) for r in references]
    return references, wrong


def _sentences(rows: Sequence[str], seeds: Sequence[int]) -> Sentences:
    """Return sentences that the first row translates without a mistake, and others with."""
    references, wrong = _texts()
    lengths = np.array([len(text.split()) + 1 for text in references])

    def of(lines: list[str]) -> SentenceStatistics:
        return SentenceStatistics.of(lines, [references], lengths, np.ones(len(references)))

    return {
        (row, seed): {"test": of(references if row == rows[0] else wrong)}
        for row in rows
        for seed in seeds
    }


@pytest.fixture
def results(experiment: Experiment, records: made_up.Records) -> Results:
    return Results.of(experiment, records, {})


def test_the_forest_plot_has_the_numbers_of_the_table(
    experiment: Experiment, results: Results, tmp_path: Path
) -> None:
    drawing = drawn(draw_differences(results))
    svg, png, numbers = saved(drawing, tmp_path)
    assert (svg.name, png.stat().st_size > 10_000) == ("differences.svg", True)
    written = texts(svg)
    for row in experiment.rows[1:]:
        assert row.name in written
    assert "right is better" in written
    assert "left is better" in written
    lines = _lines(numbers)
    names = [label.get_text() for label in drawing.figure.axes[0].get_yticklabels()]
    for metric, row in product(("test.test.bleu", "test.test.nll"), experiment.rows[1:]):
        difference = results.difference(row.name, metric)
        assert difference is not None
        assert difference.simultaneous is not None
        line = lines[metric, row.name]
        assert difference.single is not None
        keys = ("difference", "simultaneous.low", "single.low", "single.high", "n")
        single, simultaneous = (
            [interval.low, interval.high]
            for interval in (difference.single, difference.simultaneous)
        )
        assert [float(line[key]) for key in keys] == pytest.approx(
            [difference.estimate, simultaneous[0], *single, 3]
        )
        axes = drawing.figure.axes[metric.endswith("nll")]
        y = names.index(row.name)
        of_row = [
            of for of in axes.lines if np.asarray(of.get_ydata())[0] == y and of.get_zorder() > 1
        ]
        bars = {of.get_linewidth(): np.asarray(of.get_xdata()).tolist() for of in of_row[:2]}
        assert bars == {1.0: simultaneous, 3.5: single}
        assert np.asarray(of_row[2].get_xdata()).tolist() == [difference.estimate]
        assert line["verdict"] == str(results.verdict(row.name, metric))
        mean = np.mean([float(pair.split(":")[1]) for pair in line["seeds"].split()])
        assert mean == pytest.approx(difference.estimate, rel=1e-4)


def test_one_seed_has_no_interval(
    experiment: Experiment, records: made_up.Records, tmp_path: Path
) -> None:
    one = {key: record for key, record in records.items() if key[1] == 1}
    lines = _lines(saved(draw_differences(Results.of(experiment, one, {})), tmp_path)[-1])
    assert {row for _, row in lines} == {row.name for row in experiment.rows[1:]}
    for line in lines.values():
        assert float(line["difference"])
        assert (line["single.low"], line["simultaneous.low"], line["verdict"]) == ("", "", "")


def test_a_diverged_row_is_in_words_and_leaves_the_others_their_axis(
    experiment: Experiment, records: made_up.Records
) -> None:
    widths = {}
    for n_diverged in (0, 1, 3):
        for seed in range(1, n_diverged + 1):
            records["learned", seed] = made_up.without_result("diverged", "NaN", "learned", seed)
        drawing = draw_differences(Results.of(experiment, records, {}))
        assert drawing is not None
        axes = drawing.figure.axes[0]
        low, high = axes.get_xlim()
        widths[n_diverged] = high - low
        remarks = [text.get_text().strip() for text in axes.texts]
        expected = {0: [], 1: ["diverged with 1 of 3 seeds"], 3: ["diverged with all seeds"]}
        assert remarks == expected[n_diverged]
        line = next(each for each in drawing.numbers if each["row"] == "learned")
        assert (line["difference"] < -10) is (n_diverged > 0), "it counts 0 BLEU"
    assert max(widths.values()) < 2 * widths[0]


def test_a_row_with_a_far_wider_interval_leaves_the_others_their_axis(
    experiment: Experiment, records: made_up.Records, tmp_path: Path
) -> None:
    for seed, bleu_score in ((1, 5.0), (2, 30.0), (3, 70.0)):
        record = records["learned", seed]
        assert record is not None
        record["test"]["test"]["bleu"] = bleu_score
    drawing = draw_differences(Results.of(experiment, records, {}))
    assert drawing is not None
    by_row = {each["row"]: each for each in drawing.numbers if each["metric"].endswith("bleu")}
    wide = by_row.pop("learned")
    low, high = drawing.figure.axes[0].get_xlim()
    assert wide["simultaneous.low"] < low < high < wide["simultaneous.high"]
    for each in by_row.values():
        assert low < each["simultaneous.low"] < each["simultaneous.high"] < high
    points = [float(pair.split(":")[1]) for pair in wide["seeds"].split()]
    assert low < min(points) < max(points) < high
    words = texts(saved(drawing, tmp_path)[0]).replace("\n", " ")
    assert "an interval that reaches the edge goes on" in words


def test_beside_a_diverged_baseline_there_are_seeds_alone(
    experiment: Experiment, records: made_up.Records
) -> None:
    records["baseline", 2] = made_up.without_result("diverged", "NaN", "baseline", 2)
    drawing = draw_differences(Results.of(experiment, records, {}))
    assert drawing is not None
    axes = drawing.figure.axes[0]
    assert [text.get_text().strip() for text in axes.texts] == ["the baseline diverged"] * 3
    assert [line.get_marker() for line in axes.get_lines()] == ["None"], "the line at 0"


@pytest.mark.parametrize("n_rows", [6, 60])
def test_what_is_higher_than_a_screen_has_its_scale_above_too(n_rows: int) -> None:
    axes = Figure().subplots()
    set_up_lines(axes, [str(row) for row in range(n_rows)], band=None)
    assert axes.xaxis.get_tick_params()["labelbottom"]
    assert axes.xaxis.get_tick_params()["labeltop"] is (n_rows > 6)


def test_nothing_is_drawn_of_nothing(experiment: Experiment, results: Results) -> None:
    assert draw_interactions(experiment, results) is None  # variants that never meet
    empty = Results.of(experiment, {}, {})
    assert draw_differences(empty) is None
    assert draw_costs(empty) is None
    assert draw_lengths(empty, {}) is None


def test_costs_are_those_of_the_records(
    experiment: Experiment, records: made_up.Records, results: Results, tmp_path: Path
) -> None:
    drawing = drawn(draw_costs(results))
    for axes in (drawing.figure.axes[0], drawing.figure.axes[2]):
        low, high = axes.get_xlim()
        assert high > 1.09 * low, "next to nothing looks like a difference"
    svg, _, numbers = saved(drawing, tmp_path)
    lines = _lines(numbers)
    assert float(lines["parameters", "learned"]["cost"]) == 1_354_000
    scores = [records["learned", seed]["test"]["test"]["bleu"] for seed in experiment.seeds]
    line = lines["training FLOPs", "learned"]
    assert float(line["bleu"]) == pytest.approx(np.mean(scores))
    assert float(line["sd"]) == pytest.approx(np.std(scores, ddof=1))
    milliseconds = float(lines["decoding, ms per sentence", "learned"]["cost"])
    assert 1000 / 90 <= milliseconds <= 1000 / 80
    for number, row in enumerate(experiment.rows):
        assert f"{number}  {row.name}" in texts(svg)


def test_one_seed_has_no_spread(experiment: Experiment, records: made_up.Records) -> None:
    one = Results.of(replace(experiment, seeds=(1,)), records, {})
    for line in drawn(draw_costs(one)).numbers:
        assert line["sd"] is None
        assert (line["error"] is None) == (line["measure"] != "decoding, ms per sentence")


def test_the_error_of_a_decoding_time_is_the_spread_of_the_rounds(
    experiment: Experiment, records: made_up.Records
) -> None:
    for (row, _), record in records.items():
        speeds = [(2 if row == "learned" else 1) * each for each in (80.0, 100.0, 125.0)]
        record["speed"]["rounds"]["decode_sentences_per_second"] = speeds
    numbers = drawn(draw_costs(Results.of(experiment, records, {}))).numbers
    times = {n["row"]: n for n in numbers if n["measure"] == "decoding, ms per sentence"}
    sd = np.std([80, 100, 125], ddof=1)
    for row, cost in (("baseline", 10), ("learned", 5)):
        assert times[row]["cost"] == pytest.approx(cost)
        assert times[row]["error"] == pytest.approx(cost * sd / 100)


def test_decoding_times_are_those_of_the_session_of_the_baseline(
    experiment: Experiment, records: made_up.Records
) -> None:
    def speed(session: str, *speeds: float, **earlier: list[float]) -> dict[str, object]:
        names = "decode_sentences_per_second", "train_target_tokens_per_second"
        rounds = {
            name: dict.fromkeys(names, of) for name, of in (*earlier.items(), ("", [*speeds]))
        }
        last = rounds.pop("")
        return {"session": session, "rounds": last, "earlier": rounds}

    speeds = {
        "baseline": speed("b", 50.0, 50.0, a=[100.0, 100.0]),  # a machine of half the speed
        "learned": speed("b", 50.0, 50.0),
        "literal": speed("a", 100.0, 100.0),
        "heads_1": speed("c", 10.0, 10.0),
    }
    for (row, _), record in records.items():
        record["speed"] = speeds[row]
    results = Results.of(experiment, records, {})
    lines = [n for n in drawn(draw_costs(results)).numbers if "decoding" in n["measure"]]
    costs = {line["row"]: line["cost"] for line in lines}
    assert costs.keys() == {"baseline", "learned", "literal"}, "no other one took turns with it"
    assert costs["learned"] == pytest.approx(costs["baseline"])
    assert costs["literal"] == pytest.approx(costs["baseline"])


def test_costs_have_short_numbers_at_their_axes(
    experiment: Experiment, records: made_up.Records
) -> None:
    for (row, _), record in records.items():
        rounds = record["speed"]["rounds"]["decode_sentences_per_second"]
        record["speed"]["rounds"]["decode_sentences_per_second"] = [20 * each for each in rounds]
        record["params"] = {"total": 157_000 if row == "learned" else 672_000}
    figure = drawn(draw_costs(Results.of(experiment, records, {}))).figure
    figure.draw_without_rendering()
    both = (False, True)
    _, times, parameters = (
        [label.get_text() for minor in both for label in axes.get_xticklabels(minor=minor)]
        for axes in figure.axes
    )
    assert all(0.5 < float(text) < 1 for text in times)
    assert {"200k", "500k"} <= set(parameters)
    assert not any("$" in text for text in parameters)


def test_the_numbers_of_rows_that_cost_the_same_stand_apart(tmp_path: Path) -> None:
    names = "".join(f"\n  row_{n}: {{model.dropout.residual: 0.{n:02}5}}" for n in range(1, 20))
    experiment = made_up.experiment(tmp_path, f"{names}\n")
    results = Results.of(experiment, made_up.records(experiment), {})
    figure = drawn(draw_costs(results)).figure
    figure.draw_without_rendering()
    for axes in figure.axes:
        numbers = [text for text in axes.texts if text.get_text().isdigit()]
        assert len(numbers) == len(experiment.rows)
        boxes = [Text.get_window_extent(text).shrunk(1, 0.8) for text in numbers]
        assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))


def test_long_names_leave_the_panels_their_room(tmp_path: Path) -> None:
    name = "_".join(["a_long_name_of_a_row"] * 4)
    experiment = made_up.experiment(tmp_path, f"\n  {name}: {{model.position: none}}\n")
    results = Results.of(experiment, made_up.records(experiment), {})
    curves = {("baseline", 1): write_curve(tmp_path / "1"), (name, 1): write_curve(tmp_path / "2")}
    for drawing in (
        draw_differences(results),
        draw_costs(results),
        draw_curves(experiment, curves),
    ):
        figure = drawn(drawing).figure
        figure.draw_without_rendering()
        assert all(axes.get_window_extent().width / figure.dpi > 2.4 for axes in figure.axes)


@pytest.mark.parametrize(
    ("points", "front"),
    [
        ([(1, 10), (2, 20), (3, 15), (4, 30)], [0, 1, 3]),
        ([(2, 20), (1, 20)], [1]),
        ([(1, 10), (1, 12)], [1]),
        ([(3, 1), (2, 2), (1, 3)], [2]),
        ([], []),
    ],
)
def test_the_front_has_what_nothing_cheaper_is_as_good_as(
    points: list[tuple[float, float]], front: list[int]
) -> None:
    assert pareto_front(points) == front


def test_a_row_with_diverged_seeds_is_hollow_and_the_front_does_not_join_it(
    experiment: Experiment, records: made_up.Records
) -> None:
    for (row, seed), record in records.items():
        record["test"]["test"]["bleu"] = {"learned": 80, "heads_1": 20}.get(row, 40) + seed / 10
    for has_diverged in (False, True):
        if has_diverged:
            records["learned", 3] = made_up.without_result("diverged", "NaN", "learned", 3)
        figure = drawn(draw_costs(Results.of(experiment, records, {}))).figure
        fronts = [
            np.asarray(line.get_xydata()).tolist()
            for line in figure.axes[2].lines
            if line.get_color() == COLOURS[1]
        ]
        front = [pytest.approx(ends) for ends in ([1_321_000, 40.2], [1_354_000, 80.2])]
        assert fronts == ([] if has_diverged else [front])
        faces = [line.get_markerfacecolor() for line in figure.axes[0].lines]
        assert faces.count("white") == has_diverged
        legend = " ".join(figure.get_supxlabel().split())
        assert ("hollow: without the seeds" in legend) is has_diverged


def test_bleu_of_a_bin_is_that_of_its_sentences() -> None:
    references, wrong = _texts()
    counts = _sentences(["a", "b"], [1])["b", 1]["test"].bleu
    (first, *_) = bins = bins_of(counts[:, 1])
    assert sum(len(each.rows) for each in bins) == len(references)
    assert all(each.high < after.low for each, after in pairwise(bins))
    some, of_some = ([lines[i] for i in first.rows] for lines in (wrong, references))
    assert bleu(counts[first.rows].sum(axis=0)) == pytest.approx(
        sacrebleu.corpus_bleu(some, [of_some]).score
    )


def test_lengths_show_where_a_row_loses(
    experiment: Experiment, results: Results, tmp_path: Path
) -> None:
    rows = [row.name for row in experiment.rows]
    sentences = _sentences(rows, experiment.seeds)
    drawing = drawn(draw_lengths(results, sentences))
    svg, _, numbers = saved(drawing, tmp_path)
    lines = _lines(numbers)
    pairs = list(zip(*_texts(), strict=True))
    for (_, low), line in lines.items():
        within = range(int(low), int(line["length.high"]) + 1)
        some = [pair for pair in pairs if len(pair[0].split()) in within]
        references, wrong = zip(*some, strict=True)
        own, theirs = (sacrebleu.corpus_bleu(of, [references]).score for of in (wrong, references))
        assert float(line["difference"]) == pytest.approx(own - theirs)
        assert (int(line["sentences"]), line["seeds"]) == (len(some), "3")
    for row, axes in zip(rows[1:], drawing.figure.axes, strict=True):
        marks = [line for line in axes.lines if line.get_marker() == "o"]
        expected = [float(line["difference"]) for key, line in lines.items() if key[0] == row]
        assert [np.asarray(line.get_ydata())[0] for line in marks] == pytest.approx(expected)
    assert {row for row, _ in lines} == set(rows[1:])
    for line in lines.values():
        assert float(line["low"]) <= float(line["difference"]) <= 0
        assert f"n {line['sentences']}" in texts(svg)
    assert float(lines[rows[1], "8"]["difference"]) < -5
    for row in rows[1:]:
        assert sum(int(line["sentences"]) for key, line in lines.items() if key[0] == row) == 200


@pytest.mark.parametrize(
    ("row", "without"),
    [("learned", {"learned"}), ("baseline", {"learned", "literal", "heads_1"})],
)
def test_lengths_have_no_interval_where_seeds_diverged(
    row: str, without: set[str], experiment: Experiment, records: made_up.Records
) -> None:
    sentences = _sentences([row.name for row in experiment.rows], experiment.seeds)
    kept = {run: of for run, of in sentences.items() if run != (row, 3)}
    records[row, 3] = made_up.without_result("diverged", "NaN", row, 3)
    drawing = drawn(draw_lengths(Results.of(experiment, records, {}), kept))
    assert {line["row"] for line in drawing.numbers if line["low"] is None} == without
    titles = [" ".join(axes.get_title("left").split()) for axes in drawing.figure.axes]
    remark = "the baseline diverged" if row == "baseline" else "diverged with 1 of 3 seeds"
    assert {title.split(",")[0] for title in titles if title.endswith(remark)} == without


def test_bins_are_by_words_of_the_source_where_it_is_known(
    experiment: Experiment, results: Results, tmp_path: Path
) -> None:
    sentences = _sentences([row.name for row in experiment.rows], experiment.seeds)
    sources = ["a b"] * 60 + ["a b c"] * 140
    drawing = draw_lengths(results, sentences, sources)
    lines = _lines(saved(drawing, tmp_path)[-1])
    assert {(line["length.low"], line["unit"]) for line in lines.values()} == {
        ("2", "words of the source"),
        ("3", "words of the source"),
    }


def test_bins_of_sources_without_spaces_are_by_characters(
    experiment: Experiment, results: Results
) -> None:
    sentences = _sentences([row.name for row in experiment.rows], experiment.seeds)
    sources = ["\u72d7\u53eb"] * 60 + ["\u72d7\u53eb\u4e86"] * 140
    lines = drawn(draw_lengths(results, sentences, sources)).numbers
    assert {(line["length.low"], line["unit"]) for line in lines} == {
        (2, "characters of the source"),
        (3, "characters of the source"),
    }


GRID = (
    made_up.HEAD
    + """
grid:
  model.norm: [layer, rms]
  model.position: [sinusoidal, learned, none]
"""
)


def grid(folder: Path, seeds: str) -> Experiment:
    (folder / "grid.yaml").write_text(f"{GRID}seeds: {seeds}\n", encoding="utf-8")
    return load(folder / "grid.yaml")


def test_interactions_are_drawn_where_their_interval_leaves_out_0(tmp_path: Path) -> None:
    experiment = grid(tmp_path, "[1, 2, 3]")
    records = made_up.records(experiment)
    for (row, seed), record in records.items():
        alone = 2 * ("rms" in row) - 5 * ("none" in row)
        together = 4 * ("rms" in row and "none" in row)
        record["test"]["test"]["bleu"] = 30 + alone + together + seed + 0.01 * (len(row) * seed % 7)
    drawing = drawn(draw_interactions(experiment, Results.of(experiment, records, {})))
    (axes,) = drawing.figure.axes
    (at,) = [text.get_position() for text in axes.texts if text.get_text() == "+4.0"]
    ticks = axes.get_xticklabels()[int(at[0])], axes.get_yticklabels()[int(at[1])]
    assert [label.get_text() for label in ticks] == ["rms", "none"]
    cells = {line["rows"].split(";")[0]: line for line in drawing.numbers}
    assert set(cells) == {"norm=rms position=learned", "norm=rms position=none"}
    cell = cells["norm=rms position=none"]
    assert cell["interaction"] == pytest.approx(4.0, abs=0.3)
    assert (cell["first"], cell["second"]) == ("model.position=none", "model.norm=rms")
    assert (cell["low"] > 0, cell["high"] < 5, cell["n"]) == (True, True, 3)
    records["norm=rms position=none", 1] = made_up.without_result("diverged", "NaN", "x", 1)
    drawing = drawn(draw_interactions(experiment, Results.of(experiment, records, {})))
    lines = {text.get_text() for axes in drawing.figure.axes for text in axes.texts}
    assert "no result" in lines
    assert "+4.0" not in lines


def test_values_that_are_chosen_for_each_row_are_none_of_its_two_changes(tmp_path: Path) -> None:
    experiment = grid(tmp_path, "[1, 2, 3]")
    lr = "training.schedule.lr"
    tuned = tuple(
        replace(row, changes={**row.changes, lr: 0.01 * (1 + at % 2)}, chosen={lr: "tuned"})
        for at, row in enumerate(experiment.rows)
    )
    pending = tuple(
        replace(row, changes={**row.changes, lr: None}, pending=(lr,)) if at == 1 else row
        for at, row in enumerate(experiment.rows)
    )
    cells = []
    for rows in (experiment.rows, tuned, pending):
        results = Results.of(experiment, made_up.records(experiment), {})
        drawing = drawn(draw_interactions(replace(experiment, rows=rows), results))
        cells.append([(line["first"], line["second"]) for line in drawing.numbers])
    assert cells[0] == cells[1] == cells[2]


def test_layers_have_the_geometric_mean_over_seeds(experiment: Experiment, tmp_path: Path) -> None:
    files = {}
    for seed, value in ((1, 1e-3), (2, 1e-1)):
        files["learned", seed] = tmp_path / f"{seed}.csv"
        lines = [
            f"{step},{layer},{value * step},{'nan' if step == 3 else value}\n"
            for step in (1, 2, 3)
            for layer in ("decoder 1", "encoder 2", "encoder 1", "embedding")
        ]
        text = "step,layer,gradient_norm,update_ratio\n" + "".join(lines)
        files["learned", seed].write_text(text, encoding="utf-8")
    drawing = drawn(draw_layers(experiment, files))
    (line,) = [n for n in drawing.numbers if (n["layer"], n["step"]) == ("encoder 1", 2)]
    assert line["gradient_norm"] == pytest.approx(2e-2)
    assert line["update_ratio"] == pytest.approx(1e-2)
    order = [label.get_text() for label in drawing.figure.axes[0].get_yticklabels()]
    assert order == ["embedding", "encoder 1", "encoder 2", "decoder 1"]
    assert len(saved(drawing, tmp_path)) == 3


def test_colours_within_one_decade_have_numbers(experiment: Experiment, tmp_path: Path) -> None:
    lines = [f"{step},embedding,{0.2 + 0.1 * step},{1e-4 * step}\n" for step in range(2, 7)]
    text = "step,layer,gradient_norm,update_ratio\n" + "".join(lines)
    (tmp_path / "layers.csv").write_text(text, encoding="utf-8")
    figure = drawn(draw_layers(experiment, {("baseline", 1): tmp_path / "layers.csv"})).figure
    figure.draw_without_rendering()
    for bar in figure.axes[-2:]:
        low, high = bar.get_xlim()
        assert sum(low <= tick <= high for tick in bar.get_xticks()) > 1


def test_a_diverged_row_does_not_set_the_colours_of_the_others(
    experiment: Experiment, tmp_path: Path
) -> None:
    files = {}
    for row, steps, ratio in (("baseline", range(1, 21), 1e-3), ("learned", (1, 2), 1e6)):
        lines = [f"{step},encoder 1,1.0,{ratio * step}\n" for step in steps]
        files[row, 1] = tmp_path / f"{row}.csv"
        text = "step,layer,gradient_norm,update_ratio\n" + "".join(lines)
        files[row, 1].write_text(text, encoding="utf-8")
    highest = []
    for diverged in ([], [("learned", 1)], [("learned", 1), ("baseline", 1)]):
        figure = drawn(draw_layers(experiment, files, diverged)).figure
        highest.append(figure.axes[1].collections[0].get_clim()[1])
    assert highest[0] == pytest.approx(2e6, rel=0.5)
    assert highest[2] == highest[0], "no row is left to set the scale"
    assert highest[1] == pytest.approx(20e-3, rel=0.1)


def test_without_records_of_layers_there_is_no_figure(
    experiment: Experiment, tmp_path: Path
) -> None:
    (tmp_path / "layers.csv").write_text("\n", encoding="utf-8")  # of a run that diverged at once
    assert draw_layers(experiment, {}) is None
    assert draw_layers(experiment, {("baseline", 1): tmp_path / "layers.csv"}) is None
    (tmp_path / "layers.csv").write_text("step,layer\n1,x\n", encoding="utf-8")
    with pytest.raises(StoreError, match=r"layers\.csv: is not a record of layers"):
        draw_layers(experiment, {("baseline", 1): tmp_path / "layers.csv"})
