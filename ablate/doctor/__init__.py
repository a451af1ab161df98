"""Whether a machine is fit for runs: the checks and their results."""

from ablate.doctor.examination import CHECKS, examine
from ablate.doctor.results import CheckResult, Diagnosis

__all__ = ["CHECKS", "CheckResult", "Diagnosis", "examine"]
