"""Faults that no single line shows: each planted one is found, and sound text has none."""

from __future__ import annotations

import hashlib
import json
import os
import random
import unicodedata
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ablate import api, config
from ablate.cli.app import app
from ablate.data.corpus import Bitext, Corpus, CorpusText
from ablate.data.faults import faults, overlap
from ablate.data.files import Files
from ablate.data.tokenizer import SPECIAL
from ablate.errors import DataError, SpecError
from ablate.registry import build, choose, register
from ablate.runner.check import check
from tests.registrations import temporary_registrations

N_TRAIN, N_TEST = 2000, 100
WORDS = {"src": "the a dog cat sees big small red house runs".split()}
WORDS["tgt"] = [word[::-1] for word in WORDS["src"]]
Pairs = list[tuple[str, str]]


def pairs(n: int, seed: int) -> Pairs:
    """Return sentences of eight words; their translations are written backwards."""
    rng = random.Random(seed)
    rows = [[rng.randrange(10) for _ in range(8)] for _ in range(n)]
    return [tuple(" ".join(WORDS[s][i] for i in row) for s in WORDS) for row in rows]  # type: ignore[misc]


def text(
    change: Callable[[dict[str, Pairs]], object] = lambda _: None, *, is_tokenised: bool = False
) -> CorpusText:
    """Return a sound text, changed."""
    splits = {"train": pairs(N_TRAIN, 1), "dev": pairs(N_TEST, 2), "news": pairs(N_TEST, 3)}
    change(splits)
    train, dev, news = (Bitext.of(split) for split in splits.values())
    return CorpusText("x", "en", "de", train, dev, {"news": news}, is_tokenised)


def replace_some(split: Pairs, n: int, new: Callable[[str, str], tuple[str, str]]) -> None:
    for row in range(n):
        split[row] = new(*split[row])


def shouted(src: str, tgt: str) -> tuple[str, str]:
    return f"{src.upper()} !", f"«{tgt}»"


FAULTS: dict[str, tuple[str, bool, Callable[[dict[str, Pairs]], object]]] = {
    "test_in_train": ("news", True, lambda s: s["train"].extend(s["news"])),
    "test_in_train, with other case and punctuation": (
        "news",
        True,
        lambda s: s["train"].extend(shouted(*pair) for pair in s["news"]),
    ),
    "test_in_train, dev": ("dev", True, lambda s: s["train"].extend(s["dev"])),
    "test_in_dev": ("news", True, lambda s: s["dev"].extend(s["news"])),
    "same_sides": (
        "train",
        True,
        lambda s: replace_some(s["train"], 150, lambda src, _: (src, src)),
    ),
    "same_sides, few": (
        "train",
        False,
        lambda s: replace_some(s["train"], 20, lambda src, _: (src, src)),
    ),
    "swapped_sides": (
        "news",
        True,
        lambda s: replace_some(s["news"], 20, lambda src, tgt: (tgt, src)),
    ),
    "swapped_sides, in the training text": (
        "train",
        False,
        lambda s: replace_some(s["train"], 200, lambda src, tgt: (tgt, src)),
    ),
    "other_language": (
        "dev",
        False,
        lambda s: replace_some(s["dev"], 50, lambda src, _: (src, "un petit chien noir court")),
    ),
    "other_language, of the source": (
        "news",
        False,
        lambda s: replace_some(s["news"], 50, lambda _, tgt: (f"il {tgt}", tgt)),
    ),
    "repeated_pairs": ("train", True, lambda s: s["train"].extend(s["train"] * 2)),
    "repeated_pairs, few": ("train", False, lambda s: s["train"].extend(s["train"][:100])),
    "tokenised_references": (
        "news",
        False,
        lambda s: replace_some(s["news"], 80, lambda src, tgt: (src, f"{tgt} &apos;s .")),
    ),
    "unspaced_references": (
        "news",
        False,
        lambda s: replace_some(s["news"], N_TEST, lambda src, _: (src, "我看到一只小狗")),
    ),
}


def test_sound_text_has_no_faults() -> None:
    assert faults(text()) == []


@pytest.mark.parametrize("planted", FAULTS)
def test_a_planted_fault_is_found_and_no_other(planted: str) -> None:
    split, is_error, change = FAULTS[planted]
    (fault,) = faults(text(change))
    name = planted.partition(",")[0]
    assert (fault.name, fault.split, fault.is_error) == (name, split, is_error)
    assert "pairs (" in fault.text
    if name in ("swapped_sides", "other_language"):
        assert ("(pairs " in fault.text) == (split != "train"), "which a sample speaks for"


