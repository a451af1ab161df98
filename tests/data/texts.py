"""Small parallel text, and runs on it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from ablate.config.experiment import RunSpec
from ablate.data.corpus import Bitext, CorpusText
from tests.tiny import TINY

_SRC = "the a dog cat man woman sees takes gives ball house old young red in under".split()
_TGT = "der die ein Hund Katze Männer Frau sieht nimmt Bälle Häuser alte jünge rote im".split()


def corpus_text(n: int = 200, *, is_tokenised: bool = False, seed: int = 0) -> CorpusText:
    """Return ``n`` pairs of random sentences, of 1 to 12 words and a full stop."""
    draw = random.Random(seed)
    stop = " ." if is_tokenised else "."

    def side(words: list[str]) -> tuple[str, ...]:
        return tuple(" ".join(draw.choices(words, k=draw.randint(1, 12))) + stop for _ in range(n))

    bitext = Bitext(side(_SRC), side(_TGT))
    few = Bitext(bitext.src[:10], bitext.tgt[:10])
    return CorpusText(
        name="random",
        src="en",
        tgt="de",
        train=bitext,
        dev=few,
        tests={"test": few},
        is_tokenised=is_tokenised,
    )


def run_spec(folder: Path, max_len: int = 16, **tokenizer: Any) -> RunSpec:
    """Return a run on the user's files in ``folder``, word by word."""
    files = {x: [str(folder / f"{x}.en"), str(folder / f"{x}.de")] for x in ("train", "dev")}
    tests = {"news": [str(folder / "news.en"), str(folder / "news.de")]}
    return RunSpec.model_validate(
        {
            "corpus": {"name": "files", "src": "en", "tgt": "de", "tests": tests, **files},
            "tokenizer": {"name": "word", "min_frequency": 1, **tokenizer},
            "model": TINY | {"dims": {"d_model": 32, "n_heads": 4, "max_len": max_len}},
        }
    )
