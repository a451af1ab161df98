"""How often are the checks of means wrong: false alarms, and losses that they let through?

Run it:  python benchmarks/gate_errors.py [--n 200000] [--output FILE]

Each simulation is the whole procedure. A reference of 5 seeds is blessed; while blessing refuses,
as many seeds are added as it asks for, 40 at most; then two gates of 3 runs are judged, one of a
baseline that is unchanged and one of a baseline that has lost 1.5 BLEU. A check of the kind
`statistical` has new seeds. A check of the kind `paired` has the same seeds: every value is the
seed's own plus a rounding error that differs between kinds of machine; the reference, its repeats
and the gate are of three kinds.

The simulations are done together, with the limits of `ablate.gate.tolerance`;
`tests/gate/test_gate_errors.py` compares them with what the checks themselves say, one by one.
Ends with 1 if a rate is not what is promised: of normal values, for standard deviations up to 0.45.

N simulations, C checks, M seeds at most.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from records import RESULTS, origin, say, write

from ablate.gate.tolerance import PairedPromise, Promise, largest_std, margins

EFFECT, POWER, ALPHA = 1.5, 0.9, 0.005
N_FIRST, N_MOST, N_NEW = 5, 40, 3
PROMISED_UP_TO = 0.45
MOST_FALSE_ALARMS = 0.01
_CHUNK = 20_000

Generator = np.random.Generator
Floats = NDArray[np.float64]
Draw = Callable[[Generator, tuple[int, ...]], Floats]

SHAPES: dict[str, Draw] = {  # each of mean 0 and standard deviation 1
    "normal": lambda rng, size: rng.standard_normal(size),
    "heavy tails (Student, 5 degrees)": lambda rng, size: (
        rng.standard_t(5, size) / math.sqrt(5 / 3)
    ),
    "skewed to failures (gamma, shape 4)": lambda rng, size: (4 - rng.gamma(4, 1, size)) / 2,
}


@dataclass(frozen=True)
class Setting:
    """A check of a measure, and the distribution of its runs.

    Attributes:
        kind: of check.
        std: the true standard deviation, in BLEU: of seeds, or of the difference of two runs of
            one seed on two kinds of machine.
        shape: of the distribution.
        n_checks: checks in the reference, of independent measures.
        further: the rounding error of the gate's kind of machine over that of the repeats' kind.
    """

    kind: str
    std: float
    shape: str = "normal"
    n_checks: int = 1
    further: float = 1.0

    @property
    def promise(self) -> Promise:
        """Return the promise of each check."""
        promises = PairedPromise if self.kind == "paired" else Promise
        return promises(ALPHA / self.n_checks, EFFECT, POWER, N_NEW)

    @property
    def is_promised(self) -> bool:
        """Whether the documentation makes a promise for it."""
        return self.shape == "normal" and self.std <= PROMISED_UP_TO and self.further == 1


SETTINGS = (
    *(Setting("statistical", std) for std in (0.22, 0.37, 0.45, 0.6)),
    Setting("statistical", 0.37, n_checks=3),
    *(Setting("statistical", 0.37, shape) for shape in SHAPES if shape != "normal"),
    *(Setting("paired", std) for std in (0.22, 0.37, 0.45, 0.6)),
    Setting("paired", 0.37, n_checks=3),
    *(Setting("paired", 0.37, shape) for shape in SHAPES if shape != "normal"),
    Setting("paired", 0.37, further=1.5),
)


@dataclass(frozen=True)
class Draws:
    """The runs of many references and gates.

    Attributes:
        reference: the values of seeds, or the differences of their repeats from them, of which the
            standard deviation is estimated, (N, C, M).
        unchanged: likewise of the gate of an unchanged baseline, (N, C, `N_NEW`).
    """

    reference: Floats
    unchanged: Floats


@dataclass(frozen=True)
class Rates:
    """The rates of one setting, each with its Monte Carlo standard error.

    Attributes:
        blessed_at_once: share of references that their first 5 seeds blessed.
        blessed: share of references that were blessed in the end.
        seeds: their mean number of seeds.
        false_alarms: share of gates that failed although nothing had changed.
        power: share of gates that failed when every measure had lost 1.5 BLEU.
    """

    setting: Setting
    n_simulations: int
    blessed_at_once: tuple[float, float]
    blessed: tuple[float, float]
    seeds: float
    false_alarms: tuple[float, float]
    power: tuple[float, float]

    @property
    def is_as_promised(self) -> bool:
        """Whether the rates are as promised."""
        return self.false_alarms[0] < MOST_FALSE_ALARMS and self.power[0] >= POWER


def main() -> int:
    """Simulate every setting, print and write the rates; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--n", type=int, default=200_000, help="simulations of each setting")
    parser.add_argument("--output", type=Path, default=RESULTS / "gate_errors.json")
    options = parser.parse_args()
    say(f"{'kind':13}{'distribution':37}{'std':>5}{'checks':>8}{'further':>9}", end="")
    say(f"{'blessed':>9}{'by 5':>7}{'seeds':>7}{'false alarms':>17}{'losses caught':>19}")
    results = []
    for setting in SETTINGS:
        rates = simulate(setting, options.n)
        results.append(rates)
        say(f"{setting.kind:13}{setting.shape:37}{setting.std:5.2f}{setting.n_checks:8}", end="")
        say(f"{setting.further:9.1f}{rates.blessed[0]:9.1%}{rates.blessed_at_once[0]:7.1%}", end="")
        say(f"{rates.seeds:7.1f}{_with_error(rates.false_alarms):>17}", end="")
        mark = "" if rates.is_as_promised or not setting.is_promised else "  NOT AS PROMISED"
        say(f"{_with_error(rates.power):>19}{mark}")
    write(options.output, {**origin("cpu"), "rates": [asdict(rates) for rates in results]})
    return 0 if all(each.is_as_promised for each in results if each.setting.is_promised) else 1


