"""Initialisations of the linear layers.

Embeddings and learned positions have their own option ``init_std``; of the initialisations only
`t_fixup` changes a table, that of the embeddings. Norms start with gain 1 and bias 0.
"""

from ablate.parts.initialisation.contract import Initialisation
from ablate.parts.initialisation.roles import roles
from ablate.parts.roles import Role

__all__ = ["Initialisation", "Role", "roles"]
