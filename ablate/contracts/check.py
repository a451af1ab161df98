"""All contracts of a part, tested one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import ValidationError

from ablate.contracts import data_parts, models, training_parts
from ablate.contracts.faults import ContractError, watched
from ablate.contracts.tiny import MODEL_SLOTS, Case, Contract
from ablate.errors import AblateError
from ablate.registry import Entry

_OF_A_MODEL: dict[str, Contract] = {
    "logits": models.shapes,
    "meta device": models.meta_device,
    "causality": models.causality,
    "padding": models.padding,
    "source": models.source,
    "token by token": models.token_by_token,
    "beams": models.beams,
    "gradients": models.gradients,
    "state dict": models.state_dict,
    "effective options": models.effective,
}
_OF_SLOT: dict[str, dict[str, Contract]] = {
    **dict.fromkeys(MODEL_SLOTS, _OF_A_MODEL),
    "objective": {
        "padding": training_parts.padding_is_free,
        "sum over tokens": training_parts.tokens_add_up,
        "effective options": training_parts.options_change_losses,
    },
    "optimizer": {
        "learning rates": training_parts.rates_are_used,
        "checkpoints": training_parts.checkpoints_continue,
        "rows": training_parts.elements_are_independent,
        "effective options": training_parts.options_change_steps,
    },
    "schedule": {
        "rates": training_parts.rates_are_numbers,
        "effective options": training_parts.options_change_rates,
    },
    "corpus": {"parallel text": data_parts.text_is_parallel},
    "tokenizer": {
        "round trip": data_parts.decoding_restores_text,
        "repeatable training": data_parts.training_is_repeatable,
    },
    "metric": {
        "better for references": data_parts.references_score_best,
        "effective options": data_parts.options_change_scores,
    },
    "decoding": {"independent sentences": data_parts.sentences_are_independent},
}


@dataclass(frozen=True)
class Finding:
    """Whether a part keeps one contract; ``reason`` is why not, empty if it does."""

    slot: str
    part: str
    contract: str
    meaning: str
    reason: str

    @property
    def is_kept(self) -> bool:
        """Whether the part keeps the contract."""
        return not self.reason


def contracts_of(slot: str) -> dict[str, Contract]:
    """Return all contracts of a slot by name, in the order in which they are tested."""
    return {"typed options": models.typed, **_OF_SLOT.get(slot, {})}


def check_contract(case: Case, contract: Contract) -> None:
    """Test one contract of a part; a ContractError if the part breaks it, or its code fails."""
    with watched([case.entry]):
        contract(case)


def check_part(entry: Entry) -> Iterator[Finding]:
    """Test all contracts of a part; if no model can be computed with it, no further one."""
    case = Case(entry)
    for name, contract in contracts_of(entry.slot).items():
        reason, is_hopeless = "", False
        try:
            check_contract(case, contract)
        except ContractError as error:
            reason = error.reason
            is_hopeless = contract is models.shapes
        except (AblateError, ValidationError) as error:  # it refuses every model
            reason, is_hopeless = str(error), True
        meaning = (contract.__doc__ or "").partition("\n")[0]
        yield Finding(entry.slot, entry.name, name, meaning, reason)
        if is_hopeless:
            return
