"""BPE-dropout and subword regularisation: what is drawn, from what, and when."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer as HFTokenizer
from tokenizers import models

from ablate.config.experiment import RunSpec
from ablate.config.identity import canonical, identity
from ablate.data import segmentation
from ablate.data.batches import Batches, Encoded, Resampled
from ablate.data.corpus import CorpusText
from ablate.data.prepare import prepare
from ablate.data.segmentation import (
    DropoutSampler,
    LatticeSampler,
    WordNumbers,
    WordSampler,
    resampled,
)
from ablate.data.sentences import Ragged
from ablate.data.tokenizer import EOS, PAD, UNK, Tokenizer, TokenizerPair
from ablate.measuring.workload import Workload
from ablate.registry import build, choose
from ablate.training.step import BatchStream, count_steps
from tests.data.test_tokenizer import HARD
from tests.data.texts import corpus_text, run_spec

MERGES = [("b", "a"), ("a", "n"), ("an", "a"), ("ba", "n"), ("n", "an"), ("ban", "ana")]
PIECES = {
    "n": -2.0,
    "a": -1.5,
    "b": -3.0,
    "an": -2.2,
    "ana": -2.9,
    "ba": -2.6,
    "nan": -4.0,
    "ban": -3.9,
    "banana": -7.0,
}
N = 6_000

Frequencies = dict[tuple[str, ...], float]
"""Of segmentations."""


def bpe() -> HFTokenizer:
    letters = {"<unk>": 0, "a": 1, "b": 2, "n": 3}
    vocab = letters | {a + b: 4 + i for i, (a, b) in enumerate(MERGES)}
    return HFTokenizer(models.BPE(vocab, MERGES, unk_token="<unk>"))


def unigram() -> HFTokenizer:
    return HFTokenizer(models.Unigram([("<unk>", -20.0), *PIECES.items()], 0, False))


def drawn(sampler: WordSampler, hf: HFTokenizer, n: int = N) -> Frequencies:
    """Return how often each segmentation of the first word is drawn."""
    sentences = sampler.sample(np.zeros(n, np.int64), np.random.default_rng(5))
    counts = Counter(tuple(hf.id_to_token(i) or "" for i in ids.tolist()) for ids in sentences)
    return {pieces: count / n for pieces, count in counts.items()}


def assert_distributed(frequencies: Frequencies, p: Frequencies, sigmas: float = 4.5) -> None:
    assert math.fsum(p.values()) == pytest.approx(1)
    assert set(frequencies) <= set(p)
    for pieces, expected in p.items():
        error = math.sqrt(expected * (1 - expected) / N)
        assert abs(frequencies.get(pieces, 0.0) - expected) <= sigmas * error + 1e-12, pieces


def by_algorithm_1(
    pieces: tuple[str, ...], dropout: float, merges: Sequence[tuple[str, str]] = MERGES
) -> Frequencies:
    """Return the probability of each segmentation: the algorithm of the paper, all its ways."""
    pairs = [
        (merges.index(pair), i)
        for i, pair in enumerate(itertools.pairwise(pieces))
        if pair in merges
    ]
    p = {pieces: dropout ** len(pairs)}
    for n_dropped, (_, i) in enumerate(sorted(pairs)):
        merged = (*pieces[:i], pieces[i] + pieces[i + 1], *pieces[i + 2 :])
        for other, share in by_algorithm_1(merged, dropout, merges).items():
            p[other] = p.get(other, 0.0) + (1 - dropout) * dropout**n_dropped * share
    return p


@pytest.mark.parametrize("dropout", [0.1, 0.6])
def test_bpe_dropout_draws_from_the_distribution_of_the_papers_algorithm(dropout: float) -> None:
    hf = bpe()
    words = Ragged.of([hf.encode("banana").ids])
    sampler = DropoutSampler(hf, words, unknown=0, dropout=dropout)
    p = by_algorithm_1(tuple("banana"), dropout)
    assert len(p) > 10
    assert_distributed(drawn(sampler, hf), p)


def test_bpe_dropout_is_that_of_the_tokenizers_library() -> None:
    """On a word whose merges do not take characters from each other; its draws have no seed."""
    vocab = {x: i for i, x in enumerate(["<unk>", *"abcd", "ab", "cd", "abcd"])}
    merges = [("a", "b"), ("c", "d"), ("ab", "cd")]
    plain, dropping = (
        HFTokenizer(models.BPE(vocab, merges, dropout=p, unk_token="<unk>")) for p in (None, 0.3)
    )
    words = Ragged.of([plain.encode("abcd").ids])
    sampler = DropoutSampler(plain, words, unknown=0, dropout=0.3)
    theirs = Counter(tuple(each.tokens) for each in dropping.encode_batch(["abcd"] * N))
    p = by_algorithm_1(tuple("abcd"), 0.3, merges)
    assert_distributed({pieces: n / N for pieces, n in theirs.items()}, p, sigmas=7)
    assert_distributed(drawn(sampler, plain), p)


def by_enumeration(text: str, alpha: float) -> Frequencies:
    """Return the probability of each of a text's segmentations into pieces."""
    ways = []
    for cuts in itertools.product((False, True), repeat=len(text) - 1):
        at = [0, *(i + 1 for i, is_cut in enumerate(cuts) if is_cut), len(text)]
        ways.append(tuple(text[a:b] for a, b in itertools.pairwise(at)))
    weights = {
        pieces: math.exp(alpha * sum(PIECES[piece] for piece in pieces))
        for pieces in ways
        if all(piece in PIECES for piece in pieces)
    }
    return {pieces: weight / sum(weights.values()) for pieces, weight in weights.items()}


