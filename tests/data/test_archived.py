"""IWSLT 2014 and WMT 2014, from archives in miniature behind a local server."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import tarfile

import pytest

from ablate.data import wmt14
from ablate.data.corpus import Corpus
from ablate.errors import DataError
from ablate.registry import RefusedError, build, choose
from tests.data.server import Site

IWSLT_URL = "/dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz"
IWSLT_TESTS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
N_TALK_LINES = 48


def corpus(name: str, **options: object) -> Corpus:
    return build(Corpus, choose(Corpus, name, **options))


def packed(files: dict[str, str | bytes], mode: str = "w:gz") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:  # type: ignore[call-overload]
        for name, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def lines(label: str, n: int) -> str:
    return "".join(f"{label} {i}\n" for i in range(1, n + 1))


def segments(*texts: str) -> str:
    body = "\n".join(f'<seg id="{i}"> {text} </seg>' for i, text in enumerate(texts, start=1))
    return f'<?xml version="1.0"?>\n<mteval><doc docid="1">\n{body}\n</doc></mteval>\n'


@pytest.fixture
def talks() -> dict[str, str | bytes]:
    """Return the members of a small de-en.tgz."""
    files: dict[str, str | bytes] = {"de-en/README": "not for us"}
    for x in ("de", "en"):
        about = f"<url>http://x/{x}</url>\n<keywords>talks</keywords>\n<talkid>1</talkid>\n"
        title = f"<title>A Title {x}</title>\n<description>TED: about {x}</description>\n"
        files[f"de-en/train.tags.de-en.{x}"] = about + title + lines(f"Said {x}", N_TALK_LINES - 2)
        for name in IWSLT_TESTS:
            texts = (f"{name} {x}", f"it\u2019s &amp; {x}")
            files[f"de-en/IWSLT14.{name}.de-en.{x}.xml"] = segments(*texts)
    return files


def test_iwslt14_is_split_as_fairseq_does(talks: dict[str, str | bytes], site: Site) -> None:
    site.files[IWSLT_URL] = packed(talks)
    text = corpus("iwslt14").load()
    assert (text.src, text.tgt) == ("de", "en")
    assert text.train.src[:3] == ("A Title de", "TED: about de", "Said de 1")
    assert text.dev.src == ("Said de 21", "Said de 44")
    assert text.dev.tgt == ("Said en 21", "Said en 44")
    assert len(text.train) == N_TALK_LINES - 2
    assert set(text.train.src).isdisjoint(text.dev.src)
    test = text.tests["test"]
    assert test.src[::2] == tuple(f"{name} de" for name in IWSLT_TESTS)
    assert (test.src[1], test.tgt[1]) == ("it's & de", "it's & en")
    assert any("first download was trusted" in note for note in text.notes)


def test_iwslt14_turned_round_has_the_same_pairs(talks: dict[str, str | bytes], site: Site) -> None:
    site.files[IWSLT_URL] = packed(talks)
    there, back = corpus("iwslt14").load(), corpus("iwslt14", src="en", tgt="de").load()
    assert (there.train.src, there.dev.tgt) == (back.train.tgt, back.dev.src)
    assert corpus("iwslt14").fingerprint() == corpus("iwslt14", src="en", tgt="de").fingerprint()


def test_iwslt14_lower_cases_everything_if_asked(talks: dict[str, str | bytes], site: Site) -> None:
    site.files[IWSLT_URL] = packed(talks)
    text = corpus("iwslt14", lowercase=True).load()
    sides = [side for x in (text.train, text.dev, text.tests["test"]) for side in (x.src, x.tgt)]
    assert all(line == line.lower() for side in sides for line in side)


def test_iwslt14_leaves_out_long_and_lopsided_pairs_before_it_splits(
    talks: dict[str, str | bytes], site: Site
) -> None:
    talks["de-en/train.tags.de-en.de"] = lines("ein kurzer Satz", 30) + "x " * 180 + "\nja\n"
    talks["de-en/train.tags.de-en.en"] = (
        lines("a short line", 30) + "y " * 170 + "\nyes, of course\n"
    )
    site.files[IWSLT_URL] = packed(talks)
    text = corpus("iwslt14").load()
    assert len(text.train) + len(text.dev) == 30
    assert len(corpus("iwslt14", max_words=200, max_ratio=3.0).load().train) == 31
    note = next(note for note in text.notes if "left out" in note)
    assert "more than 175 words on a side (line 31)" in note
    assert "1.5 times as long as the other (line 32)" in note


def test_a_member_that_is_missing_is_named(talks: dict[str, str | bytes], site: Site) -> None:
    del talks["de-en/IWSLT14.TED.tst2011.de-en.en.xml"]
    site.files[IWSLT_URL] = packed(talks)
    with pytest.raises(DataError, match=r"does not hold de-en/IWSLT14\.TED\.tst2011\.de-en\.en"):
        corpus("iwslt14").load()


def test_other_content_than_an_archive_is_reported(site: Site) -> None:
    site.files[IWSLT_URL] = b"<html>moved</html>"
    with pytest.raises(DataError, match=r"de-en\.tgz: cannot be unpacked"):
        corpus("iwslt14").load()


def test_iwslt14_refuses_one_language_twice() -> None:
    with pytest.raises(RefusedError, match="src and tgt are both 'en'"):
        corpus("iwslt14", src="en")


@pytest.fixture
def news(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Serve WMT 2014 in miniature, and pin it."""
    sizes = {"europarl": 4, "commoncrawl": 3, "un": 2, "nc-v9": 2, "giga": 5}
    sources = []
    for source, (label, n) in zip(wmt14.SOURCES, sizes.items(), strict=True):
        assert label in source.remote.path
        files: dict[str, str | bytes] = {}
        for x in source.languages:
            for side in (x, "en"):
                name, text = source.member.format(x=x, side=side), lines(f"{label} {x} {side}", n)
                files[name] = gzip.compress(text.encode()) if name.endswith(".gz") else text
        archive = packed(files, "w" if source.remote.path.endswith(".tar") else "w:gz")
        site.files[source.remote.url.removeprefix("https:/")] = archive
        pin = hashlib.sha256(archive).hexdigest()
        sources.append(dataclasses.replace(source, sha256=pin))
    measured: dict[str, str | bytes] = {}
    for x in ("de", "fr"):
        measured[f"dev/newstest2013.{x}"] = f"news {x}\r\nmore {x}\r\n"
        measured[f"dev/newstest2014-{x}en-src.{x}.sgm"] = segments(f"Q&amp;A {x}", f"two {x}")
        measured[f"dev/newstest2014-{x}en-ref.en.sgm"] = segments(f"Q&amp;A {x}-en", f"two {x}-en")
    measured["dev/newstest2013.en"] = "news en\r\nmore en\r\n"
    archive = packed(measured)
    site.files[wmt14.DEV.url.removeprefix("https:/")] = archive
    dev = dataclasses.replace(wmt14.DEV, sha256=hashlib.sha256(archive).hexdigest())
    monkeypatch.setattr(wmt14, "SOURCES", tuple(sources))
    monkeypatch.setattr(wmt14, "DEV", dev)
    return site


