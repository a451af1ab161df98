"""Initialisations: what the linear layers start from.

Embedding and position tables have an ``init_std`` of their own, which only `t_fixup` changes;
norms start as the identity.
"""

from ablate.parts.initialisation.contract import Initialisation
from ablate.parts.initialisation.roles import Role, roles

__all__ = ["Initialisation", "Role", "roles"]