@pytest.mark.parametrize("alpha", [0.0, 0.2, 1.0])
def test_unigram_sampling_draws_from_all_segmentations(alpha: float) -> None:
    hf = unigram()
    words = Ragged.of([hf.encode("banana").ids])
    sampler = LatticeSampler(hf, words, unknown=0, alpha=alpha)
    p = by_enumeration("banana", alpha)
    assert len(p) > 10
    assert_distributed(drawn(sampler, hf), p)


SENTENCEPIECE = {
    "ban ana": 0.1456,
    "banana": 0.1282,
    "ba n ana": 0.1015,
    "ban an a": 0.0951,
    "b an ana": 0.0754,
    "ba nan a": 0.0752,
    "ba n an a": 0.0686,
    "ban a n a": 0.0515,
    "b an an a": 0.0491,
    "b ana n a": 0.0395,
    "b a n ana": 0.0395,
    "ba n a n a": 0.0348,
    "b a nan a": 0.0294,
    "b an a n a": 0.0275,
    "b a n an a": 0.0265,
    "b a n a n a": 0.0126,
}
"""Of 40,000 draws: sentencepiece 0.2.3, sample_encode_as_pieces, nbest_size -1, alpha 0.5."""


def test_unigram_sampling_is_that_of_sentencepiece() -> None:
    hf = unigram()
    sampler = LatticeSampler(hf, Ragged.of([hf.encode("banana").ids]), unknown=0, alpha=0.5)
    ours, p = drawn(sampler, hf), by_enumeration("banana", 0.5)
    assert {" ".join(pieces) for pieces in ours} == set(SENTENCEPIECE)
    for pieces, frequency in ours.items():
        theirs, expected = SENTENCEPIECE[" ".join(pieces)], p[pieces]
        error = math.sqrt(expected * (1 - expected) * (1 / N + 1 / 40_000))
        assert abs(frequency - theirs) < 4.5 * error + 5e-5, pieces


def trained(name: str, text: CorpusText, **options: Any) -> TokenizerPair:
    return build(Tokenizer, choose(Tokenizer, name, vocab_size=150, **options)).train(text)


@pytest.mark.parametrize("marker", ["start", "end"])
@pytest.mark.parametrize(
    ("name", "never"), [("bpe", {"dropout": 0.0}), ("unigram", {"alpha": 1e4})]
)
def test_without_chance_words_are_segmented_as_by_the_tokenizer(
    name: str, never: dict[str, float], marker: str
) -> None:
    """Of text that it was trained on, and of other text, with unknown characters in it."""
    text = corpus_text()
    tokenizers, lines = trained(name, text, word_marker=marker), [*text.train.src, *HARD]
    assert [*map(list, sampled(tokenizers, lines, **never))] == tokenizers.encode_src(lines)
    often = sampled(tokenizers, lines, **({"dropout": 0.5} if name == "bpe" else {"alpha": 0.1}))
    assert [*map(list, often)] != tokenizers.encode_src(lines)
    for ids, line in zip(often, text.train.src, strict=False):
        assert ids[-1] == EOS
        assert tokenizers.decode_tgt(ids.tolist()) == line


def sampled(tokenizers: TokenizerPair, lines: Sequence[str], **options: float) -> Ragged:
    """Return source sentences in segmentations that are drawn at random."""
    numbers, own = WordNumbers(), Ragged.of(tokenizers.encode_src(lines))
    words, distinct = Ragged.of(tokenizers.words_src(lines, numbers)), numbers.segmentations()
    make: Any = DropoutSampler if "dropout" in options else LatticeSampler
    chosen = partial(make, unknown=UNK, **options)
    sampler, _ = tokenizers.samplers(chosen, distinct, distinct)
    return resampled(own, words, sampler, 100, np.random.default_rng(0))


