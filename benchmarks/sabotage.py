"""Does the gate of our own CI notice defects? Break one line of the package at a time.

Run it:  python benchmarks/sabotage.py [--only NAME] [--real] [--output FILE]

Each sabotage is one change of one line of the package, made in a copy of it. The copy then runs
`ablate gate experiments/reference/synthetic.yaml` against the reference that we ship, into an empty
folder of results, as CI does; with ``--real`` the short gate of Multi30k, two minutes each on two
cores. With ``--only`` the record of all is left as it is. Ends with 1 if a check that should fail
passes, or if the gate fails although nothing was changed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from records import RESULTS, ROOT, origin, say, write

SYNTHETIC, REAL = "synthetic", "multi30k_en_de_short"
"""Files in experiments/reference, and in results/reference."""


@dataclass(frozen=True)
class Sabotage:
    """A change of one file, and the checks that must fail.

    Attributes:
        file: under the package.
        old: text that occurs once in it.
        new: its replacement.
        must_fail: names of checks; in a gate without long sentences BLEU's in place of theirs.
    """

    name: str
    file: str
    old: str
    new: str
    must_fail: tuple[str, ...]
    only_of: str = ""  # the gate whose schedule it breaks


SABOTAGES = (
    Sabotage("nothing", "version.py", "", "", ()),
    Sabotage(
        "attention scaled by sqrt(d_model)",
        "parts/scaling.py",
        "        self.factor = dims.d_k**-0.5\n\n    def query(self, q: Tensor) -> Tensor:\n"
        '        return q * self.factor\n\n\n@register(\n    "sqrt_dmodel"',
        "        self.factor = dims.d_model**-0.5\n\n    def query(self, q: Tensor) -> Tensor:\n"
        '        return q * self.factor\n\n\n@register(\n    "sqrt_dmodel"',
        ("losses", "pre losses"),
    ),
    Sabotage(
        "no final norm in Pre-LN",
        "model/stack.py",
        "return self.closing(x)",
        "return x",
        ("pre losses", "pre dev nll"),
    ),
    Sabotage(
        "label smoothing ignored",
        "parts/objective/likelihood.py",
        "return smoothed_cross_entropy(logits, targets, self.pad, self.epsilon)\n",
        "return smoothed_cross_entropy(logits, targets, self.pad, 0.0)\n",
        ("losses", "pre losses"),
    ),
    Sabotage(
        "positions off by one in decoding",
        "model/transformer.py",
        "position, key_positions = state.next_position, state.key_positions()",
        "position = (state.next_position + 1).clamp(max=self.max_len - 1)\n"
        "        key_positions = state.key_positions()",
        ("bleu",),
    ),
    Sabotage(
        "source padding visible",
        "model/transformer.py",
        "aux_losses = self._aux_losses(src, losses)\n"
        "        is_token = aux_losses.is_token[:, None, None, :]\n",
        "aux_losses = self._aux_losses(src, losses)\n"
        "        is_token = aux_losses.is_token[:, None, None, :] | True\n",
        ("losses", "pre losses"),
    ),
    Sabotage(
        "dropout left on in evaluation",
        "measuring/likelihood.py",
        "    model.eval()\n",
        "    model.train()\n",
        ("pre dev nll",),
    ),
    Sabotage(
        "beam search without length normalisation",
        "decoding/beam.py",
        "return (base**self.alpha).float()",
        "return (base**0.0).float()",
        ("long",),
    ),
    Sabotage(
        "warm-up one step late",
        "parts/schedule/contract.py",
        "            return self.lr * step / self.warmup\n        return self.rate_after",
        "            return self.lr * (step - 1) / self.warmup\n        return self.rate_after",
        ("losses", "pre losses"),
        SYNTHETIC,
    ),
    Sabotage(
        "warm-up of inverse_sqrt one step late",
        "parts/schedule/endless.py",
        "* n_updates / self.warmup\n",
        "* (n_updates - 1) / self.warmup\n",
        ("losses", "pre losses"),
        REAL,
    ),
    Sabotage(
        "positions start at 1",
        "parts/position/absolute.py",
        "torch.arange(n_positions, dtype=torch.float64)",
        "torch.arange(1, n_positions + 1, dtype=torch.float64)",
        ("losses", "pre losses"),
    ),
)


@dataclass(frozen=True)
class Outcome:
    """The result of a gate.

    Attributes:
        failed: the names of the checks that failed.
        reasons: their sentences.
    """

    name: str
    exit_status: int
    failed: tuple[str, ...]
    reasons: tuple[str, ...]

    def is_expected(self, sabotage: Sabotage, *, has_long: bool) -> bool:
        """Return whether every check that must fail failed, and none where nothing was changed."""
        status = 1 if sabotage.must_fail else 0
        expected = {
            "bleu" if name == "long" and not has_long else name for name in sabotage.must_fail
        }
        return self.exit_status == status and expected <= set(self.failed)


def main() -> int:
    """Run every sabotage, print and write the results; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", help="sabotages whose name contains this")
    parser.add_argument("--real", action="store_true", help="the short gate of Multi30k")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    name = REAL if options.real else SYNTHETIC
    of_all = RESULTS / ("sabotage_multi30k.json" if options.real else "sabotage.json")
    output = options.output or (None if options.only else of_all)
    of_gate = [sabotage for sabotage in SABOTAGES if sabotage.only_of in ("", name)]
    chosen = [sabotage for sabotage in of_gate if (options.only or "") in sabotage.name]
    if not chosen:
        names = ", ".join(sabotage.name for sabotage in of_gate)
        parser.error(f"no sabotage has {options.only!r} in its name; known: {names}")
    outcomes, all_expected = [], True
    for sabotage in chosen:
        outcome = gated(sabotage, name)
        outcomes.append(asdict(outcome))
        is_expected = outcome.is_expected(sabotage, has_long=not options.real)
        all_expected &= is_expected
        mark = "as expected" if is_expected else "NOT AS EXPECTED"
        say(f"{sabotage.name}: exit {outcome.exit_status}, {mark}")
        for sentence in outcome.reasons:
            say(f"    {sentence}")
    if output:
        write(output, {**origin("cpu"), "sabotages": outcomes})
    return 0 if all_expected else 1


def gated(sabotage: Sabotage, gate: str) -> Outcome:
    """Run a gate on a copy of the package with one change."""
    spec = ROOT / "experiments" / "reference" / f"{gate}.yaml"
    reference = ROOT / "results" / "reference" / f"{gate}.yaml"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(ROOT / "ablate", folder / "ablate")
        changed = folder / "ablate" / sabotage.file
        text = changed.read_text(encoding="utf-8")
        if sabotage.old and text.count(sabotage.old) != 1:
            raise RuntimeError(f"{sabotage.file} does not hold {sabotage.old!r} once")
        if sabotage.old:
            changed.write_text(text.replace(sabotage.old, sabotage.new), encoding="utf-8")
        words = ["gate", str(spec), "--reference", str(reference), "--device", "cpu", "--no-probe"]
        done = subprocess.run(
            [sys.executable, "-m", "ablate.cli", *words, "--results", str(folder / "results")],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(folder)},
            capture_output=True,
            text=True,
        )
    reasons = tuple(line for line in done.stdout.splitlines() if line.startswith("FAILED "))
    failed = tuple(re.findall(r"^FAILED ([^:]+):", done.stdout, flags=re.MULTILINE))
    errors = (done.stderr[-2000:],) if done.returncode not in (0, 1) else ()
    return Outcome(sabotage.name, done.returncode, failed, (*reasons, *errors))


if __name__ == "__main__":
    sys.exit(main())
