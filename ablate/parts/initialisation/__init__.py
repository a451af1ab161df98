"""Initialisations of the linear layers, by their shapes, their roles and their depth.

Embeddings and learned positions have their own option ``init_std``; of the initialisations only
`t_fixup` changes a table, that of the embeddings. Norms start with gain 1 and bias 0.
"""

from ablate.parts.initialisation.contract import Initialisation, Model, roles

__all__ = ["Initialisation", "Model", "roles"]
