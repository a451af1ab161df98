"""Make the runs behind the tables of results/, over as many calls as they take.

    python benchmarks/campaign.py                          # all studies, in the order of STUDIES
    python benchmarks/campaign.py atlas --minutes 120      # one, for two hours

The runs take many hours, a folder of results is not committed, and a machine may not last. So what
is done of a study is kept in an archive beside its table, results/<experiment>/runs.tar.xz: records
alone, a kilobyte a run, which are committed. A call restores the archives into the folder of
results, goes on with `ablate run`, and writes the archive of the study at work every few minutes
and at the end. Once all of its runs are done, its table is in the same folder.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).parents[1]
EXPERIMENTS = ROOT / "experiments"
NO_PROBE = ("--no-probe",)  # their tables are of quality alone
STUDIES: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "registered/parts": NO_PROBE,
        "registered/narang": NO_PROBE,
        "registered/averaging": NO_PROBE,
        "registered/small_corpus": NO_PROBE,
        "registered/depth": NO_PROBE,
        "multi30k/laptop_pe": (),
        "multi30k/laptop_norm": (),
        "multi30k/laptop_heads": (),
        "multi30k/laptop_scaling": (),
        "atlas": NO_PROBE,
        "atlas_tuned": NO_PROBE,
        "registered/depth_rate": NO_PROBE,
        "reference/multi30k_en_de": NO_PROBE,
        "reference/multi30k_en_de_cased": NO_PROBE,
    }
)
"""By name of the experiment: further options of `ablate run`."""

MINUTES_BETWEEN_ARCHIVES = 10.0
_POLL_S = 1.0


def archive_of(study: str, kept: Path) -> Path:
    """Return the archive of a study's records."""
    return kept / study / "runs.tar.xz"


def ablate(*words: object) -> list[str]:
    """Return the command line of a command of ablate."""
    return [sys.executable, "-m", "ablate.cli", *map(str, words)]


def restore(study: str, kept: Path, results: Path) -> None:
    """Put the records that are kept of a study into the folder of results."""
    archive = archive_of(study, kept)
    if archive.exists():
        subprocess.run(ablate("runs", "restore", archive, "--results", results), check=True)


def keep(study: str, kept: Path, results: Path) -> None:
    """Write the archive of a study, if any of its runs has ended."""
    words = ["runs", "archive", EXPERIMENTS / f"{study}.yaml", "--content", "records"]
    output = archive_of(study, kept)
    subprocess.run(ablate(*words, "--output", output, "--results", results), check=False)


def go_on(study: str, kept: Path, results: Path, end: float) -> int | None:
    """Make the runs of a study until all are done or the time is over.

    Args:
        study: name of the experiment.
        kept: the folder of the archives.
        results: the folder of results.
        end: when to stop, by the monotonic clock, in seconds.

    Returns:
        The exit status of `ablate run`; None if the time is over.
    """
    words = ["run", EXPERIMENTS / f"{study}.yaml", "--results", results, *STUDIES[study]]
    # In a group of its own a Ctrl-C reaches it once, from here; a second one cuts its end short.
    process = subprocess.Popen(ablate(*words), process_group=0)
    next_archive = time.monotonic() + 60 * MINUTES_BETWEEN_ARCHIVES
    try:
        while process.poll() is None and time.monotonic() < end:
            time.sleep(_POLL_S)
            if time.monotonic() >= next_archive:
                keep(study, kept, results)
                next_archive = time.monotonic() + 60 * MINUTES_BETWEEN_ARCHIVES
    finally:
        is_stopped = process.poll() is None
        status = _stop(process) if is_stopped else process.wait()
        keep(study, kept, results)
    return None if is_stopped and status else status


def _stop(process: subprocess.Popen[bytes]) -> int:
    """Interrupt `ablate run`, which saves the runs at work; pass a second interrupt on to it."""
    process.send_signal(signal.SIGINT)
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        return process.wait()


def main() -> int:
    """Go on with the studies; return 0 if all are done, 1 if some run failed or is missing."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("studies", nargs="*", help="all by default")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after so many")
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    parser.add_argument("--kept", type=Path, default=ROOT / "results", help="for the archives")
    options = parser.parse_args()
    unknown = set(options.studies) - STUDIES.keys()
    if unknown:
        parser.error(
            f"no study is called {', '.join(sorted(unknown))}; known: {', '.join(STUDIES)}"
        )
    # A shell has what it starts in the background ignore interrupts, and so would `ablate run`.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):  # reach the group of the campaign alone
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
    end = time.monotonic() + 60 * options.minutes
    statuses: list[int | None] = []
    for study in options.studies or STUDIES:
        if time.monotonic() >= end:
            return 1
        restore(study, options.kept, options.results)
        statuses.append(go_on(study, options.kept, options.results, end))
    return int(any(status != 0 for status in statuses))


if __name__ == "__main__":
    sys.exit(main())
