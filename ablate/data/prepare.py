"""From a run's choices to ids: load the corpus, train its tokenizer or read it, encode."""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from ablate.config.experiment import RunSpec
from ablate.config.identity import content_of
from ablate.data import encodings
from ablate.data.batches import Encoded, Resampled
from ablate.data.cache import cache_folder, cached
from ablate.data.corpus import Bitext, Corpus, CorpusText, Report, digest_of_lines
from ablate.data.faults import SOME
from ablate.data.own_text import OwnText
from ablate.data.parallel import lines_of, pieces_of, why_unreadable
from ablate.data.segmentation import WordNumbers
from ablate.data.sentences import Lines, Ragged
from ablate.data.subwords import SubwordTokenizer
from ablate.data.synthetic.corpus import Synthetic
from ablate.data.tokenizer import UNK, Tokenizer, TokenizerPair
from ablate.errors import DataError
from ablate.hashing import digest
from ablate.parts.embedding import Vocabulary
from ablate.registry import Choice, build, digest_of_code, lookup
from ablate.wording import format_duration

_BLOCK = 5_000  # pairs
_N_AHEAD = 2  # blocks that are encoded while another is written
_REPORT_EVERY_S = 5.0
_FEW_PAIRS, _FEW_BYTES = 20_000, 2 * 2**20  # of which the ids are made in two seconds or so
_OWN_CODE = digest_of_code(Path(__file__).parent)
"""Of the modules as they are imported: what they do is never cached as the work of later ones."""
_TEST = "tests.{}"  # the split of a test, whose name may be train or dev
_WORDS, _DISTINCT = "train.words", "train.distinct"
"""Numbers of the words of the training text, and the tokenizer's segmentation of each word."""


@dataclass(frozen=True)
class Prepared:
    """The input of training and measuring."""

    # the corpus without its training text; its notes include the pairs left out below
    text: CorpusText
    corpus_fingerprint: str  # SHA-256 of the corpus, in hex
    tokenizers: TokenizerPair  # the trained tokenizers
    # without the pairs longer than the model's maximum; `Resampled` if the tokenizer segments
    # it anew in every epoch
    train: Encoded
    dev: Encoded  # sentences cut to the model's maximum
    tests: dict[str, Encoded]  # likewise, in the order of the corpus


def prepare(
    run: RunSpec,
    expected: str = "",
    expected_teacher: str = "",
    report: Report = lambda _: None,
) -> Prepared:
    """Load and encode the corpus of ``run``, downloading what is missing.

    Training pairs with more than ``model.dims.max_len`` tokens on a side are left out; ids of the
    other splits are cut to that length, and the notes say so. Text is never changed, so
    translations are scored against complete references. The run was planned with the fingerprint
    ``expected`` and the SHA-256 ``expected_teacher`` of a teacher's translations; empty: any.

    Raises:
        DataError: if the corpus is unavailable or changes while it is read, it or the translations
            have another content than was expected, no pair is short enough, or the disk is full.
    """
    corpus, teacher = build(Corpus, run.corpus, at="corpus"), run.training.teacher
    fingerprint = entry = None
    translations = _translations(run)
    with suppress(DataError):  # it may be unknown before the corpus is downloaded
        fingerprint = corpus.fingerprint()
        entry = _entry(run, fingerprint, translations)
    try:
        text, tokenizers, splits = encodings.read_cache(entry) or _encoded(
            run, corpus, fingerprint, translations, entry, report
        )
    except OSError as error:
        raise DataError(
            f"{run.corpus.name}: cannot be prepared: {error}; its text and its ids need room in "
            f"{cache_folder('scratch').parent} or {tempfile.gettempdir()}"
        ) from error
    tests = {name: splits[_TEST.format(name)] for name in text.tests}
    fingerprint = fingerprint or corpus.fingerprint()
    if expected not in ("", fingerprint):
        raise DataError(
            f"the corpus {run.corpus.name} has the content {fingerprint[:12]}, and the run was "
            f"planned with {expected[:12]}: its files have changed since, or differ on this "
            "machine; call again to make the runs of the present content"
        )
    if teacher is not None and expected_teacher not in ("", translations):
        raise DataError(
            f"{teacher} has other translations than when the run was planned, or differs on this "
            "machine; call again to make the runs of the present ones"
        )
    train = splits["train"]
    if make := build(Tokenizer, run.tokenizer, at="tokenizer").sampling():
        distinct = splits[_DISTINCT]
        samplers = tokenizers.samplers(make, distinct.src, distinct.tgt)
        max_len = run.model.dims.max_len
        train = Resampled(train.src, train.tgt, splits[_WORDS], samplers, max_len)
    text = replace(text, notes=(*text.notes, *_too_long_to_be_written(run, tests)))
    return Prepared(text, fingerprint, tokenizers, train, splits["dev"], tests)


