"""No removal of a folder leaves that folder, whatever links and mounts it has."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

import ablate
from ablate import api, writing
from ablate.errors import StoreError
from ablate.record import SCHEMA
from ablate.store import Store
from ablate.writing import remove_tree
from tests.made_up_runs import finished

KEY = "d" * 16


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    """Return a folder of somebody else's files, which must stay."""
    folder = tmp_path / "victim"
    for name in ("record.json", "inner/thesis.tex", "snapshots/1.safetensors"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("precious")
    before = _content(folder)
    yield folder
    assert _content(folder) == before, "files outside have changed"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    (folder / "inner" / "deep").mkdir(parents=True)
    (folder / "record.json").touch()
    (folder / "inner" / "file").touch()
    return folder


def _content(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}


def test_links_in_a_folder_are_removed_and_not_followed(tree: Path, victim: Path) -> None:
    targets = [victim, victim / "record.json", Path("/"), Path(".."), Path("missing"), tree]
    for number, target in enumerate(targets):
        (tree / str(number)).symlink_to(target)
        (tree / "inner" / "deep" / str(number)).symlink_to(target)
    remove_tree(tree)
    assert not tree.exists()


@pytest.mark.parametrize("target", ["victim", "victim/record.json", "/", "missing"])
def test_of_a_link_the_link_alone_is_removed(target: str, tmp_path: Path, victim: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / target)
    remove_tree(link, first="record.json")
    assert not link.is_symlink()


def test_a_folder_below_a_link_is_that_folder(tree: Path, tmp_path: Path, victim: Path) -> None:
    """Results may lie behind a link; only what was named is removed there."""
    (tmp_path / "link").symlink_to(tree, target_is_directory=True)
    remove_tree(tmp_path / "link" / "inner")
    assert [path.name for path in tree.iterdir()] == ["record.json"]


def _swap(folder: Path, victim: Path) -> None:
    folder.rename(folder.with_name(f"{folder.name}.moved"))
    folder.symlink_to(victim, target_is_directory=True)


def test_a_folder_that_becomes_a_link_after_it_was_listed_is_not_followed(
    tree: Path, victim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shutil.rmtree.avoids_symlink_attacks
    open_ = os.open
    swapped: list[str] = []

    def racing(path: Any, *arguments: Any, **options: Any) -> int:
        if path == "inner" and not swapped:
            swapped.append(path)
            _swap(tree / "inner", victim)
        return open_(path, *arguments, **options)

    monkeypatch.setattr(os, "open", racing)
    with pytest.raises(OSError, match=r"symbolic link|Not a directory|Too many levels"):
        remove_tree(tree)
    assert swapped
    remove_tree(tree)
    assert not tree.exists()


def test_a_run_that_becomes_a_link_before_its_removal_is_not_followed(
    tree: Path, victim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def racing(folder: Path) -> None:
        _swap(folder, victim)

    monkeypatch.setattr(writing, "_mounted_in", racing)
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        remove_tree(tree, first="record.json")
    remove_tree(tree)
    assert not tree.is_symlink()


@pytest.fixture
def mount() -> Iterator[Callable[[Path, Path], None]]:
    """Return what mounts a folder or a file at another path during a test."""
    mounted: list[Path] = []

    def bind(source: Path, at: Path) -> None:
        words = ["mount", "--bind", str(source), str(at)]
        try:
            done = subprocess.run(words, capture_output=True, check=False)
        except FileNotFoundError:
            pytest.skip("no mount on this machine")
        if done.returncode:
            pytest.skip("this user may not mount")
        mounted.append(at)

    yield bind
    for path in mounted:
        subprocess.run(["umount", str(path)], check=True)


@pytest.mark.parametrize("name", ["", "inner", "inner/deep", "inner/a b", "record.json"])
def test_a_folder_with_a_mount_stays_whole(
    name: str, tree: Path, victim: Path, mount: Callable[[Path, Path], None]
) -> None:
    (tree / "inner" / "a b").mkdir()
    source = victim / "record.json" if name == "record.json" else victim
    mount(source, tree / name)
    before = sorted(tree.rglob("*"))
    with pytest.raises(OSError, match=r"a file system is mounted at .*tree.*; unmount it first"):
        remove_tree(tree, first="record.json")
    remove_tree(tree, first="record.json", ignore_errors=True)
    assert sorted(tree.rglob("*")) == before


def test_a_run_with_a_mount_keeps_its_record(
    tmp_path: Path, victim: Path, mount: Callable[[Path, Path], None]
) -> None:
    store = Store(tmp_path / "results")
    store.save({"schema": SCHEMA, "hash": KEY, "status": "done", "error": None})
    (store.path(KEY) / "data").mkdir()
    mount(victim, store.path(KEY) / "data")
    with pytest.raises(StoreError, match=r"cannot be removed: a file system is mounted at .*data"):
        api.remove(store.results, [KEY])
    assert store.load(KEY)


def test_a_mount_beside_a_folder_is_no_reason(
    tree: Path, victim: Path, mount: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    beside = tmp_path / "tree2"
    beside.mkdir()
    mount(victim, beside)
    remove_tree(tree)
    assert not tree.exists()


def test_of_a_run_that_is_a_link_the_link_alone_is_removed(tmp_path: Path, victim: Path) -> None:
    spec, results = finished(tmp_path, only=["none"]), tmp_path / "results"
    link = Store(results).path(KEY)
    for remove in (
        lambda: api.remove(results, [KEY]),
        lambda: api.collect_garbage(results, [spec]),
    ):
        link.symlink_to(victim, target_is_directory=True)
        assert [run.run for run in remove()] == [KEY]
        assert not link.is_symlink()


def test_no_run_begins_in_a_folder_that_is_a_link(tmp_path: Path, victim: Path) -> None:
    store = Store(tmp_path)
    store.path(KEY).parent.mkdir()
    store.path(KEY).symlink_to(victim, target_is_directory=True)
    with pytest.raises(StoreError, match="is a link"), store.lock(KEY):
        pass


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.full) for n in range(1, 5))]
)
def test_no_random_tree_of_links_lets_a_removal_leave_the_results(
    seed: int, tmp_path: Path, victim: Path
) -> None:
    """100 trees each: runs that are links, and runs with links to files, folders and parents."""
    random = Random(seed)
    for case in range(100):
        top = tmp_path / str(case)
        runs = top / "results" / "runs"
        runs.mkdir(parents=True)
        targets = [victim, victim / "record.json", victim / "inner", Path("/"), top, Path("..")]
        for name in ("a", "b", "c"):
            run = runs / (name * 16)
            if random.random() < 0.3:
                run.symlink_to(random.choice(targets))
                continue
            run.mkdir()
            (run / random.choice(["log.txt", "record.json", "notes"])).touch()
            for link in range(random.randrange(3)):
                (run / f"{link}.new").symlink_to(random.choice(targets))
        for stored in api.runs(top / "results"):
            api.remove(top / "results", [stored.run])
        assert all((run / "notes").exists() for run in runs.iterdir() if not run.is_symlink())


def test_every_removal_of_a_folder_is_this_one() -> None:
    package = Path(ablate.__file__).parent
    files = [path for path in package.rglob("*.py") if "rmtree" in path.read_text("utf-8")]
    assert files == [package / "writing.py"]
