"""What messages and reports share: the name that was probably meant, plurals and lists."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Sequence

SYNONYMS = {
    "byte_pair": "bpe",
    "ce": "cross_entropy",
    "character": "char",
    "cosine_annealing": "cosine",
    "dynamic_tanh": "dyt",
    "fix_norm": "scale",
    "fixup": "t_fixup",
    "glorot": "xavier",
    "gqa": "grouped_query",
    "inv_sqrt": "inverse_sqrt",
    "iwslt": "iwslt14",
    "layer_norm": "layer",
    "ln": "layer",
    "mha": "full",
    "moe": "mixture_of_experts",
    "momentum": "sgd",
    "mqa": "multi_query",
    "multi_head": "full",
    "nll": "cross_entropy",
    "nope": "none",
    "post_ln": "post",
    "post_norm": "post",
    "pre_ln": "pre",
    "pre_norm": "pre",
    "primer": "relu_squared",
    "reduce_on_plateau": "plateau",
    "relative": "shaw",
    "rms_norm": "rms",
    "rope": "rotary",
    "rpe": "shaw",
    "scale_norm": "scale",
    "scaled_dot_product": "sqrt_dk",
    "sentencepiece": "unigram",
    "sine": "sinusoidal",
    "sliding_window": "local",
    "squared_relu": "relu_squared",
    "swish": "silu",
    "trapezoidal": "wsd",
    "universal": "block",
    "vaswani": "noam",
    "warmup_stable_decay": "wsd",
    "wmt": "wmt14",
}
"""Other common names of parts. They appear in suggestions alone: no file may use them."""


def suggest(word: str, known: Iterable[str]) -> str:
    """Return `` did you mean '...'?``, or nothing if no known word is near or means the same."""
    near = nearest(word, known)
    return f" did you mean {near!r}?" if near else ""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that was probably meant; None if none is near or means the same."""
    spellings = {_plain(name): name for name in known}
    synonyms = {_plain(synonym): name for synonym, name in SYNONYMS.items()}
    spelling = _plain(word)
    if spelling not in spellings and synonyms.get(spelling) in spellings.values():
        return synonyms[spelling]
    near = difflib.get_close_matches(spelling, spellings, n=1)
    return spellings[near[0]] if near else None


def no_such(kind: str, name: str, known: Collection[str]) -> str:
    """Return the message for the name of a ``kind`` of thing that does not exist."""
    names = listed(known) or "none"
    return f"no {kind} is called {name!r};{suggest(name, known)} known: {names}"


def counted(n: int, noun: str) -> str:
    """Return ``1 line`` or ``2 lines``."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def listed(items: Iterable[object]) -> str:
    """Return ``1, 2, 3``."""
    return ", ".join(str(item) for item in items)


def and_list(items: Sequence[str], most: int | None = None) -> str:
    """Return ``a``, ``a and b`` or ``a, b and c``.

    Of a list of more than ``most``, 2 or more, the last name gives way to how many more there are.
    """
    if most is not None and len(items) > most:
        items = [*items[: most - 1], f"{len(items) - most + 1} more"]
    *others, last = items
    return f"{listed(others)} and {last}" if others else last


def format_duration(seconds: float) -> str:
    """Return a duration as ``m:ss``, or ``h:mm:ss`` from one hour on."""
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02}:{s:02}" if hours else f"{m}:{s:02}"


def rounded(value: float, n_digits: int) -> str:
    """Return a number with some digits, without an exponent below a million: 1,270."""
    return f"{float(f'{value:.{n_digits}g}'):,g}"


def seeds_named(seeds: Iterable[int]) -> str:
    """Return ``seed 1`` or ``seeds 1, 2, 3``."""
    numbers = list(seeds)
    return f"{'seed' if len(numbers) == 1 else 'seeds'} {listed(numbers)}"


def _plain(word: str) -> str:
    return re.sub(r"[^a-z0-9]", "", word.lower()) or word