@pytest.mark.parametrize(("n", "is_told"), [(9, False), (10, True)])
def test_a_fault_of_few_pairs_is_not_told(n: int, is_told: bool) -> None:
    actual = faults(text(lambda s: s["train"].extend(s["news"][:n])))
    assert [fault.name for fault in actual] == ["test_in_train"] * is_told


def test_a_language_is_that_of_most_words() -> None:
    """Though each of the others is known from the other side."""
    src, tgt = WORDS["src"], WORDS["tgt"]
    for n_own, n_other, is_told in ((5, 3, False), (4, 4, False), (3, 5, True)):
        line = " ".join([*tgt[2 : 2 + n_own], *src[2 : 2 + n_other]])
        sound = text()
        actual = faults(replace(sound, dev=Bitext(sound.dev.src, (line,) * N_TEST)))
        assert [fault.name for fault in actual] == ["other_language"] * is_told


@pytest.mark.parametrize(("n", "is_told"), [(49, False), (50, True)])
def test_tokens_in_less_than_half_of_the_references_may_be_meant(n: int, is_told: bool) -> None:
    def in_tokens(src: str, tgt: str) -> tuple[str, str]:
        return src, f"{tgt} @-@ {tgt}"

    actual = faults(text(lambda s: replace_some(s["news"], n, in_tokens)))
    assert [fault.name for fault in actual] == ["tokenised_references"] * is_told


def test_few_words_that_training_has_not_seen_are_no_other_language() -> None:
    unseen = lambda src, _: (src, "Guten Morgen, Berlin!")  # noqa: E731
    assert faults(text(lambda s: replace_some(s["news"], 100, unseen))) == []


def test_two_styles_of_one_language_are_not_told_apart() -> None:
    def styled(splits: dict[str, Pairs]) -> None:
        for split in splits.values():
            replace_some(split, len(split), lambda src, _: (src, " ".join(src.split()[::-1])))

    assert faults(text(styled)) == []


def test_languages_without_spaces_are_told_apart_by_characters() -> None:
    digits = dict(zip(WORDS["src"], "一二三四五六七八九十", strict=True))

    def in_characters(splits: dict[str, Pairs]) -> None:
        for split in splits.values():
            to_chinese = lambda src, _: (src, "".join(digits[w] for w in src.split()))  # noqa: E731
            replace_some(split, len(split), to_chinese)

    sound = replace(text(in_characters), tgt="zh")
    assert faults(sound) == []
    news = sound.tests["news"]
    (fault,) = faults(replace(sound, tests={"news": Bitext(news.tgt, news.src)}))
    assert (fault.name, fault.split, fault.is_error) == ("swapped_sides", "news", True)


def test_the_pairs_of_a_fault_are_named() -> None:
    """Those of the test and of the training text, and only the first three.

    They are no lines of files: a table may have a header, and bad pairs of training are left out.
    """
    (fault,) = faults(text(lambda s: s["train"].extend(reversed(s["news"]))))
    start = "100 of 100 pairs (100.0%) are in the training text"
    assert fault.text == f"{start} (pairs 1 is 2100, 2 is 2099, 3 is 2098, ...)"


def test_text_in_tokens_may_say_so() -> None:
    assert faults(text(FAULTS["tokenised_references"][2], is_tokenised=True)) == []


def test_what_is_in_another_split_is_dropped_by_row() -> None:
    changed = text(FAULTS["test_in_train, with other case and punctuation"][2])
    tests = {"other": Bitext(("a",), ("b",)), **changed.tests}
    assert overlap(replace(changed, tests=tests)) == set(range(N_TRAIN, N_TRAIN + N_TEST))