def _too_long_to_be_written(run: RunSpec, tests: Mapping[str, Encoded]) -> Iterator[str]:
    """Yield a note on each test with targets as long as the search lets no translation become."""
    most = run.decoding.options.get("max_extra", math.inf)
    for name, test in tests.items():
        share = float((test.tgt.lengths > test.src.lengths + most).mean())
        if share >= SOME:
            yield (
                f"{name}: {share:.1%} of the targets have over {most} tokens more than their "
                "sources, and no translation may (decoding.max_extra)"
            )


def too_small_vocabulary(run: RunSpec) -> str | None:
    """Return why a vocabulary cannot hold the alphabet of the user's own text; None if it can."""
    corpus = build(Corpus, run.corpus, at="corpus")
    tokenizer = build(Tokenizer, run.tokenizer, at="tokenizer")
    is_own = isinstance(corpus, OwnText) and corpus.is_available()
    if not (isinstance(tokenizer, SubwordTokenizer) and is_own):
        return None
    determinants = _determinants(run, corpus.fingerprint())
    determinants["tokenizer"]["vocab_size"] = 0  # every size has the same alphabet
    file = cache_folder("alphabets") / _name_of(determinants)
    n_needed = int(cached(file, lambda: str(tokenizer.least_size(corpus.load()))))
    return tokenizer.too_small(n_needed) if n_needed > tokenizer.vocab_size else None


def unfit_teacher(run: RunSpec) -> str | None:
    """Return why a teacher's translations are not those of the training text; None if they are.

    None, too, without a teacher, and if its file or the text cannot be read here.
    """
    corpus, teacher = build(Corpus, run.corpus, at="corpus"), run.training.teacher
    if teacher is None or why_unreadable(Path(teacher)) or not corpus.is_available():
        return None

    def compute() -> str:
        train = corpus.load().train
        try:
            with_translations(train, teacher)
        except DataError as error:
            return str(error).removeprefix("training.teacher: ")
        return ""

    determinants = _determinants(run, corpus.fingerprint())
    determinants["teacher"] = teacher, content_of(teacher)
    return cached(cache_folder("teachers") / _name_of(determinants), compute) or None


def vocabulary_at_hand(run: RunSpec) -> Vocabulary | None:
    """Return the vocabulary of a run if it is in the cache or learned in seconds; else None."""
    corpus = build(Corpus, run.corpus, at="corpus")
    with suppress(DataError):
        entry = _entry(run, corpus.fingerprint(), _translations(run))
        tokenizers = encodings.read_tokenizers(entry)
        if tokenizers is None and _is_small(corpus):
            tokenizers = prepare(run).tokenizers
        return None if tokenizers is None else tokenizers.vocabulary
    return None


def _is_small(corpus: Corpus) -> bool:
    if isinstance(corpus, Synthetic):
        return corpus.size <= _FEW_PAIRS
    return isinstance(corpus, OwnText) and corpus.n_bytes() <= _FEW_BYTES


def n_bytes_to_encode(run: RunSpec, fingerprint: str) -> int:
    """Return the size of the user's own text if its ids are not in the cache, and 0 if they are."""
    corpus = build(Corpus, run.corpus, at="corpus")
    if not isinstance(corpus, OwnText):
        return 0
    entry = _entry(run, fingerprint, _translations(run))
    return 0 if encodings.is_written(entry) else corpus.n_bytes()


def _translations(run: RunSpec) -> str:
    """Return the SHA-256 of a teacher's translations, in hex; empty without a teacher."""
    teacher = run.training.teacher
    return "" if teacher is None else content_of(teacher)


def _entry(run: RunSpec, fingerprint: str, translations: str) -> Path:
    """Return the folder of the ids in the cache, named by a hash of all that determines them."""
    determinants = {**_determinants(run, fingerprint), "max_len": run.model.dims.max_len}
    if translations:
        determinants["teacher"] = translations
    return cache_folder("encodings") / _name_of(determinants)


