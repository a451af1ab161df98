"""A virtual environment for each peer, whose requirements contradict those of our own.

An environment is made once, with pip, and again when its packages are changed here.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

from records import ROOT


@dataclass(frozen=True)
class Environment:
    """What is installed.

    Attributes:
        bare: packages without their requirements, because these do not exist for this Python, or
            contradict the torch that all contenders share. They are installed last, and built with
            the packages installed before.
        packages: packages with their requirements.
    """

    bare: tuple[str, ...]
    packages: tuple[str, ...]


ENVIRONMENTS = {
    "transformers": Environment(
        bare=(),
        packages=("numpy", "transformers==5.23.0", "accelerate==1.15.0", "ctranslate2==4.8.5"),
    ),
    "joeynmt": Environment(
        bare=("joeynmt==2.3.0",),
        packages=(
            *("importlib_metadata", "matplotlib", "numpy", "packaging", "pyyaml", "sacrebleu"),
            *("sentencepiece", "setuptools<80", "subword-nmt", "tensorboard", "tqdm"),
        ),
    ),
    "fairseq": Environment(
        bare=("fairseq-fixed==0.12.3.1",),
        packages=(
            *("bitarray", "cffi", "cython", "hydra-core==1.3.2", "numpy", "omegaconf==2.3.0"),
            *("packaging", "regex", "sacrebleu", "scikit-learn", "setuptools<80", "tqdm"),
            "wheel",
        ),
    ),
    "opennmt": Environment(
        bare=("OpenNMT-py==3.5.1",),
        packages=(
            *("configargparse", "ctranslate2==4.8.5", "numpy", "pyahocorasick"),
            *("pyonmttok==1.37.1", "pyyaml", "rapidfuzz", "sacrebleu", "setuptools<80", "six"),
            "tensorboard",
        ),
    ),
}


def python_of(name: str, folder: Path) -> Path:
    """Return the interpreter of an environment; make the environment if it is not there.

    Args:
        name: of `ENVIRONMENTS`.
        folder: where environments are kept.

    Raises:
        RuntimeError: if a package cannot be installed; with the end of pip's output.
    """
    path = folder / name
    python = path / "bin" / "python"
    stamp, content = path / "holds.txt", f"{_pin()}\n{ENVIRONMENTS[name]}\n{sys.version}\n"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == content:
        return python
    shutil.rmtree(path, ignore_errors=True)
    venv.create(path, with_pip=True)
    constraint = path / "constraint.txt"
    constraint.write_text(f"{_pin()}\n", encoding="utf-8")
    environment = ENVIRONMENTS[name]
    _install(python, "-c", str(constraint), "torch", *environment.packages)
    if environment.bare:
        _install(python, "--no-deps", "--no-build-isolation", *environment.bare)
    stamp.write_text(content, encoding="utf-8")
    return python


def _pin() -> str:
    """Return the version of torch that all contenders share, as ``torch==...``."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return next(line for line in lines if line.startswith("torch=="))


def _install(python: Path, *words: str) -> None:
    done = subprocess.run(
        [python, "-m", "pip", "install", "-q", *words], capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"pip install {' '.join(words)} failed:\n{done.stderr[-1500:]}")