@pytest.mark.parametrize(("src", "tgt"), [("en", "de"), ("de", "en")])
def test_wmt14_german_is_three_archives_in_a_row(news: Site, src: str, tgt: str) -> None:
    text = corpus("wmt14", src=src, tgt=tgt).load()
    for side, language in ((text.train.src, src), (text.train.tgt, tgt)):
        assert len(side) == 4 + 3 + 2
        assert side[0] == f"europarl de {language} 1"
        assert side[-1] == f"nc-v9 de {language} 2"
    assert text.dev.src == (f"news {src}", f"more {src}")
    in_test = {"en": ("Q&A de-en", "two de-en"), "de": ("Q&A de", "two de")}
    assert (text.tests["newstest2014"].src, text.tests["newstest2014"].tgt) == (
        in_test[src],
        in_test[tgt],
    )
    assert len(news.requests) == 4


def test_wmt14_french_has_two_archives_more(news: Site) -> None:
    text = corpus("wmt14", tgt="fr").load()
    assert len(text.train) == 4 + 3 + 2 + 2 + 5
    assert text.train.tgt[-1] == "giga fr fr 5"
    assert len(news.requests) == 6


def test_wmt14_cleans_each_archive_and_says_where(news: Site) -> None:
    with pytest.raises(DataError, match=r"europarl.*4 of 4 pairs left out: 4 with more than 3"):
        corpus("wmt14", max_words=3).load()


def test_every_file_of_wmt14_is_pinned() -> None:
    pins = [source.sha256 for source in wmt14.SOURCES] + [wmt14.DEV.sha256]
    assert all(pin is not None and len(pin) == 64 for pin in pins)
    assert corpus("wmt14").fingerprint() != corpus("wmt14", tgt="fr").fingerprint()


@pytest.mark.parametrize(("src", "tgt"), [("en", "en"), ("de", "fr")])
def test_wmt14_always_has_english_on_one_side(src: str, tgt: str) -> None:
    with pytest.raises(RefusedError, match="exactly one must be en"):
        corpus("wmt14", src=src, tgt=tgt)
