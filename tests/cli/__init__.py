"""Tests of the parts, slot by slot."""
