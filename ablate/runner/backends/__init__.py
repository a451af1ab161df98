"""Backends: where worker processes run, on this machine or on those of a cluster."""
