"""Random mutations of experiments and stored files: each is refused with a message or harmless.

    python benchmarks/fuzz.py [--mutations 600] [--first 0] [--seed 1]

Half of the mutations change a shipped experiment, which `plan` and `report` then read. The others
change a file of a store of made-up runs: its bytes, or its content, without its digest, so that it
is not refused for that. `plan`, `report`, `compare`, `runs`, `status` and `find` then read the
store. Every exception but an `AblateError` is printed as a traceback, and counted. A mutation
follows from ``--seed`` and its number, so that some of them can be repeated.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import records

sys.path.insert(0, str(records.ROOT))  # for tests.made_up_runs

from ablate import api
from ablate.errors import AblateError
from ablate.store import Store
from tests import made_up_runs

VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 3, 10**30, 1.5, float("nan"), float("inf"), "", "text", "1", "\0", "é"),
    *([], [1], ["a"], {}, {"a": 1}, {"name": "none"}, [[]], "a" * 300),
)
_BYTES = b'\0|\xff|\n|  |:|-|{|]|"|9|e|~|&a|*a'.split(b"|")


def mutated(content: bytes, rng: random.Random) -> bytes:
    """Return a text with some of its bytes cut, doubled, replaced or inserted."""
    for _ in range(rng.randint(1, 3)):
        at, end = sorted(rng.randrange(len(content) + 1) for _ in range(2))
        end = min(end, at + rng.choice((1, 1, 4, 40, len(content))))
        middle = rng.choice((b"", content[at:end] * 2, rng.choice(_BYTES)))
        content = content[:at] + middle + content[end:]
    return content


def changed(content: Any, rng: random.Random) -> Any:
    """Return JSON content with one value replaced, removed, or buried in lists."""
    levels = list(_levels(content))
    level = rng.choice(levels) if levels else {}
    if not level:
        return rng.choice(VALUES)
    key = rng.choice(list(level) if isinstance(level, dict) else range(len(level)))
    how = rng.randrange(4)
    if how == 0:
        del level[key]
    elif how == 1:
        level[key] = json.loads("[" * 200 + "]" * 200)
    else:
        level[key] = rng.choice(VALUES)
    return content


def _levels(content: Any) -> Iterator[Any]:
    if isinstance(content, dict | list) and content:
        yield content
        for value in content.values() if isinstance(content, dict) else content:
            yield from _levels(value)


class Fuzz:
    """Mutates files, and reads them.

    Args:
        root: a folder for them.
        seed: of the mutations.
    """

    def __init__(self, root: Path, seed: int) -> None:
        self.root, self.seed, self.rng = root, seed, random.Random(seed)
        self.outcomes: Counter[str] = Counter()
        self._printed: set[str] = set()
        self.spec = root / "made_up.yaml"
        self.spec.write_text(made_up_runs.EXPERIMENT, encoding="utf-8")
        self.whole = root / "whole"
        made_up_runs.finish(self.spec, self.whole, has_files=True)
        for number, key in enumerate(_probe_keys(self.spec, self.whole)):
            rounds = {name: [10.0 + number, 11.0] for name in _SPEEDS}
            speeds = {name: values[0] for name, values in rounds.items()}
            corpus: dict[str, float] = {"n_src": 90, "n_tgt": 80, "batches_per_epoch": 7}
            corpus |= {"target_tokens_per_batch": 400.5, "train_peak_mib": 50.0}
            probe = {"rounds": rounds, "session": "one", **speeds, **corpus}
            Store(self.whole).save_probe(key, probe)
        self.experiments = sorted((records.ROOT / "experiments").glob("*.yaml"))

    def mutate(self, number: int) -> None:
        """Make the mutation with a number, and read the files."""
        self.rng = random.Random(f"{self.seed} {number}")
        self._experiment() if number % 2 else self._stored()

    def _experiment(self) -> None:
        """Mutate a shipped experiment."""
        source = self.rng.choice(self.experiments)
        file = self.root / source.name
        file.write_bytes(mutated(source.read_bytes(), self.rng))
        shutil.copytree(source.parent / "presets", self.root / "presets", dirs_exist_ok=True)
        empty = self.root / "empty"
        self._try(lambda: api.plan(file, results=empty), file)
        self._try(lambda: api.report(file, results=empty), file)

    def _stored(self) -> None:
        """Mutate a file of a store."""
        results = self.root / "results"
        shutil.rmtree(results, ignore_errors=True)
        shutil.copytree(self.whole, results)
        is_record = self.rng.random() < 0.6
        kind = "runs/*/record.json" if is_record else "*/*/*" if self.rng.random() < 0.6 else "p*/*"
        file = self.rng.choice(sorted(path for path in results.glob(kind) if path.is_file()))
        if file.suffix == ".json" and self.rng.random() < 0.6:
            content = json.loads(file.read_bytes())
            content.pop("digest", None)
            text = json.dumps(changed(content, self.rng))
            file.write_text(text, encoding="utf-8")
        else:
            file.write_bytes(mutated(file.read_bytes(), self.rng))
        reads: tuple[Callable[[], object], ...] = (
            lambda: api.plan(self.spec, results=results),
            lambda: api.report(self.spec, results=results),
            lambda: api.report(self.spec, results=results, layout="narang"),
            lambda: api.compare(results, self.whole),
            lambda: api.runs(results, specs=[self.spec]),
            lambda: api.status(results),
            lambda: Store(results).find(file.parent.name),
            lambda: api.load_run(file.parent.name, results=results),
        )
        for read in reads:
            self._try(read, file)

    def _try(self, read: Callable[[], object], file: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                read()
                self.outcomes["read"] += 1
            except AblateError:
                self.outcomes["refused in words"] += 1
            except Exception:
                self.outcomes["traceback"] += 1
                copy = self.root / f"traceback {self.outcomes['traceback']}"
                shutil.copy(file, copy)
                text = traceback.format_exc(limit=-2)
                if text not in self._printed:
                    records.say(f"{file}, kept as {copy}:\n{traceback.format_exc(limit=-6)}")
                self._printed.add(text)


_SPEEDS = ("train_target_tokens_per_second", "decode_sentences_per_second")


def _probe_keys(spec: Path, results: Path) -> list[str]:
    from ablate.api.selection import select, tasks
    from ablate.runner import devices
    from ablate.training import engines

    slot = devices.worker_slots(devices.find("cpu"), 1)[0]
    engine = engines.resolve("auto", slot.kind)
    all_tasks = tasks(select(spec).tabulated, slot, results, engine=engine)
    return list(dict.fromkeys(task.probe for task in all_tasks))


def main() -> int:
    """Mutate and read; return 1 if there was a traceback."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mutations", type=int, default=600)
    parser.add_argument("--first", type=int, default=0, help="the number of the first mutation")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="ablate-fuzz-"))
    fuzz = Fuzz(root, chosen.seed)
    for number in range(chosen.first, chosen.first + chosen.mutations):
        fuzz.mutate(number)
    records.say(f"{chosen.mutations} mutations: {dict(fuzz.outcomes)}")
    if not fuzz.outcomes["traceback"]:
        shutil.rmtree(root)
    return int(fuzz.outcomes["traceback"] > 0)


if __name__ == "__main__":
    sys.exit(main())
