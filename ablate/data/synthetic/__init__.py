"""The built-in default corpus: English into an invented language, from a seed."""

from ablate.data.synthetic.corpus import Synthetic

__all__ = ["Synthetic"]
