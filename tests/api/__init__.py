"""Tests of the commands as functions."""
