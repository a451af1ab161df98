"""How fast is decoding, captured and eager, and is it the same? Answered by `first_hour`.

A thousand random sources and an untrained model of Transformer-Tiny's size, which writes every
sentence to its limit: ten tokens more than its source has.
"""

from __future__ import annotations

import math
import statistics
import sys
import warnings
from functools import partial

from ablate.cuda_graphs import GraphCapturer
from ablate.decoding import Hypothesis
from ablate.training.engines import capturer_for
from gpu.script import Item, Result, Setting, WrongError, answer
from gpu.work import Work, seconds_of, size

_LEAST_EQUAL = 0.99  # of the sentences
_SCORE_TOLERANCE = 1e-3
"""Relative: an untrained model has near-equal candidates, of which rounding may pick another."""


def compared(name: str, options: dict[str, int], setting: Setting) -> Result:
    """Time a search eagerly and captured, and compare what they write."""
    work = Work(size("tiny", setting), setting)
    n = setting.pick(1000, 20)
    model, search = work.model().eval(), work.search(name, **options)
    rates: dict[str, float] = {}
    best: dict[str, list[Hypothesis]] = {}
    messages: set[str] = set()
    for engine in ("eager", "cuda_graph"):
        capturer = capturer_for(engine, model, setting.device)  # one for all, as a run has it

        def decode(engine: str = engine, capturer: GraphCapturer | None = capturer) -> None:
            of_all = work.translations(model, search, n, capturer)
            best[engine] = [hypotheses[0] for hypotheses in of_all]

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            first = seconds_of(decode, setting.device)[1]
            rounds = [seconds_of(decode, setting.device)[1] for _ in range(setting.pick(3, 1))]
        messages |= {str(warning.message) for warning in caught}
        rates[f"{engine}_sentences_per_second"] = n / statistics.median(rounds)
        rates[f"{engine}_first_seconds"] = first
    pairs = list(zip(best["eager"], best["cuda_graph"], strict=True))
    equal = sum(a.tokens == b.tokens for a, b in pairs) / n
    as_good = sum(math.isclose(a.score, b.score, rel_tol=_SCORE_TOLERANCE) for a, b in pairs) / n
    if as_good < _LEAST_EQUAL:
        raise WrongError(f"only {as_good:.1%} of the sentences have the score of eager decoding")
    eager, captured = (rates[f"{e}_sentences_per_second"] for e in ("eager", "cuda_graph"))
    line = f"{captured:,.0f} sentences/s captured, {eager:,.0f} eagerly; {equal:.1%} equal"
    shares = {"equal_share": equal, "equal_score_share": as_good}
    return Result(line, {**rates, **shares, "warnings": sorted(messages)})


ITEMS: dict[str, Item] = {
    "beam 5": partial(compared, "beam", {"size": 5}),
    "greedy": partial(compared, "greedy", {}),
}

if __name__ == "__main__":
    sys.exit(answer(ITEMS, in_fresh_processes=True))
