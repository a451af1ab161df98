"""Learning curves: drawn from what is there, readable where lines end together."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.text import Annotation, Text

from ablate.config import Experiment
from ablate.errors import StoreError
from ablate.report import Details, tabulate
from ablate.report.figures import Drawing, draw_curves, drawings
from ablate.report.figures.curves import spread_out
from ablate.report.results import Results
from tests.report import made_up

pytestmark = pytest.mark.figures

HEADER = "step,tokens,train_loss,dev_nll,learning_rate,gradient_norm,seconds\n"


def write_curve(path: Path, n_steps: int = 40, level: float = 1.0, *, has_dev: bool = True) -> Path:
    lines = [
        f"{step},{100 * step},{level + 5 / step},"
        f"{level + 4 / step if has_dev and step % 10 == 0 else ''},0.001,1.0,{step}\n"
        for step in range(1, n_steps + 1)
    ]
    path.write_text(HEADER + "".join(lines), encoding="utf-8")
    return path


@pytest.fixture
def curves(experiment: Experiment, tmp_path: Path) -> dict[tuple[str, int], Path]:
    return {
        (row.name, seed): write_curve(tmp_path / f"{row.name}.{seed}.csv", level=1 + seed / 10)
        for row in experiment.rows
        for seed in experiment.seeds
    }


def texts(svg: Path) -> str:
    """Return the comments of an SVG, where matplotlib says what its glyphs spell."""
    parser = ElementTree.XMLParser(target=ElementTree.TreeBuilder(insert_comments=True))
    root = ElementTree.parse(svg, parser).getroot()
    return "\n".join(each.text or "" for each in root.iter() if callable(each.tag))


def drawn(drawing: Drawing | None) -> Drawing:
    assert drawing is not None
    return drawing


def saved(drawing: Drawing | None, folder: Path) -> list[Path]:
    return drawn(drawing).save(folder)


def test_every_row_is_named_in_the_figure_and_the_same_curves_give_the_same_file(
    experiment: Experiment, curves: dict[tuple[str, int], Path], tmp_path: Path
) -> None:
    svg, png, numbers = saved(draw_curves(experiment, curves), tmp_path / "made_up")
    assert (svg.name, png.name, numbers.name) == ("curves.svg", "curves.png", "curves.csv")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert all(row.name in texts(svg) for row in experiment.rows)
    assert len(list(svg.parent.iterdir())) == 3
    again, *_ = saved(draw_curves(experiment, curves), tmp_path / "again")
    assert svg.read_bytes() == again.read_bytes()


def test_lines_lead_to_the_beginning_of_long_names_and_cross_none(tmp_path: Path) -> None:
    rows = "".join(f"\n  {'long name ' * n}{n}: {{model.dims.max_len: 7{n}}}" for n in range(1, 7))
    experiment = made_up.experiment(tmp_path, f"{rows}\n", seeds="[1]")
    path = write_curve(tmp_path / "curve.csv")  # all end together
    figure = drawn(draw_curves(experiment, {(row.name, 1): path for row in experiment.rows})).figure
    figure.draw_without_rendering()
    names = [each for each in figure.axes[1].texts if isinstance(each, Annotation)]
    assert [each.get_text() for each in names] == [row.name for row in experiment.rows]
    left = min(Text.get_window_extent(each).x0 for each in names)
    for each in names:
        assert each.arrow_patch is not None
        assert each.arrow_patch.get_window_extent().x1 <= left + 1


def test_uneven_lonely_and_unbounded_curves_are_drawn(
    experiment: Experiment, tmp_path: Path
) -> None:
    broken = write_curve(tmp_path / "broken.csv", 20)
    with broken.open("a", encoding="utf-8") as file:
        file.write("21,2100,nan,inf,0.001,nan,21\n")
    some = {
        ("baseline", 1): write_curve(tmp_path / "long.csv", 60),
        ("baseline", 2): write_curve(tmp_path / "short.csv", 5, has_dev=False),
        ("learned", 3): broken,
        ("literal", 1): write_curve(tmp_path / "one.csv", 1, has_dev=False),
    }
    svg, _, numbers = saved(draw_curves(experiment, some, [("learned", 3)]), tmp_path)
    assert "learned" in texts(svg)
    assert "heads_1" not in texts(svg)
    assert "thin: each seed; thick: their mean; \u00d7: the seed diverged" in texts(svg)
    lines = csv.DictReader(io.StringIO(numbers.read_text(encoding="utf-8")))
    diverged = [line for line in lines if line["diverged"] == "True"]
    assert {(line["row"], line["seed"]) for line in diverged} == {("learned", "3")}
    assert max(int(line["step"]) for line in diverged) == 20  # to its last finite loss


def test_curves_in_tokens_of_several_tokenizers_say_so(
    experiment: Experiment, records: made_up.Records, curves: dict[tuple[str, int], Path]
) -> None:
    remark = "losses of rows with unlike tokens cannot be compared"
    for fingerprint in ("ab12cd34ef56ab78", "other"):
        for seed in experiment.seeds:
            records["learned", seed]["tokenizer"]["fingerprint"] = fingerprint
        details = Details(
            experiment=experiment,
            results=Results.of(experiment, records, {}),
            records=records,
            sentences={},
            folders={run: path.parent / path.stem for run, path in curves.items()},
            texts=dict,
            arguments="",
        )
        for run, path in curves.items():
            details.folders[run].mkdir(exist_ok=True)
            (details.folders[run] / "curve.csv").write_bytes(path.read_bytes())
        table = replace(tabulate(experiment, records), details=details)
        (drawing,) = [each for each in drawings(table) if each.name == "curves"]
        legend = " ".join(drawing.figure.get_supxlabel().split())
        assert (remark in legend) == (fingerprint == "other")


def test_means_leave_out_what_diverged(experiment: Experiment, tmp_path: Path) -> None:
    some = {
        ("baseline", seed): write_curve(tmp_path / f"{seed}.csv", 40 if seed < 3 else 10, seed)
        for seed in experiment.seeds
    }
    drawing = drawn(draw_curves(experiment, some, [("baseline", 3)]))
    mean, *seeds = drawing.figure.axes[1].get_lines()
    steps, values = mean.get_data()
    assert np.asarray(steps).tolist() == [10, 20, 30, 40]
    assert np.asarray(values)[-1] == pytest.approx(1.5 + 4 / 40)
    assert [np.asarray(line.get_xdata())[-1] for line in seeds] == [40, 40, 10, 10]


def test_training_losses_are_means_over_the_same_windows_of_steps(
    experiment: Experiment, tmp_path: Path
) -> None:
    """A hundred steps are fifty windows of two; a run that ended early has a part of its last."""
    some = {
        ("baseline", 1): write_curve(tmp_path / "long.csv", 100),
        ("baseline", 2): write_curve(tmp_path / "short.csv", 5, level=2.0),
    }
    drawing = drawn(draw_curves(experiment, some))
    values = {
        (line["measure"], line["seed"], line["step"]): line["value"] for line in drawing.numbers
    }
    steps = {
        seed: [s for of, seed_, s in values if (of, seed_) == ("train_loss", seed)]
        for seed in (1, 2)
    }
    assert steps == {1: list(range(2, 101, 2)), 2: [2, 4, 5]}
    expected = {
        ("train_loss", 1, 2): 1 + (5 / 1 + 5 / 2) / 2,
        ("train_loss", 1, 100): 1 + (5 / 99 + 5 / 100) / 2,
        ("train_loss", 2, 5): 2 + 5 / 5,
        ("dev_nll", 1, 10): 1 + 4 / 10,
    }
    assert {key: values[key] for key in expected} == pytest.approx(expected)


def test_many_rows_have_a_panel_each(tmp_path: Path) -> None:
    rows = "".join(f"\n  r{i}: {{model.dims.max_len: {65 + i}}}" for i in range(9))
    experiment = made_up.experiment(tmp_path, f"{rows}\n", seeds="[1, 2]")
    curves = {
        (row.name, seed): write_curve(tmp_path / f"{row.name}.{seed}.csv")
        for row in experiment.rows
        for seed in (1, 2)
    }
    drawing = drawn(draw_curves(experiment, curves, [("r1", 2)]))
    titles = [axes.get_title(loc="left") for axes in drawing.figure.axes]
    _, first, second, *others = (row.name for row in experiment.rows)
    assert titles == [first, f"{second}, 1 diverged", *others]
    labelled = [axes.xaxis.get_tick_params()["labelbottom"] for axes in drawing.figure.axes]
    assert labelled == [False] * 4 + [True] * 5
    assert [axes.get_xlabel() for axes in drawing.figure.axes] == [""] * 4 + ["step"] * 5
    n_lines = [len(axes.get_lines()) for axes in drawing.figure.axes]
    assert n_lines == [4, 5, *[4] * 7]  # two means, two seeds, and a cross
    assert drawing.title == "Dev NLL over the steps"
    svg, *_ = saved(drawing, tmp_path)
    assert "black: the baseline's mean" in texts(svg)
    assert "raining loss" not in texts(svg)


def test_without_evaluations_the_training_loss_stands_alone(
    experiment: Experiment, tmp_path: Path
) -> None:
    path = write_curve(tmp_path / "curve.csv", has_dev=False)
    drawing = drawn(draw_curves(experiment, {("baseline", 1): path}))
    svg, *_ = saved(drawing, tmp_path)
    assert drawing.title == "Training loss over the steps"
    assert "baseline" in texts(svg)
    assert "Dev NLL" not in texts(svg)


def test_nothing_to_draw_is_no_figure_and_a_file_that_is_no_curve_is_named(
    experiment: Experiment, tmp_path: Path
) -> None:
    path = tmp_path / "curve.csv"
    assert draw_curves(experiment, {}) is None
    for content in ("", HEADER):  # of a run that has only just begun
        path.write_text(content, encoding="utf-8")
        assert draw_curves(experiment, {("baseline", 1): path}) is None
    for content in ("step,loss\n1,2\n", f"{HEADER}1,1,many,,0,0,0\n"):
        path.write_text(content, encoding="utf-8")
        with pytest.raises(StoreError, match=r"curve\.csv: is not a learning curve"):
            draw_curves(experiment, {("baseline", 1): path})


@given(st.lists(st.floats(0, 100), min_size=1, max_size=8))
def test_labels_move_apart_and_keep_their_order(positions: list[float]) -> None:
    assert spread_out([30.0, 0.0, 15.0], 10.0) == [30.0, 0.0, 15.0]  # there is room
    placed = spread_out(positions, 10.0)
    in_order = sorted(zip(positions, placed, strict=True))
    heights = [height for _, height in in_order]
    assert all(b - a > 10 - 1e-9 for a, b in pairwise(heights))
    assert sum(placed) == pytest.approx(sum(positions))
