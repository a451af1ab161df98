"""The command line: parses, calls one function of `ablate.api`, prints."""

from ablate.cli.app import main

__all__ = ["main"]