def simulate(setting: Setting, n: int) -> Rates:
    """Bless and gate ``n`` times."""
    rng = np.random.default_rng(SETTINGS.index(setting))
    parts = [_simulate(setting, rng, min(_CHUNK, n - done)) for done in range(0, n, _CHUNK)]
    sizes, is_alarm, is_caught = (np.concatenate(part) for part in zip(*parts, strict=True))
    is_blessed = sizes > 0
    return Rates(
        setting=setting,
        n_simulations=n,
        blessed_at_once=_rate(sizes == N_FIRST),
        blessed=_rate(is_blessed),
        seeds=float(sizes[is_blessed].mean()),
        false_alarms=_rate(is_alarm[is_blessed]),
        power=_rate(is_caught[is_blessed]),
    )


def draws(setting: Setting, rng: Generator, n: int) -> Draws:
    """Draw the runs of ``n`` references and gates."""
    draw, c = SHAPES[setting.shape], setting.n_checks
    if setting.kind == "statistical":
        reference = setting.std * draw(rng, (n, c, N_MOST))
        return Draws(reference, setting.std * draw(rng, (n, c, N_NEW)))
    error = setting.std / math.sqrt(2)  # of one run: a difference is of two
    blessed, repeats = (error * draw(rng, (n, c, N_MOST)) for _ in range(2))
    again = setting.further * error * draw(rng, (n, c, N_NEW))
    return Draws(repeats - blessed, again - blessed[..., :N_NEW])


def sizes_of(setting: Setting, reference: Floats) -> NDArray[np.int64]:
    """Return how many seeds bless each reference (N,); 0 for one that takes too many."""
    promise = setting.promise
    most = np.array([0.0, 0.0] + [largest_std(n, promise) for n in range(2, N_MOST + 1)])
    stds = _stds(setting, reference).max(axis=1)  # (N, M + 1): the widest check decides
    sizes = np.full(len(reference), N_FIRST)
    for _ in range(N_MOST):  # each round adds a seed or more
        at = np.minimum(sizes, N_MOST)
        std = stds[np.arange(len(stds)), at]
        is_refused = (sizes <= N_MOST) & (std > most[at])
        if not is_refused.any():
            break
        needed = np.searchsorted(most[2:], std, side="left") + 2
        sizes = np.where(is_refused, np.maximum(sizes + 1, needed), sizes)
    return np.where(sizes <= N_MOST, sizes, 0)


def fails(
    setting: Setting, reference: Floats, sizes: NDArray[np.int64], new: Floats
) -> NDArray[np.bool_]:
    """Return whether some check of each gate fails, (N,); of references that are blessed."""
    promise, rows = setting.promise, np.arange(len(reference))
    room = [margins(1.0, n, promise) if n > 1 else None for n in range(N_MOST + 1)]
    loss, gain = (
        np.array([getattr(each, side) if each else math.nan for each in room])[sizes, None]
        for side in ("loss", "gain")
    )  # (N, 1)
    std = _stds(setting, reference)[rows, :, sizes]  # (N, C)
    off = new.mean(axis=-1)
    if setting.kind == "statistical":
        means = np.cumsum(reference, axis=-1)[rows, :, sizes - 1] / np.maximum(sizes, 1)[:, None]
        off = off - means
    return ((off < -loss * std) | (off > gain * std)).any(axis=1)


def _simulate(
    setting: Setting, rng: Generator, n: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_]]:
    drawn = draws(setting, rng, n)
    sizes = sizes_of(setting, drawn.reference)
    is_alarm = fails(setting, drawn.reference, sizes, drawn.unchanged)
    others = draws(setting, rng, n).unchanged if setting.kind == "statistical" else drawn.unchanged
    return sizes, is_alarm, fails(setting, drawn.reference, sizes, others - EFFECT)


def _stds(setting: Setting, reference: Floats) -> Floats:
    """Return the standard deviation of the first 0, 1, ... M of each check, (N, C, M + 1)."""
    n = np.arange(1, reference.shape[-1] + 1)
    squares = np.cumsum(reference**2, axis=-1)
    if setting.kind == "statistical":
        squares = squares - np.cumsum(reference, axis=-1) ** 2 / n
        n = np.maximum(n - 1, 1)
    stds = np.sqrt(np.maximum(squares, 0) / n)
    return np.concatenate([np.zeros_like(stds[..., :1]), stds], axis=-1)


def _rate(is_so: NDArray[np.bool_]) -> tuple[float, float]:
    share = float(is_so.mean())
    return share, math.sqrt(share * (1 - share) / len(is_so))


def _with_error(rate: tuple[float, float]) -> str:
    return f"{rate[0]:.2%} ± {rate[1]:.2%}"


if __name__ == "__main__":
    sys.exit(main())
