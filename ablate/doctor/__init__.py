"""Whether a machine is fit for runs: the checks and their results."""

from ablate.doctor.checks import CHECKS
from ablate.doctor.examination import examine
from ablate.doctor.results import CheckResult, Diagnosis

__all__ = ["CHECKS", "CheckResult", "Diagnosis", "examine"]
