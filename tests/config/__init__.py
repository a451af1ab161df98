"""Tests of the language of an experiment."""
