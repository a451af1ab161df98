"""A corpus to start from. Try it: ablate check my_corpus.py."""

from __future__ import annotations

from pydantic import PositiveInt

from ablate.data.corpus import Bitext, Corpus, CorpusText
from ablate.hashing import sha256_of_text
from ablate.registry import register

_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


# For text in files there is the corpus `files`; a class is for text that needs code.
@register("my_corpus", source="you, 2026, sec. 1")
class MyCorpus(Corpus):
    """Numbers in words, to be translated to digits.

    Args:
        size: pairs to train on.
    """

    def __init__(self, *, size: PositiveInt = 1000) -> None:
        super().__init__()
        self.size = size

    def fingerprint(self) -> str:
        return sha256_of_text(f"my_corpus {self.size}")

    def load(self) -> CorpusText:
        def bitext(numbers: range) -> Bitext:
            return Bitext.of((" ".join(_WORDS[int(d)] for d in str(n)), str(n)) for n in numbers)

        return CorpusText(
            "my_corpus",
            src="en",
            tgt="zxx",
            train=bitext(range(self.size)),
            dev=bitext(range(self.size, self.size + 50)),
            tests={"test": bitext(range(self.size + 50, self.size + 100))},
        )