def _determinants(run: RunSpec, fingerprint: str) -> dict[str, Any]:
    """Return what determines how the tokenizer of a run segments its corpus."""
    tokenizer = lookup(Tokenizer.slot, run.tokenizer.name)
    corpus = lookup(Corpus.slot, run.corpus.name)
    return {
        "corpus": {**run.corpus.model_dump(), "version": corpus.version, "sha256": fingerprint},
        "tokenizer": {**run.tokenizer.model_dump(), "version": tokenizer.version},
        "code": _OWN_CODE,
        "outside": [part.origin.identity for part in (tokenizer, corpus) if part.origin],
        "library": version("tokenizers"),
    }


def _name_of(determinants: Mapping[str, Any]) -> str:
    return digest([json.dumps(determinants, sort_keys=True, default=str)])[:32]


def _encoded(
    run: RunSpec,
    corpus: Corpus,
    fingerprint: str | None,
    translations: str,
    entry: Path | None,
    report: Report,
) -> encodings.CachedCorpus:
    """Encode a corpus, unless another process has done so; into ``entry`` if possible."""
    with (
        nullcontext() if entry is None else encodings.entry_lock(entry, report),
        ThreadPoolExecutor(1) as beside,
    ):
        if cached := encodings.read_cache(entry):
            return cached
        teacher = run.training.teacher
        notes: Callable[[], tuple[str, ...]] = tuple
        if isinstance(corpus, OwnText):
            text = corpus.read()  # its faults are looked for while tokenizers release the lock
            notes = beside.submit(corpus.notes_on, text, fingerprint).result
        else:
            text = corpus.load()
        if fingerprint is not None and corpus.fingerprint() != fingerprint:
            raise DataError("the files of the corpus changed while they were read; call again")
        report("learning the vocabulary")
        tokenizers = trained_tokenizers(run.tokenizer, text)
        if teacher is not None:
            text = replace(text, train=with_translations(text.train, teacher))
            if content_of(teacher) != translations:
                raise DataError(f"{teacher} changed while the corpus was prepared; call again")
        if entry is not None:
            with suppress(OSError), encodings.CacheWriter(entry) as writer:
                return _write(writer, run, text, tokenizers, notes, report)
        with encodings.CacheWriter(None) as writer:  # without a cache every run encodes the text
            return _write(writer, run, text, tokenizers, notes, report)


def with_translations(text: Bitext, path: str) -> Bitext:
    """Return training text whose targets are a teacher's translations, the lines of a file.

    Source: Kim & Rush 2016, arXiv:1606.07947, sec. 3.2 (sequence-level distillation).
    """
    reason = why_unreadable(Path(path))
    if reason is not None:
        raise DataError(f"training.teacher: {reason}: {path!r}")

    def valid_lines() -> Iterator[str]:
        for number, line in enumerate(lines_of(pieces_of(Path(path))), start=1):
            if line is None:
                raise DataError(f"training.teacher: {path}, line {number} is not valid UTF-8")
            yield line

    lines = Lines(valid_lines())
    if len(lines) != len(text):
        raise DataError(
            f"training.teacher: {path} has {len(lines):,} lines for {len(text):,} training pairs; "
            "write it with `ablate translate RUN --training-text`, with a run of the same corpus"
        )
    return Bitext(text.src, lines)