@pytest.mark.parametrize(("split", "fault"), [("train", "test_in_train"), ("dev", "test_in_dev")])
def test_a_pair_of_any_reference_is_a_pair_of_the_test(split: str, fault: str) -> None:
    sound = text()
    news = sound.tests["news"]
    others = [" ".join(reversed(tgt.split())) for tgt in news.tgt]
    whole = replace(news, more=(others,))
    assert faults(replace(sound, tests={"news": whole})) == []
    part = getattr(sound, split)
    longer = Bitext((*part.src, *news.src), (*part.tgt, *others))
    leaky = replace(sound, tests={"news": whole})
    leaky = replace(leaky, train=longer) if split == "train" else replace(leaky, dev=longer)
    (leak,) = faults(leaky)
    assert (leak.name, leak.split, leak.is_error) == (fault, "news", True)
    if split == "train":
        assert "(pairs 1 is 2001, 2 is 2002, 3 is 2003, ...)" in leak.text
        assert overlap(leaky) == set(range(N_TRAIN, N_TRAIN + N_TEST))


def test_pairs_that_differ_in_vowel_signs_alone_are_others() -> None:
    def boy_and_girl(splits: dict[str, Pairs]) -> None:
        splits["train"].append(("लड़का खाता है", "मुलगा खातो"))
        splits["news"].append(("लड़की खाती है", "मुलगी खाते"))

    assert overlap(text(boy_and_girl)) == set()


