"""The tables in the README are what the commands beside them have written."""

import json
import re
from pathlib import Path

import pytest

from ablate import api
from ablate.registry import slots, temporary_registrations

ROOT = Path(__file__).parents[1]
RACES = {
    "a loop by hand over `torch.nn.Transformer`": ("", "plain"),
    "Hugging Face's `Seq2SeqTrainer` and `MarianMTModel`": ("", "marian"),
    "fairseq 0.12": ("", "fairseq"),
    "fairseq, its own batches": ("_own", "fairseq"),
    "OpenNMT-py 3.5": ("", "opennmt"),
    "OpenNMT-py, its own batches": ("_own", "opennmt"),
    "JoeyNMT 2.3": ("", "joeynmt"),
    "JoeyNMT, its own batches": ("_own", "joeynmt"),
}
SEARCHES = {
    "Hugging Face's `generate`": "marian",
    "JoeyNMT 2.3": "joeynmt",
    "CTranslate2 4.8": "ctranslate2",
}


def tables(*place: str) -> dict[str, list[dict[str, str]]]:
    """Return the rows of a page's tables, by what heads their columns; by the first head."""
    found = {}
    for block in re.findall(
        r"(?:^\|.*\n)+", ROOT.joinpath(*place).read_text("utf-8"), re.MULTILINE
    ):
        heads, _, *rows = [
            [cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()
        ]
        found[heads[0]] = [dict(zip(heads, row, strict=True)) for row in rows]
    return found


def measured(race: str, contender: str) -> str:
    """Return how many times as fast ours was, as the README writes it."""
    file = ROOT / "results" / "benchmarks" / f"{race}_avx2.json"
    contenders = json.loads(file.read_text("utf-8"))["contenders"]
    found = next(each for each in contenders if each["name"] == contender)
    return f"{found['ours_over_it']['median']:.2f}"


def test_the_table_of_the_experiment_is_the_one_that_is_kept() -> None:
    shown, kept = tables("README.md")[""], tables("results", "pe", "table.md")[""]
    assert {"BLEU test", "ΔBLEU test", "memory MiB"} <= shown[0].keys()
    for row, whole in zip(shown, kept, strict=True):
        assert row.items() <= whole.items()


def test_there_are_as_many_parts_as_is_said() -> None:
    """In the slots that the sentence names: all but data and decoding."""
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    named = re.search(r"A registry of over a hundred .*?: positions, (.*?), each with", text)
    assert named is not None
    others = {"corpus", "tokenizer", "decoding"}
    counts = {slot: len(parts) for slot, parts in slots().items() if slot not in others}
    assert len(named[1].split(", ")) + 1 == len(counts)
    assert sum(counts.values()) > 100


def test_speeds_in_training_are_those_that_were_measured() -> None:
    head = "training: ours is so many times as fast as"
    rows = tables("README.md")[head]
    assert [row.pop(head) for row in rows] == list(RACES)
    for row, (way, program) in zip(rows, RACES.values(), strict=True):
        sizes = (f"training_speed{size}{way}" for size in ("", "_d256"))
        assert list(row.values()) == [measured(race, f"{program}_fp32") for race in sizes]


def test_speeds_in_decoding_are_those_that_were_measured() -> None:
    head = "beam search: ours is so many times as fast as"
    shown = {row[head]: row["Transformer-Tiny"] for row in tables("README.md")[head]}
    expected = {label: measured("decoding_speed", name) for label, name in SEARCHES.items()}
    assert shown == expected


def snippet(mark: str) -> str:
    """Return the code that stands under a mark."""
    text = (ROOT / "README.md").read_text("utf-8").partition(f"<!-- {mark} -->")[2]
    return re.split(r"^```\w*\n", text, maxsplit=2, flags=re.MULTILINE)[1]


def test_the_part_is_the_one_that_init_writes_and_keeps_its_contracts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert api.init(part="position").read_text("utf-8") == snippet("part")
    with temporary_registrations():
        findings = api.check(["my_position.py"])
    assert findings
    assert all(finding.is_kept for finding in findings)
