"""Tests of the checks of a machine."""