def test_a_pair_is_the_same_in_every_form_of_unicode() -> None:
    def in_two_forms(splits: dict[str, Pairs]) -> None:
        splits["train"].append(("a café", "ein Café"))
        splits["news"].append((unicodedata.normalize("NFD", "a café"), "ein Café"))

    assert overlap(text(in_two_forms)) == {N_TRAIN}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with a text whose test is in its training text."""
    monkeypatch.chdir(tmp_path)
    write(text(lambda s: s["train"].extend(s["news"])))
    return tmp_path


def write(written: CorpusText) -> None:
    for name, split in {"train": written.train, "dev": written.dev, **written.tests}.items():
        Path(f"{name}.en").write_text("\n".join(split.src), encoding="utf-8")
        Path(f"{name}.de").write_text("\n".join(split.tgt), encoding="utf-8")


def corpus(**options: object) -> Files:
    files = {name: (f"{name}.en", f"{name}.de") for name in ("train", "dev", "news")}
    tests = {"news": files.pop("news")}
    made = build(
        Corpus, choose(Corpus, "files", src="en", tgt="de", tests=tests, **files, **options)
    )
    assert isinstance(made, Files)
    return made


def refusals(**options: object) -> list[tuple[str, str]]:
    return list(corpus(**options).problems())


@pytest.mark.usefixtures("folder")
def test_a_text_with_an_error_is_refused_unless_it_is_accepted() -> None:
    ((option, reason),) = refusals()
    assert option == "tests.news"
    assert "100 of 100 pairs (100.0%) are in the training text" in reason
    assert "overlap: drop" in reason
    assert refusals(accept=("test_in_train",)) == []
    assert any("are in the training text" in note for note in corpus().load().notes)


@pytest.mark.usefixtures("folder")
def test_the_overlap_can_be_dropped() -> None:
    assert refusals(overlap="drop") == []
    dropped = corpus(overlap="drop").load()
    assert len(dropped.train) == N_TRAIN
    assert dropped.notes == ("train: 100 pairs left out that are in dev or in a test",)
    for side in ("en", "de"):
        Path(f"dev.{side}").write_bytes(Path(f"train.{side}").read_bytes())
    ((option, reason),) = refusals(overlap="drop")
    assert (option, "every pair is in dev or in a test" in reason) == ("train", True)


def held(*lines: tuple[str, str], **options: object) -> CorpusText:
    for side, name in enumerate(("train.en", "train.de")):
        Path(name).write_text("\n".join(line[side] for line in lines), encoding="utf-8")
    known = {"src": "en", "tgt": "de", "train": ("train.en", "train.de"), **options}
    made = build(Corpus, choose(Corpus, "files", **known))
    assert isinstance(made, Files)
    return made.load()


def in_splits(text: CorpusText) -> dict[str, set[tuple[str, str]]]:
    parts = {"train": text.train, "dev": text.dev, **text.tests}
    return {name: set(zip(part.src, part.tgt, strict=True)) for name, part in parts.items()}


@pytest.mark.usefixtures("folder")
def test_dev_and_test_are_held_out_of_the_training_text_by_the_hash_of_a_pair() -> None:
    lines = [*dict.fromkeys(pairs(N_TRAIN, 1))]
    holdout = {"dev": 50, "test": 70}
    text = held(*lines, holdout=holdout)
    splits = in_splits(text)
    assert {name: len(split) for name, split in splits.items()} == {
        "train": len(lines) - 120,
        "dev": 50,
        "test": 70,
    }
    assert set.union(*splits.values()) == set(lines)
    note = "train: 50 pairs for dev and 70 pairs for test are held out"
    assert note in text.notes
    assert in_splits(held(*reversed(lines), holdout=holdout)) == splits

    def key(pair: tuple[str, str]) -> int:  # of no process: what is held out stays that for ever
        hashed = hashlib.blake2b("\n".join(pair).encode(), digest_size=8).digest()
        return int.from_bytes(hashed, "big", signed=True)

    dev, test = sorted(lines, key=key)[:50], sorted(lines, key=key)[50:120]
    assert (splits["dev"], splits["test"]) == (set(dev), set(test))
    rows = "\n".join(map("\t".join, [("en", "de"), *lines]))
    Path("all.tsv").write_text(rows, encoding="utf-8")
    table = choose(Corpus, "table", src="en", tgt="de", train="all.tsv", holdout=holdout)
    assert in_splits(build(Corpus, table).load()) == splits
    src, tgt = next(iter(splits["test"]))
    alike = held(*lines, (f"{src.upper()} !", tgt), (src, tgt), holdout=holdout)
    assert in_splits(alike) == splits
    assert f"{note}, and 2 like them left out" in alike.notes
    with pytest.raises(DataError, match=r"has 100 different pairs, of which holdout takes 120"):
        held(*lines[:100], holdout=holdout)


@pytest.mark.parametrize(
    "options",
    [{}, {"dev": ("train.en", "train.de")}, {"holdout": {"dev": 5}}],
)
@pytest.mark.usefixtures("folder")
def test_dev_and_test_are_given_or_held_out(options: dict[str, object]) -> None:
    with pytest.raises(SpecError, match=r"holdout: \{dev: 500, test: 500\}"):
        held(("a", "b"), **options)


@pytest.mark.usefixtures("folder")
def test_a_test_is_given_and_dev_held_out_or_the_other_way() -> None:
    lines, own = [*dict.fromkeys(pairs(N_TRAIN, 1))], pairs(300, 5)
    both = in_splits(held(*lines, holdout={"dev": 50, "test": 70}))
    for side, name in enumerate(("own.en", "own.de")):
        Path(name).write_text("\n".join(pair[side] for pair in own), encoding="utf-8")
    text = held(*lines, tests={"news": ("own.en", "own.de")}, holdout={"dev": 50})
    splits = in_splits(text)
    rest = {"train": both["train"] | both["test"], "dev": both["dev"], "news": {*own}}
    assert splits == rest
    assert "train: 50 pairs for dev are held out" in text.notes
    splits = in_splits(held(*lines, dev=("own.en", "own.de"), holdout={"test": 50}))
    assert splits == {"train": rest["train"], "dev": {*own}, "test": both["dev"]}


@pytest.mark.usefixtures("folder")
def test_the_faults_of_a_content_are_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    known = corpus().faults()

    def forbid(_: CorpusText) -> Sequence[object]:
        raise AssertionError("it was read again")

    monkeypatch.setattr("ablate.data.own_text.faults", forbid)
    assert corpus().faults() == known
    os.truncate("train.de", 100)
    with pytest.raises((AssertionError, DataError)):
        corpus().faults()


def test_the_mistake_stands_at_the_line_of_the_test(folder: Path) -> None:
    (folder / "x.yaml").write_text(
        "corpus:\n  name: files\n  src: en\n  tgt: de\n  train: [train.en, train.de]\n"
        "  dev: [dev.en, dev.de]\n  tests:\n    news: [news.en, news.de]\n"
        "variants: {a: {model.norm: rms}}\n",
        encoding="utf-8",
    )
    with pytest.raises(SpecError, match=r"x.yaml:8:\d+: corpus.tests.news: 100 of 100"):
        check(config.load(folder / "x.yaml"))


def test_the_command_lists_faults_and_ends_with_1_if_one_is_an_error(folder: Path) -> None:
    spec = folder / "x.yaml"
    spec.write_text(
        "corpus: {name: files, src: en, tgt: de, train: [train.en, train.de], dev: [dev.en, "
        "dev.de], tests: {news: [news.en, news.de]}}\nvariants: {a: {model.norm: rms}}\n",
        encoding="utf-8",
    )
    done = CliRunner().invoke(app, ["corpora", "check", str(spec)])
    assert done.exit_code == 1
    assert "\nerror  test_in_train  news: 100 of 100 pairs (100.0%) are in" in done.output
    done = CliRunner().invoke(app, ["corpora", "check", str(spec), "--json"])
    (fault,) = json.loads(done.output)["faults"]
    assert (fault["name"], fault["split"], fault["is_error"]) == ("test_in_train", "news", True)
    refused = spec.read_text(encoding="utf-8")
    accepting = refused.replace("corpus: {", "corpus: {accept: [test_in_train], ")
    spec.write_text(accepting, encoding="utf-8")
    done = CliRunner().invoke(app, ["corpora", "check", str(spec)])
    assert done.exit_code == 0
    assert "\nnote   test_in_train  news: 100 of 100 pairs (100.0%) are in" in done.output
    write(text())
    done = CliRunner().invoke(app, ["corpora", "check", str(spec)])
    assert (done.exit_code, done.output[-11:]) == (0, "\nno faults\n")


def test_a_fault_of_a_corpus_that_no_run_refuses_is_no_error(folder: Path) -> None:
    with temporary_registrations():

        @register("repeating", source="a test")
        class Repeating(Corpus):
            """The first training pairs are the test."""

            def fingerprint(self) -> str:
                return "0" * 64

            def load(self) -> CorpusText:
                return text(lambda splits: splits.update(news=splits["train"][:N_TEST]))

        spec = folder / "x.yaml"
        spec.write_text("corpus: repeating\ntokenizer: word\n", encoding="utf-8")
        check(config.load(spec))
        (fault,) = api.check_corpus(spec).faults
        assert (fault.name, fault.split, fault.is_error) == ("test_in_train", "news", False)


def test_the_command_names_the_line_of_a_text_that_cannot_be_read(folder: Path) -> None:
    write(text())
    train = "corpus: {name: files, src: en, tgt: de, train: [train.en, train.de]"
    for more, reason in {
        "": "x.yaml:1:9: corpus: files: give dev and tests",
        ", holdout: {dev: 9000, test: 9}": "x.yaml:1:48: corpus.train: has 2,000 different pairs",
        ", tests: {x: [news.en, news.de]}, holdout: {dev: 9000}": "x.yaml:1:48: corpus.train: has",
    }.items():
        (folder / "x.yaml").write_text(f"{train}{more}}}\n", encoding="utf-8")
        with pytest.raises(SpecError, match=reason):
            api.check_corpus(folder / "x.yaml")


def test_a_split_that_is_inherited_and_held_out_is_removed_by_null(folder: Path) -> None:
    write(text())
    (folder / "base.yaml").write_text(
        "corpus: {name: files, src: en, tgt: de, train: [train.en, train.de], dev: [dev.en, "
        "dev.de], tests: {news: [news.en, news.de]}}\n",
        encoding="utf-8",
    )
    spec = folder / "x.yaml"

    def write_spec(corpus: str) -> None:
        spec.write_text(f"extends: base.yaml\ncorpus: {{{corpus}}}\n", encoding="utf-8")

    write_spec("holdout: {dev: 50}")
    with pytest.raises(SpecError, match=r"dev is given, and holdout takes .* \(dev: null, if"):
        api.check_corpus(spec)
    write_spec("holdout: {test: 50}")
    with pytest.raises(SpecError, match=r"tests is given, and .* \(tests: null, if"):
        api.check_corpus(spec)
    write_spec("holdout: {dev: 50, test: 50}, dev: null, tests: null")
    assert [split.n_pairs for split in api.check_corpus(spec).splits[1:]] == [50, 50]


def test_the_command_takes_one_context_as_each_may_have_its_own_text(folder: Path) -> None:
    write(text())
    spec = folder / "x.yaml"
    spec.write_text(
        "corpus: {name: files, src: en, tgt: de, train: [train.en, train.de], dev: [dev.en, "
        "dev.de], tests: {news: [news.en, news.de]}}\n"
        "contexts: {sound: {}, other: {corpus: {train: [dev.en, dev.de]}}}\n"
        "variants: {a: {model.norm: rms}}\n",
        encoding="utf-8",
    )
    with pytest.raises(SpecError, match=r"has contexts, .*x\.yaml#sound, .*x\.yaml#other$"):
        api.check_corpus(spec)
    assert api.check_corpus(f"{spec}#other").splits[0].n_pairs == N_TEST


def test_sizes_are_those_of_the_text_and_of_the_tokenizer(folder: Path) -> None:
    write(text(lambda s: s["dev"].append(("new " * 30, "Привет"))))
    with (folder / "news.2.de").open("w") as file:
        file.write("x\n" * N_TEST)
    (folder / "x.yaml").write_text(
        "corpus: {name: files, src: en, tgt: de, train: [train.en, train.de], dev: [dev.en, "
        "dev.de], tests: {news: [news.en, news.de, news.2.de]}}\ntokenizer: word\n"
        "model: {dims: {d_model: 16, max_len: 20}}\n",
        encoding="utf-8",
    )
    corpus = api.check_corpus(folder / "x.yaml")
    train, dev, news = corpus.splits
    assert (train.n_pairs, dev.n_pairs, news.n_pairs) == (N_TRAIN, N_TEST + 1, N_TEST)
    assert (train.src.n_words, train.src.n_tokens) == (8 * N_TRAIN, 9 * N_TRAIN)
    assert (train.tgt.mean_tokens, train.tgt.longest_tokens, train.tgt.unknown_share) == (9, 9, 0)
    assert (dev.src.n_words, dev.src.n_tokens) == (8 * N_TEST + 30, 9 * N_TEST + 20)
    assert dev.src.unknown_share == pytest.approx(19 / (9 * N_TEST + 20))  # EOS is known
    assert (dev.src.longest_words, dev.src.longest_tokens) == (30, 20)
    assert (news.n_references, train.n_references) == (2, 1)
    n_letters = sum(map(len, "".join(row for _, row in pairs(N_TEST, 2)).replace(" ", "")))
    assert dev.tgt.letters["CYRILLIC"] == pytest.approx(6 / (6 + n_letters))
    assert corpus.notes == ("dev: 1 of 101 sources cut to 20 tokens",)
    assert corpus.faults == ()
    printed = CliRunner().invoke(app, ["corpora", "check", str(folder / "x.yaml")]).output
    assert "de x 2" in printed
    assert "cyrillic" in printed


def test_the_corpus_that_is_made_here_has_no_faults(folder: Path) -> None:
    spec = folder / "own.yaml"
    spec.write_text("corpus: {name: synthetic, size: 2000}\n")
    done = CliRunner().invoke(app, ["corpora", "check", str(spec)])
    assert (done.exit_code, done.output[-11:]) == (0, "\nno faults\n")


def test_a_vocabulary_that_cannot_hold_the_alphabet_is_refused_by_plan(folder: Path) -> None:
    write(text())
    corpus = "{name: files, src: en, tgt: de, train: [train.en, train.de], "
    corpus += "dev: [dev.en, dev.de], tests: {news: [news.en, news.de]}}"
    spec = folder / "own.yaml"
    spec.write_text(f"corpus: {corpus}\ntokenizer: {{name: bpe, vocab_size: 12}}\n", "utf-8")
    reason = r"own\.yaml:2:36: tokenizer\.vocab_size: is 12, but the text needs \d\d: one for every"
    with pytest.raises(SpecError, match=reason):
        check(config.load(spec))
    least = len(SPECIAL) + len({x for word in (*WORDS["src"], *WORDS["tgt"]) for x in word}) + 1
    for size, is_refused in ((least - 1, True), (least, False)):
        with pytest.raises(SpecError) if is_refused else nullcontext():
            check(config.load(spec, [f"tokenizer.vocab_size={size}"]))
    for tokenizer in ("{name: bpe, character_coverage: 0.3}", "{name: word}"):
        check(config.load(spec, [f"tokenizer={tokenizer}", "tokenizer.vocab_size=20"]))


def test_the_smallest_vocabulary_is_that_of_the_tokenizer_and_not_of_an_earlier_one(
    folder: Path,
) -> None:
    write(text())
    corpus = "{name: files, src: en, tgt: de, train: [train.en, train.de], "
    corpus += "dev: [dev.en, dev.de], tests: {news: [news.en, news.de]}}"
    spec = folder / "own.yaml"
    spec.write_text(f"corpus: {corpus}\ntokenizer: {{name: byte_bpe, vocab_size: 300}}\n", "utf-8")
    check(config.load(spec))
    check(config.load(spec, ["tokenizer={name: bpe, vocab_size: 100}"]))
