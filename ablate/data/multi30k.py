"""Multi30k: captions of photographs, in four languages, as translations of each other."""

from __future__ import annotations

from typing import Annotated, Literal

from ablate.data.corpus import Bitext, CorpusText
from ablate.data.download import Remote, RemoteCorpus
from ablate.data.parallel import pieces_of
from ablate.registry import Fingerprinted, register

Language = Literal["en", "de", "fr", "cs"]
TestSet = Literal["test2016", "test2017", "mscoco", "test2018"]

REVISION = "a3d2e0d26b56f3846f66a952536ffed4e401d05a"

_USUAL: tuple[TestSet, ...] = ("test2016", "test2017")
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

    The files are those of the upstream repository at one revision, known by their hashes. Its
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
        pins = PINS[form]
        known = [name for name in _STEMS if all(f"{_STEMS[name]}.{x}" in pins for x in (src, tgt))]
        if tests is None:
            tests = tuple(name for name in _USUAL if name in known)
        self.tests: tuple[str, ...] = tests
        if len(set(tests)) != max(1, len(tests)):
            raise ValueError("multi30k: tests must name one test set or more, none of them twice")
        for name in self.tests:
            if name not in known:
                raise ValueError(
                    f"multi30k has no {name} in {src}-{tgt}; it has {', '.join(known[2:])}"
                )
        super().__init__("multi30k", list(self._remotes().values()))

    def load(self) -> CorpusText:
        splits = {name: self._split(name) for name in ("train", "dev", *self.tests)}
        return CorpusText(
            name="multi30k",
            src=self.src,
            tgt=self.tgt,
            train=splits["train"],
            dev=splits["dev"],
            tests={name: splits[name] for name in self.tests},
            is_tokenised=self.form == "tok",
        )

    def _remotes(self) -> dict[tuple[str, str], Remote]:
        """Return the file of each split and language."""
        return {
            (name, language): _remote(self.form, _STEMS[name], language)
            for name in ("train", "dev", *self.tests)
            for language in (self.src, self.tgt)
        }

    def _split(self, name: str) -> Bitext:
        remotes = self._remotes()
        return Bitext(self._lines(remotes[name, self.src]), self._lines(remotes[name, self.tgt]))

    def _lines(self, remote: Remote) -> tuple[str, ...]:
        content = b"".join(pieces_of(self.files.path(remote)))
        return tuple(content.decode().removesuffix("\n").split("\n"))


def _remote(form: str, stem: str, language: str) -> Remote:
    name = f"{stem}.{language}.gz" if form == "raw" else f"{stem}.lc.norm.tok.{language}"
    path = f"data/task1/{form}/{name}"
    url = f"https://raw.githubusercontent.com/multi30k/dataset/{REVISION}/{path}"
    return Remote(path, url, PINS[form][f"{stem}.{language}"])


