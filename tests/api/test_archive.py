"""`ablate runs archive` and `restore`: the runs behind a table as one file."""

from __future__ import annotations

import gzip
import lzma
import re
import tarfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ablate import api, config
from ablate.api.archive import CONTENTS
from ablate.api.selection import match_keys
from ablate.cli.app import app
from ablate.errors import SpecError, StoreError
from ablate.report.formats import render
from ablate.store import Store, describe
from tests.made_up_runs import MATCHED_ON_TIME, finish, finished
from tests.report.made_up import notes

pytestmark = pytest.mark.commands

RUN = f"runs/{'a' * 16}"
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".tar.xz": lzma.compress,
    ".tar.gz": gzip.compress,
    ".tar": bytes,
}
SUFFIXES = [*COMPRESS]


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an experiment with made-up runs in ``results`` beside it."""
    path = finished(tmp_path_factory.mktemp("study"), has_files=True)
    results = path.parent / "results"
    for folder in (results / "runs").iterdir():
        (folder / "model.safetensors").write_bytes(b"weights" + folder.name.encode())
        (folder / "log.txt").write_text("not in an archive")
        _describe_files(results, folder.name)
    return path


def _describe_files(results: Path, run: str) -> None:
    """Describe the files of a run in its record, as a real run does."""
    store = Store(results)
    files = {
        path.name: describe(path.read_bytes())
        for path in store.path(run).iterdir()
        if path.name not in ("record.json", "log.txt", "curve.csv")
    }
    store.save({**(store.read(run) or {}), "files": files})


def _archive(spec: Path, output: Path, **options: Any) -> list[api.StoredRun]:
    return api.archive([spec], output, results=spec.parent / "results", **options)


def _names(archive: Path) -> set[str]:
    with tarfile.open(archive) as tar:
        return {name.rpartition("/")[2] for name in tar.getnames()}


@pytest.mark.parametrize(
    ("content", "suffix"),
    [*((content, ".tar") for content in CONTENTS), ("curves", ".tar.xz"), ("curves", ".tar.gz")],
)
def test_what_is_restored_is_what_was_archived(
    spec: Path, content: str, suffix: str, tmp_path: Path
) -> None:
    archive, results = tmp_path / f"study{suffix}", tmp_path / "results"
    archived = _archive(spec, archive, content=content)
    assert len(archived) == 6
    assert sorted(api.restore(archive, results=results).new) == sorted(r.run for r in archived)
    restored = [path for path in results.rglob("*") if path.is_file() and path.name != "lock"]
    for path in restored:
        original = spec.parent / "results" / path.relative_to(results)
        assert path.read_bytes() == original.read_bytes()
    sets = ("test", "test_long", "test_novel")
    of_sets = {f"hypotheses.{name}.txt" for name in sets} | {f"sentences.{n}.csv" for n in sets}
    levels = [{"record.json"}, {"curve.csv"}, of_sets, {"model.safetensors"}]
    expected = set[str]().union(*levels[: [*CONTENTS].index(content) + 1])
    assert {path.name for path in restored} == expected == _names(archive)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_same_runs_give_the_same_bytes_in_any_order_of_folders(
    spec: Path, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / f"first{suffix}", tmp_path / f"second{suffix}"
    _archive(spec, first, content="curves")
    api.restore(first, results=tmp_path / "results")
    monkeypatch.setattr(time, "time", lambda: 1e9)
    api.archive([spec], second, results=tmp_path / "results", content="curves")
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize(("content", "n"), [("records", 6), ("translations", 0)])
def test_a_table_of_restored_records_is_the_original_one_or_says_what_it_lacks(
    content: str, n: int, spec: Path, tmp_path: Path
) -> None:
    _archive(spec, tmp_path / "study.tar", content=content)
    api.restore(tmp_path / "study.tar", results=tmp_path / "results")
    original = api.report(spec, results=spec.parent / "results")
    restored = api.report(spec, results=tmp_path / "results")
    assert restored.records == original.records
    if not n:
        assert render(restored.table, "csv") == render(original.table, "csv")
    text = (
        "no interval for “none” and rms: the counts of each sentence, which archives of records "
        f"leave out, are missing for {n} runs."
    )
    assert notes(restored.table)["new sentences"].endswith(text) == bool(n)


def test_runs_that_are_there_stay_and_get_the_files_that_they_lack(
    spec: Path, tmp_path: Path
) -> None:
    results = tmp_path / "results"
    records, whole = tmp_path / "records.tar", tmp_path / "whole.tar"
    first, second, third, *others = [run.run for run in _archive(spec, records, content="records")]
    _archive(spec, whole)
    api.restore(records, results=results)
    store = Store(results)
    for run, path, value in (
        (first, ("dev", "nll"), 9.0),
        (second, ("test", "test_novel", "bleu"), 9.0),
        (third, ("files", "model.safetensors"), describe(b"other weights")),
    ):
        record = held = store.read(run) or {}
        *above, last = path
        for key in above:
            held = held[key]
        held[last] = value
        store.save(record)
    repeated = {"finished": "later", "timings": {"training_seconds": 9.0}, "experiment": "other"}
    store.save({**(store.read(others[0]) or {}), **repeated})
    restored = api.restore(whole, results=results)
    assert restored.new == ()
    assert restored.other == (first, second, third)
    assert sorted(restored.present) == sorted(others)
    assert not (store.path(first) / "curve.csv").exists()
    assert (store.path(others[0]) / "curve.csv").exists()
    assert (store.read(others[0]) or {})["finished"] == "later"


def test_a_run_that_is_at_work_is_not_waited_for(spec: Path, tmp_path: Path) -> None:
    archive, results = tmp_path / "study.tar", tmp_path / "results"
    first = _archive(spec, archive)[0].run
    with ThreadPoolExecutor(1) as pool, Store(results).lock(first):
        restored = pool.submit(api.restore, archive, results=results).result(60)
    assert (restored.at_work, len(restored.new)) == ((first,), 5)
    assert Store(results).read(first) is None


@pytest.mark.parametrize("status", ["failed", "oom"])
def test_a_run_that_has_failed_elsewhere_leaves_the_checkpoint_here(
    status: str, tmp_path: Path
) -> None:
    archive, source = tmp_path / "study.tar", Store(tmp_path / "results")
    spec = finished(tmp_path, only=["none"])
    folders = sorted((source.results / "runs").iterdir())
    for folder in folders:
        source.save({**(source.read(folder.name) or {}), "status": status})
    api.archive([spec], archive, results=source.results)
    begun, store = folders[0].name, Store(tmp_path / "b")
    store.path(begun).mkdir(parents=True)
    (store.path(begun) / "checkpoint.pt").write_bytes(b"half")
    restored = api.restore(archive, results=store.results)
    assert restored.present == (begun,)
    assert len(restored.new) == len(folders) - 1
    assert store.read(begun) is None
    assert (store.path(begun) / "checkpoint.pt").read_bytes() == b"half"


def test_a_row_that_is_matched_on_time_is_in_the_table_of_restored_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, archive, store = tmp_path / "study.yaml", tmp_path / "a.tar", Store(tmp_path / "results")
    spec.write_text(MATCHED_ON_TIME)
    (key,) = match_keys(config.load(spec)).values()
    store.save_match(key, {"value": 4})
    finish(spec, store.results)
    assert len(api.archive([spec], archive, results=store.results)) == 4
    restored = Store(tmp_path / "other")
    assert len(api.restore(archive, results=restored.results).new) == 4
    rows = {row for row, _ in api.report(spec, results=restored.results).records}
    assert rows == {"baseline", "wide"}
    assert api.collect_garbage(restored.results, [spec]) == []
    again = tmp_path / "again.tar"
    api.archive([spec], again, results=restored.results)
    assert again.read_bytes() == archive.read_bytes()
    capsys.readouterr()
    api.restore(archive, results=restored.results)
    assert capsys.readouterr().err == ""
    restored.save_match(key, {"value": 5})
    api.restore(archive, results=restored.results)
    assert restored.load_match(key) == {"value": 5}, "what was chosen here stays"
    expected = f"{key}.json: stays with the matched value 5; that of {archive} is 4\n"
    assert capsys.readouterr().err.endswith(expected)


@pytest.mark.parametrize("has_failed", [False, True])
def test_what_an_unfinished_attempt_has_left_is_removed(
    spec: Path, has_failed: bool, tmp_path: Path
) -> None:
    source, archive = tmp_path / "source", tmp_path / "study.tar"
    first = _archive(spec, archive, content="weights")[0].run
    api.restore(archive, results=source)
    weights = bytes(2 * 2**20)
    (Store(source).path(first) / "model.safetensors").write_bytes(weights)
    _describe_files(source, first)
    api.archive([spec], archive, results=source, content="records")
    store = Store(tmp_path / "results")
    folder, record = store.path(first), Store(source).read(first) or {}
    (folder / "snapshots").mkdir(parents=True)
    files = {
        "checkpoint.pt": b"half",
        "changed.json": b"{}",
        "snapshots/1.safetensors": b"half",
        "curve.csv": b"step,train_loss\n1,2.0\n",
        "layers.csv": b"step\n1\n",
        "error.txt": b"Traceback",
        "hypotheses.test.txt": b"other text\n",
        "model.safetensors": b"\1" + weights[1:],
        "log.txt": b"lines",
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    same = "sentences.test.csv"
    (folder / same).write_bytes((Store(source).path(first) / same).read_bytes())
    if has_failed:
        store.save({**record, "status": "failed"})
    assert first in api.restore(archive, results=store.results).new
    assert store.read(first) == record
    assert {path.name for path in folder.iterdir()} == {"lock", "log.txt", "record.json", same}
    assert store.damaged_files(record) == []


def test_a_finished_run_keeps_its_curve_when_its_record_is_restored(
    spec: Path, tmp_path: Path
) -> None:
    archive, store = tmp_path / "study.tar", Store(tmp_path / "results")
    first = _archive(spec, archive, content="records")[0].run
    store.path(first).mkdir(parents=True)
    (store.path(first) / "curve.csv").write_text("whole")
    api.restore(archive, results=store.results)
    assert (store.path(first) / "curve.csv").read_text() == "whole"


def test_a_record_removes_no_file_outside_its_run(tmp_path: Path) -> None:
    spec, store = finished(tmp_path, only=["none"]), Store(tmp_path / "results")
    for folder in (store.results / "runs").iterdir():
        files = {"../outside.txt": describe(b"other text")}
        store.save({**(store.read(folder.name) or {}), "files": files})
    api.archive([spec], tmp_path / "study.tar", results=store.results)
    outside = tmp_path / "restored" / "runs" / "outside.txt"
    outside.parent.mkdir(parents=True)
    outside.write_text("stays")
    api.restore(tmp_path / "study.tar", results=tmp_path / "restored")
    assert outside.read_text() == "stays"


def test_an_archive_says_which_runs_are_not_stored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results"
    spec = finished(tmp_path, only=["baseline", "none"])
    api.archive([spec], tmp_path / "study.tar", results=results)
    said = capsys.readouterr().err
    assert re.fullmatch(r"2 of 6 runs of .*pe are not stored \(rms:1, rms:2\)\n", said)
    finish(spec, results)
    api.archive([spec], tmp_path / "study.tar", results=results)
    assert capsys.readouterr().err == ""


def test_an_archive_of_nothing_is_refused(spec: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"holds no run of .*pe.yaml that has ended"):
        api.archive([spec], tmp_path / "a.tar", results=tmp_path)
    assert not (tmp_path / "a.tar").exists()
    with pytest.raises(StoreError, match=r"a.zip: the name of an archive ends in .tar.xz"):
        _archive(spec, tmp_path / "a.zip")
    with pytest.raises(SpecError, match=r"no content is called 'curve'; did you mean 'curves'\?"):
        _archive(spec, tmp_path / "a.tar", content="curve")


def test_a_run_that_is_begun_again_meanwhile_is_not_archived_without_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = finished(tmp_path, only=["baseline"])
    module = import_module("ablate.api.archive")  # its name in the package is the function's
    listed = module.runs

    def runs(*args: Any, **options: Any) -> list[api.StoredRun]:
        every_run = listed(*args, **options)
        (tmp_path / "results" / "runs" / every_run[-1].run / "record.json").unlink()
        return every_run

    monkeypatch.setattr(module, "runs", runs)
    with pytest.raises(StoreError, match="begun again, while the archive was written"):
        _archive(spec, tmp_path / "study.tar")
    assert not (tmp_path / "study.tar").exists()


def test_damaged_weights_of_the_right_size_are_not_archived(spec: Path, tmp_path: Path) -> None:
    archive, results = tmp_path / "study.tar", tmp_path / "results"
    first = _archive(spec, archive)[0].run
    api.restore(archive, results=results)
    weights = Store(results).path(first) / "model.safetensors"
    content = bytes(2 * 2**20)
    weights.write_bytes(content)
    _describe_files(results, first)
    api.archive([spec], archive, results=results, content="weights")
    weights.write_bytes(b"\1" + content[1:])
    message = r"model.safetensors: is damaged; `ablate run --fresh` makes the run again"
    with pytest.raises(StoreError, match=message):
        api.archive([spec], tmp_path / "again.tar", results=results, content="weights")
    assert not (tmp_path / "again.tar").exists()


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"../outside": b""}, r"is no archive of runs: it holds '../outside'"),
        ({"runs/../../x/record.json": b"{}"}, r"is no archive of runs"),
        ({f"{RUN}/curve.csv": b""}, r"record.json is missing"),
        ({f"matches/{'a' * 16}.json": b"{}"}, r"a.json is not the result of a match"),
        ({"matches/../../x.json": b"{}"}, r"is no archive of runs"),
        ({f"{RUN}/record.json": b"{"}, r"record.json cannot be read"),
        ({f"{RUN}/record.json": {"type": tarfile.GNUTYPE_SPARSE}}, r"it holds '.*record.json'"),
        ({f"{RUN}/record.json": {"size": -1024}}, r"it holds '.*record.json'"),
        ({f"{RUN}/lock": b""}, r"is no archive of runs: it holds '.*lock'"),
        ({f"{RUN}/checkpoint.pt": b""}, r"is no archive of runs: it holds '.*checkpoint.pt'"),
        ({f"{RUN}/Record.json": b""}, r"is no archive of runs: it holds '.*Record.json'"),
        ({f"{RUN}/.curve.csv": b""}, r"is no archive of runs: it holds '.*.curve.csv'"),
    ],
)
def test_what_is_no_archive_of_runs_is_refused(
    members: dict[str, bytes | dict[str, Any]], message: str, tmp_path: Path
) -> None:
    """The members are files, or attributes of a header that nothing follows."""
    archive = tmp_path / "a.tar"
    with tarfile.open(archive, "w", format=tarfile.GNU_FORMAT) as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                member.size = len(content)
                tar.addfile(member, BytesIO(content))
            else:
                for attribute, value in content.items():
                    setattr(member, attribute, value)
                tar.addfile(member)
    with pytest.raises(StoreError, match=message):
        api.restore(archive, results=tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_a_run_is_restored_with_its_own_name_and_files(spec: Path, tmp_path: Path) -> None:
    archive, results = tmp_path / "study.tar", tmp_path / "results"
    first, second, *_ = [run.run for run in _archive(spec, archive)]
    content = archive.read_bytes()
    text = (spec.parent / "results" / "runs" / first / "hypotheses.test.txt").read_bytes()
    archive.write_bytes(content.replace(text, text.swapcase(), 1))
    with pytest.raises(StoreError, match=rf"runs/{first}/hypotheses\.test\.txt is damaged"):
        api.restore(archive, results=results)
    with tarfile.open(archive, "w") as tar:
        record = (spec.parent / "results" / "runs" / first / "record.json").read_bytes()
        member = tarfile.TarInfo(f"runs/{second}/record.json")
        member.size = len(record)
        tar.addfile(member, BytesIO(record))
    with pytest.raises(StoreError, match=rf"{second}.* is the record of another run, {first}"):
        api.restore(archive, results=results)
    assert api.runs(results) == []


def test_damage_in_an_archive_is_named(spec: Path, tmp_path: Path) -> None:
    archive = tmp_path / "study.tar"
    _archive(spec, archive)
    text = archive.read_bytes()
    (tmp_path / "notes.txt").write_text("not an archive")
    (tmp_path / "half.tar.xz").write_bytes(b"\xfd7zXZ\x00 no more")
    for name, message in {
        "notes.txt": "is no archive of `ablate runs archive`",
        "half.tar.xz": "half.tar.xz: cannot be unpacked",
        "none.tar": "none.tar: cannot be read: No such file",
    }.items():
        with pytest.raises(StoreError, match=message):
            api.restore(tmp_path / name, results=tmp_path / "results")
    position = text.index(b'"status": "done"')
    archive.write_bytes(text[:position] + text[position:].replace(b"done", b"dome", 1))
    with pytest.raises(StoreError, match=r"record.json is not what was written"):
        api.restore(archive, results=tmp_path / "results")


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("damage", ["flip", "flip a file", "cut", "cut a file", "flip the end"])
def test_what_follows_damage_is_missed(
    spec: Path, damage: str, suffix: str, tmp_path: Path
) -> None:
    archive, results = tmp_path / f"study{suffix}", tmp_path / "results"
    runs = [run.run for run in _archive(spec, tmp_path / "study.tar", content="curves")]
    content = (tmp_path / "study.tar").read_bytes()
    name = "curve.csv" if "file" in damage else "record.json"
    header = content.index(f"runs/{runs[2]}/{name}".encode())
    n_restored = 2 if "file" in damage else 1  # another must follow: a run may have lost files
    if "cut" in damage:
        content = content[:header]
    elif damage == "flip the end":
        content, n_restored = content[:-1] + b"\1", 5
    else:
        content = content[:header] + b"R" + content[header + 1 :]
    archive.write_bytes(COMPRESS[suffix](content))
    with pytest.raises(StoreError, match="cannot be unpacked: it is damaged, or cut off"):
        api.restore(archive, results=results)
    assert [r.run for r in api.runs(results) if r.status == "done"] == runs[:n_restored]


@pytest.mark.parametrize("suffix", [".tar.xz", ".tar.gz"])
@pytest.mark.parametrize("n_lost", [1, 4, 12])
def test_the_end_of_a_compressed_archive_is_compared(
    spec: Path, n_lost: int, suffix: str, tmp_path: Path
) -> None:
    archive = tmp_path / f"study{suffix}"
    _archive(spec, archive, content="records")
    content = archive.read_bytes()
    flipped = bytearray(content)
    flipped[-n_lost] ^= 1
    for damaged in (content[:-n_lost], flipped):
        archive.write_bytes(damaged)
        with pytest.raises(StoreError, match="cannot be unpacked: "):
            api.restore(archive, results=tmp_path / "results")


def test_an_archive_ends_in_a_block_of_zeros_at_least(spec: Path, tmp_path: Path) -> None:
    archive = tmp_path / "study.tar"
    _archive(spec, archive, content="records")
    content = archive.read_bytes().rstrip(b"\0")
    whole = content + bytes(-len(content) % tarfile.BLOCKSIZE)
    archive.write_bytes(whole + bytes(tarfile.BLOCKSIZE - 1))
    with pytest.raises(StoreError, match="cannot be unpacked: it is damaged, or cut off"):
        api.restore(archive, results=tmp_path / "results")
    archive.write_bytes(whole + bytes(tarfile.BLOCKSIZE))
    assert len(api.restore(archive, results=tmp_path / "other").new) == 6


def test_the_commands_say_what_they_have_done(spec: Path, tmp_path: Path) -> None:
    def output_of(*words: str) -> str:
        outcome = CliRunner().invoke(app, ["runs", *words])
        assert outcome.exit_code == 0, outcome.output
        return outcome.output

    archive, results = str(tmp_path / "study.tar"), str(tmp_path / "results")
    options = ["--content", "records", "--results", str(spec.parent / "results")]
    output = output_of("archive", str(spec), "--output", archive, *options)
    assert re.fullmatch(rf"6 runs, \d+\.\d KiB: {re.escape(archive)}\n", output)
    assert output_of("restore", archive, "--results", results) == "6 runs restored\n"
    output = output_of("restore", archive, archive, "--results", results)
    assert output == "0 runs restored; 12 were there\n"
    store, run = Store(Path(results)), api.runs(results)[0].run
    with ThreadPoolExecutor(1) as pool, store.lock(run):
        output = pool.submit(output_of, "restore", archive, "--results", results).result(60)
    assert output == "0 runs restored; 5 were there; 1 at work, and kept\n"
    rounds = {"train_target_tokens_per_second": [2.0]}
    store.save({**store.find(run), "speed": {"session": "2026 a", "rounds": rounds}})
    output_of("archive", str(spec), "--output", archive, "--results", results)
    later = {"session": "2026 b", "rounds": rounds}
    store.save({**store.find(run), "speed": later})
    output = output_of("restore", archive, "--results", results)
    assert "5 were there; 1 were there with other speeds, and have both\n" in output
    assert store.find(run)["speed"] == {**later, "earlier": {"2026 a": rounds}}
