"""Small parallel text."""

from __future__ import annotations

import random

from ablate.data.corpus import Bitext, CorpusText

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