PINS: dict[str, dict[str, str]] = {
    "raw": {
        "test_2016_flickr.cs": "200a4a74cc9560f051924abb9803be008d1908d77f747e9141aeb86dfd2797f1",
        "test_2016_flickr.de": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
        "test_2016_flickr.en": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
        "test_2016_flickr.fr": "6d326e188d259fb1d04ac19eae3af956559b3a0b93d7635e56c90987c40c8b90",
        "test_2017_flickr.de": "a2c89666db00c495cd8513b9d708d5a3acc205d7de312ef2bf5fb7ebc1540aee",
        "test_2017_flickr.en": "76a444ee25172e72695cddb13ae4a3bda59430617be88e0bb46b60504f054074",
        "test_2017_flickr.fr": "3ba671ceb2299f3304ffafefea7a833d08632fbaf0ba18546f8a2ec2391af496",
        "test_2017_mscoco.de": "799e4854c25d601cb6cb6be29eabe5667734c61ace2f495e03e429031a0bc338",
        "test_2017_mscoco.en": "aab300bfb4427697987e02cd0aacd44bfe8aa50456231b6474c08038bbed2b58",
        "test_2017_mscoco.fr": "754f3072ba9f124569ba5258b32730fc1d214bbf8e0c6dfb2b74401676220db0",
        "test_2018_flickr.cs": "7d0a9db904f94c554a8c58049a9f3a5357c27f46cc3d710d70cb0b4a2585b8c2",
        "test_2018_flickr.de": "ddd0130c7d97482dc5197a02141dae8dd79f20f03586c480d675c09a32daf608",
        "test_2018_flickr.en": "ef4f4844037d4c5dea75c9a8ed5fd78905967a26f67c255e230cc9780032654d",
        "test_2018_flickr.fr": "fb2b83fcceb937a4f7e3e93c1c51c22aba92f1e342391e6b5ba392b16a920501",
        "train.cs": "a65adb8b32e3bc664f21ecba7a6e7f6950fd1f405e135f7c312faabdb6255077",
        "train.de": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
        "train.en": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
        "train.fr": "622e75069e9f4c577425c4f277116ce66e63a2401c0a2312d90073cb12379a3c",
        "val.cs": "b63226e05c4bd5dd6a42897d74b86a1b9d2c31498252c572b1ea7f7996927fcc",
        "val.de": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
        "val.en": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
        "val.fr": "ca3106f1a72390591d25f6c45cb4cd39dec4cd3f123e099748a3ce5256c160e9",
    },
    "tok": {
        "test_2016_flickr.cs": "748c8816de928732365176e5c5d2f9bbabcec9b8d4448fba2d230feb057898a7",
        "test_2016_flickr.de": "c6a33d39d48f9f510de147651316cd9d918e09ad0219df734a2f16b6baccacc4",
        "test_2016_flickr.en": "5b7f32627cf99eced828311b955dae9800bb52bc8b91cf8b6526829e605b29d2",
        "test_2016_flickr.fr": "1463bd5960f9bfe098ec3cd752d3df0c49c84dc646fb518964a29232658cd836",
        "test_2017_flickr.de": "02067e4a9402786a4fcb8c1b6f4307e4a5073ced64800abead5273b54f5f31f6",
        "test_2017_flickr.en": "c9d1dfd7a26add989382e534af235af9f0f658b2a30e7eb0efdaf142496ee54f",
        "test_2017_flickr.fr": "c0583117a47b31e8a6c6a97cfe8de153e462074668f4e994764fcc80b21d33b4",
        "test_2017_mscoco.de": "e2825990b8a4e5289d2cdba801d57c187810bab9b4f5d87a30c35800a0d871b6",
        "test_2017_mscoco.en": "fe69ae004d71c42ead0301e70c57de5b1b6b5fb7f52210d42b22801e98e656f3",
        "test_2017_mscoco.fr": "0b6a4620f02b6b9acf7811fda23f90fed9c6baa0b96aa224db50a273078c84d1",
        "test_2018_flickr.cs": "09a4987a524dea4852ccfef35329281b2cd577780691b732341ccecc4015aa4c",
        "test_2018_flickr.de": "45ce6b121708adf538d3a8c71dc1acbcb1e0f2bca74ace8e58652f9ea5b96335",
        "test_2018_flickr.en": "a66e25cbb8323d74a40873dcd222659f39e30ee7687a6ed5445833aed0673239",
        "test_2018_flickr.fr": "22d44a4ba21e050f218399f2c4f9e1a36875f209820c1f1c9af5b76a2947a71c",
        "train.cs": "7645fb91efa18f94c83d493f740a5d5a941e4b01efa6a124bf2d4af040e133e0",
        "train.de": "cb5a23529b65ec2061f1dc446192a9c37382b63cc75f81a0be59d34894b3a505",
        "train.en": "08925f8e0572bcd5a006702fc5fe20e2d77c6917d4eebd576fc20de6693c2119",
        "train.fr": "8fa41bb718412bcb7c5dfa58603842810a01543eae86a51279f9886b901266e1",
        "val.cs": "b87ee4917f4a0f9ca6cca03e402026c9f4437dc1bd6a7dadfd2544ecfb6c5501",
        "val.de": "97232bd273eceb7207f689527386a97e4be2616b18ada47576bdaf96c8ae1f00",
        "val.en": "46573ce391ae227f1c72f873392436a20ef18e0a6d518098cfbd70b77c8572ec",
        "val.fr": "b303e301aa21fe7822a846b2b3fb2d5a1121ec807cd5b1d006fb7b2b5507168a",
    },
}
"""SHA-256 of every file of `REVISION`, by form and by split and language."""
