"""The README and the pages beside it: tables, numbers and examples are what commands make."""

import json
import re
import subprocess
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import typer

from ablate import api, config
from ablate.cli.app import app
from ablate.registry import slots
from tests.made_up_runs import finish
from tests.picture import PICTURE, picture

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
PAGES = {file.stem: file.read_text("utf-8") for file in (ROOT / "docs").glob("*.md")}
SIZES = ("training_speed", "training_speed_d256")
RACES = [f"{size}{way}" for size in SIZES for way in ("", "_own")]


def committed(path: str) -> str:
    """Return the text of a file as git keeps it; outside of a repository, as it is.

    README's first command writes the table of an experiment anew, with this machine's speeds.
    """
    command = ["git", "show", f":{path}"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    return (ROOT / path).read_text("utf-8") if process.returncode else process.stdout.decode()


def tables(page: str) -> dict[str, list[dict[str, str]]]:
    """Return the rows of a page's tables, by what heads their columns; by the first head."""
    actual = {}
    for block in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
        heads, _, *rows = [
            [cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()
        ]
        actual[heads[0]] = [dict(zip(heads, row, strict=True)) for row in rows]
    return actual


def ratios(race: str) -> dict[str, float]:
    """Return how many times as fast as each program ours was, in single precision."""
    return {each["name"]: each["ours_over_it"]["median"] for each in contenders(race)}


def contenders(race: str) -> list[dict[str, Any]]:
    file = ROOT / "results" / "benchmarks" / f"{race}_avx2.json"
    entries: list[dict[str, Any]] = json.loads(file.read_text("utf-8"))["contenders"]
    return entries


def ratios_of_two_runs(race: str) -> list[float]:
    """Return how many times as fast two runs of ours at a time were as two of each program."""
    rates = {
        each["name"]: [of_round["target_tokens_per_second"] for of_round in each["rounds"]]
        for each in contenders(race)
        if each["name"].endswith("_x2")
    }
    own = rates.pop("ours_x2")
    return [median(a / b for a, b in zip(own, other, strict=True)) for other in rates.values()]


def test_the_table_of_real_text_is_the_one_that_is_kept() -> None:
    in_results = tables(committed("results/multi30k/laptop_pe/table.md"))[""]
    in_readme = tables(README)["Multi30k"]
    assert len([name for name in in_readme[0] if "BLEU" in name]) == 3
    assert {"done", "95% CI of Δ", "memory MiB"} <= in_readme[0].keys()
    for row, whole in zip(in_readme, in_results, strict=True):
        name = row.pop("Multi30k")
        assert (name, row.items() <= whole.items()) == (whole[""], True)


def test_the_picture_is_the_table_of_the_records_that_are_kept() -> None:
    assert PICTURE.read_text("utf-8") == picture(), "python -m tests.picture writes it anew"


def test_there_are_as_many_parts_as_is_said() -> None:
    """In the slots that the sentence names: all but data, decoding and metrics."""
    text = " ".join(PAGES["experiments"].split())
    named = re.search(r"A registry of over a hundred .*?: positions, (.*?), each with", text)
    assert named is not None
    others = {"corpus", "tokenizer", "decoding", "metric"}
    counts = {slot: len(parts) for slot, parts in slots().items() if slot not in others}
    assert len(named[1].split(", ")) + 1 == len(counts)
    assert sum(counts.values()) > 100


def test_speeds_are_those_that_were_measured() -> None:
    training = [
        ratio for race in RACES for name, ratio in ratios(race).items() if name.endswith("_fp32")
    ]
    training += [ratio for size in SIZES for ratio in ratios_of_two_runs(f"{size}_runs")]
    text, decoding = " ".join(README.split()), ratios("decoding_speed")
    assert f"Training is {min(training):.2f} to {max(training):.2f} times as fast" in text
    of_both = " to ".join(f"{decoding[f'ctranslate2{way}']:.2f}" for way in ("_parallel", ""))
    assert f"beam search {of_both} times as fast as CTranslate2" in text
    assert f"and {decoding['marian']:.2f} times as Hugging Face's" in text


def snippet(mark: str) -> str:
    (page,) = (each for each in (README, *PAGES.values()) if f"<!-- {mark} -->" in each)
    text = page.partition(f"<!-- {mark} -->")[2]
    return re.split(r"^```\w*\n", text, maxsplit=2, flags=re.MULTILINE)[1]


def test_the_part_is_the_one_that_init_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert api.init(part="position").read_text("utf-8") == snippet("part")


def test_each_command_is_a_function_of_the_api() -> None:
    others = {
        "corpora check": "check_corpus",
        "corpora fetch": "fetch_corpus",
        "corpora show": "show_corpus",
        "runs list": "runs",
        "runs show": "show_run",
        "runs remove": "remove",
        "runs gc": "collect_garbage",
        "runs archive": "archive",
        "runs restore": "restore",
    }
    command = typer.main.get_command(app)
    assert isinstance(command, typer.core.TyperGroup)
    for name, of_name in command.commands.items():
        below = getattr(of_name, "commands", {})
        for full in [f"{name} {sub}" for sub in below] or [name]:
            function = others.get(full, full)
            assert callable(getattr(api, function)), full
            assert function in api.__all__, full


def test_the_rows_of_the_example_are_those_that_are_counted(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(snippet("rows"), encoding="utf-8")
    names = [row.name for row in config.load(tmp_path / "x.yaml").rows]
    assert len(names) == 6 + 3
    assert names[-3:] == ["all", "all - no positions", "all - gated"]


def test_examples_that_extend_a_preset_are_experiments_in_any_folder(tmp_path: Path) -> None:
    blocks = re.findall(r"^```yaml\n(.*?)^```", PAGES["experiments"], re.MULTILINE | re.DOTALL)
    whole = [text for text in blocks if "extends: ablate:presets" in text]
    assert len(whole) == 3
    for text in whole:
        (tmp_path / "x.yaml").write_text(text, encoding="utf-8")
        assert len(config.load(tmp_path / "x.yaml").rows) > 2


def test_the_example_of_own_data_is_planned(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for split in ("train", "dev", "test2016"):
        for language in ("en", "de"):
            path = tmp_path / "data" / f"{split}.{language}"
            path.write_text("a small text\n" * 3, encoding="utf-8")
    (tmp_path / "x.yaml").write_text(snippet("own data"), encoding="utf-8")
    planned = api.plan(tmp_path / "x.yaml", device="cpu", results=tmp_path)
    assert [row.name for row in planned.rows] == ["baseline", "rms"]


@pytest.mark.e2e
def test_the_example_in_python_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On made-up runs, in a folder that has the experiment."""
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    monkeypatch.chdir(tmp_path)
    finish(Path("experiments/pe.yaml"), Path("results"), seeds=[1, 2], only=["none"])
    exec(snippet("python"), {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["baseline", "none"]


def test_there_is_a_figure_and_it_exists() -> None:
    figures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", README)
    assert figures
    assert all((ROOT / figure).is_file() for figure in figures)
