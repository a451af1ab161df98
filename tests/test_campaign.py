"""Measurements that take many calls: what is done is kept between them."""

from __future__ import annotations

import sys
import tarfile
import time
from pathlib import Path

import pytest

from ablate import config

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import campaign  # noqa: E402

STUDY = """\
corpus: {name: synthetic, size: 400}
tokenizer: word
model:
  dims: {d_model: 16, n_heads: 2, max_len: 64}
  n_layers: 1
  feed_forward: {name: relu, d_ff: 16}
training: {steps: 4, batch_tokens: 256, schedule: {name: constant, lr: 1e-3}}
decoding: greedy
seeds: [1, 2]
"""


@pytest.mark.parametrize("study", campaign.STUDIES)
def test_studies_are_experiments(study: str) -> None:
    assert config.load(campaign.EXPERIMENTS / f"{study}.yaml").rows


@pytest.mark.e2e
def test_what_is_done_is_kept_and_not_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "small.yaml").write_text(STUDY)
    monkeypatch.setattr(campaign, "EXPERIMENTS", tmp_path)
    monkeypatch.setattr(campaign, "STUDIES", {"small": ("--no-probe", "--no-figures")})
    kept, far = tmp_path / "kept", time.monotonic() + 600

    assert campaign.go_on("small", kept, tmp_path / "first", end=0.0) is None  # no time at all
    assert campaign.go_on("small", kept, tmp_path / "first", far) == 0
    archive = campaign.archive_of("small", kept)
    with tarfile.open(archive) as tar:
        assert len(tar.getnames()) == 2
    content = archive.read_bytes()

    capfd.readouterr()
    campaign.restore("small", kept, tmp_path / "second")
    assert campaign.go_on("small", kept, tmp_path / "second", far) == 0
    assert "started" not in capfd.readouterr().err
    assert archive.read_bytes() == content
