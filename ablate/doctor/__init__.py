"""Whether a machine is fit: every check, and how it came out."""

from ablate.doctor.checks import CHECKS
from ablate.doctor.examination import examine
from ablate.doctor.results import CheckResult, Diagnosis

__all__ = ["CHECKS", "CheckResult", "Diagnosis", "examine"]
