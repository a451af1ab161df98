"""References, and how later runs are judged by them: a class for each kind of check."""
