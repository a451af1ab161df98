"""Tables of every format give the text that plain files give; their mistakes are named."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ablate.data.corpus import Bitext, Corpus, CorpusText
from ablate.errors import DataError
from ablate.registry import RefusedError, build, choose

pa = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402 - after the line above

Pairs = Sequence[tuple[str, str]]
TRAIN = [('a "b" c', "A, B"), ("d\u2028e", "  D 'E'"), ("我们", "π"), ("f", "F")]
DEV, NEWS = [("x y", "X Y")], [("z", "Z"), ("v", "V")]
SPLITS = {"train": TRAIN, "dev": DEV, "news": NEWS}


def tsv(pairs: Pairs, names: Sequence[str] = ("en", "de")) -> bytes:
    return "".join(f"{a}\t{b}\n" for a, b in [tuple(names), *pairs]).encode()


def csv_of(pairs: Pairs) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows([("en", "id", "de"), *((a, "7", b) for a, b in pairs)])
    return text.getvalue().encode()


def jsonl(pairs: Pairs) -> bytes:
    return b"".join(json.dumps({"de": b, "en": a, "n": 3}).encode() + b"\n" for a, b in pairs)


def nested(pairs: Pairs) -> bytes:
    rows = ({"id": "1", "translation": {"en": a, "de": b}} for a, b in pairs)
    return "\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode()


def arrow_table(pairs: Pairs) -> Any:
    return pa.table(
        {"n": [1.5] * len(pairs), "en": [a for a, _ in pairs], "de": [b for _, b in pairs]}
    )


def parquet_of(pairs: Pairs) -> bytes:
    sink = pa.BufferOutputStream()
    parquet.write_table(arrow_table(pairs), sink, row_group_size=2)
    return bytes(sink.getvalue())


def parquet_nested(pairs: Pairs) -> bytes:
    sink = pa.BufferOutputStream()
    column = [{"en": a, "de": b} for a, b in pairs]
    parquet.write_table(pa.table({"translation": column}), sink)
    return bytes(sink.getvalue())


def with_columns(*names: str) -> bytes:
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.table({name: ["x"] for name in names}), sink)
    return bytes(sink.getvalue())


FORMATS: dict[str, tuple[str, Callable[[Pairs], bytes]]] = {
    "tsv": ("tsv", tsv),
    "tsv.gz": ("tsv.gz", lambda pairs: gzip.compress(tsv(pairs))),
    "csv": ("csv", csv_of),
    "csv with a byte order mark": ("csv", lambda pairs: b"\xef\xbb\xbf" + csv_of(pairs)),
    "jsonl": ("jsonl", jsonl),
    "jsonl, nested": ("jsonl", nested),
    "parquet": ("parquet", parquet_of),
    "parquet, nested": ("parquet", parquet_nested),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for split, pairs in SPLITS.items():
        (tmp_path / f"{split}.tsv").write_bytes(tsv(pairs))
        for side, language in enumerate(("en", "de")):
            lines = "".join(f"{pair[side]}\n" for pair in pairs)
            (tmp_path / f"{split}.{language}").write_text(lines, encoding="utf-8")
    return tmp_path


def corpus(name: str = "table", **changes: Any) -> Corpus:
    paths: dict[str, Any] = {"train": "train.tsv", "dev": "dev.tsv", "tests": {"news": "news.tsv"}}
    options = {"src": "en", "tgt": "de", **paths, **changes}
    return build(Corpus, choose(Corpus, name, **options))


def load(**changes: Any) -> CorpusText:
    return corpus(**changes).load()


def test_the_words_of_a_language_without_spaces_are_its_characters(folder: Path) -> None:
    pairs = [("一 二", "one two three"), ("一二三四", "one")]
    (folder / "train.tsv").write_bytes(tsv(pairs, ("zh", "en")))
    for name in ("dev", "news"):
        (folder / f"{name}.tsv").write_bytes(tsv(pairs[:1], ("zh", "en")))
    assert list(load(src="zh", tgt="en", max_words=3).train.src) == ["一 二"]


def from_files() -> CorpusText:
    pairs = {split: (f"{split}.en", f"{split}.de") for split in SPLITS}
    tests = {"news": pairs.pop("news")}
    return replace(load(name="files", **pairs, tests=tests), name="table")


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_has_the_text_of_plain_files(kind: str, folder: Path) -> None:
    ending, write = FORMATS[kind]
    for split, pairs in SPLITS.items():
        (folder / f"own_{split}.{ending}").write_bytes(write(pairs))
    paths = {split: f"own_{split}.{ending}" for split in SPLITS}
    tests = {"news": paths.pop("news")}
    own = corpus(**paths, tests=tests)
    assert own.load() == from_files()
    assert own.is_available()
    assert not list(own.problems())


def saved(folder: Path, pairs: Pairs, n_files: int) -> None:
    """Write what ``Dataset.save_to_disk`` of Hugging Face datasets writes."""
    folder.mkdir(parents=True)
    size = -(-len(pairs) // n_files)
    names = [f"data-{i:05}-of-{n_files:05}.arrow" for i in range(n_files)]
    for i, name in enumerate(names):
        table = arrow_table(pairs[i * size : (i + 1) * size])
        with (
            pa.OSFile(str(folder / name), "wb") as file,
            pa.ipc.new_stream(file, table.schema) as w,
        ):
            w.write_table(table)
    state = {"_data_files": [{"filename": name} for name in names], "_split": None}
    (folder / "state.json").write_text(json.dumps(state))


def test_a_folder_of_hugging_face_datasets_is_read(folder: Path) -> None:
    for split, pairs in SPLITS.items():
        saved(folder / "set" / split, pairs, n_files=2 if len(pairs) > 1 else 1)
    (folder / "set/dataset_dict.json").write_text('{"splits": ["train", "dev", "news"]}')
    paths: dict[str, Any] = {"train": "set/train", "dev": "set/dev", "tests": {"news": "set/news"}}
    assert load(**paths) == from_files()
    (problem,) = corpus(**(paths | {"train": "set"})).problems()
    assert problem[0] == "train"
    assert "set holds train, dev, news: name one of them, as in set/train" in problem[1]
    (problem,) = corpus(train=".").problems()
    assert "is a folder that Hugging Face datasets has not saved; name its files" in problem[1]


@pytest.mark.parametrize("dev", ["dev", "validation", "valid", "val"])
def test_a_column_may_say_the_split_of_a_row(dev: str, folder: Path) -> None:
    names = {"train": "train", "dev": dev, "news": "news"}
    rows = [(names[split], *pair) for split, pairs in SPLITS.items() for pair in pairs]
    random.Random(1).shuffle(rows)
    lines = "".join("\t".join(row) + "\n" for row in [("part", "en", "de"), *rows])
    (folder / "all.tsv").write_text(lines, encoding="utf-8")
    own = corpus(train="all.tsv", dev=None, tests=None, split="part")
    assert not list(own.problems())
    text = own.load()
    for split, actual in {"train": text.train, "dev": text.dev, **text.tests}.items():
        pairs = list(zip(actual.src, actual.tgt, strict=True))
        assert pairs == [row[1:] for row in rows if row[0] == names[split]]
    by_number = load(train="all.tsv", dev=None, tests=None, split=1, columns=(2, 3))
    assert by_number.tests["part"].src == ("en",)  # the first line is a row then
    (folder / "all.tsv").write_text("part\ten\tde\ntrain\ta\tA\n")
    assert list(own.problems()) == [
        (
            "train",
            "column 'part' has 'train': it needs train, dev (or valid, validation, val), and the "
            "name of a test",
        )
    ]
    (folder / "all.tsv").write_text("part\ten\tde\ntrain\ta\tA\ndev\tb\tB\na/b\tc\tC\n")
    ((option, reason),) = own.problems()
    assert (option, reason[:14]) == ("train", "column 'part':")


def test_columns_without_names_are_numbered(folder: Path) -> None:
    for split, pairs in SPLITS.items():
        text = tsv([("7", f"{a}\t{b}") for a, b in pairs]).split(b"\n", 1)[1]
        (folder / f"bare_{split}.tsv").write_bytes(text)
    paths = {"train": "bare_train.tsv", "dev": "bare_dev.tsv", "tests": {"news": "bare_news.tsv"}}
    assert load(**paths, columns=(2, 3)) == from_files()


def test_what_is_known_of_one_column_is_not_taken_for_another(folder: Path) -> None:
    rows = [(a, b, a) for a, b in [(f"a b{n}", f"A B{n}") for n in range(100)]]
    lines = "".join("\t".join(row) + "\n" for row in [("en", "de", "same"), *rows])
    (folder / "x.tsv").write_text(lines, encoding="utf-8")
    paths: dict[str, Any] = {"train": "x.tsv", "dev": "x.tsv", "tests": {"t": "x.tsv"}}
    accept = ("test_in_train", "test_in_dev")
    assert not list(corpus(**paths, accept=accept).problems())
    wrong = corpus(**paths, accept=accept, columns=("en", "same"))
    assert {option for option, _ in wrong.problems()} == {"train", "dev", "tests.t"}


def test_a_text_without_mistakes_is_read_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not list(corpus().problems())
    monkeypatch.setattr("ablate.data.table.rows_of", lambda *_, **__: pytest.fail("read again"))
    assert not list(corpus().problems())


def test_patterns_name_several_files_in_the_order_of_their_names(folder: Path) -> None:
    for i, pair in enumerate(TRAIN):
        (folder / f"part-{i}.tsv").write_bytes(tsv([pair]))
        (folder / f"part-{i}.en").write_text(f"{pair[0]}\n", encoding="utf-8")
        (folder / f"part-{i}.de").write_text(f"{pair[1]}\n", encoding="utf-8")
    assert load(train="part-*.tsv") == from_files()
    files = {"dev": ("dev.en", "dev.de"), "tests": {"news": ("news.en", "news.de")}}
    text = load(name="files", **files, train=("part-?.en", "part-?.de"))
    assert text.train == from_files().train
    (folder / "part-9.en").write_text("one more\n")
    uneven = corpus(name="files", **files, train=("part-?.en", "part-?.de"))
    assert list(uneven.problems()) == [
        (
            "train",
            "'part-?.en' has 5 files and 'part-?.de' 4; file n of one must be the translation of "
            "file n of the other",
        )
    ]
    assert list(corpus(train="none-*.tsv").problems()) == [
        ("train", "no file matches: 'none-*.tsv'")
    ]


def test_files_of_a_zip_archive_are_read(folder: Path) -> None:
    with zipfile.ZipFile(folder / "de-en.txt.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(folder / "train.en", "Books.de-en.en")
        archive.write(folder / "train.de", "Books.de-en.de")
        archive.writestr("LICENSE", "free")
        archive.writestr("zeros.de", bytes(2**27))
    at = "de-en.txt.zip/Books.de-en"
    files = {"dev": ("dev.en", "dev.de"), "tests": {"news": ("news.en", "news.de")}}
    own = corpus(name="files", **files, train=(f"{at}.en", f"{at}.de"))
    assert replace(own.load(), name="table") == from_files()
    assert (
        own.fingerprint() == corpus("files", **files, train=("train.en", "train.de")).fingerprint()
    )
    absent = corpus(name="files", **files, train=(f"{at}.en", f"{at}.fr"))
    ((option, reason),) = absent.problems()
    assert option == "train.1"
    assert "de-en.txt.zip has no 'Books.de-en.fr'; it has Books.de-en.en, Books.de-en.de" in reason
    bomb = corpus(name="files", **files, train=(f"{at}.en", "de-en.txt.zip/zeros.de"))
    assert "it holds over 500 times its size" in next(bomb.problems())[1]
    (folder / "bad.zip").write_bytes(b"PK no zip")
    broken = corpus(name="files", **files, train=("bad.zip/a.en", "train.de"))
    assert "bad.zip cannot be unpacked: File is not a zip file" in next(broken.problems())[1]


def test_a_row_of_json_without_a_side_has_advice_that_helps(folder: Path) -> None:
    before, after = '{"en": "a", "de": "A"}\n', '{"en": "c", "de": "C"}\n'
    Path("x.jsonl").write_text(f'{before}{{"en": "b"}}\n{after}', encoding="utf-8")
    ((_, reason),) = corpus(train="x.jsonl").problems()
    assert reason.endswith("each row of JSON lines has both names, with null for a missing text")
    Path("x.jsonl").write_text(f'{before}{{"en": "b", "de": null}}\n{after}', encoding="utf-8")
    assert list(corpus(train="x.jsonl").problems()) == []
    assert list(corpus(train="x.jsonl").load().train.src) == ["a", "c"]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("x.tsv", b"en\tde\na\tA\na b\n", "x.tsv:3: has 1 column, where the first line has 2"),
        ("x.tsv", b"source\ttarget\na\tA\n", "x.tsv:2: has no column 'en'; it has 'source', 'targ"),
        ("x.tsv", b"en\ten\na\tA\n", "x.tsv:1: two columns are called 'en'"),
        ("x.tsv", b"en\tde\n", "x.tsv: has no rows"),
        ("x.csv", b'en,de\na,"A"b\n', "x.csv:2: ',' expected after '\"'"),
        ("x.csv", b'en,de\na,"A\n', "x.csv:2: unexpected end of data"),
        ("x.jsonl", b'{"en": "a", "de": "A"}\n{"en": "a" "de"}\n', "x.jsonl:2:12: is no JSON: Exp"),
        ("x.jsonl", b"[1]\n", "x.jsonl:1: is no object, as in {"),
        ("x.jsonl", b'{"en": "a", "de": 5}\n', "x.jsonl:1: has 5 in place of a text"),
        ("x.jsonl", b'{"en": "a"}\n', "x.jsonl:1: has no column 'de'; it has 'en'"),
        ("x.jsonl", b"[" * 100_000, "x.jsonl:1: cannot be read"),
        ("x.parquet", b"PAR1 no parquet", "x.parquet: cannot be read: "),
        ("x.parquet", with_columns("a", "b"), "x.parquet:1: has no column 'en'; it has 'a', 'b'"),
        ("x.parquet", with_columns("a", "en"), "x.parquet:1: has no column 'de'; it has 'a', 'en'"),
        ("x.txt", b"a", "x.txt: a table's name ends in .tsv, .csv, .jsonl (each also .gz) or .par"),
    ],
)
def test_a_mistake_is_named_with_its_file_and_line(
    name: str, content: bytes, reason: str, folder: Path
) -> None:
    (folder / name).write_bytes(content)
    ((option, actual),) = corpus(train=name).problems()
    assert (option, actual[: len(reason)]) == ("train", reason)
    ((option, actual),) = corpus(tests={"news": "news.tsv", "more": name}).problems()
    assert option == "tests.more"


def test_a_missing_package_is_named_with_its_extra(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "x.parquet").write_bytes(parquet_of(TRAIN))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"pip install 'ablate-transformer\[tables\]'"):
        load(train="x.parquet")


def test_rows_that_cannot_be_used_are_left_out_of_the_training_text_alone(folder: Path) -> None:
    content = csv_of(TRAIN) + b'"a\nb",1,c\n\xff,1,A\n,1,A\n'
    (folder / "x.csv").write_bytes(content)
    text = load(train="x.csv")
    assert text.train == from_files().train
    (note,) = text.notes
    assert note == (
        "train (x.csv): 3 of 7 pairs left out: 1 with a line break within a sentence (line 7); "
        "1 with invalid UTF-8 (line 8); 1 with an empty side (line 9)"
    )
    with pytest.raises(DataError, match=r"x\.csv.*repair it first: 1 with a line break"):
        load(dev="x.csv")
    (folder / "x.jsonl").write_bytes(jsonl(TRAIN) + b'{"en": "\\ud800", "de": null}\n')
    assert "1 with invalid UTF-8 (line 5)" in load(train="x.jsonl").notes[0]
    (folder / "x.parquet").write_bytes(parquet_of([*TRAIN, ("", "A")]))
    assert "1 with an empty side (line 5)" in load(train="x.parquet").notes[0]


@pytest.mark.parametrize("changes", [{"dev": None}, {"tests": None}, {"split": "part"}])
def test_splits_are_named_in_one_way(changes: dict[str, Any]) -> None:
    with pytest.raises(RefusedError, match="give dev and tests"):
        corpus(**changes)


def test_a_mistake_in_any_split_of_one_table_stands_at_the_table(folder: Path) -> None:
    rows = "split\ten\tde\ntrain\ta\tA\ndev\tb\tB\nnews\tc\tC\nnews\t\tD\n"
    (folder / "all.tsv").write_text(rows)
    ((option, reason),) = corpus(train="all.tsv", dev=None, tests=None).problems()
    assert (option, "1 with an empty side (line 5)" in reason) == ("train", True)


def test_a_fault_of_a_split_of_one_table_names_the_split(folder: Path) -> None:
    sides = [f"{chr(97 + n)}\t{chr(65 + n)}" for n in range(12)]
    rows = [f"{split}\t{x}" for split in ("train", "news") for x in sides]
    table = "\n".join(["split\ten\tde", *rows, "dev\tz\tZ"])
    (folder / "all.tsv").write_text(table, encoding="utf-8")
    ((option, reason),) = corpus(train="all.tsv", dev=None, tests=None).problems()
    assert (option, reason[:18]) == ("train", "news: 12 of 12 pai")


@pytest.mark.parametrize("cell", ["null", '""'])
def test_a_row_without_a_split_is_a_mistake(cell: str, folder: Path) -> None:
    splits = ('"train"', cell, '"dev"', '"news"')
    rows = (f'{{"split": {split}, "en": "a{n}", "de": "A{n}"}}\n' for n, split in enumerate(splits))
    (folder / "all.jsonl").write_text("".join(rows))
    (problem,) = corpus(train="all.jsonl", dev=None, tests=None).problems()
    assert problem == ("train", "all.jsonl:2: column 'split' is empty: it says the split")


def test_a_missing_column_of_splits_has_advice_of_its_own(folder: Path) -> None:
    ((_, reason),) = corpus(train="train.tsv", dev=None, tests=None).problems()
    assert reason.startswith("train.tsv:2: has no column 'split'; it has 'en', 'de': name the col")
    assert "(split: COLUMN)" in reason


@pytest.mark.parametrize("ending", ["tsv", "csv", "jsonl"])
def test_a_blank_line_is_no_row_at_the_end_and_a_mistake_elsewhere(
    ending: str, folder: Path
) -> None:
    content = FORMATS[ending][1](TRAIN)
    for blank in (b"\n", b"\r\n"):
        (folder / f"x.{ending}").write_bytes(content + blank)
        assert load(train=f"x.{ending}") == from_files()
        (folder / f"x.{ending}").write_bytes(content + blank + content.splitlines()[-1])
        ((_, reason),) = corpus(train=f"x.{ending}").problems()
        n_lines = len(TRAIN) + (ending != "jsonl")
        assert reason.startswith(f"x.{ending}:{n_lines + 1}:")


def test_a_test_may_have_columns_of_several_references(folder: Path) -> None:
    rows = [
        {"split": "train", "en": "a", "de": "A"},
        {"split": "dev", "en": "b", "de": "B"},
        {"split": "news", "en": "c", "de": "C", "r2": "CC", "r3": "c"},
        {"split": "news", "en": "d", "de": "D", "r2": "DD", "r3": "d"},
    ]
    (folder / "all.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    one: dict[str, Any] = {"train": "all.jsonl", "dev": None, "tests": None}
    text = load(**one, references=("r2", "r3"))
    assert text.tests["news"] == Bitext(("c", "d"), ("C", "D"), (("CC", "DD"), ("c", "d")))
    assert (text.train, text.dev) == (Bitext(("a",), ("A",)), Bitext(("b",), ("B",)))
    ((option, reason),) = corpus(**one, references=("r4",)).problems()
    assert (option, "all.jsonl:3: has no column 'r4'; it has 'split'" in reason) == ("train", True)
    for name in ("a", "b", "c"):
        (folder / f"{name}.tsv").write_text(f"{name}\t{name}1\t{name}2\n")
    text = load(train="a.tsv", dev="b.tsv", tests={"x": "c.tsv"}, columns=(1, 2), references=(3,))
    assert text.tests["x"] == Bitext(("c",), ("c1",), (("c2",),))


def test_the_column_of_splits_is_called_split(folder: Path) -> None:
    rows = [("split", "en", "de"), ("train", "a", "A"), ("dev", "b", "B"), ("news", "c", "C")]
    (folder / "all.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    text = load(train="all.tsv", dev=None, tests=None)
    assert (text.train.src, text.dev.src, text.tests["news"].tgt) == (("a",), ("b",), ("C",))


@pytest.mark.parametrize("seed", range(200))
def test_no_content_is_more_than_refused(seed: int, folder: Path) -> None:
    rng = random.Random(seed)
    ending, write = FORMATS[rng.choice(list(FORMATS))]
    content = bytearray(write(TRAIN))
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(content))
        match rng.randrange(3):
            case 0:
                content[at] = rng.randrange(256)
            case 1:
                del content[at:]
                content += b"x"
            case 2:
                content[at:at] = rng.choice(['"', "\n", "\t", "\0", "\u202e", "{", ","]).encode()
    (folder / f"x.{ending}").write_bytes(content)
    own = corpus(train=f"x.{ending}")
    if not list(own.problems()):
        assert len(own.load().train)
