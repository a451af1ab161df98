"""Statistics over the records of an experiment."""
