"""Mutants that compute the same as the original, with the reason; `tests.mutation` skips them.

Another one, which is not generated: dropout of the activated gate alone in a gated feed-forward is
dropout of the product, since each element of the product has one element of the gate.
"""

from __future__ import annotations

from fnmatch import fnmatch

from tests.mutants import Mutant

_TWO_DIMENSIONS = "the tensor has two dimensions, of which the last is 1"
_FOUR_DIMENSIONS = "the tensor has four dimensions, of which 2 is the last but one"
_NO_GRADIENT = "the calibration has no gradient"
_IN_PLACE = "a detached tensor is changed in place like the parameter whose memory it shares"
_NO_GRADIENT_INSIDE = "autograd records nothing inside of an autograd.Function"
_NEVER_EQUAL = "a random number equals the rate with a probability of about 1e-7"
_SYMMETRIC = "the matrix of equal pairs is symmetric"
_ROUNDING = "it is a bound for a number that exceeds it by rounding alone"
_SEARCH = "a search computes no gradients"
_SAME_LENGTH = "lengths are equal"
_STEP = "steps are made without gradients"
_NO_SLOPE = "a comparison has no gradient"
_CACHE = "a cache serves the search for translations, which computes no gradients"
_SAME_ROOM = "the buffers of keys and of values have room for the same rows and tokens"
_MOVED = "the same contents are moved to new memory, which has room for them"
_AT_TAU = "a score at tau has the weight 0 inside of the support as well as outside"
_MEAN = "tau is at least the mean there, which the smallest of the scores does not reach"
_FAR_FROM_IT = "no logit lies between the masked ones and those of models"
_ORDER = "only its order is used"
_SAME_ROOT = "the search ends at the same root, sooner or later"
_MORE_NODES = "the integral has more nodes than its accuracy needs, or as many"
_CHUNKS = "chunks may have any size"
_ONE_SCHEME = "all layers of a stack have one residual scheme"
_ALL_MEMBERS = "it is the same for all members"
_SYMMETRIC_TYPES = "of two types the wider one is taken, in any order"
_NO_ORDER = "a set of values or of errors has no order"
_WHERE_WARNED = "it decides which line a warning names"
_SEEDS = "steps and runs have seeds that differ either way"
_WHICH_REASON = "it decides which of two reasons is reported"
_EITHER_WAY = "two numbers are compared, and either may come first"
_NO_EMPTY_PIECE = "no piece is empty"
_NOT_READ = "what the deque holds is not read"
_ANY_NEGATIVE = "any negative number does"
_NO_PROBABILITY = "dropping pieces saves time; those that are not in use have the probability 0"
_SQUARED = "the difference is squared"
_TOO_FEW = "so few seeds have been found too few before"
_NEVER_JUST = "no measured number is just the limit"

