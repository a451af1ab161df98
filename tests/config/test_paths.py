"""Paths in an experiment begin at the folder of the file that holds them."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from ablate import api, config
from ablate.registry import lookup, plugins
from tests.registrations import temporary_registrations

CORPUS = """\
corpus:
  name: files
  src: en
  tgt: de
  train: [data/train.en, data/train.de]
  dev: [data/dev.en, data/dev.de]
  tests:
    news: [data/dev.en, data/dev.de]
tokenizer: char
model: {dims: {d_model: 16, n_heads: 2}, n_layers: 1}
seeds: [1]
variants:
  rms: {model.norm: rms}
"""
PART = '''
from ablate.parts.norm import Norm
from ablate.parts.dims import Dims
from ablate.registry import register

@register("twice", source="this test, 2026", formula="2 x")
class Twice(Norm):
    """Double."""

    def __init__(self, dims: Dims) -> None:
        super().__init__()

    def forward(self, x):
        return 2 * x
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an experiment below ``own``, its data beside it; the cwd is another."""
    data = tmp_path / "own" / "data"
    data.mkdir(parents=True)
    for name, n_lines in (("train", 3), ("dev", 2)):
        for language in ("en", "de"):
            (data / f"{name}.{language}").write_text("a b\n" * n_lines)
    (tmp_path / "own" / "x.yaml").write_text(CORPUS)
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    return tmp_path


def corpus_of(path: Path | str, *overrides: str) -> dict[str, object]:
    return config.load(Path(path), overrides).rows[0].spec.corpus.options


def mistakes(path: str, *overrides: str) -> list[str]:
    """Return line, column, path and reason of each."""
    with pytest.raises(config.MistakesError) as caught:
        api.plan(path, overrides=overrides)
    return [f"{m.mark.line}:{m.mark.column} {m.path}: {m.reason}" for m in caught.value.mistakes]


def test_they_begin_at_the_file(folder: Path) -> None:
    options = corpus_of("../own/x.yaml")
    assert options["train"] == ("../own/data/train.en", "../own/data/train.de")
    assert options["tests"] == {"news": ("../own/data/dev.en", "../own/data/dev.de")}
    assert corpus_of(folder / "own" / "x.yaml")["dev"] == tuple(
        str(folder / "own" / "data" / f"dev.{language}") for language in ("en", "de")
    )


def test_those_of_a_parent_begin_at_the_parent(folder: Path) -> None:
    child = folder / "cwd" / "child.yaml"
    child.write_text("extends: ../own/x.yaml\ncorpus: {train: [t.en, /t.de]}\n")
    options = corpus_of("child.yaml")
    assert options["train"] == ("t.en", "/t.de")
    assert options["dev"] == ("../own/data/dev.en", "../own/data/dev.de")


def test_those_of_an_override_begin_at_the_working_directory(folder: Path) -> None:
    options = corpus_of("../own/x.yaml", "corpus.train=[t.en, ../t.de]")
    assert options["train"] == ("t.en", "../t.de")


def test_a_link_is_not_taken_for_a_folder(folder: Path) -> None:
    """What lies beside the target of a link is not what lies beside the link."""
    (folder / "elsewhere" / "deep").mkdir(parents=True)
    (folder / "own" / "link").symlink_to(folder / "elsewhere" / "deep")
    text = CORPUS.replace("data/train.en", "link/../t.en")
    (folder / "own" / "x.yaml").write_text(text)
    train = corpus_of("../own/x.yaml")["train"]
    assert isinstance(train, tuple)
    assert Path(train[0]).resolve() == folder / "elsewhere" / "t.en"


def test_where_an_experiment_lies_is_no_part_of_its_identity(folder: Path) -> None:
    def hashes() -> list[str | None]:
        planned = api.plan(folder / "own" / "x.yaml")
        return [run.hash for row in planned.rows for run in row.runs]

    before = hashes()
    (folder / "own").rename(folder / "moved")
    (folder / "own").symlink_to(folder / "moved")
    assert None not in before
    assert hashes() == before


def test_every_missing_file_is_a_mistake_at_its_place(folder: Path) -> None:
    for name in ("train.en", "dev.de"):
        (folder / "own" / "data" / name).unlink()
    reason = f"there is no such file in {folder / 'cwd'}"
    assert mistakes("../own/x.yaml") == [
        f"5:11 corpus.train: {reason}: '../own/data/train.en'",
        f"6:22 corpus.dev: {reason}: '../own/data/dev.de'",
        f"8:25 corpus.tests.news: {reason}: '../own/data/dev.de'",
    ]


def test_different_numbers_of_lines_are_a_mistake_of_the_pair(folder: Path) -> None:
    (folder / "own" / "data" / "train.de").write_text("a b\n" * 5)
    assert mistakes("../own/x.yaml") == [
        "5:10 corpus.train: ../own/data/train.en and ../own/data/train.de: the source has 3 "
        "lines, the target 5; line n of one must be the translation of line n of the other"
    ]


def test_what_cannot_be_unpacked_and_what_an_override_names_are_mistakes(folder: Path) -> None:
    (folder / "cwd" / "t.gz").write_bytes(gzip.compress(b"text " * 1000)[:30])
    actual = mistakes("../own/x.yaml", "corpus.train=[t.gz, ../own/data/train.de]")
    assert len(actual) == 1
    assert actual[0].startswith("1:14 corpus.train: t.gz: cannot be read: ")


def test_plugins_of_a_file_are_loaded_from_its_folder(folder: Path) -> None:
    (folder / "own" / "parts.py").write_text(PART)
    (folder / "own" / "x.yaml").write_text(f"plugins: parts.py\n{CORPUS}".replace("rms}", "twice}"))
    (folder / "cwd" / "child.yaml").write_text("extends: ../own/x.yaml\n")
    for path in ("../own/x.yaml", "child.yaml"):
        with temporary_registrations():
            assert config.load(path).rows[1].spec.model.norm.name == "twice"
            assert [plugin.name for plugin in plugins()] == ["../own/parts.py"]


def test_a_plugin_of_an_override_is_loaded_from_the_working_directory(folder: Path) -> None:
    (folder / "cwd" / "parts.py").write_text(PART)
    with temporary_registrations():
        config.load("../own/x.yaml", ["plugins=[parts.py]", "model.norm=twice"])
        assert lookup("norm", "twice").origin in plugins()


def test_a_broken_plugin_is_a_mistake_beside_others(folder: Path) -> None:
    (folder / "own" / "parts.py").write_text("1 / 0\n")
    (folder / "own" / "x.yaml").write_text(
        "plugins: [parts.py, none.py]\nmodel: {nrom: rms}\nvariants: {a: {plugins: x.py}}\n"
    )
    with temporary_registrations():
        assert mistakes("../own/x.yaml") == [
            "1:11 plugins: ../own/parts.py:1: ZeroDivisionError: division by zero",
            "1:21 plugins: ../own/none.py: cannot be read: No such file or directory",
            "2:9 model.nrom: unknown option; did you mean 'norm'?",
            "3:16 variants.a.plugins: 'plugins' is not for one row; put it at the top level of "
            "the file",
        ]