def _write(
    writer: encodings.CacheWriter,
    run: RunSpec,
    text: CorpusText,
    tokenizers: TokenizerPair,
    more_notes: Callable[[], tuple[str, ...]],
    report: Report,
) -> encodings.CachedCorpus:
    max_len = run.model.dims.max_len
    short = _short_pairs(tokenizers, text.train, max_len, report)
    n_pairs = writer.write("train", (encoded for _, encoded in short))
    if not n_pairs:
        raise DataError(
            f"{text.name}: no training pair has at most {max_len} tokens on both sides; "
            "raise model.dims.max_len"
        )
    tokenizer = build(Tokenizer, run.tokenizer, at="tokenizer")
    if tokenizer.sampling():
        src, tgt = WordNumbers(), WordNumbers()
        words = (
            Encoded(
                Ragged.of(tokenizers.words_src(part.src, src)),
                Ragged.of(tokenizers.words_tgt(part.tgt, tgt)),
            )
            for part, _ in _short_pairs(tokenizers, text.train, max_len, report)
        )
        writer.write(_WORDS, words)
        writer.write(_DISTINCT, [Encoded(src.segmentations(), tgt.segmentations())])
    notes, n_long = [*text.notes, *more_notes()], len(text.train) - n_pairs
    n_learned_from = tokenizer.n_learned_from(len(text.train))
    if n_learned_from < len(text.train):
        notes.append(
            f"tokenizer: learned from {n_learned_from:,} of {len(text.train):,} training pairs, "
            "evenly spaced"
        )
    if n_long:
        more = f"more than {max_len} tokens on a side"
        notes.append(f"train: {n_long} of {len(text.train)} pairs left out, {more}")
    writer.write("dev", [_cut(Encoded.encode(tokenizers, text.dev), max_len, "dev", notes)])
    for name, test in text.tests.items():
        cut = _cut(Encoded.encode(tokenizers, test), max_len, name, notes)
        if (unknown := float((cut.tgt.flat == UNK).mean())) >= SOME:
            rest = "of the target tokens are unknown, so that the NLL does not count their letters"
            notes.append(f"{name}: {unknown:.1%} {rest}")
        writer.write(_TEST.format(name), [cut])
    return writer.finish(replace(text, notes=tuple(notes)), tokenizers)


def trained_tokenizers(choice: Choice, text: CorpusText) -> TokenizerPair:
    """Return the tokenizers trained on ``text``, from the cache if they are in it."""

    def train() -> str:
        return build(Tokenizer, choice, at="tokenizer").train(text).to_json()

    entry = lookup(Tokenizer.slot, choice.name)
    determinants = {
        "tokenizer": choice.model_dump(),
        "version": entry.version,
        "is_tokenised": text.is_tokenised,
        "library": version("tokenizers").split(".")[:2],
    }
    if entry.origin:
        determinants["plugin"] = entry.origin.identity
    content = digest_of_lines((text.train.src, text.train.tgt))
    key = digest([json.dumps(determinants, sort_keys=True), content])[:32]
    # New ones, too, are read back, so that they are identical to cached ones.
    return TokenizerPair.from_json(cached(cache_folder("tokenizers") / f"{key}.json", train))


def _short_pairs(
    tokenizers: TokenizerPair, text: Bitext, max_len: int, report: Report
) -> Iterator[tuple[Bitext, Encoded]]:
    """Yield the pairs with at most ``max_len`` tokens on both sides, in blocks, and their ids."""
    n_done, began = 0, time.monotonic()
    report_at = began + _REPORT_EVERY_S
    for part, encoded in _encoded_ahead(tokenizers, text):
        n_done += len(part)
        if (now := time.monotonic()) >= report_at:
            report_at = now + _REPORT_EVERY_S
            rate = n_done / (now - began)
            left = format_duration((len(text) - n_done) / rate)
            report(
                f"encoding: {n_done:,} of {len(text):,} pairs, {rate:,.0f} a second, {left} left"
            )
        is_short = np.maximum(encoded.src.lengths, encoded.tgt.lengths) <= max_len
        if is_short.all():
            yield part, encoded
        else:
            rows = np.flatnonzero(is_short)
            src, tgt = ([side[row] for row in rows.tolist()] for side in (part.src, part.tgt))
            yield Bitext(src, tgt), encoded.take(rows)


def _encoded_ahead(tokenizers: TokenizerPair, text: Bitext) -> Iterator[tuple[Bitext, Encoded]]:
    """Yield blocks of a text and their ids; the next ones are encoded meanwhile."""
    waiting: deque[tuple[Bitext, Future[Encoded]]] = deque()
    with ThreadPoolExecutor(_N_AHEAD) as pool:
        for part in text.parts(_BLOCK):
            waiting.append((part, pool.submit(Encoded.encode, tokenizers, part)))
            if len(waiting) > _N_AHEAD:
                done, encoded = waiting.popleft()
                yield done, encoded.result()
        for rest, encoded in waiting:
            yield rest, encoded.result()


def _cut(split: Encoded, max_len: int, name: str, notes: list[str]) -> Encoded:
    sides = {"sources": split.src, "targets (for their likelihood)": split.tgt}
    for label, side in sides.items():
        n_long = int((side.lengths > max_len).sum())
        if n_long:
            notes.append(f"{name}: {n_long} of {len(split)} {label} cut to {max_len} tokens")
    return Encoded(split.src.cut(max_len), split.tgt.cut(max_len))
