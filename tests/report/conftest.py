"""The made-up experiment and its table."""

from __future__ import annotations

from pathlib import Path

import pytest

from ablate.config import Experiment
from ablate.report import Table, tabulate
from tests.report import made_up

MANY = """
  learned: {model.position: learned, model.norm: rms, training.loss_per: sentence}
  a_name_that_a_grid_has_made_of_two_axes: {model.feed_forward: {name: swiglu, d_ff: 24}}
  t2t: {model.position: {name: sinusoidal, exponent: t2t, layout: halves}}
  none: {model.decoder.position: none}
"""


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return made_up.experiment(tmp_path)


@pytest.fixture
def records(experiment: Experiment) -> made_up.Records:
    return made_up.records(experiment)


@pytest.fixture
def whole(experiment: Experiment, records: made_up.Records) -> Table:
    return tabulate(experiment, records)


@pytest.fixture
def many(tmp_path: Path) -> Table:
    experiment = made_up.experiment(tmp_path, MANY)
    return tabulate(experiment, made_up.records(experiment))


@pytest.fixture
def broken(experiment: Experiment, records: made_up.Records) -> Table:
    """The same after a divergence, a missing run, and a row that failed altogether."""
    reason = "the loss became NaN\n  at step 12"
    records["learned", 3] = made_up.without_result("diverged", reason, "learned", 3)
    del records["literal", 2]
    for seed in experiment.seeds:
        records["heads_1", seed] = made_up.without_result("oom", "no room | here", "heads_1", seed)
    return tabulate(experiment, records)
