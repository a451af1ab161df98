"""What to ask a GPU in the first hour with it: a script for each question."""
