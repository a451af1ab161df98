"""The user's own text: its mistakes are reported with counts and line numbers."""

from __future__ import annotations

import errno
import gzip
import os
from itertools import product
from pathlib import Path

import pytest
from pydantic import ValidationError

from ablate.data.corpus import Bitext, Corpus, CorpusText
from ablate.data.parallel import raw_lines, why_unreadable
from ablate.errors import DataError
from ablate.registry import build, choose

TRAIN = (["a b", "c d e", "f"], ["A B", "C D E", "F"])
FEW = (["x y"], ["X Y"])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder that holds a tiny good corpus."""
    monkeypatch.chdir(tmp_path)
    for split, sides in (("train", TRAIN), ("dev", FEW), ("news", FEW)):
        for language, lines in zip(("en", "de"), sides, strict=True):
            (tmp_path / f"{split}.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path


def corpus(**changes: object) -> Corpus:
    options: dict[str, object] = {
        "src": "en",
        "tgt": "de",
        "train": ("train.en", "train.de"),
        "dev": ("dev.en", "dev.de"),
        "tests": {"news": ("news.en", "news.de")},
    }
    return build(Corpus, choose(Corpus, "files", **(options | changes)))


def load(**changes: object) -> CorpusText:
    return corpus(**changes).load()


def test_good_text_arrives_whole_and_without_notes(folder: Path) -> None:
    text = load()
    assert (text.name, text.src, text.tgt) == ("files", "en", "de")
    assert (list(text.train.src), list(text.train.tgt)) == TRAIN
    assert (list(text.dev.src), list(text.tests["news"].tgt)) == (FEW[0], FEW[1])
    assert text.notes == ()
    assert not text.is_tokenised
    assert load(tokenised=True).is_tokenised


def test_gz_windows_line_ends_and_a_byte_order_mark_change_nothing(folder: Path) -> None:
    plain = load()
    (folder / "train.en.gz").write_bytes(gzip.compress((folder / "train.en").read_bytes()))
    (folder / "win.de").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(TRAIN[1]).encode())
    assert load(train=("train.en.gz", "win.de")) == plain


def test_a_line_is_what_a_newline_ends_and_nothing_else(folder: Path) -> None:
    lines = "a\u2028b\x0bc\nd\n"
    for language in ("en", "de"):
        (folder / f"odd.{language}").write_bytes(lines.encode())
    assert len(load(train=("odd.en", "odd.de")).train) == 2


@pytest.mark.parametrize("size", [3, 4, 7, 100])
def test_a_line_may_end_in_any_later_piece(size: int) -> None:
    content = b"\xef\xbb\xbfone\n\nthree of many bytes\n4\nfive"
    pieces = (content[at : at + size] for at in range(0, len(content), size))
    assert [*raw_lines(pieces)] == [b"one", b"", b"three of many bytes", b"4", b"five"]


def test_a_pattern_names_the_same_texts_on_both_sides(folder: Path) -> None:
    """By whole names ``news.talks`` is behind ``news.en``, and before ``news.zh``."""
    (folder / "train").mkdir()
    for name, language in product(("news", "news-1", "news.talks"), ("en", "zh")):
        (folder / "train" / f"{name}.{language}").write_text(f"{name}\n")
    text = load(train=("train/*.en", "train/*.zh"), accept=("same_sides", "repeated_pairs"))
    assert list(text.train.src) == list(text.train.tgt) == ["news-1", "news", "news.talks"]


@pytest.mark.parametrize(("side", "name"), [("en", "source"), ("de", "target")])
@pytest.mark.parametrize("split", ["train", "dev"])
def test_lines_that_end_in_carriage_returns_alone_are_no_single_line(
    split: str, side: str, name: str, folder: Path
) -> None:
    for language in ("en", "de"):
        end = "\r" if language == side else "\n"
        Path(f"old.{language}").write_bytes(end.join(["a b", "c", "d e", ""]).encode())
    ((option, reason),) = corpus(**{split: ("old.en", "old.de")}).problems()
    assert option == split
    assert f"the {name} is one line, in which carriage returns (CR) stand for line" in reason
    assert reason.endswith(r"convert it: tr '\r' '\n' < FILE > NEW")


def test_different_line_counts_are_an_error_that_names_both(folder: Path) -> None:
    with (folder / "train.de").open("a") as file:
        file.write("one more\n")
    with pytest.raises(DataError, match=r"train\.en and train\.de.*has 3 lines, the target 4"):
        load()


def test_bad_training_pairs_are_left_out_and_noted(folder: Path) -> None:
    src = [b"good one", b"", b"a b c d e f", b"\xff\xfe", b"fine too", b"one", b"  ", b"end"]
    tgt = [b"gut", b"x", b"a", b"x", b"\xc3(", b"a b c d e", b"y", b"Ende"]
    (folder / "bad.en").write_bytes(b"\n".join(src) + b"\n")
    (folder / "bad.de").write_bytes(b"\n".join(tgt) + b"\n")
    text = load(train=("bad.en", "bad.de"), max_words=5, max_ratio=4.0)
    assert text.train.src == ("good one", "end")
    assert text.train.tgt == ("gut", "Ende")
    (note,) = text.notes
    assert "6 of 8 pairs left out" in note
    assert "2 with an empty side (lines 2, 7)" in note
    assert "1 with more than 5 words on a side (line 3)" in note
    assert "2 with invalid UTF-8 (lines 4, 5)" in note
    assert "1 with one side more than 4 times as long as the other (line 6)" in note


def test_without_spaces_between_words_characters_count(folder: Path) -> None:
    (folder / "own.en").write_text("one two three\n" * 3, encoding="utf-8")
    (folder / "own.xx").write_text("我们 今\n我们今天去\n我们今天去了\n", encoding="utf-8")
    for src, tgt, n_kept in (
        ("en", "de", 3),
        ("en", "zh_Hant", 2),
        ("th", "de", 0),
        ("ja", "zh", 0),
    ):
        own = {"src": src, "tgt": tgt, "train": ("own.en", "own.xx"), "max_words": 5}
        if n_kept:
            assert len(load(**own).train) == n_kept
        else:
            with pytest.raises(DataError, match="more than 5 words on a side"):
                load(**own)
    kept = load(src="en", tgt="zh", train=("own.en", "own.xx"), max_ratio=1.7).train
    assert list(kept.tgt) == ["我们 今", "我们今天去"]


def test_only_the_first_lines_of_many_are_named(folder: Path) -> None:
    (folder / "bad.en").write_text("\n" * 9 + "ok\n")
    (folder / "bad.de").write_text("x\n" * 10)
    (note,) = load(train=("bad.en", "bad.de")).notes
    assert "9 with an empty side (lines 1, 2, 3, 4, 5, ...)" in note
    (folder / "bad.en").write_text("\n" * 5 + "ok\n" * 5)
    (note,) = load(train=("bad.en", "bad.de")).notes
    assert "5 with an empty side (lines 1, 2, 3, 4, 5)" in note


def test_a_few_broken_lines_of_many_are_no_other_encoding(folder: Path) -> None:
    (folder / "bad.en").write_bytes(b"ok\n" * 1990 + b"\xff\n" * 15)
    (folder / "bad.de").write_bytes(b"ok\n" * 2005)
    assert len(load(train=("bad.en", "bad.de")).train) == 1990


def test_training_text_without_a_good_pair_is_an_error(folder: Path) -> None:
    (folder / "bad.en").write_text("\n\n")
    (folder / "bad.de").write_text("x\ny\n")
    with pytest.raises(DataError, match=r"2 of 2 pairs left out: 2 with an empty side"):
        load(train=("bad.en", "bad.de"))


def test_training_pairs_in_utf_16_are_left_out_and_noted(folder: Path) -> None:
    (folder / "wide.en").write_bytes("good one\na\n\n".encode("utf-16-le") + b"\nfine")
    (folder / "plain.de").write_text("gut\nx\ny\nz\nfein")
    text = load(train=("wide.en", "plain.de"))
    assert text.train.src == ("fine",)
    (note,) = text.notes
    assert "4 with a NUL character, as UTF-16 has them (lines 1, 2, 3, 4)" in note


@pytest.mark.parametrize("split", ["train", "news"])
def test_utf_16_is_named_where_the_numbers_of_lines_differ(folder: Path, split: str) -> None:
    lines = "one\ntwo\n"
    (folder / f"{split}.en").write_text(lines)
    (folder / f"{split}.de").write_bytes(lines.encode("utf-16"))  # its last line feed is 2 bytes
    ((option, reason),) = corpus().problems()
    assert option.endswith(split)
    assert f"{split}.de: is in UTF-16; convert it: iconv -f UTF-16 -t UTF-8 FILE" in reason


@pytest.mark.parametrize("line", [b"", b"\xff", b"a\0"])
@pytest.mark.parametrize("split", ["dev", "news"])
def test_no_pair_is_left_out_of_dev_and_tests(folder: Path, split: str, line: bytes) -> None:
    (folder / f"{split}.en").write_bytes(b"good\n" + line + b"\n")
    (folder / f"{split}.de").write_bytes(b"gut\ngut\n")
    with pytest.raises(DataError, match=rf"{split}.*repair it first: 1 with .*\(line 2\)"):
        load()


def test_long_sentences_of_a_test_are_kept_and_noted(folder: Path) -> None:
    text = load(max_words=1)
    assert text.tests["news"].src == ("x y",)
    assert text.train.src == ("f",)
    assert any("news" in x and "kept, but 1 with more than 1 words" in x for x in text.notes)


def test_a_missing_file_is_named_with_the_place_where_paths_begin(folder: Path) -> None:
    absent = corpus(dev=("typo.en", "dev.de"))
    assert not absent.is_available()
    for attempt in (absent.load, absent.fingerprint, lambda: absent.fetch(print)):
        with pytest.raises(DataError, match=r"typo\.en: there is no such file"):
            attempt()
    with pytest.raises(DataError, match=str(folder)):
        absent.load()


def test_a_path_that_the_system_refuses_is_reported_with_the_reason(folder: Path) -> None:
    long, circle = "x" * 300, folder / "circle"
    circle.symlink_to(circle)
    refused = corpus(train=(long, "train.de"), dev=("dev.en", "circle"))
    assert not refused.is_available()
    assert list(refused.problems()) == [
        ("train.0", f"cannot be read: File name too long: {long!r}"),
        ("dev.1", "cannot be read: Too many levels of symbolic links: 'circle'"),
    ]
    with pytest.raises(DataError, match=r"x: cannot be read: File name too long; it cannot be"):
        refused.fetch(print)


@pytest.mark.parametrize("refused", ["stat", "open"])
def test_a_file_that_may_not_be_read_is_reported_with_the_reason(
    folder: Path, refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *_: object, **__: object) -> object:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    assert why_unreadable(folder / "train.en") is None
    monkeypatch.setattr(Path, refused, refuse)
    assert why_unreadable(folder / "train.en") == "cannot be read: Permission denied"


@pytest.mark.parametrize("name", ["absent", "train.en/within", "a\0b"])
def test_what_is_no_file_is_said_to_be_missing(folder: Path, name: str) -> None:
    assert why_unreadable(folder / name) == "there is no such file"


def test_what_is_no_regular_file_is_not_said_to_be_missing(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    assert why_unreadable(folder) == "is a folder, where a file is needed"
    assert (why_unreadable(folder / "pipe") or "").startswith("is no regular file")
    refused = corpus(train=(".", "train.de"))
    assert [reason for _, reason in refused.problems()] == [
        "is a folder, where a file is needed: '.'"
    ]


def test_a_damaged_archive_is_reported(folder: Path) -> None:
    (folder / "cut.gz").write_bytes(gzip.compress(b"text " * 1000)[:30])
    (folder / "plain.gz").write_bytes(b"not packed")
    for name in ("cut.gz", "plain.gz"):
        with pytest.raises(DataError, match=rf"{name}: cannot be read"):
            load(train=(name, "train.de"))


def test_an_empty_file_is_an_error(folder: Path) -> None:
    (folder / "empty").write_text("")
    (folder / "empty2").write_text("")
    with pytest.raises(DataError, match="both files are empty"):
        load(train=("empty", "empty2"))


def test_the_fingerprint_is_of_the_content_not_the_names(folder: Path) -> None:
    before = corpus().fingerprint()
    (folder / "train.en").rename(folder / "other.en")
    assert corpus(train=("other.en", "train.de")).fingerprint() == before
    (folder / "other.en").write_text("changed\nc d e\nf\n")
    assert corpus(train=("other.en", "train.de")).fingerprint() != before


@pytest.mark.parametrize(
    ("changes", "option", "reason"),
    [
        ({"train": ("train.en", "train.en")}, "train", "has 'train.en' on both sides"),
        ({"tests": {"news": ("dev.en", "dev.en")}}, "tests.news", "has 'dev.en' on both sides"),
        ({"train": ("empty", "train.de")}, "train", "the source has 1 line, the target 3"),
        ({"dev": ("empty", "train.de")}, "dev", "the source has 1 line, the target 3"),
        ({"train": ("empty", "dev.de")}, "train", "1 of 1 pairs left out: 1 with an empty side"),
        ({"dev": ("dev.en", "empty")}, "dev", "repair it first: 1 with an empty side (line 1)"),
        ({"tests": {"x": ("broken", "dev.de")}}, "tests.x", "1 with invalid UTF-8 (line 1)"),
    ],
)
def test_what_would_fail_as_it_is_loaded_is_a_problem_before(
    folder: Path, changes: dict[str, object], option: str, reason: str
) -> None:
    (folder / "empty").write_text("\n")
    (folder / "broken").write_bytes(b"\xff\n")
    ((actual_option, actual),) = corpus(**changes).problems()
    assert actual_option == option
    assert reason in actual


def test_a_folder_on_both_sides_is_first_of_all_a_folder(folder: Path) -> None:
    reasons = [reason for _, reason in corpus(train=(".", ".")).problems()]
    assert reasons == ["is a folder, where a file is needed: '.'"] * 2


def test_training_pairs_that_will_be_left_out_are_no_problem(folder: Path) -> None:
    (folder / "some.en").write_text("\na b\n\n")
    assert not list(corpus(train=("some.en", "train.de")).problems())


@pytest.mark.parametrize("name", ["../x", "a b", "", "dev", "train", "x\n"])
def test_a_test_name_must_do_as_part_of_a_file_name_and_as_a_column(name: str) -> None:
    with pytest.raises(ValidationError, match="tests"):
        corpus(tests={name: ("a", "b")})


def test_a_test_may_have_files_of_several_references(folder: Path) -> None:
    for name, text in {"s": "a\nb\n", "t1": "A\nB\n", "t2": "AA\nBB\n", "t3": "x\n"}.items():
        (folder / name).write_text(text)
    test = corpus(tests={"news": ("s", "t1", "t2")}).load().tests["news"]
    assert test == Bitext(("a", "b"), ("A", "B"), (("AA", "BB"),))
    assert test.references == [("A", "B"), ("AA", "BB")]
    one = corpus(tests={"news": ("s", "t1")})
    assert one.load().tests["news"].more == ()
    assert one.fingerprint() != corpus(tests={"news": ("s", "t1", "t2")}).fingerprint()
    ((option, reason),) = corpus(tests={"news": ("s", "t1", "t3")}).problems()
    assert option == "tests.news"
    assert "s and t3: the source has 2 lines, the target 1;" in reason
    assert next(corpus(tests={"news": ("s", "t1", "t4")}).problems())[0] == "tests.news.2"
    with pytest.raises(ValidationError, match="at least 2 items"):
        corpus(tests={"news": ("s",)})


@pytest.mark.parametrize(("n_lines", "n_invalid"), [(100, 10), (2_000, 20)])
def test_a_few_invalid_pairs_are_left_out_and_more_are_another_encoding(
    folder: Path, n_lines: int, n_invalid: int
) -> None:
    (folder / "train.en").write_text("a\n" * n_lines)
    for extra in (0, 1):
        n = n_invalid + extra
        (folder / "train.de").write_bytes(b"\xff\n" * n + b"b\n" * (n_lines - n))
        reasons = [reason for _, reason in corpus().problems() if "another encoding" in reason]
        assert len(reasons) == extra
        (folder / "train.de").write_bytes(b"\xff\n\0\n" * (n // 2) + b"b\n" * (n_lines - n))
        reasons = [reason for _, reason in corpus().problems() if "another encoding" in reason]
        assert not reasons, f"{n // 2} of two kinds"
    (folder / "train.de").write_bytes(
        b"\xff\n\0\n" * n_invalid + b"b\n" * (n_lines - 2 * n_invalid)
    )
    assert any("another encoding" in reason for _, reason in corpus().problems())


@pytest.mark.parametrize("split", ["train", "news"])
@pytest.mark.parametrize(("encoding", "said"), [("latin-1", "Latin-1"), ("utf-16-le", "UTF-16")])
def test_a_file_in_another_encoding_is_no_text_with_a_few_bad_lines(
    folder: Path, split: str, encoding: str, said: str
) -> None:
    lines = [f"ein schönes Haus {n}\nzwei" for n in range(50)]
    (folder / f"{split}.en").write_text("\n".join(lines), encoding="utf-8")
    (folder / f"{split}.de").write_bytes("\n".join(lines).encode(encoding))
    ((option, reason),) = corpus().problems()
    assert option.endswith(split)
    assert f"a file has another encoding, most likely {said}; convert it: iconv -f" in reason
    with pytest.raises(DataError, match="has another encoding"):
        load()
