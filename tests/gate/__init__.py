"""Tests of `ablate.gate` and of the command."""
