"""How fast is decoding, captured and eager, and is it the same? Answered by `first_hour`.

A thousand random sources and an untrained model of Transformer-Tiny's size, which writes every
sentence to its limit: ten tokens more than its source has.
"""

from __future__ import annotations

import statistics
import sys
import warnings
from functools import partial

from gpu.script import Item, Result, Setting, WrongError, answer
from gpu.work import Work, seconds_of, size

_LEAST_EQUAL = 0.99  # of the sentences; an untrained model has many near-equal candidates


def compared(name: str, options: dict[str, int], setting: Setting) -> Result:
    """Time a search eagerly and captured, and compare what they write."""
    work = Work(size("tiny", setting), setting)
    n = setting.pick(1000, 20)
    model, search = work.model().eval(), work.search(name, **options)
    rates: dict[str, float] = {}
    written: dict[str, list[list[int]]] = {}
    messages: set[str] = set()
    for engine in ("eager", "cuda_graph"):

        def decode(engine: str = engine) -> None:
            best = work.translations(model, search, n, engine)
            written[engine] = [list(map(int, hypotheses[0].tokens)) for hypotheses in best]

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            first = seconds_of(decode, setting.device)[1]
            rounds = [seconds_of(decode, setting.device)[1] for _ in range(setting.pick(3, 1))]
        messages |= {str(warning.message) for warning in caught}
        rates[f"{engine}_sentences_per_second"] = n / statistics.median(rounds)
        rates[f"{engine}_first_seconds"] = first
    pairs = zip(written["eager"], written["cuda_graph"], strict=True)
    share = sum(a == b for a, b in pairs) / n
    if share < _LEAST_EQUAL:
        raise WrongError(f"only {share:.1%} of the sentences are as eager decoding has them")
    eager, captured = (rates[f"{e}_sentences_per_second"] for e in ("eager", "cuda_graph"))
    line = f"{captured:,.0f} sentences/s captured, {eager:,.0f} eagerly; {share:.1%} equal"
    return Result(line, {**rates, "equal_share": share, "warnings": sorted(messages)})


ITEMS: dict[str, Item] = {
    "beam 5": partial(compared, "beam", {"size": 5}),
    "greedy": partial(compared, "greedy", {}),
}

if __name__ == "__main__":
    sys.exit(answer(ITEMS, in_fresh_processes=True))
