"""Shipped studies to start from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ablate import api, config
from ablate.config import shipped
from ablate.errors import SpecError


@pytest.mark.parametrize("study", ["pe", "multi30k/pe", "vaswani_table2", "science/f04_heads"])
def test_a_shipped_study_is_the_same_in_any_folder(
    study: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = shipped.find(study)
    assert file is not None
    monkeypatch.chdir(tmp_path)
    path = api.init(study=study)
    assert path == Path(f"{study.rpartition('/')[2]}.yaml")
    assert config.load(path).rows == config.load(file).rows


def test_every_parent_is_named_as_a_shipped_file(tmp_path: Path) -> None:
    for at, study in enumerate(shipped.names()):
        text = api.init(str(tmp_path / str(at)), study=study).read_text(encoding="utf-8")
        named = re.findall(r"^extends: *(.*?)(?: *#.*)?$", text, flags=re.MULTILINE)
        parents = re.split(r", *", named[0].strip("[]")) if named else []
        assert all(name.removeprefix("ablate:") in shipped.names() for name in parents), study
        assert all(name.startswith("ablate:") for name in parents), study


def test_a_study_that_is_not_shipped_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no shipped study is called 'heds'; did you mean 'heads'"):
        api.init(str(tmp_path / "x"), study="heds")
    with pytest.raises(SpecError, match="--part and --from exclude each other"):
        api.init("x", study="pe", part="norm")


def test_the_rows_that_the_experiment_suggests_change_what_they_name(tmp_path: Path) -> None:
    path = api.init(str(tmp_path / "mine"))
    text = re.sub(r"# (?=rms_gelu:)", "", path.read_text(encoding="utf-8"))
    path.write_text(text, encoding="utf-8")
    baseline, *_, row = config.load(path).rows
    assert (row.name, row.spec.model.feed_forward.name) == ("rms_gelu", "gelu")
    d_ff = (each.spec.model.feed_forward.options["d_ff"] for each in (baseline, row))
    assert [*d_ff] == [128, 128]


@pytest.mark.parametrize("study", [None, "pe"])
def test_a_name_that_loading_would_refuse_is_refused_at_once(
    study: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "experiments").mkdir()
    monkeypatch.chdir(tmp_path / "experiments")
    with pytest.raises(SpecError, match=r"^runs\.yaml: an experiment cannot be called 'runs'"):
        api.init("runs", study=study)
    assert not Path("runs.yaml").exists()
    assert api.init("runs", part="norm") == Path("runs.py")
