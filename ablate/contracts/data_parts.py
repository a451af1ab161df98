"""Contracts of corpora, tokenizers, searches and metrics."""

from __future__ import annotations

import math
import random
import textwrap
from contextlib import suppress

import torch

from ablate.contracts.tiny import VOCABULARY, Case, choice_of, scrambled, tiny
from ablate.data.corpus import Bitext, Corpus, CorpusText
from ablate.data.tokenizer import BOS, EOS, PAD, SPECIAL, Tokenizer
from ablate.decoding import Hypothesis, Search, translate
from ablate.parts.metric import Metric, UnavailableError
from ablate.registry import Choice, RefusedError, build

_WORDS = "the a red blue small dog cat house sleeps sees runs and in of under very"


def text_is_parallel(case: Case) -> None:
    """A corpus that needs no download has splits of pairs, and content of one fingerprint."""
    try:
        corpus = build(Corpus, choice_of(case.entry))
    except RefusedError:
        return  # its options need one another
    if list(corpus.problems()) or not corpus.is_available():
        return  # its options need files, or it a download
    case.demand(corpus.fingerprint() == corpus.fingerprint(), "the fingerprint changes")
    text, again = corpus.load(), corpus.load()
    splits = {"train": text.train, "dev": text.dev, **text.tests}
    case.demand(bool(text.tests), "there is no test set")
    for name, split in splits.items():
        case.demand(len(split) > 0, f"the split {name} is empty")
        case.demand(len(split.src) == len(split.tgt), f"the sides of {name} differ in length")
        lines = [*split.src[:1000], *split.tgt[:1000]]
        case.demand(not any("\n" in line for line in lines), f"a sentence of {name} has two lines")
    of_second = {"train": again.train, "dev": again.dev, **again.tests}
    case.demand(
        _lines(splits) == _lines(of_second),
        "the text is another at every call, with the same fingerprint; draw it from a generator of "
        "its own with a fixed seed, as in `random.Random(seed)`",
    )


def _lines(splits: dict[str, Bitext]) -> dict[str, tuple[list[str], list[str]]]:
    """Return the first sentences of each split."""
    return {name: ([*split.src[:1000]], [*split.tgt[:1000]]) for name, split in splits.items()}


def decoding_restores_text(case: Case) -> None:
    """Encoding and decoding give a sentence back up to white space; every id is in range."""
    pair = build(Tokenizer, choice_of(case.entry)).train(_text())
    special = list(SPECIAL)
    case.demand(
        pair.src_pieces(range(4)) == special and pair.tgt_pieces(range(4)) == special,
        "the ids 0 to 3 are not those of padding, begin, end and unknown; give the library's "
        "trainer `special_tokens=list(SPECIAL)` of ablate.data.tokenizer",
    )
    lines = [_WORDS, "the  dog sleeps", "a"]
    for line, ids in zip(lines, pair.encode_tgt(lines), strict=True):
        case.demand(ids[-1] == EOS, "a sentence does not end in EOS")
        in_range = all(0 <= i < pair.vocabulary.n_tgt for i in ids)
        case.demand(in_range, "an id is beyond the size of the vocabulary")
        decoded = pair.decode_tgt(ids[:-1])
        case.demand(
            decoded.lower() == " ".join(line.lower().split()),
            f"{line!r} comes back as {decoded!r} after encoding and decoding",
        )


def training_is_repeatable(case: Case) -> None:
    """The same text gives the same tokenizers."""
    one, other = (build(Tokenizer, choice_of(case.entry)).train(_text()) for _ in range(2))
    case.demand(one.fingerprint == other.fingerprint, "the same text gives another tokenizer")


def sentences_are_independent(case: Case) -> None:
    """A translation does not depend on what is translated beside it, and has no special ids."""
    search, rng = build(Search, choice_of(case.entry)), random.Random(0)
    sources = [[EOS]]
    for _ in range(8):
        length = rng.randrange(1, 9)
        sources.append([*(rng.randrange(4, VOCABULARY.n_src) for _ in range(length)), EOS])
    model, cpu = scrambled(tiny()), torch.device("cpu")
    together = translate(model, search, sources, 10_000, cpu)
    alone = [translate(model, search, [source], 1, cpu)[0] for source in sources]
    case.demand(
        _tokens(together) == _tokens(alone),
        "a sentence is translated otherwise beside others than alone",
    )
    case.demand(all(together), "a sentence has no translation")
    special = {i for best in _tokens(together) for tokens in best for i in tokens} & {PAD, BOS, EOS}
    case.demand(not special, "a translation holds PAD, BOS or EOS")


def _tokens(hypotheses: list[list[Hypothesis]]) -> list[list[list[int]]]:
    return [[list(hypothesis.tokens) for hypothesis in best] for best in hypotheses]


def _text() -> CorpusText:
    """Return an invented corpus with enough distinct words to learn a vocabulary from."""
    rng, words = random.Random(1), _WORDS.split()
    lines = [" ".join(rng.choices(words, k=rng.randrange(3, 9))) for _ in range(300)]
    bitext = Bitext(tuple(lines), tuple(lines))
    return CorpusText("words", "en", "xx", bitext, bitext, {"test": bitext})


def references_score_best(case: Case) -> None:
    """A metric gives a number, the same for the same texts, and a higher one for the references."""
    metric = build(Metric, choice_of(case.entry))
    sources, others, references = _translations()
    try:
        right = metric.score(sources, references, references)
    except UnavailableError:
        return
    wrong = metric.score(sources, others, references)
    for score in (right, wrong):
        case.demand(
            isinstance(score, float | int) and math.isfinite(score),
            f"the score is {textwrap.shorten(repr(score), 60)} and not a number",
        )
    case.demand(
        right > wrong,
        "the references score no higher than other sentences; for an error rate return its "
        "negative, or 100 less it",
    )
    case.demand(
        metric.score(sources, others, references) == wrong,
        "the score changes from call to call; draw from a generator with a fixed seed",
    )


def options_change_scores(case: Case) -> None:
    """Every option changes the score."""

    def score(choice: Choice) -> float | None:
        with suppress(UnavailableError):
            return build(Metric, choice).score(*_translations())
        return None

    if score(choice_of(case.entry)) is not None:
        case.demand_effective(score, "the scores")


def _translations() -> tuple[list[str], list[str], list[str]]:
    """Return sources, poor translations and references, whose words the sources do not have."""
    references = [*_text().tests["test"].tgt]
    others = [line.rpartition(" ")[0] for line in reversed(references)]
    return [line.upper() for line in references], ["", *others[1:]], references
