"""Malformed files, each with the expected mistakes in the comments at its top.

``# expect LINE:COLUMN PATH: REASON`` is one mistake; a position in another text begins with its
name, and a reason may end in ``...``. ``# set PATH=VALUE`` is an override.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ablate import config
from ablate.errors import SpecError

FOLDER = Path(__file__).parent / "malformed"
FILES = sorted(FOLDER.glob("*.yaml"))


def comments(file: Path, what: str) -> list[str]:
    lines = file.read_text().splitlines()
    return [line.removeprefix(what) for line in lines if line.startswith(what)]


def as_comment(mistake: config.Mistake, file: Path) -> str:
    place = str(mistake.mark).removeprefix(f"{file.name}:")
    return (
        f"{place} {mistake.path}: {mistake.reason}" if mistake.path else f"{place} {mistake.reason}"
    )


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_mistake_is_reported_at_its_position_with_a_caret_below_it(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(FOLDER)
    with pytest.raises(config.MistakesError) as caught:
        config.load(file.name, comments(file, "# set "))
    actual = [as_comment(mistake, file) for mistake in caught.value.mistakes]
    expected = comments(file, "# expect ")
    assert len(actual) == len(expected), actual
    for one, pattern in zip(actual, expected, strict=True):
        assert one == pattern or (pattern.endswith("...") and one.startswith(pattern[:-3]))
    for mistake in caught.value.mistakes:
        head, *excerpt = str(mistake).splitlines()
        assert head.startswith(f"{mistake.mark}: ")
        if excerpt:
            line, caret = excerpt
            assert line == f"  {mistake.mark.excerpt}".replace("\t", " ")
            assert caret.index("^") == mistake.mark.column + 1


def failure(path: Path) -> str:
    with pytest.raises(SpecError) as caught:
        config.load(path)
    return str(caught.value)


def test_the_message_of_the_design(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("experiments").mkdir()
    Path("experiments/pe.yaml").write_text("model:\n  position: {name: sinusoidal, bsae: 5}\n")
    assert failure(Path("experiments/pe.yaml")) == (
        "experiments/pe.yaml:2:32: model.position.bsae: unknown option; did you mean 'base'?\n"
        "    position: {name: sinusoidal, bsae: 5}\n"
        "                                 ^"
    )


def test_a_missing_file_is_reported_with_the_nearest_name(tmp_path: Path) -> None:
    (tmp_path / "norms.yaml").write_text("corpus: synthetic\n")
    assert "there is no file" in failure(tmp_path / "norm.yaml")
    assert "did you mean 'norms.yaml'?" in failure(tmp_path / "norm.yaml")


def test_a_shipped_file_that_is_named_with_its_suffix_is_found_for_its_name(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("extends: ablate:presets/tiny.yaml\n")
    assert "the shipped one is called 'ablate:presets/tiny'" in failure(path)


@pytest.mark.parametrize(
    ("content", "place", "reason"),
    [
        (b"\x7fELF\x00\x00\xff\xfe", "1:7", "is not a text file"),
        (b"corpus: synthetic\nquestion: \x00\n", "2:11", "is not a text file"),
        ("# Größe\nquestion: Größe?\n".encode("latin-1"), "1:5", "is not UTF-8 text"),
        ("question: why\n".encode("utf-16"), "1:1", "is not a text file"),
        (b"", "1:1", "is empty"),
        (b"\n# nothing\n", "1:1", "is empty"),
        (b"null\n", "1:1", "is a mapping"),
    ],
)
def test_other_files_than_text_are_reported(
    tmp_path: Path, content: bytes, place: str, reason: str
) -> None:
    path = tmp_path / "odd.yaml"
    path.write_bytes(content)
    head = failure(path).splitlines()[0]
    assert f"odd.yaml:{place}: " in head
    assert reason in head


def test_aliases_of_aliases_do_not_fill_the_memory(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    path = tmp_path / "bomb.yaml"
    path.write_text("\n".join(lines))
    assert "is too large" in failure(path)


def test_deep_nesting_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "deep.yaml"
    path.write_text("question: " + "[" * 5000 + "]" * 5000)
    assert "is nested too deeply" in failure(path)
