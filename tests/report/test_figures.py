"""Learning curves: drawn from what is there, readable where lines end together."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablate.config import Experiment
from ablate.errors import StoreError
from ablate.report.figures import draw_curves
from ablate.report.figures.curves import spread_out

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


def test_every_row_is_named_in_the_figure(
    experiment: Experiment, curves: dict[tuple[str, int], Path], tmp_path: Path
) -> None:
    svg, png = draw_curves(experiment, curves, tmp_path / "made_up")
    assert (svg.name, png.name) == ("curves.svg", "curves.png")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert all(row.name in texts(svg) for row in experiment.rows)
    assert sorted(path.name for path in svg.parent.iterdir()) == ["curves.png", "curves.svg"]


def test_the_same_curves_give_the_same_file(
    experiment: Experiment, curves: dict[tuple[str, int], Path], tmp_path: Path
) -> None:
    once, again = (draw_curves(experiment, curves, tmp_path / name)[0] for name in ("a", "b"))
    assert once.read_bytes() == again.read_bytes()


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
    svg, _ = draw_curves(experiment, some, tmp_path)
    assert "learned" in texts(svg)
    assert "heads_1" not in texts(svg)


def test_without_evaluations_the_training_loss_stands_alone(
    experiment: Experiment, tmp_path: Path
) -> None:
    path = write_curve(tmp_path / "curve.csv", has_dev=False)
    svg, _ = draw_curves(experiment, {("baseline", 1): path}, tmp_path)
    assert "baseline" in texts(svg)
    assert "Dev NLL" not in texts(svg)


def test_nothing_to_draw_is_no_figure(experiment: Experiment, tmp_path: Path) -> None:
    empty = tmp_path / "curve.csv"
    empty.write_text(HEADER, encoding="utf-8")
    assert draw_curves(experiment, {}, tmp_path / "figures") == []
    assert draw_curves(experiment, {("baseline", 1): empty}, tmp_path / "figures") == []


@pytest.mark.parametrize("content", ["", "step,loss\n1,2\n", f"{HEADER}1,1,many,,0,0,0\n"])
def test_a_file_that_is_no_curve_is_named(
    experiment: Experiment, tmp_path: Path, content: str
) -> None:
    path = tmp_path / "curve.csv"
    path.write_text(content, encoding="utf-8")
    if content:
        with pytest.raises(StoreError, match=r"curve\.csv: is not a learning curve"):
            draw_curves(experiment, {("baseline", 1): path}, tmp_path)
    else:  # a run that has only just begun
        assert draw_curves(experiment, {("baseline", 1): path}, tmp_path) == []


@given(st.lists(st.floats(0, 100), min_size=1, max_size=8))
def test_labels_move_apart_and_keep_their_order(wanted: list[float]) -> None:
    placed = spread_out(wanted, 10.0)
    in_order = sorted(zip(wanted, placed, strict=True))
    heights = [height for _, height in in_order]
    assert all(b - a > 10 - 1e-9 for a, b in pairwise(heights))
    assert sum(placed) == pytest.approx(sum(wanted))


def test_labels_with_room_stay_where_they_are() -> None:
    assert spread_out([30.0, 0.0, 15.0], 10.0) == [30.0, 0.0, 15.0]
