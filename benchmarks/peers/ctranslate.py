"""CTranslate2, in single precision: the Marian model with our weights, through its converter.

The converter's loader for Marian starts the decoder from a zero vector; ours, and so the Marian
model that has our weights, starts from BOS. So the loader for BART converts here, from which that
for Marian derives and which starts from BOS. CTranslate2 makes its own batches: it gets all
sentences at once, sorts them and translates batches of at most ``batch_tokens`` source tokens. The
option ``inter`` is the number of batches that are translated at once; they share the threads.

Its length limit leaves EOS out.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ctranslate2 import Translator
from ctranslate2.converters.transformers import BartLoader

from peers.marian import build, load
from peers.protocol import Ids, Session, count_parameters, serve

SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")


def main() -> None:
    """Decode until the last round."""
    session = Session(["ctranslate2", "transformers"])
    model = build(session.job.sizes, 0.0)
    load(model, session.weights())
    model.config.normalize_before = model.config.normalize_embedding = False
    words = [*SPECIAL, *(str(i) for i in range(len(SPECIAL), session.job.sizes.vocab_size))]
    folder = str(session.folder())
    converted = BartLoader()(model, _words(words))
    converted.validate()
    converted.optimize(quantization=None)
    converted.save(folder)
    decode(session, folder, words, count_parameters(model))


def decode(session: Session, folder: str, words: list[str], n_parameters: int) -> None:
    """Translate with the converted model."""
    job, decoding = session.job, session.decoding
    n_at_once = (job.options or {}).get("inter", 1)
    translator = Translator(
        folder,
        device=job.device,
        compute_type="float32",
        inter_threads=n_at_once,
        intra_threads=max(1, job.threads // n_at_once),
    )
    ids = {word: i for i, word in enumerate(words)}

    def translate(sources: list[Ids]) -> list[Ids]:
        results = translator.translate_batch(
            [[words[i] for i in source] for source in sources],
            max_batch_size=decoding.batch_tokens,
            batch_type="tokens",
            beam_size=decoding.beam,
            length_penalty=decoding.length_penalty,
            max_input_length=0,
            max_decoding_length=decoding.max_tokens - 1,
        )
        return [[ids[word] for word in result.hypotheses[0]] for result in results]

    serve(session, translate, n_parameters)


def _words(words: list[str]) -> Any:
    """Return the parts of a tokenizer that the converter reads."""
    pad, bos, eos, unk = words[: len(SPECIAL)]
    return SimpleNamespace(
        get_vocab=lambda: {word: i for i, word in enumerate(words)},
        convert_ids_to_tokens=lambda i: words[i],
        pad_token=pad,
        bos_token=bos,
        eos_token=eos,
        unk_token=unk,
    )


if __name__ == "__main__":
    main()
