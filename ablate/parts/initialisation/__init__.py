"""Initialisations of the linear layers.

Embedding and position tables have their own option ``init_std``; of the initialisations only
`t_fixup` changes them. Norms start with gain 1 and bias 0.
"""

from ablate.parts.initialisation.contract import Initialisation
from ablate.parts.initialisation.roles import roles
from ablate.parts.roles import Role

__all__ = ["Initialisation", "Role", "roles"]
