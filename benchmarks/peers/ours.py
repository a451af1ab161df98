"""Ours: the package's own model, step and search.

B batch, S source tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch

from ablate.config import RunSpec
from ablate.data import batches as own
from ablate.data.sentences import Ragged
from ablate.decoding import Search, translate
from ablate.model import Transformer, assemble
from ablate.parts.embedding import Vocabulary
from ablate.registry import build
from ablate.runner.devices import compute_deterministically
from ablate.training.engines import capturer_for, make_engine, resolve
from ablate.training.step import StepConfig, make_optimizer, set_lr
from peers.protocol import PAD, Batch, Clock, Ids, Session, count_parameters, serve


def main() -> None:
    """Train or decode until the last round."""
    session = Session(["tokenizers"])
    if session.job.device == "cuda":
        compute_deterministically()  # as runs do
    spec = RunSpec.model_validate(session.job.spec)
    n = session.job.sizes.vocab_size
    model = assemble(spec.model, Vocabulary(n, n, is_joint=True), PAD).to(session.job.device)
    if session.job.training is not None:
        train(session, spec, model)
    decode(session, spec, model)


def train(session: Session, spec: RunSpec, model: Transformer) -> None:
    """Train with the engine that a run would get."""
    device = session.job.device
    step_config = StepConfig.of(spec.training, session.training.precision)
    optimizer = make_optimizer(spec, model)
    set_lr(optimizer, session.training.lr)
    name = (session.job.options or {}).get("engine", "auto")
    kind = torch.device(device).type
    engine = make_engine(resolve(name, kind), model.train(), step_config, optimizer)
    if device == "cpu":
        engine.cores = session.job.threads
        torch.set_num_threads(1)  # as in a run, which gets cores, not threads
    clock = Clock(session, count_parameters(model), lambda: engine.seconds_preparing)
    for batch in clock.around(_batches(session)):
        engine.step([batch])


def _batches(session: Session) -> Iterator[own.Batch]:
    """Yield batches without end."""
    device = session.job.device
    if not session.training.own_batches:
        for batch in itertools.cycle(session.batches()):
            yield _whole(batch).to(device)
    pairs = own.Encoded(*(Ragged.of(side) for side in session.pairs()))
    batches = own.Batches(pairs, session.training.batch_tokens, PAD, device)
    for epoch in itertools.count():
        for rows in batches.epoch(session.job.seed, epoch):
            yield batches.make(rows)


def _whole(batch: Batch) -> own.Batch:
    rows = torch.arange(batch.src.size(0))
    return own.Batch(batch.src, batch.tgt_in, batch.tgt_out, batch.n_tokens, rows)


def decode(session: Session, spec: RunSpec, model: Transformer) -> None:
    """Translate with our own search."""
    weights = session.weights()
    del weights["positions"]
    model.load_state_dict(weights)
    search = build(Search, spec.decoding)
    device = torch.device(session.job.device)
    capturer = capturer_for(resolve("auto", device.type), model, device)
    n_tokens = session.decoding.batch_tokens

    def search_all(sources: list[Ids]) -> list[Ids]:
        translations = translate(model, search, sources, n_tokens, device, capturer)
        return [hypotheses[0].tokens for hypotheses in translations]

    serve(session, search_all, count_parameters(model))


if __name__ == "__main__":
    main()