EQUIVALENT: tuple[tuple[str, str, str, str], ...] = (
    (
        "dropout.py",
        "ElementDropout.forward",
        "Sub -> Add: n_dropped - _STEPS // 2",
        "the two thresholds differ by 2^16 and are compared as 16-bit integers",
    ),
    (
        "dropout.py",
        "ElementDropout.forward",
        "detach: input (2)",
        "only the shape and the type of the new tensor are read from it",
    ),
    ("dropout.py", "WordDropout.forward", "Lt -> LtE: draws < self.rate", _NEVER_EQUAL),
    ("dropout.py", "WordDropout.forward", "GtE -> Gt: draws*", _NEVER_EQUAL),
    ("dropout.py", "WordDropout.forward", "drop a minus: -1", _SYMMETRIC),
    ("dropout.py", "WordDropout.forward", "1 -> 2: 1", _SYMMETRIC),
    ("dropout.py", "HeadDropout._draw", "GtE -> Gt: draws*", _NEVER_EQUAL),
    (
        "dropout.py",
        "HeadDropout._draw",
        "Gt -> GtE: head > first",
        "the first is kept anyway",
    ),
    ("dropout.py", "HeadDropout._draw", "Sub -> Add: n_heads - 1", _ROUNDING),
    ("dropout.py", "HeadDropout._draw", "drop the second term: n_heads - 1", _ROUNDING),
    ("norm.py", "AdaNorm.forward", "detach: self.k * y", "the bracket is detached"),
    ("norm.py", "AdaNorm.forward", "detach: y", "the bracket is detached"),
    ("norm.py", "AdaNorm.forward", "halve the gradient: self.k * y", "the bracket is detached"),
    (
        "norm.py",
        "DynamicTanh.forward",
        "drop the call of at_least_float32: at_least_float32(x)",
        "the product with a parameter in single precision is computed in single precision",
    ),
    ("objective/*", "LabelSmoothing.loss", "drop a minus: -1*", _TWO_DIMENSIONS),
    ("objective/*", "LabelSmoothing.loss", "Lt -> LtE: logits < MASKED_LOGIT / 2", _FAR_FROM_IT),
    ("objective/*", "LabelSmoothing.loss", "2 -> 3: 2", _FAR_FROM_IT),
    ("objective/*", "LabelSmoothing.loss", "detach: logits (3)", _NO_SLOPE),
    (
        "objective/*",
        "ConfidencePenalty.loss",
        "detach: log_p",
        "it is the right factor: p times the gradient of log p sums to 0",
    ),
    ("objective/*", "RDrop.loss", "drop a minus: -1*", _TWO_DIMENSIONS),
    ("objective/*", "ZLoss.loss", "drop a minus: -1*", _TWO_DIMENSIONS),
    ("objective/*", "ConfidencePenalty.loss", "drop a minus: -1*", _TWO_DIMENSIONS),
    ("objective/*", "MinimumRisk.weigh", "drop a minus: -1*", _TWO_DIMENSIONS),
    ("objective/*", "Unlikelihood.loss*", "drop a minus: -1*", _TWO_DIMENSIONS),
    ("objective/*", "*CrossEntropy.forward", "drop a minus: -1*", _TWO_DIMENSIONS),
    ("objective/*", "*CrossEntropy.forward", "detach: *", _NO_GRADIENT_INSIDE),
    ("objective/*", "*CrossEntropy.forward", "halve the gradient: *", _NO_GRADIENT_INSIDE),
    ("feed_forward/*", "MixtureOfExperts.forward", "detach: p", _ORDER),
    (
        "feed_forward/*",
        "LossFreeExperts._selection_scores",
        "detach: *",
        _ORDER,
    ),
    (
        "schedule/*",
        "OneCycle.rate",
        "Lt -> LtE: step < *",
        "two phases have the same rate where they meet",
    ),
    (
        "schedule/cyclic.py",
        "CosineRestarts.rate_after_warmup",
        "1.0 -> 2.0: 1.0",
        "no step comes after the last one",
    ),
    (
        "schedule/endless.py",
        "Constant.rate",
        "1.0 -> 2.0: 1.0 (2)",
        "the minimum of it and 1 is taken",
    ),
    (
        "schedule/endless.py",
        "Plateau.rate_after_warmup",
        "0 -> 1: 0",
        "the first loss is less than infinity, which sets it to 0",
    ),
    ("position/absolute.py", "_sines_and_cosines", "drop a minus: -1 (2)", _TWO_DIMENSIONS),
    (
        "position/relative.py",
        "ALiBi.__init__",
        "drop the second factor: [0] * n_heads",
        "one 0 is broadcast to all heads",
    ),
    ("position/relative.py", "ALiBi.__init__", "1 -> 2: 1*", "its sign alone counts"),
    ("optimizer/*", "*.__init__", "True -> False: True", "foreach is faster and computes the same"),
    ("optimizer/averaging.py", "*.averages", "detach: *", "training takes them without gradients"),
    ("optimizer/averaging.py", "*.averages", "halve the gradient: *", "as above"),
    (
        "optimizer/averaging.py",
        "ScheduleFreeAdamWOptimizer.update",
        "0.0 -> 1.0: 0.0 (3)",
        "the parameter is z as long as all rates were 0",
    ),
    ("optimizer/curvature.py", "SophiaOptimizer.every", "0 -> 1: 0", "all groups have the same"),
    (
        "optimizer/recent.py",
        "CautiousAdamWOptimizer.update",
        "Mult -> Div: u * g",
        "the sign alone counts",
    ),
    ("optimizer/recent.py", "_eigenvectors", "drop a minus: -1", _TWO_DIMENSIONS),
    ("optimizer/recent.py", "SoapOptimizer.*", "True -> False: True", "there are two of each"),
    (
        "optimizer/recent.py",
        "SoapOptimizer._update_bases",
        "True -> False: True (3)",
        "no two are equal",
    ),
    ("optimizer/*", "*.step", "detach: *", _STEP),
    ("decoding/*", "*", "detach: *", _SEARCH),
    ("decoding/*", "*", "halve the gradient: *", _SEARCH),
    ("decoding/beam.py", "Beam.initial_state", "1 -> 2: 1", "one more token has room"),
    ("decoding/beam.py", "_BeamState.last_tokens", "1 -> 2: 1 (3)", "tokens are flattened later"),
    (
        "decoding/beam.py",
        "_BeamState.last_tokens",
        "drop a minus: -1 (2)",
        "tokens are flattened later",
    ),
    ("decoding/beam.py", "_BeamState.hypotheses", "True -> False: True (2)", _SAME_LENGTH),
    ("decoding/beam.py", "_BeamState.hypotheses", "True -> False: True (4)", _SAME_LENGTH),
    ("decoding/candidates.py", "candidates", "True -> False: True*", _SAME_LENGTH),
    ("decoding/candidates.py", "candidates", "1 -> 2: 1", "chunks may have any size"),
    ("decoding/greedy.py", "Greedy.initial_state", "1 -> 2: 1", "one more token has room"),
    (
        "decoding/decode_loop.py",
        "DecodeLoop.run",
        "Sub -> Add: n - 1",
        "to drop no sentence reorders the rows, too",
    ),
    (
        "decoding/decode_loop.py",
        "DecodeLoop.run",
        "IsNot -> Is: parents is not None",
        "it decides when sentences that are done leave the batch",
    ),
    (
        "decoding/decode_loop.py",
        "DecodeLoop.run",
        "drop the second factor: _SHRINK_BELOW * n",
        "it decides when sentences that are done leave the batch",
    ),
    ("decoding/decode_loop.py", "DecodeLoop._drop_done", "True -> False: True", _SAME_LENGTH),
    ("decoding/greedy.py", "_GreedyState.hypotheses", "True -> False: True*", _SAME_LENGTH),
    (
        "decoding/decode_loop.py",
        "CapturedDecodeLoop.__init__",
        "False -> True: False",
        "the first buffers ask for a warm-up",
    ),
    (
        "decoding/decode_loop.py",
        "CapturedDecodeLoop.run",
        "drop the second factor: _RECAPTURE_BELOW * len(self.sentences)",
        "it decides when sentences that are done leave the batch",
    ),
    (
        "decoding/decode_loop.py",
        "CapturedDecodeLoop._two_steps",
        "0 -> 1: 0",
        "room for two tokens is needed",
    ),
    (
        "decoding/decode_loop.py",
        "DecodeLoop.run",
        "drop the second term: n - 1",
        "to drop no sentence reorders the rows, too",
    ),
    (
        "decoding/decode_loop.py",
        "DecodeLoop.run",
        "negate the condition: n - 1 if parents is not None else _SHRINK_BELOW * n",
        "it decides when sentences that are done leave the batch",
    ),
    (
        "decoding/decode_loop.py",
        "CapturedDecodeLoop.run",
        "Mult -> Div: _RECAPTURE_BELOW * len(self.sentences)",
        "it decides when sentences that are done leave the batch",
    ),
    (
        "decoding/decode_loop.py",
        "CapturedDecodeLoop._two_steps",
        "Gt -> GtE: length + 2 > (capacity or 0)",
        "buffers grow one token earlier",
    ),
    (
        "decoding/candidates.py",
        "blockwise_topk",
        "Lt -> LtE: n_blocks < _MIN_BLOCKS * k",
        "both ways find the same numbers",
    ),
    (
        "decoding/decode_loop.py",
        "CapturedDecodeLoop._two_steps",
        "2 -> 3: 2",
        "the last but one token is decoded by itself",
    ),
    (
        "decoding/sampling.py",
        "_SampleState.last_tokens",
        "drop a minus: -1 (2)",
        "tokens are flattened later",
    ),
    ("decoding/translate.py", "translate", "True -> False: True", _SAME_LENGTH),
    (
        "decoding/sampling.py",
        "_SampleState.last_tokens",
        "1 -> 2: 1 (3)",
        "tokens are flattened later",
    ),
    ("decoding/sampling.py", "MinimumBayesRisk.rank", "True -> False: True", _SAME_LENGTH),
    ("decoding/sampling.py", "_ngram_f1", "True -> False: True", _SAME_LENGTH),
    ("decoding/sampling.py", "_SampleState.hypotheses", "True -> False: True*", _SAME_LENGTH),
    ("metric.py", "Bleu.score", "True -> False: True", "a warning is printed"),
    ("metric.py", "Comet.score", "True -> False: True", "every sentence has a source"),
    ("attention/cache.py", "*", "detach: *", _CACHE),
    ("attention/cache.py", "*", "halve the gradient: *", _CACHE),
    ("attention/contract.py", "Attention.forward", "detach: k (2)", _CACHE),
    ("attention/contract.py", "Attention.forward", "detach: v (2)", _CACHE),
    ("attention/cache.py", "*", "True -> False: True", "one of keys and one of values"),
    ("attention/cache.py", "*select", "0 -> 1: 0*", _SAME_ROOM),
    ("attention/cache.py", "KVCache.extend", "0 -> 1: 0*", _SAME_ROOM),
    ("attention/cache.py", "KVCache.extend", "Lt -> LtE: *", _MOVED),
    ("attention/cache.py", "KVCache.extend", "negate the condition: if self._buffers[0]*", _MOVED),
    ("attention/cache.py", "KVCache.select", "1 -> 2: 1", _MOVED),
    ("attention/cache.py", "KVCache.select", "drop the second term: n + 1", _MOVED),
    ("attention/cache.py", "KVCache._empty", "2 -> 3: 2", _MOVED),
    ("attention/cache.py", "KVCache.select", "Lt -> LtE: *", _MOVED),
    ("attention/contract.py", "Attention.*", "drop a minus: -2", _FOUR_DIMENSIONS),
    ("attention/recent.py", "Differential.weights", "True -> False: True", "there are two of each"),
    ("attention/normalisers.py", "Sparsemax.normalise", "detach: n * ordered", _NO_SLOPE),
    ("attention/normalisers.py", "Sparsemax.normalise", "detach: excess", _NO_SLOPE),
    ("attention/normalisers.py", "*", "halve the gradient: n * *", _NO_SLOPE),
    ("attention/normalisers.py", "Entmax15.normalise", "detach: n * variance", _NO_SLOPE),
    ("attention/normalisers.py", "Entmax15.normalise", "detach: ordered", _NO_SLOPE),
    ("attention/normalisers.py", "Entmax15.normalise", "detach: taus", _NO_SLOPE),
    ("attention/normalisers.py", "Entmax15.normalise", "detach: variance (2)", _NO_SLOPE),
    ("attention/normalisers.py", "Sparsemax.normalise", "detach: ordered", _NO_SLOPE),
    (
        "attention/recent.py",
        "Differential.weights",
        "exp -> expm1: *",
        "the difference is the same",
    ),
    ("attention/normalisers.py", "Sparsemax.normalise", "Gt -> GtE: n * ordered > excess", _AT_TAU),
    ("attention/normalisers.py", "Entmax15.normalise", "LtE -> Lt: taus <= ordered", _AT_TAU),
    ("attention/normalisers.py", "Entmax15.normalise", "LtE -> Lt: n * variance <= 1", _MEAN),
    ("attention/normalisers.py", "Entmax15.normalise", "1 -> 2: 1 (4)", _MEAN),
    (
        "attention/normalisers.py",
        "_minus_max",
        "2.0 -> 3.0: 2.0",
        "both are outside of the support",
    ),
    ("attention/recent.py", "Differential.weights", "drop a minus: -1 (3)", _TWO_DIMENSIONS),
    (
        "optimizer/recent.py",
        "AdEMAMixOptimizer.update",
        "1.0 -> 2.0: 1.0 (3)",
        "the formula gives beta3 there, but for rounding",
    ),
    ("optimizer/*", "*.update", "detach: *", _STEP),
    ("initialisation/*", "*", "detach: linear.weight*", _IN_PLACE),
    ("initialisation/*", "*", "detach: linear.bias*", _IN_PLACE),
    ("initialisation/*", "*", "detach: bias*", _IN_PLACE),
    ("position/relative.py", "_bucket_starts", "9 -> 10: 9", "no power is so near an integer"),
    ("embedding.py", "TokenEmbedding.draw", "detach: *", _IN_PLACE),
    ("position/*", "*.__init__", "detach: self.table", _IN_PLACE),
    ("embedding.py", "TokenEmbedding.__init__", "std -> var: self.std", "draw sets it"),
    ("embedding.py", "TokenEmbedding.scores", "drop a minus: -1", _TWO_DIMENSIONS),
    ("embedding.py", "Embedding.logits", "drop a minus: -1", _TWO_DIMENSIONS),
    ("embedding.py", "TokenEmbedding.__init__", "1.0 -> 2.0: 1.0", "draw replaces it"),
    (
        "scaling.py",
        "LayerQKNorm.key",
        "drop the call of at_least_float32: at_least_float32(k)",
        "on a CPU LayerNorm computes in float32 whatever its input",
    ),
    ("feed_forward/mixture.py", "MixtureOfExperts.forward", "detach: p (2)", _ORDER),
    ("feed_forward/mixture.py", "MixtureOfExperts._selection_scores", "detach: p", _ORDER),
    ("feed_forward/mixture.py", "LossFreeExperts._selection_scores", "halve the*", _ORDER),
    (
        "feed_forward/mixture.py",
        "LossFreeExperts.__init__",
        "0.0 -> 1.0: 0.0",
        "they add no balance loss that it would weigh",
    ),
    (
        "feed_forward/mixture.py",
        "LossFreeExperts.__init__",
        "zeros -> ones: torch.zeros (2)",
        "loads are compared with their mean",
    ),
    ("residual/scaled.py", "Admin.forward", "detach: omega", _IN_PLACE),
    ("residual/scaled.py", "Admin.forward", "detach: x (2)", _NO_GRADIENT),
    ("residual/scaled.py", "Admin.forward", "detach: y", _NO_GRADIENT),
    ("residual/scaled.py", "_calibrate", "detach: *", _NO_GRADIENT),
    ("residual/scaled.py", "_calibrate", "halve the gradient: *", _NO_GRADIENT),
    ("residual/scaled.py", "DeepNorm.rescale", "detach: *", _IN_PLACE),
    ("residual/scaled.py", "DeepNorm.rescale", "halve the gradient: *", _IN_PLACE),
    ("residual/streams.py", "HyperConnections.forward", "drop a minus: -2*", _FOUR_DIMENSIONS),
    ("residual/streams.py", "_Sum.forward", "drop a minus: -2", _FOUR_DIMENSIONS),
    ("residual/streams.py", "_Combination.forward", "True -> False: True", _SAME_LENGTH),
    ("analysis/dunnett.py", "_root", "*", _SAME_ROOT),
    ("analysis/dunnett.py", "_n_nodes", "*", _MORE_NODES),
    ("analysis/dunnett.py", "_critical", "1e-06 -> *", _SAME_ROOT),
    ("analysis/dunnett.py", "_critical", "1.02 -> *", _SAME_ROOT),
    (
        "analysis/dunnett.py",
        "loadings_of",
        "only the first of max: max(excess, 1.0)",
        "the residuals of a fit have the mean 0, so that the largest is at least 0",
    ),
    ("analysis/measures.py", "*", "swap row and baseline*", "only their variance is used"),
    ("analysis/measures.py", "*", "swap ours and theirs*", "only their variance is used"),
    (
        "analysis/sentences.py",
        "chrf",
        "drop the second term: precision + recall",
        "both are 0, or none is",
    ),
    ("analysis/speeds.py", "median_polish", "Lt -> LtE: *", "no computed number equals the bound"),
    ("analysis/dunnett.py", "*", "drop the call of _between_0_and_1*", _ROUNDING),
    ("analysis/dunnett.py", "_between_0_and_1", "*", _ROUNDING),
    (
        "analysis/dunnett.py",
        "critical_value",
        "sorted -> list*",
        "the order is for the cache alone",
    ),
    ("analysis/dunnett.py", "coverage", "swap values and _NEARLY_1*", "a minimum is symmetric"),
    ("analysis/dunnett.py", "*", "9 -> 10: 9", "digits that only the cache looks at"),
    (
        "analysis/dunnett.py",
        "loadings_of",
        "1.0 -> 2.0: 1.0 (2)",
        "the diagonal is left out afterwards",
    ),
    (
        "analysis/dunnett.py",
        "loadings_of",
        "sum -> the mean: logarithms.sum",
        "two loadings are equal, and their product is scaled to the correlation",
    ),
    ("analysis/comparison.py", "Difference.*", "Or -> And*", "all of them are there, or none"),
    (
        "analysis/dunnett.py",
        "loadings_of",
        "1.0 -> 2.0: 1.0",
        "the diagonal is left out afterwards",
    ),
    ("analysis/dunnett.py", "_noncentrality", "drop the second term: critical*", _SAME_ROOT),
    ("analysis/dunnett.py", "_critical", "Lt -> LtE: high*", _NEVER_JUST),
    ("analysis/spreads.py", "errors", "swap moderated and pooled*", "a maximum is symmetric"),
    (
        "analysis/spreads.py",
        "_own",
        "1 -> 2: 1 (3)",
        "of a row that stands out it is larger than 2",
    ),
    ("analysis/measures.py", "_paired", "swap the first two*", "only their variance is used"),
    (
        "analysis/two_tables.py",
        "compare_matched",
        "Gt -> GtE: len(pool) > 1",
        "a row alone has the pooled error, which is its own",
    ),
    ("analysis/two_tables.py", "_without_interval", "swap before.n and after.n*", "a minimum"),
    (
        "analysis/two_tables.py",
        "_without_interval",
        "swap the first two: (before, after)",
        "they are compared for equality",
    ),
    ("analysis/two_way.py", "*", "Gt -> GtE: *", "no computed number equals the bound"),
    (
        "analysis/two_way.py",
        "TwoWay.residuals",
        "drop the second factor: self._effects*",
        "what is not observed has no weight in the means, and is 0 in the end",
    ),
    (
        "analysis/two_way.py",
        "TwoWay._zero_filled",
        "0.0 -> 1.0: 0.0",
        "what is not observed has no weight",
    ),
    (
        "analysis/two_way.py",
        "TwoWay._row_blocks",
        "Eq -> NotEq*",
        "with the columns of seeds both span the same space",
    ),
    ("measuring/scores.py", "score", "True -> False: True*", "it only silences a warning"),
    (
        "model/stack.py",
        "Stack.forward",
        "Lt -> LtE: *",
        _NEVER_EQUAL,
    ),
    ("model/assembly.py", "assemble", "swap the first two: (model.encoder, *", _NO_ORDER),
    (
        "model/assembly.py",
        "_stack",
        "sorted -> list: sorted(set(order))",
        "a set of small integers is in order",
    ),
    ("model/stack.py", "Stack.needs_calibration", "any -> all: *", _ONE_SCHEME),
    ("model/transformer.py", "Transformer.calibrate", "swap the first two: (self.enc*", _NO_ORDER),
    ("model/transformer.py", "Transformer.step", "detach: *", _SEARCH),
    ("model/transformer.py", "Transformer.step", "halve the gradient: *", _SEARCH),
    ("model/transformer.py", "Transformer.decoder_state", "detach: *", _SEARCH),
    ("model/ensemble.py", "_EnsembleState.__init__", "0 -> 1: 0", _ALL_MEMBERS),
    ("model/ensemble.py", "_EnsembleState.length", "0 -> 1: 0", _ALL_MEMBERS),
    ("model/ensemble.py", "_EnsembleState.select", "0 -> 1: 0", _ALL_MEMBERS),
    ("model/ensemble.py", "_MeanOutput.__init__", "0 -> 1: 0", _ALL_MEMBERS),
    ("training/curvature.py", "with_sampled_labels", "drop a minus: -1*", _TWO_DIMENSIONS),
    (
        "training/checkpoint.py",
        "_is_intact",
        "False -> True: False",
        "torch.load refuses such a part by itself",
    ),
    (
        "training/engines/requirements.py",
        "_parts_of",
        "swap the first two: (model.encoder, model.decoder)",
        _WHICH_REASON,
    ),
    (
        "training/engines/fully_sharded.py",
        "_ZerosForNone.backward",
        "detach: *",
        _NO_GRADIENT_INSIDE,
    ),
    (
        "training/engines/self_check.py",
        "*",
        "detach: *",
        "copies on the host have no gradient",
    ),
    (
        "training/engines/cuda_graph.py",
        "padded_length",
        "Gt -> GtE: n > 16 * step",
        "the length is a multiple of both steps there",
    ),
    ("training/candidates.py", "draw_candidates", "swap the first two: (PAD, EOS)", _NO_ORDER),
    (
        "training/candidates.py",
        "draw_candidates",
        "1.0 -> 2.0: 1.0 (2)",
        "no sum of probabilities exceeds 1",
    ),
    ("training/checkpoint.py", "restore", "2 -> 3: 2", _WHERE_WARNED),
    ("training/plan.py", "count_steps", "swap the first two: (n_tokens, *", "both are 0"),
    ("training/loop.py", "_Loop._seed_dropout", "1000003 -> 1000004: *", _SEEDS),
    ("training/loop.py", "_Loop._seed_dropout", "Add -> Sub: *", _SEEDS),
    ("training/engines/factory.py", "make_engine", "2 -> 3: 2", _WHERE_WARNED),
    (
        "training/engines/grad_worker.py",
        "*",
        "swap the first two: (EOFError, OSError)",
        _NO_ORDER,
    ),
    (
        "training/engines/grad_worker.py",
        "GradWorker.__init__",
        "True -> False: True",
        "the process ends with its parent in any case",
    ),
    (
        "training/engines/grad_worker.py",
        "GradWorker.__init__",
        "drop the statement: warnings.simplefilter*",
        "Python warns of forks only from 3.12 on",
    ),
    (
        "training/engines/data_parallel.py",
        "DataParallel._workers_for",
        "Gt -> GtE: n_processes > 1",
        _MOVED,
    ),
    (
        "training/engines/cuda_graph.py",
        "CudaGraph.__init__",
        "zeros -> ones: torch.zeros",
        "rates are set before every update",
    ),
    (
        "training/engines/cuda_graph.py",
        "CudaGraph.__init__",
        "0 -> 1: 0 (2)",
        "every model has more than one weight",
    ),
    (
        "training/engines/cuda_graph.py",
        "CudaGraph.forward_backward",
        "True -> False: True*",
        "it decides whether the host waits for the copy",
    ),
    ("training/engines/self_check.py", "_update_difference", "8 -> 9: 8", _ROUNDING),
    ("training/gradient.py", "backward_to_hidden", "swap hidden.dtype and *", _SYMMETRIC_TYPES),
    ("training/gradient.py", "_backward", "swap logits.dtype and *", _SYMMETRIC_TYPES),
    (
        "training/gradient.py",
        "_gradient",
        "Gt -> GtE: len(gradients) > 1",
        "the concatenation of one tensor is that tensor",
    ),
    (
        "training/step.py",
        "parameter_groups",
        "swap the first two: (model.encoder, model.decoder)",
        _NO_ORDER,
    ),
    ("data/encodings.py", "CacheWriter.write", "False -> True: False*", "the ids are only written"),
    ("data/encodings.py", "CacheWriter.finish", "sorted -> list*", "files are read by their names"),
    ("data/parallel.py", "complete", "0 -> 1: 0", _NOT_READ),
    ("data/parallel.py", "paired", "0 -> 1: 0 (4)", _NOT_READ),
    ("data/segmentation.py", "_with_shares", "1 -> 2: 1", "one number more than is read"),
    ("data/parallel.py", "_Problems.filter", "swap src and tgt*", "a problem is of the pair"),
    ("data/batches.py", "Batches.make", "True -> False: True", "whether the host waits"),
    ("data/corpus.py", "Bitext.on_disk", "swap the first two*", "both are empty"),
    ("data/corpus.py", "Bitext.__len__", "src -> *", "both sides have as many lines"),
    ("data/prepare.py", "_entry", "32 -> 33: 32", "the name of a file in the cache"),
    ("data/prepare.py", "_key", "32 -> 33: 32", "the name of a file in the cache"),
    ("data/tokenizer.py", "Unigram.fit", "False -> True: False", "no piece is a byte"),
    ("data/encodings.py", "entry_lock", "0 -> 1: 0", "seconds to wait for a held lock"),
    ("data/prepare.py", "_key", "swap the first two: (text*", "either order tells texts apart"),
    ("data/segmentation.py", "_with_shares", "0.0 -> 1.0: 0.0", "all ways share the factor"),
    (
        "data/segmentation.py",
        "DropoutSampler._ranks",
        "drop a minus: -2",
        "no text has the pair of special pieces that has this key",
    ),
    ("data/segmentation.py", "LatticeSampler._edges", "0.0 -> 1.0: 0.0", "it is the only way"),
    ("data/prepare.py", "_entry", "swap the first two*", "the order is that of a hash's input"),
    (
        "data/segmentation.py",
        "DropoutSampler.__init__",
        "drop a minus: -1 (2)",
        "no text has the pair of special pieces that has this key",
    ),
    ("data/segmentation.py", "DropoutSampler.__init__", "1 -> 2: 1", _ANY_NEGATIVE),
    ("data/segmentation.py", "DropoutSampler.sample", "1 -> 2: 1*", _ANY_NEGATIVE),
    (
        "data/segmentation.py",
        "LatticeSampler._edges",
        "drop the second term: start + 1 (2)",
        _NO_EMPTY_PIECE,
    ),
    ("data/unigram.py", "_Lattice.__init__", "drop the second term: start + 1", _NO_EMPTY_PIECE),
    ("data/order.py", "bounds", "1 -> 2: 1 (3)", "a second row that does not fit is cut off"),
    ("data/synthetic/corpus.py", "_Sentences.take", "8 -> 9: 8", "any longer hash does"),
    (
        "data/tokenizer.py",
        "Unigram.fit",
        "10.0 -> 11.0: 10.0",
        "no text has a special piece, and anything below the rarest one does",
    ),
    ("data/unigram.py", "_seeds", "drop the second term: start + 1", _NO_EMPTY_PIECE),
    ("data/unigram.py", "_Lattice.__init__", "zeros -> ones*", "every element is set below"),
    (
        "data/tokenizer.py",
        "Tokenizer.train",
        "swap src and tgt: chain(src, tgt)",
        "a joint tokenizer counts both sides together",
    ),
    (
        "data/synthetic/corpus.py",
        "_Sentences._fits",
        "swap the first two: (src_words, tgt_words)",
        "either set may be the one of a side",
    ),
    ("data/unigram.py", "_Lattice.__init__", "0 -> 1: 0", "a node that no edge touches"),
    ("data/unigram.py", "_Lattice.__init__", "1 -> 2: 1 (3)", "a node that no edge touches"),
    ("data/unigram.py", "_Lattice._steps", "1 -> 2: 1*", _ANY_NEGATIVE),
    ("data/unigram.py", "_Lattice._forward", "1 -> 2: 1", _ANY_NEGATIVE),
    (
        "data/unigram.py",
        "_Lattice._forward",
        "drop a minus: -np.inf",
        "letters reach every node",
    ),
    ("data/parallel.py", "cleaned", "swap the first two: (_INVALID*", "both are added"),
    ("data/order.py", "padding", "swap the first two: (src, tgt)", "both sides are added"),
    ("data/unigram.py", "_Lattice.__init__", "1 -> 2: 1 (4)", _ANY_NEGATIVE),
    ("data/unigram.py", "train_unigram", "drop the statement: *", _NO_PROBABILITY),
    (
        "data/tokenizer.py",
        "_split_at",
        "False -> True: False",
        "every piece begins where a space is marked, or after it",
    ),
    ("gate/check.py", "Check.flaws", "swap written and follows*", _EITHER_WAY),
    ("gate/check.py", "Check.moved", "swap before and after: is_close*", _EITHER_WAY),
    ("gate/check.py", "Check.moved", "swap the first two: (old, self) (2)", _EITHER_WAY),
    ("gate/check.py", "Check.loosened", "Gt -> GtE: rise > 0*", "a rise of 0 is left out before"),
    ("gate/checks/exact.py", "Exact.moved", "swap the first two*", _EITHER_WAY),
    ("gate/checks/exact.py", "Exact.result", "LtE -> Lt*", _NEVER_JUST),
    ("gate/reference_file.py", "text", "88 -> 89: 88", "the width of lines alone"),
    ("gate/checks/finding.py", "FindingCheck._effect", "Gt -> GtE*", "the sign is 1 or -1"),
    ("gate/checks/finding.py", "FindingCheck.bless", "Lt -> LtE: self._rep*", _NEVER_JUST),
    ("gate/checks/finding.py", "FindingCheck._not_replicable", "GtE -> Gt*", _NEVER_JUST),
    (
        "gate/checks/finding.py",
        "FindingCheck._not_replicable",
        "100 -> 101: 100",
        "half of the gates at most show a margin as large as the effect",
    ),
    (
        "gate/checks/finding.py",
        "FindingCheck._not_replicable",
        "Add -> Sub: self.seeds + 1",
        _TOO_FEW,
    ),
    (
        "gate/checks/finding.py",
        "FindingCheck._not_replicable",
        "drop the second term: self.seeds + 1",
        _TOO_FEW,
    ),
    ("gate/tolerance.py", "ways_out", "drop the second term: promise.n_new + 1", _TOO_FEW),
    ("gate/checks/paired.py", "Paired._sample", "swap values and repeats*", _SQUARED),
    ("gate/checks/paired.py", "Paired._sample", "swap the first two*", _SQUARED),
    (
        "gate/checks/paired.py",
        "Paired._other_machine",
        "0 -> 1: 0",
        "if the two differ, the repeats are refused, whichever of them is named",
    ),
    (
        "gate/checks/statistical.py",
        "Statistical.sample_so_far",
        "mean -> *",
        "the forecast uses the std and the number of seeds alone",
    ),
    ("gate/mean.py", "MeanCheck.derived_fields", "Gt -> GtE*", _NEVER_JUST),
    ("gate/mean.py", "MeanCheck.forecast", "Gt -> GtE*", _NEVER_JUST),
    ("gate/mean.py", "MeanCheck.loosened", "Gt -> GtE*", "equal tolerances are close"),
)
"""File under ``ablate/parts`` or else ``ablate``, function, change, and reason.

``*`` at the end of a change is any text.
"""


def is_equivalent(mutant: Mutant) -> bool:
    """Return whether a mutant is in the list."""
    file, function, change = mutant.key
    return any(
        fnmatch(file, files) and fnmatch(function, functions) and _matches(change, pattern)
        for files, functions, pattern, _ in EQUIVALENT
    )


def _matches(change: str, pattern: str) -> bool:
    return change.startswith(pattern[:-1]) if pattern.endswith("*") else change == pattern