def sampling_run(folder: Path, max_len: int = 40, **tokenizer: Any) -> RunSpec:
    options = {"name": "bpe", "min_frequency": 1, "vocab_size": 60, "dropout": 0.5, **tokenizer}
    for split in ("train", "dev"):
        for language in ("en", "de"):
            line = "abc abcd bcda cdab, dabc" if language == "en" else "xyzx yzxy zxyz."
            lines = "".join(f"{line}{' abcd' * (i % 5)}\n" for i in range(60))
            (folder / f"{split}.{language}").write_text(lines)
    return run_spec(folder, max_len, **options)


def ids_of(encoded: Encoded) -> list[list[int]]:
    return [ids.tolist() for side in (encoded.src, encoded.tgt) for ids in side]


def test_training_text_alone_is_resampled_by_seed_and_epoch(folder: Path) -> None:
    """From the cache too; the tokenizer is that of a run without."""
    run = sampling_run(folder)
    first, again, plain = prepare(run), prepare(run), prepare(sampling_run(folder, dropout=0.0))
    assert isinstance(first.train, Resampled)
    assert not isinstance(plain.train, Resampled)
    assert first.tokenizers.fingerprint == plain.tokenizers.fingerprint
    for ours, theirs in ((first.train, plain.train), (first.dev, plain.dev)):
        assert ids_of(ours) == ids_of(theirs)
    epochs = {key: ids_of(first.train.of_epoch(*key)) for key in ((1, 0), (1, 1), (2, 0))}
    assert len({str(ids) for ids in epochs.values()}) == 3
    assert ids_of(again.train.of_epoch(1, 1)) == epochs[1, 1], "whatever was drawn before"
    assert plain.train.of_epoch(1, 0) is plain.train
    decode = first.tokenizers.decode_tgt
    text = [decode(ids) for ids in ids_of(first.train)]
    assert all([decode(ids) for ids in drawn] == text for drawn in epochs.values())
    n = len(first.train)
    assert epochs[1, 0][:n] != epochs[1, 0][n:]
    words, (sampler, _) = first.train.words.src, first.train.samplers
    alike = replace(
        first.train,
        tgt=first.train.src,
        words=Encoded(words, words),
        samplers=(sampler, sampler),
    )
    drawn = ids_of(alike.of_epoch(1, 0))
    assert drawn[:n] != drawn[n:], "the sides are drawn independently"
    repeated = [epochs[1, 0][i] for i in range(0, n, 5)]  # sources that are alike
    assert len({str(ids) for ids in repeated}) > 5


def test_a_sentence_that_would_become_too_long_keeps_its_segmentation(folder: Path) -> None:
    longest = int(prepare(sampling_run(folder)).train.src.lengths.max())
    train = prepare(sampling_run(folder, max_len=longest, dropout=0.1)).train
    assert isinstance(train, Resampled)
    drawn = train.of_epoch(1, 0)
    assert max(drawn.src.lengths.max(), drawn.tgt.lengths.max()) <= longest
    is_same = [a.tolist() == b.tolist() for a, b in zip(drawn.src, train.src, strict=True)]
    assert any(is_same)
    assert not all(is_same)
    assert ids_of(replace(train, max_len=0).of_epoch(1, 0)) == ids_of(train)


def test_batches_of_an_epoch_are_bounded_and_go_on_where_they_stopped(folder: Path) -> None:
    batches = Batches(prepare(sampling_run(folder)).train, 120, PAD)
    assert batches.of_epoch(1, 0) is batches.of_epoch(1, 0)
    counts = [batches.of_epoch(1, epoch).n_per_epoch for epoch in range(4)]
    assert max(counts) > batches.n_per_epoch, "the text has more tokens"
    whole = list(BatchStream(batches, 1).take(sum(counts)))
    assert all(batch.tgt_out.numel() <= 120 for batch in whole)
    rows = np.concatenate([batch.index for batch in whole[: counts[0]]])
    assert sorted(rows) == list(range(60))
    stream = BatchStream(batches, 1)
    list(stream.take(counts[0] + 2))
    assert (stream.epoch, stream.finished_epochs) == (1, 1)
    fresh = Batches(prepare(sampling_run(folder)).train, 120, PAD)
    rest = BatchStream(fresh, 1, stream.epoch, stream.index).take(sum(counts[1:]) - 2)
    for ours, theirs in zip(rest, whole[counts[0] + 2 :], strict=True):
        assert ours.src.equal(theirs.src)
        assert ours.tgt_out.equal(theirs.tgt_out)


