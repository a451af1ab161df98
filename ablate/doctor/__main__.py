"""``python -m ablate.doctor CHECK DEVICES RESULTS DEVICE``: its result is the last line printed."""

import sys
import traceback
from pathlib import Path

import torch

from ablate.doctor.examination import CHECKS
from ablate.doctor.results import Target
from ablate.errors import first_line_with_type
from ablate.processes import die_with_parent


def main() -> int:
    """Make the check that the arguments name; return the exit status."""
    name, devices, results, device = sys.argv[1:]
    die_with_parent()
    torch.set_num_threads(1)  # as in runs
    check = next(check for check in CHECKS if check.name == name)
    try:
        result = check.examine(Target(devices, Path(results), device))
    except Exception as error:
        traceback.print_exc()
        sys.stderr.write(f"{first_line_with_type(error)}\n")  # the rest of CUDA's errors is advice
        return 1
    sys.stdout.write(f"\n{result.to_line()}\n")
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
