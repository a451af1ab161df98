"""Multi30k: the right files in the right order, none of them unchecked."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import pytest

from ablate.data import multi30k as module
from ablate.data.corpus import Corpus
from ablate.data.multi30k import PINS, REVISION
from ablate.errors import DataError
from ablate.registry import RefusedError, build, choose
from tests.data.server import Site

STEMS = {"train": 5, "val": 3, "test_2016_flickr": 2, "test_2017_flickr": 2, "test_2017_mscoco": 1}


def corpus(**options: object) -> Corpus:
    return build(Corpus, choose(Corpus, "multi30k", **options))


def lines_of(form: str, stem: str, language: str) -> tuple[str, ...]:
    """Return the lines of one miniature file; only a line feed ends one."""
    return tuple(f"{form} {stem}\u2028{language}\x85 {i}" for i in range(STEMS[stem]))


def content(form: str, stem: str, language: str) -> tuple[str, bytes]:
    """Return the path and the bytes of one miniature file."""
    lines = "".join(f"{line}\n" for line in lines_of(form, stem, language)).encode()
    if form == "tok":
        return f"data/task1/tok/{stem}.lc.norm.tok.{language}", lines
    return f"data/task1/raw/{stem}.{language}.gz", gzip.compress(lines, mtime=0)


@pytest.fixture
def miniature(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Pin a miniature of the upstream repository, and return its files."""
    files: dict[str, bytes] = {}
    for form in ("raw", "tok"):
        for stem in STEMS:
            for language in ("en", "de", "fr"):
                path, data = content(form, stem, language)
                files[path] = data
    pins = {path: hashlib.sha256(data).hexdigest() for path, data in files.items()}
    monkeypatch.setattr(module, "PINS", pins)
    return files


@pytest.fixture
def folder(miniature: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Lay the miniature out as upstream does, below $ABLATE_CORPORA."""
    for name, data in miniature.items():
        path = tmp_path / "corpora" / "multi30k" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    monkeypatch.setenv("ABLATE_CORPORA", str(tmp_path / "corpora"))
    return tmp_path / "corpora" / "multi30k"


@pytest.mark.parametrize("form", ["raw", "tok"])
@pytest.mark.parametrize(("src", "tgt"), [("en", "de"), ("fr", "en")])
def test_every_split_holds_the_lines_of_its_files(
    folder: Path, form: str, src: str, tgt: str
) -> None:
    text = corpus(src=src, tgt=tgt, form=form).load()
    assert (text.name, text.src, text.tgt) == ("multi30k", src, tgt)
    assert text.is_tokenised == (form == "tok")
    splits = {"train": text.train, "val": text.dev, "test_2016_flickr": text.tests["test2016"]}
    for stem, split in splits.items():
        assert split.src == lines_of(form, stem, src)
        assert split.tgt == lines_of(form, stem, tgt)


def test_tests_are_those_asked_for_in_that_order(folder: Path) -> None:
    assert list(corpus().load().tests) == ["test2016", "test2017"]
    assert list(corpus(tests=("mscoco", "test2016")).load().tests) == ["mscoco", "test2016"]


def test_only_what_is_asked_for_needs_to_be_there(folder: Path) -> None:
    (folder / "data/task1/raw/test_2017_mscoco.de.gz").unlink()
    assert corpus().is_available()
    assert not corpus(tests=("mscoco",)).is_available()
    assert corpus(tests=("mscoco",), form="tok").is_available()


def test_a_changed_file_is_refused(folder: Path) -> None:
    (folder / "data/task1/raw/train.de.gz").write_bytes(gzip.compress(b"other\n"))
    with pytest.raises(DataError, match=r"train\.de\.gz has the wrong content"):
        corpus().load()


def test_files_come_from_the_pinned_revision(miniature: dict[str, bytes], site: Site) -> None:
    root = f"/raw.githubusercontent.com/multi30k/dataset/{REVISION}"
    site.files = {f"{root}/{name}": data for name, data in miniature.items()}
    assert not corpus().is_available()
    lines: list[str] = []
    corpus().fetch(lines.append)
    assert corpus().is_available()
    assert len(site.requests) == 8
    assert len(corpus().load().train) == 5
    assert len(site.requests) == 8, "what is cached was asked for again"


def test_fingerprints_tell_contents_apart_without_the_files() -> None:
    prints = [
        corpus().fingerprint(),
        corpus(tgt="fr").fingerprint(),
        corpus(src="de", tgt="en").fingerprint(),
        corpus(form="tok").fingerprint(),
        corpus(tests=("test2016",)).fingerprint(),
    ]
    assert len(set(prints)) == len(prints)
    assert prints[0] == corpus(tests=("test2016", "test2017")).fingerprint()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"src": "de"}, "src and tgt are both 'de'"),
        ({"tgt": "cs", "tests": ("mscoco",)}, "no mscoco in en-cs; it has test2016, test2018"),
        ({"tests": ()}, "one test set or more"),
        ({"tests": ("test2016", "test2016")}, "none of them twice"),
    ],
)
def test_what_is_not_there_is_refused(options: dict[str, object], reason: str) -> None:
    with pytest.raises(RefusedError, match=reason):
        corpus(**options)


def test_czech_has_the_tests_that_upstream_has() -> None:
    assert build(Corpus, choose(Corpus, "multi30k", tgt="cs", tests=("test2018",)))
    raw = [Path(path).name for path in PINS if "/raw/" in path]
    assert {name.partition(".")[0] for name in raw if name.endswith(".cs.gz")} == {
        "train",
        "val",
        "test_2016_flickr",
        "test_2018_flickr",
    }
