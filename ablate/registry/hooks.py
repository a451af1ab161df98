"""Check that a part overrides something of its slot's contract."""

from __future__ import annotations

import difflib
import inspect

_NEAR = 0.8


def hooks_of(contract: type) -> list[str]:
    """Return the public methods and attributes of a contract that parts may override, sorted."""
    return sorted(name for name in vars(contract) if not name.startswith("_") and name != "slot")


def refuse_idle(cls: type, contract: type, *, is_contract: bool) -> None:
    """Refuse a class that overrides nothing of its contract, or misspells what it overrides.

    Where the contract requires attributes, as attention does for its projections, a constructor
    is enough, since it may set them.

    Args:
        cls: of the part.
        contract: of its slot.
        is_contract: whether the part is its contract, unchanged.

    Raises:
        ValueError: with the names that the class defines, and those that the contract has.
    """
    bases = [base for base in cls.__mro__ if issubclass(base, contract) and base is not contract]
    own = list(dict.fromkeys(name for base in bases for name in vars(base) if _is_public(name)))
    hooks = hooks_of(contract)
    slot = vars(contract)["slot"]
    for name in own:
        idle = [hook for hook in hooks if hook not in own]
        near = difflib.get_close_matches(name, idle, n=1, cutoff=_NEAR)
        if name not in hooks and near and callable(getattr(cls, name)):
            raise ValueError(
                f"the {slot} {cls.__qualname__} defines {name!r}, which nothing calls; "
                f"did you mean {near[0]!r}?"
            )
    has_constructor = any("__init__" in vars(base) for base in bases)
    may_set_attributes = has_constructor and _requires_attributes(contract)
    if is_contract or may_set_attributes or set(own) & set(hooks):
        return
    defined = f"defines {', '.join(own)}" if own else "defines no method"
    raise ValueError(
        f"the {slot} {cls.__qualname__} overrides nothing of its contract, so that it would change "
        f"nothing: it {defined}; the contract has {', '.join(hooks)}"
    )


def _is_public(name: str) -> bool:
    return not name.startswith("_")


def _requires_attributes(contract: type) -> bool:
    """Return whether a contract declares attributes that it does not set."""
    return any(
        name not in vars(contract) and not str(kind).startswith("ClassVar")
        for name, kind in inspect.get_annotations(contract).items()
    )
