"""Multi30k: captions of photographs, in four languages, as translations of each other."""

from __future__ import annotations

from importlib import resources
from typing import Annotated, Literal

from ablate.data.corpus import Bitext, CorpusText
from ablate.data.download import Remote, RemoteCorpus
from ablate.data.parallel import pieces_of
from ablate.registry import Fingerprinted, register

Language = Literal["en", "de", "fr", "cs"]
TestSet = Literal["test2016", "test2017", "mscoco", "test2018"]

REVISION = "a3d2e0d26b56f3846f66a952536ffed4e401d05a"

_CHECKSUMS = resources.files(__package__).joinpath("multi30k.sha256").read_text("ascii")
PINS = {path: sha256 for sha256, path in map(str.split, _CHECKSUMS.splitlines())}
"""The hash of each file of `REVISION`, by its path."""

_DEFAULT_TESTS: tuple[TestSet, ...] = ("test2016", "test2017")
_STEMS: dict[str, str] = {
    "train": "train",
    "dev": "val",
    "test2016": "test_2016_flickr",
    "test2017": "test_2017_flickr",
    "mscoco": "test_2017_mscoco",
    "test2018": "test_2018_flickr",
}


@register(
    "multi30k",
    source="Elliott et al. 2016, arXiv:1605.00459; Elliott et al. 2017, arXiv:1710.07177; "
    "Barrault et al. 2018, aclanthology.org/W18-6402; github.com/multi30k/dataset",
)
class Multi30k(RemoteCorpus):
    """29,000 image captions in English, German, French and Czech; for research only.

    The files are those of the upstream repository at one revision, checked by their hashes. Its
    licence allows research and no more, so each user downloads them.

    Args:
        src: the source language.
        tgt: the target language.
        form: ``raw`` text with case, or ``tok``: upstream's lower-cased, normalised Moses tokens,
            which published results are about.
        tests: what to report; None for test2016 and, unless Czech takes part, test2017.

    Raises:
        ValueError: if both languages are one, or a test set lacks one of them.
    """

    def __init__(
        self,
        *,
        src: Language = "en",
        tgt: Language = "de",
        form: Literal["raw", "tok"] = "raw",
        tests: Annotated[tuple[TestSet, ...] | None, Fingerprinted()] = None,
    ) -> None:
        if src == tgt:
            raise ValueError(f"multi30k: src and tgt are both {src!r}; choose two languages")
        self.src = src
        self.tgt = tgt
        self.form = form
        available = [x for x in _STEMS if {_path(form, x, y) for y in (src, tgt)} <= PINS.keys()]
        if tests is None:
            tests = tuple(name for name in _DEFAULT_TESTS if name in available)
        self.tests: tuple[str, ...] = tests
        if len(set(tests)) != max(1, len(tests)):
            raise ValueError("multi30k: tests must name one test set or more, none of them twice")
        for name in self.tests:
            if name not in available:
                raise ValueError(
                    f"multi30k has no {name} in {src}-{tgt}; it has {', '.join(available[2:])}"
                )
        self._remotes: dict[tuple[str, str], Remote] = {}  # by split and language
        for split in ("train", "dev", *self.tests):
            for language in (src, tgt):
                path = _path(form, split, language)
                url = f"https://raw.githubusercontent.com/multi30k/dataset/{REVISION}/{path}"
                self._remotes[split, language] = Remote(path, url, PINS[path])
        super().__init__("multi30k", [*self._remotes.values()])

    def load(self) -> CorpusText:
        lines: dict[tuple[str, str], tuple[str, ...]] = {}
        for key, remote in self._remotes.items():
            content = b"".join(pieces_of(self.path(remote)))
            lines[key] = tuple(content.decode().removesuffix("\n").split("\n"))
        splits = {
            name: Bitext(lines[name, self.src], lines[name, self.tgt])
            for name in ("train", "dev", *self.tests)
        }
        return CorpusText(
            name="multi30k",
            src=self.src,
            tgt=self.tgt,
            train=splits["train"],
            dev=splits["dev"],
            tests={name: splits[name] for name in self.tests},
            is_tokenised=self.form == "tok",
        )


def _path(form: str, split: str, language: str) -> str:
    suffix = f"{language}.gz" if form == "raw" else f"lc.norm.tok.{language}"
    return f"data/task1/{form}/{_STEMS[split]}.{suffix}"
