"""``ablate init``: a commented experiment to start from."""

from __future__ import annotations

from pathlib import Path

from ablate.errors import SpecError

_TEMPLATE = """\
# Run it:               ablate run {file}
# Show its cost first:  ablate plan {file}
# List all parts:       ablate parts

question: Does the model need to know where a token stands?

# ---- the baseline: this file without its variants ----

corpus: synthetic            # or {{name: multi30k, src: en, tgt: de}}; see `ablate corpora`
tokenizer: {{name: word}}      # or {{name: bpe, vocab_size: 2000, joint: true}}

model:
  dims: {{d_model: 64, n_heads: 4, max_len: 128}}
  n_layers: 2                # or {{encoder: 3, decoder: 1}}
  position: sinusoidal
  norm: layer
  residual: pre
  feed_forward: {{name: relu, d_ff: 128}}
  dropout: {{embedding: 0.1, residual: 0.1}}

training:
  steps: 300                 # enough to see it work; raise it for reliable numbers
  batch_tokens: 2048
  schedule: {{name: inverse_sqrt, lr: 3e-3, warmup: 100}}

decoding: greedy             # or {{name: beam, size: 5}}

seeds: [1, 2]                # one run of every row with each

# ---- the rows of the table: each is its difference from the baseline ----

variants:
  learned: {{model.position: learned}}
  none:    {{model.position: none}}
  # a part with options, and two changes in one row:
  # rms_gelu: {{model.norm: rms, model.feed_forward.name: gelu}}
"""


def init(name: str) -> Path:
    """Write a commented experiment that runs within minutes.

    Args:
        name: of the experiment, with or without folder and ``.yaml``.

    Returns:
        The file.

    Raises:
        SpecError: if the file exists, or cannot be written.
    """
    path = Path(name if name.endswith((".yaml", ".yml")) else f"{name}.yaml")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(_TEMPLATE.format(file=path))
    except FileExistsError as error:
        raise SpecError(f"{path} exists already; choose another name") from error
    except OSError as error:
        raise SpecError(f"{path} cannot be written: {error.strerror}") from error
    return path
