"""The questions of the first hour with a GPU: a script for each."""
