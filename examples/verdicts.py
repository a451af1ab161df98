"""Run a study, read its verdicts, and answer with an exit status, all by JSON.

    python examples/verdicts.py experiments/pe.yaml [OPTION ...]    # options of `ablate run`

1: a row is worse than the baseline, or a run failed; 2: the experiment or an option has mistakes,
each of which is printed, with its place and with what was probably meant.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any


def ablate(*words: str) -> tuple[int, Any]:
    """Call a command; return its exit status and its JSON. Progress goes on to standard error."""
    command = [sys.executable, "-m", "ablate.cli", *words, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    return done.returncode, json.loads(done.stdout)


def verdicts(table: Any) -> dict[str, str]:
    """Return the verdict of each row, by BLEU on the first test set."""
    if "contexts" in table:
        tables = table["contexts"].items()
        return {f"{name}: {row}": of for name, each in tables for row, of in verdicts(each).items()}
    rows = table["rows"][1:]  # the first is the baseline
    measures = (measure for row in rows for measure in row["differences"])
    bleu = next((x for x in measures if x.startswith("test.") and x.endswith(".bleu")), None)
    differences = {row["name"]: row["differences"].get(bleu, {}) for row in rows}
    return {name: each.get("verdict") or "no verdict" for name, each in differences.items()}


def print_mistakes(errors: list[dict[str, Any]]) -> None:
    """Print each mistake; one in a file with its place, and with what was probably meant."""
    for error in errors:
        if error["file"]:
            meant = f" -> {error['suggestion']}" if error["suggestion"] else ""
            print(f"{error['file']}:{error['line']}: {error['path']}{meant}: ", end="")
        print(error["message"])


def main(spec: str, *options: str) -> int:
    """Print the verdicts, or the mistakes; return the exit status."""
    status, plan = ablate("plan", spec)
    if "errors" in plan:
        print_mistakes(plan["errors"])
        return status
    plans = plan["contexts"].values() if "contexts" in plan else [plan]
    print(f"{sum(each['n_missing'] for each in plans)} runs are to be made")
    status, table = ablate("run", spec, *options)
    if "conclusion" not in table:  # an option or the machine is refused
        print_mistakes(table["errors"])
        return status
    print(table["conclusion"])
    of_rows = verdicts(table)
    for name, verdict in of_rows.items():
        print(f"{name}: {verdict}")
    return 1 if "worse" in of_rows.values() else status


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
