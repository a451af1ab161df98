"""What does it cost to read a large corpus, beside the tokenizers library alone?

    python benchmarks/large_corpus.py [--pairs 10000 100000 1000000] [--output FILE]

For each size a text is made, two files of 20 words a line on average with the frequencies of Zipf.
Once each, in a process of its own: the library alone (train a joint BPE of 8,000 on both files, and
encode every line, with the same words), the preparation of a run with an empty cache, and again
with a full one. Seconds by the clock and of processors, peak memory, and bytes of the cache.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

import numpy as np
import records

_WORDS = 100_000
_VOCABULARY = 8_000
_BLOCK = 20_000  # lines
_SPEC = """\
corpus: {name: files, src: en, tgt: de, train: [train.en, train.de], dev: [dev.en, dev.de],
  tests: {test: [test.en, test.de]}}
tokenizer: {name: bpe, vocab_size: 8000}
"""
_LIBRARY, _COLD, _WARM = "the library alone", "empty cache", "full cache"


def main() -> None:
    """Measure every size, and print a line for each process."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    sizes = (10_000, 100_000, 1_000_000)
    parser.add_argument("--pairs", type=int, nargs="*", default=sizes)
    parser.add_argument("--output", type=Path, help="a file for the record, as JSON")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        _one(chosen.one)
        return
    measured: dict[str, dict[str, dict[str, float]]] = {}
    for n_pairs in chosen.pairs:
        with tempfile.TemporaryDirectory(prefix="ablate-corpus-") as folder:
            _make(Path(folder), n_pairs)
            measured[str(n_pairs)] = {
                kind: _measure(kind, Path(folder), n_pairs) for kind in (_LIBRARY, _COLD, _WARM)
            }
    if chosen.output:
        records.write(chosen.output, {"pairs": measured, **records.origin("cpu")})


def _make(folder: Path, n_pairs: int) -> None:
    """Write a text whose target has a word for every word of the source."""
    rng = np.random.default_rng(1)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    words = ["".join(rng.choice(letters, rng.integers(2, 12))) for _ in range(_WORDS)]
    frequency = 1 / np.arange(1, _WORDS + 1)
    cumulative = np.cumsum(frequency / frequency.sum())
    for split, n_lines in (("train", n_pairs), ("dev", 500), ("test", 500)):
        with (folder / f"{split}.en").open("w") as src, (folder / f"{split}.de").open("w") as tgt:
            for _ in range(n_lines):
                n_words = max(1, rng.poisson(20))
                drawn = np.searchsorted(cumulative, rng.random(n_words)).clip(max=_WORDS - 1)
                line = [words[i] for i in drawn]
                src.write(f"{' '.join(line)}\n")
                tgt.write(f"{' '.join(word[::-1] for word in line)}\n")
    (folder / "x.yaml").write_text(_SPEC)


def _measure(kind: str, folder: Path, n_pairs: int) -> dict[str, float]:
    """Return the figures of a process, and print them."""
    cache = folder / "cache"
    environment = {**os.environ, "ABLATE_CACHE": str(cache), "PYTHONPATH": str(records.ROOT)}
    figures = records.in_a_process([__file__, "--one", kind], environment, folder)
    figures["cache_mib"] = sum(x.stat().st_size for x in cache.rglob("*") if x.is_file()) / 2**20
    records.say(
        f"{n_pairs:9,} pairs, {kind:18} {figures['seconds']:7.1f} s {figures['cpu_seconds']:7.1f} "
        f"CPU s {figures['peak_mib']:7.0f} MiB, cache {figures['cache_mib']:6.0f} MiB"
    )
    return figures


def _one(kind: str) -> None:
    """Do one thing in this process, and print its cost as JSON."""
    if kind == _LIBRARY:
        prepare = _library
    else:
        from ablate import config
        from ablate.data.prepare import prepare as prepare_run

        spec = config.load("x.yaml").rows[0].spec

        def prepare() -> None:
            prepare_run(spec)

    start, used = time.perf_counter(), time.process_time()
    prepare()
    seconds, cpu = time.perf_counter() - start, time.process_time() - used
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    sys.stdout.write(json.dumps({"seconds": seconds, "cpu_seconds": cpu, "peak_mib": peak}))


def _library() -> None:
    """Train and encode with the library alone, by the same normalizer and pre-tokenizer."""
    from tokenizers import models, trainers

    from ablate.data.subwords import BytePair
    from ablate.data.tokenizer import SPECIAL, UNK, split_words

    tokenizer = BytePair().untrained(models.BPE(unk_token=SPECIAL[UNK]), split_words(False))
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY, special_tokens=list(SPECIAL), show_progress=False
    )
    tokenizer.train(["train.en", "train.de"], trainer)
    for name in ("train.en", "train.de"):
        with Path(name).open() as lines:
            while block := [*islice(lines, _BLOCK)]:
                for encoding in tokenizer.encode_batch_fast(block):
                    _ = encoding.ids


if __name__ == "__main__":
    main()