def test_epochs_and_tokens_are_counted_as_they_come(folder: Path) -> None:
    run = sampling_run(folder)
    batches = Batches(prepare(run).train, 120, PAD)
    whole = list(BatchStream(batches, 3).take(40))
    ends = np.cumsum([batches.of_epoch(3, epoch).n_per_epoch for epoch in range(3)])

    def steps(**amount: int) -> int:
        training = {"steps": None, **amount}
        return count_steps(run.training.model_copy(update=training), batches, 3)

    assert [steps(epochs=n) for n in (1, 2, 3)] == ends.tolist()
    n_tokens = sum(batch.n_tokens for batch in whole[: ends[1] + 1])
    assert steps(target_tokens=n_tokens) == ends[1] + 1


def test_estimates_are_of_the_text_that_seed_0_has_first(folder: Path) -> None:
    """The probe's steps are batches of the lengths that training sees."""
    run = sampling_run(folder, dropout=0.9)
    run = run.model_copy(update={"training": run.training.model_copy(update={"batch_tokens": 200})})
    prepared = prepare(run)
    work = Workload(run, prepared, torch.device("cpu"))
    lengths = prepared.train.of_epoch(0, 0).tgt.lengths
    for (batch,) in (*work.steps, work.largest):
        assert batch.n_tokens == lengths[batch.index].sum()
        assert batch.n_tokens > prepared.train.tgt.lengths[batch.index].sum()


@pytest.mark.parametrize(
    ("name", "neutral", "other"),
    [("bpe", {"dropout": 0.0}, {"dropout": 0.1}), ("unigram", {"alpha": None}, {"alpha": 0.0})],
)
def test_sampling_names_the_run_and_its_absence_does_not(
    name: str, neutral: dict[str, Any], other: dict[str, Any], folder: Path
) -> None:
    def run(**options: Any) -> RunSpec:
        spec = run_spec(folder)
        return spec.model_copy(update={"tokenizer": choose(Tokenizer, name, **options)})

    assert canonical(run()) == canonical(run(**neutral))
    assert not set(neutral) & set(canonical(run())["tokenizer"])
    assert identity(run(), "0", "fp32") != identity(run(**other), "0", "fp32")


def test_a_sentence_may_have_just_as_many_tokens_as_are_allowed() -> None:
    hf = unigram()
    word = hf.encode("banana").ids
    own, words = Ragged.of([[*word, EOS]]), Ragged.of([[0]])
    sampler = LatticeSampler(hf, Ragged.of([word]), unknown=0, alpha=0.0)

    def drawn_lengths(max_len: int) -> set[int]:
        random = np.random.default_rng(0)
        return {len(resampled(own, words, sampler, max_len, random)[0]) for _ in range(300)}

    assert drawn_lengths(100) == {2, 3, 4, 5, 6, 7}
    assert drawn_lengths(5) == {2, 3, 4, 5}


def test_a_tokenizer_that_has_learned_no_merge_leaves_characters_apart() -> None:
    lines = corpus_text(20).train.src
    tokenizers = trained("bpe", corpus_text(20), min_frequency=10_000)
    drawn = sampled(tokenizers, lines, dropout=0.5)
    assert [ids.tolist() for ids in drawn] == tokenizers.encode_src(lines)


def test_many_sentences_are_drawn_in_blocks_each_with_its_own_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = corpus_text(50)
    tokenizers = trained("bpe", text)
    for block in (1, 7, 50):
        monkeypatch.setattr(segmentation, "_BLOCK", block)
        drawn = sampled(tokenizers, text.train.src, dropout=0.5)
        assert len(drawn) == 50
        assert [tokenizers.decode_tgt(ids.tolist()) for ids in drawn] == list(text.train.src)


def test_the_segmentation_of_an_epoch_never_changes(folder: Path) -> None:
    """Runs that are stored were trained on this one, and are repeated bit for bit."""
    train = prepare(sampling_run(folder)).train.of_epoch(1, 2)
    assert [side.lengths[:9].tolist() for side in (train.src, train.tgt)] == [
        [22, 22, 27, 30, 33, 18, 24, 26, 30],
        [14, 15, 17, 22, 31, 12, 18, 21, 20],
    ]


def test_batches_hold_the_text_of_the_epoch_whichever_came_before(folder: Path) -> None:
    train = prepare(sampling_run(folder)).train
    batches = Batches(train, 120, PAD)
    for seed, epoch in ((1, 2), (2, 1), (2, 2), (1, 2)):
        drawn = train.of_epoch(seed, epoch)
        for batch in batches.of_epoch(seed, epoch).in_order():
            for row, src, tgt in zip(batch.index, batch.src, batch.tgt_out, strict=True):
                assert src[src != PAD].tolist() == drawn.src[int(row)].tolist()
                assert tgt[tgt != PAD].tolist() == drawn.tgt[int(row)].tolist()
