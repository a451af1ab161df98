"""Sequence-level distillation: a teacher's translations as targets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ablate import api, config
from ablate.config.experiment import RunSpec
from ablate.config.identity import files_of, identity
from ablate.data import prepare as module
from ablate.data.corpus import Bitext, Corpus
from ablate.data.prepare import n_bytes_to_encode, prepare, with_translations
from ablate.data.tokenizer import TokenizerPair
from ablate.errors import DataError, SpecError
from ablate.registry import build
from ablate.runner.check import _refusals
from ablate.runner.devices import Device
from ablate.runner.match import match_key
from ablate.runner.probe import probe_key
from tests.data.texts import run_spec
from tests.made_up_runs import BASE

TEXT = Bitext.of([("a b", "X Y"), ("c", "Z"), ("d", "W")])


def taught(run: RunSpec, teacher: Path) -> RunSpec:
    """Return a run that is trained on the translations in a file."""
    changed = run.training.model_copy(update={"teacher": str(teacher)})
    return run.model_copy(update={"training": changed})


def test_targets_are_the_lines_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "translations"
    file.write_text("x y\n\nwörd\n", encoding="utf-8")
    text = with_translations(TEXT, str(file))
    assert list(text.src) == list(TEXT.src)
    assert list(text.tgt) == ["x y", "", "wörd"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"x\ny\n", "has 2 lines for 3 training pairs; write it with `ablate translate RUN"),
        (b"x\ny\nz\nw\n", "has 4 lines for 3 training pairs"),
        (b"x\n\xff\nz\n", "line 2 is not valid UTF-8"),
        (None, "there is no such file"),
    ],
)
def test_a_file_that_does_not_fit_the_text_is_refused(
    content: bytes | None, reason: str, tmp_path: Path
) -> None:
    file = tmp_path / "translations"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(DataError, match=f"training.teacher: .*{reason}"):
        with_translations(TEXT, str(file))


def test_a_plan_refuses_a_file_that_does_not_fit_the_text(tmp_path: Path) -> None:
    file, teacher = tmp_path / "student.yaml", tmp_path / "teacher.de"
    file.write_text(f"{BASE}variants: {{student: {{training.teacher: teacher.de}}}}\n", "utf-8")
    teacher.write_text("x\ny\n", encoding="utf-8")
    place = r"student\.yaml:11:40: variants\.student\.training\.teacher"
    with pytest.raises(SpecError, match=rf"{place}: .*teacher\.de has 2 lines for 1,000 training"):
        api.plan(file, device="cpu", results=tmp_path)
    teacher.write_text("x\n" * 1000, encoding="utf-8")
    assert api.plan(file, device="cpu", results=tmp_path).n_missing == 4


def test_a_file_that_changes_while_the_corpus_is_prepared_is_refused_and_not_cached(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, teacher = run_spec(folder), folder / "teacher.de"
    n_pairs = len(build(Corpus, run.corpus, at="corpus").load().train)
    train = module.trained_tokenizers

    def train_slowly(*args: Any) -> TokenizerPair:
        tokenizers = train(*args)
        teacher.write_text("C D E F\n" * n_pairs, encoding="utf-8")
        return tokenizers

    teacher.write_text("A B\n" * n_pairs, encoding="utf-8")
    with monkeypatch.context() as patch:
        patch.setattr(module, "trained_tokenizers", train_slowly)
        with pytest.raises(DataError, match=r"teacher\.de changed while the corpus was prepared"):
            prepare(taught(run, teacher))
    teacher.write_text("A B\n" * n_pairs, encoding="utf-8")
    assert set(prepare(taught(run, teacher)).train.tgt.lengths.tolist()) == {3}  # with EOS


def test_a_path_that_the_system_refuses_is_reported_with_the_reason(folder: Path) -> None:
    path = "x" * 300
    with pytest.raises(DataError, match=r"training.teacher: cannot be read: File name too long"):
        with_translations(TEXT, path)
    refused = taught(run_spec(folder), Path(path))
    assert [(refusal.path, refusal.reason) for refusal in _refusals(refused, {})] == [
        ("training.teacher", f"cannot be read: File name too long: {path!r}")
    ]


def test_training_alone_sees_the_teacher(folder: Path) -> None:
    """Sources, tokenizers, dev and tests are those of the corpus; also from the cache."""
    run = run_spec(folder)
    src = build(Corpus, run.corpus, at="corpus").load().train.src
    teacher = folder / "teacher.de"
    teacher.write_text("".join(f"A B {line.split()[-1].upper()}\n" for line in src))
    plain = prepare(run)
    for _ in range(2):
        student = prepare(taught(run, teacher))
        assert student.tokenizers.fingerprint == plain.tokenizers.fingerprint
        assert student.corpus_fingerprint == plain.corpus_fingerprint
        decode = student.tokenizers.decode_tgt
        targets = [decode(ids[:-1].tolist()) for ids in student.train.tgt]
        assert targets[:3] == ["A B A", "A B B", "A B C"]
        assert list(map(list, student.dev.tgt)) == list(map(list, plain.dev.tgt))
        assert [decode(ids[:-1].tolist()) for ids in plain.train.tgt][:3] != targets[:3]
    assert n_bytes_to_encode(taught(run, teacher), plain.corpus_fingerprint) == 0
    teacher.write_text("".join("B\n" for _ in src))
    again = prepare(taught(run, teacher))
    assert {decode(ids[:-1].tolist()) for ids in again.train.tgt} == {"B"}, (
        "from the cache of another file"
    )


def test_a_run_is_refused_other_translations_than_it_was_planned_with(folder: Path) -> None:
    run, file = taught(run_spec(folder), folder / "teacher"), folder / "teacher"
    file.write_text("".join(f"{n}\n" for n in range(10)))
    planned = files_of(run, "")["teacher"]
    assert prepare(run, expected_teacher=planned).corpus_fingerprint
    file.write_text("".join(f"{n + 1}\n" for n in range(10)))
    with pytest.raises(DataError, match="has other translations than when the run was planned"):
        prepare(run, expected_teacher=planned)


def test_speeds_of_other_text_are_not_taken(folder: Path) -> None:
    plain, file = run_spec(folder), folder / "teacher"
    run = taught(plain, file)

    def key(of: RunSpec, fingerprint: str) -> str:
        return probe_key(of, Device("cpu"), "fp32", "eager", fingerprint)

    assert key(plain, "one") != key(plain, "another")
    keys = []
    for text in ("a", "b"):
        file.write_text(text)
        keys.append(key(run, "one"))
    assert keys[0] != keys[1]
    shipped = config.load("pe").rows[0].spec
    assert key(shipped, "one") == key(shipped, "another")  # its options tell its content


def test_what_was_measured_of_the_same_text_counts_in_any_folder(tmp_path: Path) -> None:
    keys = []
    for folder in (tmp_path / "one", tmp_path / "other"):
        folder.mkdir()
        (folder / "teacher.de").write_text("x\n", encoding="utf-8")
        file = folder / "student.yaml"
        rows = "variants: {student: {training.teacher: teacher.de}}\n"
        match = "match: {on: time, via: training.steps}\n"
        file.write_text(f"{BASE}{rows}{match}", encoding="utf-8")
        experiment = config.load(file)
        student = experiment.rows[1]
        speed = probe_key(student.spec, Device("cpu"), "fp32", "eager", "text")
        keys.append((speed, match_key(experiment, student, "text")))
    assert keys[0] == keys[1]


def test_the_content_of_the_file_names_the_run_and_its_path_does_not(folder: Path) -> None:
    run = run_spec(folder)
    names = {"": identity(run, "0", "fp32")}
    for file, content in (("one", "x\n"), ("same", "x\n"), ("other", "y\n")):
        (folder / file).write_text(content)
        names[file] = identity(taught(run, folder / file), "0", "fp32")
    assert names["one"] == names["same"]
    assert len(set(names.values())) == 3
    with pytest.raises(DataError, match="nowhere: cannot be read: No such file"):
        identity(taught(run, folder / "nowhere"), "0", "fp32")


def test_the_path_begins_at_the_yaml_file_and_a_missing_one_is_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    file = tmp_path / "own" / "x.yaml"
    file.write_text(
        "extends: ablate:presets/laptop\nvariants:\n  student: {training.teacher: t.de}\n"
    )
    rows = config.load(Path("own/x.yaml")).rows
    assert [row.spec.training.teacher for row in rows] == [None, "own/t.de"]
    with pytest.raises(config.MistakesError) as caught:
        api.plan("own/x.yaml")
    (mistake,) = caught.value.mistakes
    assert (mistake.mark.line, mistake.path) == (3, "variants.student.training.teacher")
    assert "there is no such file" in mistake.reason
    where = r"own/x\.yaml:3:\d+: variants\.student\.training\.teacher: there is no such file"
    with pytest.raises(config.MistakesError, match=where):
        api.run("own/x.yaml", api.RunOptions(device="cpu"))
    with file.open("a", encoding="utf-8") as more:
        more.write("looks: [2, 3]\n")
    with pytest.raises(config.MistakesError, match=where):
        api.plan("own/x.yaml")
