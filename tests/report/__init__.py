"""Tests of tables and figures."""
