"""Mutants that compute the same as the original, with the reason; `tests.mutation` skips them.

Another one, which is not generated: dropout of the activated gate alone in a gated feed-forward is
dropout of the product, since each element of the product has one element of the gate.
"""

from __future__ import annotations

from fnmatch import fnmatch

from tests.mutants import Mutant

EQUIVALENT = """\
with one query for a row there is nothing to fold
  attention/contract.py  Attention.forward  Gt -> GtE: n_beams > 1*
a full cache does not grow
  attention/cache.py  KVCache.of  2 -> 3: 2
the logits have two dimensions
  objective/penalties.py  *.penalty  drop a minus: -1*
the gradient of a sum of probabilities is 0
  objective/penalties.py  ConfidencePenalty.penalty  detach: log_p
another way to the same numbers, which for bf16 takes less time
  objective/likelihood.py  smoothed_cross_entropy  negate the condition: if logits.is_cpu and *
  objective/likelihood.py  smoothed_cross_entropy  Eq -> NotEq: logits.dtype == torch.bfloat16
without bf16 the logits of a CPU are in single precision or better
  objective/likelihood.py  smoothed_cross_entropy  drop the call of at_least_float32: *
no type of device but meta has no autocast, and the tests have no other than the CPU
  feed_forward/mixture.py  MixtureOfExperts._probabilities  negate the condition: 'cpu' *
the formula gives beta3 there
  optimizer/recent.py  AdEMAMixOptimizer.update  Lt -> LtE: share < 1.0
no two are equal
  optimizer/recent.py  SoapOptimizer._update_bases  True -> False: True (2)
  decoding/beam.py  _BeamState.hypotheses  True -> False: True (2)
at a rate below 2^-16 either way drops one element of many thousands
  dropout.py  ElementDropout.forward  0 -> 1: 0 (2)
only the shape and the type of the new tensor are read from it
  dropout.py  ElementDropout.forward  detach: input (3)
a warning is printed
  metric.py  Bleu._sacrebleu  True -> False: True
no power of a test is just the limit
  gate/checks/finding.py  FindingCheck._not_replicable  GtE -> Gt: *
no length is below 1, and the first bound is 8
  data/batches.py  bucket_bounds  0 -> 1: 0
fewer pairs have no fault
  data/faults.py  _fault  1 -> 2: 1
any negative number is the key of no pair
  data/segmentation.py  DropoutSampler._ranks  2 -> 3: 2
gradients are 0 or absent before a check
  training/engines/self_check.py  compare  drop the statement: engine.model.zero_grad(set_to_none=*
products of matrices alone are counted
  measuring/counts.py  FlopCounter.count  sum -> the mean: *
of two rows the spread is one row's as much as the other's
  analysis/comparison.py  _departed  Gt -> GtE: len(rows) > 2
the trigamma function's inverse is so near to a line that it may begin anywhere
  analysis/spreads.py  _inverse_trigamma  drop the second term: 0.5 + 1 / y
another way to the same rank
  analysis/two_way.py  TwoWay.__init__  True -> False: True
both are there or neither
  decoding/beam.py  _BeamState.advance  And -> Or: *
chunks may have any size
  decoding/candidates.py  candidates  1 -> 2: 1 (2)
  decoding/candidates.py  candidates  only the first of max: *
the tensor has four dimensions, of which 2 is the last but one
  decoding/candidates.py  blockwise_topk  drop a minus: -2
it decides when sentences that are done leave the batch
  decoding/decode_loop.py  DecodeLoop.run  Mult -> Div: _SHRINK_BELOW * n
any order will do
  decoding/decode_loop.py  DecodeLoop._drop_done  sorted -> list: *
buffers may have any size
  decoding/decode_loop.py  CapturedDecodeLoop._two_steps  2 -> 3: 2 (3)
on a CPU it is there at once
  data/batches.py  Batch.to  True -> False: True
a longer name
  data/own_text.py  OwnText.faults  32 -> 33: 32
shares add up to 1 but for rounding
  data/segmentation.py  LatticeSampler.__init__  Sub -> Add: len(bounds) - 1
a file may begin with a gap
  data/sentences.py  Lines.__init__  0 -> 1: 0
the first of two is the first
  data/sentences.py  Lines.__getitem__  1 -> 2: 1
it has been killed
  training/engines/data_parallel.py  GradWorker.close  drop the statement: self._process.join()
it is replaced by the first pass
  training/engines/distributed.py  ForwardPass.__init__  0 -> 1: 0
the snapshot restores the generators
  training/engines/self_check.py  _Gradient.of  drop the statement: generator.manual_seed(_SEED)
one process has all of every weight
  training/weights.py  Weights.state_dict  drop the call of self.gather: *
the constant is above
  analysis/dunnett.py  _critical  drop the second term: 1 - 1e-06
beyond the end is next to nothing
  analysis/dunnett.py  _error_nodes  drop the second factor: *
a search may begin with other bounds: the estimate is never below the one that is sought
  analysis/sequential.py  median_unbiased  Mult -> Div: 10 * error (2)
  analysis/sequential.py  median_unbiased  abs -> float: abs(estimate) (2)
no probability is just the limit
  analysis/two_tables.py  _pool  GtE -> Gt: *
the determinants are in the same order in every call
  data/prepare.py  _name_of  True -> False: True
the tests know one version of the library
  data/prepare.py  trained_tokenizers  2 -> 3: 2
the order of the words does not matter
  data/unigram.py  train_unigram  sorted -> list: sorted(counts)
only who reads it would see a fourth decimal
  training/loop.py  _Loop._result  3 -> 4: 3
the relative tolerance is of numbers that are 0 or 1
  analysis/two_way.py  TwoWay.__init__  swap estimable and contrasts: *
every share is below 2
  data/faults.py  _Languages.faults  2.0 -> 3.0: 2.0*
both are the same number there
  data/parallel.py  paired  0 -> 1: 0 (6)
every sentence ends with the same token
  data/segmentation.py  resampled  drop the second term: block.starts + block.lengths
all inputs are on the meta device
  measuring/counts.py  _CountingMode.__torch_dispatch__  Is -> IsNot: x is None (2)
any segmentation will do
  measuring/workload.py  _steps  0 -> 1: 0
rows are given, whatever the size of a batch
  measuring/workload.py  Workload.__init__  1 -> 2: 1 (2)
memory is free earlier
  training/loop.py  _Loop.run  drop the statement: give_back_free_memory()
candidates are judged without a gradient
  training/gradient.py  backward_to_hidden  detach: hidden
both are empty, or hold the same
  data/prepare.py  _write  swap the first two: (src, tgt)
  training/engines/cuda_graph.py  CudaGraph._make_inputs  swap the first two: (n_tokens, normalizer)
a key of what is known of a table differs all the same
  data/table.py  Table.__init__  Is -> IsNot: columns is None
the first batch sets it
  training/engines/distributed.py  Distributed.__init__  0 -> 1: 0
both orders give the same
  analysis/spreads.py  prior_df  swap apart and _LEAST: *
  training/curve.py  LayerRecorder.after_step  swap the first two: (now, old)
  data/faults.py  _scanned  swap the first two: (src, tgt)
  gate/check.py  is_close  swap one and other: *
  data/parallel.py  complete  swap _INVALID and _NUL: *
  gate/mean.py  MeanCheck.loosened  swap would and was: *
  measuring/counts.py  count_parameters  swap the first two: (stack.opening, stack.closing)
  measuring/likelihood.py  likelihood  swap the first two: (row, start)
  analysis/two_way.py  TwoWay._row_blocks  swap the first two: (of_rows, of_seeds)
  decoding/sampling.py  _ngram_f1  swap the first two: (a, b)
the work of an untrained model does not depend on its weights
  measuring/workload.py  Workload.model  freeze seed: *
the loadings are scaled until their product is the correlation
  analysis/dunnett.py  loadings_of  2 -> 3: 2 (2)
what the copy writes into a cache is written again
  model/decodable.py  DecoderState.shallow_copy  drop the call of copy: copy(target)
at its last step a sentence ends anyway
  decoding/candidates.py  LengthLimits.topk  Lt -> LtE: step < self.max_lens
changes that give one path two values are refused
  config/rows.py  _leave_one_out  swap rest and other: union(rest, other, [])
the sizes of batches are the same in every epoch of every seed
  runner/run.py  _Attempt._execute  freeze seed: batches.of_epoch(0, 0).epoch(self.spec.seed, 0)
  runner/run.py  _Attempt._execute  0 -> 1: 0*
  runner/probe.py  probe_one  freeze seed: batches.epoch(spec.seed, 0)
  runner/probe.py  probe_one  0 -> 1: 0
  runner/probe.py  probe_one  0 -> 1: 0 (2)
  runner/probe.py  probe_one  0 -> 1: 0 (3)
  runner/match.py  CostCounter.__call__  0 -> 1: 0
  runner/match.py  CostCounter.__call__  0 -> 1: 0 (2)
of a tokenizer that samples, the segmentation of any epoch will do; others have one
  runner/run.py  _Attempt._describe  0 -> 1: 0
  runner/run.py  _Attempt._describe  0 -> 1: 0 (2)
a value of 0 is refused by the search, too, and that of 1 by the option
  runner/match.py  solve  1 -> 2: 1
the keys are in the order of the fields, the same in every call
  runner/probe.py  probe_key  True -> False: True
no model has so large a size
  runner/match.py  _Search._bracket  2 -> 3: 2
  runner/match.py  _Search._bracket  2 -> 3: 2 (4)
a search that meets the target ends there
  runner/match.py  _Search._ends  Lt -> LtE: *
  runner/match.py  _Search._bracket  Lt -> LtE: self.costs[value] < self.target
the other end of a pipe, which is closed when the process ends
  runner/other_ranks.py  _Others.__init__  drop the statement: end.close()
the tests run on Linux, without a GPU
  runner/other_ranks.py  _Others.__init__  And -> Or: sys.platform == 'linux' and *
the status is not 0 there
  runner/other_ranks.py  _Others._losses  0 -> 1: 0 (2)
  runner/other_ranks.py  _Others._losses  Lt -> LtE: status < 0
  runner/other_ranks.py  _Others._losses  Gt -> GtE: status > 0
the engine of most runs uses one core, however many there are
  runner/run.py  run_one  1 -> 2: 1
a time to wait
  runner/other_ranks.py  _Others.cause  drop the statement: time.sleep(0.05)
  runner/other_ranks.py  _Others.cause  Lt -> LtE: time.monotonic() < deadline
  runner/other_ranks.py  _Others._watch  2 -> 3: 2
  runner/other_ranks.py  _Others._watch  1.0 -> 2.0: 1.0
between neighbours there is no value to try
  runner/match.py  _Search._narrow  Lt -> LtE: low < guess < high
without a cost, the error is larger than any tolerance
  runner/match.py  _Search._is_enough  1.0 -> 2.0: 1.0
the two thresholds differ by 2^16 and are compared as 16-bit integers
  dropout.py  ElementDropout.forward  Sub -> Add: n_dropped - _STEPS // 2
a verb without an object has none before it
  data/synthetic/corpus.py  Sampler._modifier  False -> True: False
a random number equals the rate with a probability of about 1e-7
  data/synthetic/corpus.py  Sampler._modifier  Lt -> LtE: kind < *
  dropout.py  WordDropout.forward  Lt -> LtE: draws < self.rate
  dropout.py  WordDropout.forward  GtE -> Gt: draws*
  dropout.py  HeadDropout._draw  GtE -> Gt: draws*
  model/stack.py  Stack.forward  Lt -> LtE: *
the matrix of equal pairs is symmetric
  dropout.py  WordDropout.forward  drop a minus: -1
  dropout.py  WordDropout.forward  1 -> 2: 1
the first is kept anyway
  dropout.py  HeadDropout._draw  Gt -> GtE: head > first
it is a bound for a number that exceeds it by rounding alone
  dropout.py  HeadDropout._draw  Sub -> Add: n_heads - 1
  dropout.py  HeadDropout._draw  drop the second term: n_heads - 1
  analysis/dunnett.py  Family.p_of  drop the call of _between_0_and_1*
  analysis/dunnett.py  _between_0_and_1  only the first of max: *
  training/engines/self_check.py  _update_difference  8 -> 9: 8
the bracket is detached
  norm.py  AdaNorm.forward  detach: self.k * y
  norm.py  AdaNorm.forward  detach: y
  norm.py  AdaNorm.forward  halve the gradient: self.k * y
the product with a parameter in single precision is computed in single precision
  norm.py  DynamicTanh.forward  drop the call of at_least_float32: at_least_float32(x)
the tensor has two dimensions, of which the last is 1
  objective/*  LabelSmoothing.loss  drop a minus: -1*
  objective/*  MinimumRisk.weigh  drop a minus: -1*
  objective/*  *CrossEntropy.forward  drop a minus: -1*
  position/absolute.py  _sines_and_cosines  drop a minus: -1 (2)
  optimizer/recent.py  _eigenvectors  drop a minus: -1
  attention/recent.py  Differential.weights  drop a minus: -1 (3)
  embedding.py  TokenEmbedding.scores  drop a minus: -1
  embedding.py  Embedding.logits  drop a minus: -1
  training/engines/contract.py  with_sampled_labels  drop a minus: -1*
no logit lies between the masked ones and those of models
  objective/*  LabelSmoothing.loss  Lt -> LtE: logits < MASKED_LOGIT / 2
  objective/*  LabelSmoothing.loss  2 -> 3: 2
a comparison has no gradient
  objective/*  LabelSmoothing.loss  detach: logits (3)
  attention/normalisers.py  Sparsemax.normalise  detach: n * ordered
  attention/normalisers.py  Sparsemax.normalise  detach: excess
  attention/normalisers.py  *  halve the gradient: n * *
  attention/normalisers.py  Entmax15.normalise  detach: n * variance
  attention/normalisers.py  Entmax15.normalise  detach: ordered
  attention/normalisers.py  Entmax15.normalise  detach: taus
  attention/normalisers.py  Entmax15.normalise  detach: variance (2)
  attention/normalisers.py  Sparsemax.normalise  detach: ordered
autograd records nothing inside of an autograd.Function
  objective/*  *CrossEntropy.forward  detach: *
  objective/*  *CrossEntropy.forward  halve the gradient: *
  training/engines/fully_sharded.py  _ZerosForNone.backward  detach: *
only its order is used
  feed_forward/*  MixtureOfExperts.forward  detach: p
  feed_forward/*  LossFreeExperts._selection_scores  detach: *
  feed_forward/mixture.py  MixtureOfExperts.forward  detach: p (2)
  feed_forward/mixture.py  MixtureOfExperts._selection_scores  detach: p
  feed_forward/mixture.py  LossFreeExperts._selection_scores  halve the*
two phases have the same rate where they meet
  schedule/*  OneCycle.rate  Lt -> LtE: step < *
no step comes after the last one
  schedule/falling.py  CosineRestarts.rate_after_warmup  1.0 -> 2.0: 1.0
the minimum of it and 1 is taken
  schedule/endless.py  Constant.rate  1.0 -> 2.0: 1.0 (2)
the first loss is less than infinity, which sets it to 0
  schedule/endless.py  Plateau.rate_after_warmup  0 -> 1: 0
one 0 is broadcast to all heads
  position/relative.py  ALiBi.__init__  drop the second factor: [0] * n_heads
its sign alone counts
  position/relative.py  ALiBi.__init__  1 -> 2: 1*
foreach is faster and computes the same
  optimizer/adaptive.py  Adafactor.__init__  True -> False: True
  optimizer/momentum.py  Sgd.__init__  True -> False: True
training takes them without gradients
  optimizer/adaptive.py  *.averages  detach: *
as above
  optimizer/adaptive.py  *.averages  halve the gradient: *
the parameter is z as long as all rates were 0
  optimizer/adaptive.py  ScheduleFreeAdamWOptimizer.update  0.0 -> 1.0: 0.0 (3)
all groups have the same
  optimizer/adaptive.py  SophiaOptimizer.every  0 -> 1: 0
the sign alone counts
  optimizer/recent.py  CautiousAdamWOptimizer.update  Mult -> Div: u * g
steps are made without gradients
  optimizer/*  *.step  detach: *
  optimizer/*  *.update  detach: *
a search computes no gradients
  decoding/*  *  detach: *
  decoding/*  *  halve the gradient: *
  model/transformer.py  Transformer.step  detach: *
  model/transformer.py  Transformer.step  halve the gradient: *
  model/transformer.py  Transformer.start  detach: *
one more token has room
  decoding/search_state.py  beginning  1 -> 2: 1
tokens are flattened later
  decoding/search_state.py  TokenState.last_tokens  1 -> 2: 1 (3)
  decoding/search_state.py  TokenState.last_tokens  drop a minus: -1 (2)
chunks may have any size
  decoding/candidates.py  candidates  1 -> 2: 1
to drop no sentence reorders the rows, too
  decoding/decode_loop.py  DecodeLoop.run  Sub -> Add: n - 1
  decoding/decode_loop.py  DecodeLoop.run  drop the second term: n - 1
it decides when sentences that are done leave the batch
  decoding/decode_loop.py  DecodeLoop.run  IsNot -> Is: parents is not None
  decoding/decode_loop.py  DecodeLoop.run  drop the second factor: _SHRINK_BELOW * n
  decoding/decode_loop.py  CapturedDecodeLoop.run  drop the second factor: _RECAPTURE_BELOW * len(s*
  decoding/decode_loop.py  DecodeLoop.run  negate the condition: n - 1 if parents is not None else *
  decoding/decode_loop.py  CapturedDecodeLoop.run  Mult -> Div: _RECAPTURE_BELOW * len(self.sentenc*
the first buffers ask for a warm-up
  decoding/decode_loop.py  CapturedDecodeLoop.__init__  False -> True: False
room for two tokens is needed
  decoding/decode_loop.py  CapturedDecodeLoop._two_steps  0 -> 1: 0
buffers grow one token earlier
  decoding/decode_loop.py  CapturedDecodeLoop._two_steps  Gt -> GtE: length + 2 > (capacity or 0)
both ways find the same numbers
  decoding/candidates.py  blockwise_topk  Lt -> LtE: n_blocks < _MIN_BLOCKS * k
the last but one token is decoded by itself
  decoding/decode_loop.py  CapturedDecodeLoop._two_steps  2 -> 3: 2
a cache serves the search for translations, which computes no gradients
  attention/cache.py  *  detach: *
  attention/cache.py  *  halve the gradient: *
  attention/contract.py  Attention.forward  detach: k (2)
  attention/contract.py  Attention.forward  detach: v (2)
the buffers of keys and of values have room for the same rows and tokens
  attention/cache.py  KVCache.extend  0 -> 1: 0 (2)
  attention/cache.py  KVCache.select  0 -> 1: 0 (2)
  attention/cache.py  KVCache.select  0 -> 1: 0 (4)
  attention/cache.py  StaticKVCache.select  0 -> 1: 0 (2)
  attention/cache.py  StaticKVCache.select  0 -> 1: 0 (7)
the same contents are moved to new memory, which has room for them
  attention/cache.py  KVCache.extend  Lt -> LtE: *
  attention/cache.py  KVCache.extend  negate the condition: if self._buffers[0]*
  attention/cache.py  KVCache.select  1 -> 2: 1
  attention/cache.py  KVCache.select  drop the second term: n + 1
  attention/cache.py  KVCache._empty  2 -> 3: 2
  attention/cache.py  KVCache.select  Lt -> LtE: *
  training/engines/data_parallel.py  DataParallel._workers_for  Gt -> GtE: n_processes > 1
the tensor has four dimensions, of which 2 is the last but one
  attention/contract.py  Attention.*  drop a minus: -2
  residual/streams.py  HyperConnections.forward  drop a minus: -2*
  residual/streams.py  _Sum.forward  drop a minus: -2
the difference is the same
  attention/recent.py  Differential.weights  exp -> expm1: *
a score at tau has the weight 0 inside of the support as well as outside
  attention/normalisers.py  Sparsemax.normalise  Gt -> GtE: n * ordered > excess
  attention/normalisers.py  Entmax15.normalise  LtE -> Lt: taus <= ordered
tau is at least the mean there, which the smallest of the scores does not reach
  attention/normalisers.py  Entmax15.normalise  LtE -> Lt: n * variance <= 1
  attention/normalisers.py  Entmax15.normalise  1 -> 2: 1 (4)
both are outside of the support
  attention/normalisers.py  _minus_max  2.0 -> 3.0: 2.0
the formula gives beta3 there, but for rounding
  optimizer/recent.py  AdEMAMixOptimizer.update  1.0 -> 2.0: 1.0 (3)
a detached tensor is changed in place like the parameter whose memory it shares
  initialisation/*  *  detach: linear.weight*
  initialisation/*  *  detach: linear.bias*
  initialisation/*  *  detach: bias*
  embedding.py  TokenEmbedding.draw  detach: *
  position/*  *.__init__  detach: self.table
  residual/scaled.py  Admin.forward  detach: omega
  residual/scaled.py  DeepNorm.rescale  detach: *
  residual/scaled.py  DeepNorm.rescale  halve the gradient: *
no power is so near an integer
  position/relative.py  _bucket_starts  9 -> 10: 9
draw sets it
  embedding.py  TokenEmbedding.__init__  std -> var: self.std
draw replaces it
  embedding.py  TokenEmbedding.__init__  1.0 -> 2.0: 1.0
on a CPU LayerNorm computes in float32 whatever its input
  scaling.py  LayerQKNorm.key  drop the call of at_least_float32: at_least_float32(k)
they add no balance loss that it would weigh
  feed_forward/mixture.py  LossFreeExperts.__init__  0.0 -> 1.0: 0.0
loads are compared with their mean
  feed_forward/mixture.py  LossFreeExperts.__init__  zeros -> ones: torch.zeros (2)
the calibration has no gradient
  residual/scaled.py  Admin.forward  detach: x (2)
  residual/scaled.py  Admin.forward  detach: y
  residual/scaled.py  _calibrate  detach: *
  residual/scaled.py  _calibrate  halve the gradient: *
the search ends at the same root, sooner or later
  analysis/dunnett.py  _root  drop the *
  analysis/dunnett.py  _root  Gt -> GtE: *
  analysis/dunnett.py  _root  Lt -> LtE: *
  analysis/dunnett.py  _root  Sub -> Add: high - low*
  analysis/dunnett.py  _root  Div -> Mult: at_*
  analysis/dunnett.py  _root  2 -> 3: 2*
  analysis/dunnett.py  _critical  1e-06 -> *
  analysis/dunnett.py  _critical  1.02 -> *
  analysis/dunnett.py  _noncentrality  drop the second term: critical*
  analysis/sequential.py  _root  *
  analysis/dunnett.py  _noncentrality  1 -> 2: 1
the constant of one comparison is below that of a family by more than that
  analysis/dunnett.py  _critical  Sub -> Add: 1 - 1e-06
the integral has more nodes, or fewer and an error below 1e-4
  analysis/dunnett.py  _n_nodes  0.5 -> 1.5: 0.5
  analysis/dunnett.py  _n_nodes  2 -> 3: 2
  analysis/dunnett.py  _n_nodes  drop the second factor: b * b
  analysis/dunnett.py  _n_nodes  min -> max: *
  analysis/dunnett.py  _n_nodes  only the first of min: *
  analysis/dunnett.py  _n_nodes  log2 -> log: *
the residuals of a fit have the mean 0, so that the largest is at least 0
  analysis/dunnett.py  loadings_of  only the first of max: max(excess, 1.0)
only their variance is used
  analysis/measures.py  _with_new_sentences  swap the first two: (influences*
sacreBLEU counts no n-grams of an order that the reference lacks
  analysis/sentences.py  chrf  Gt -> GtE: theirs > 0
both are 0, or none is
  analysis/sentences.py  chrf  drop the second term: precision + recall
no computed number equals the bound
  analysis/summary.py  median_polish  Lt -> LtE: *
  analysis/two_way.py  *  Gt -> GtE: *
the order is for the cache alone
  analysis/dunnett.py  critical_value  sorted -> list*
a minimum is symmetric, and a maximum
  analysis/dunnett.py  coverage  swap values and _NEARLY_1*
digits that only the cache looks at
  analysis/dunnett.py  *  9 -> 10: 9
the diagonal is left out afterwards
  analysis/dunnett.py  loadings_of  1.0 -> 2.0: 1.0 (2)
  analysis/dunnett.py  loadings_of  1.0 -> 2.0: 1.0
two loadings are equal, and their product is scaled to the correlation
  analysis/dunnett.py  loadings_of  sum -> the mean: logarithms.sum
all of them are there, or none
  analysis/comparison.py  Difference.*  Or -> And*
no measured number is just the limit
  analysis/dunnett.py  _critical  Lt -> LtE: high*
  gate/checks/exact.py  Exact.result  LtE -> Lt*
  gate/checks/finding.py  FindingCheck.bless  Lt -> LtE: self._rep*
  gate/mean.py  MeanCheck.derived_fields  Gt -> GtE*
  gate/mean.py  MeanCheck.forecast  Gt -> GtE*
two rows are the only ones without a degree of freedom left
  analysis/spreads.py  prior_df  1 -> 2: 1
what is infinite is replaced, and of a pooled variance of 0 all is 0
  analysis/spreads.py  _own  0.0 -> 1.0: 0.0
a row alone has the pooled error, which is its own
  analysis/two_tables.py  compare_matched  0.0 -> 1.0: 0.0 (4)
  analysis/two_tables.py  compare_matched  Gt -> GtE: len(pool) > 1
a minimum
  analysis/two_tables.py  _without_interval  swap before.n and after.n*
they are compared for equality
  analysis/two_tables.py  _without_interval  swap the first two: (before, after)
what is not observed has no weight in the means, and is 0 in the end
  analysis/two_way.py  TwoWay.residuals  drop the second factor: self._effects*
what is not observed has no weight
  analysis/two_way.py  TwoWay._zero_filled  0.0 -> 1.0: 0.0
with the columns of seeds both span the same space
  analysis/two_way.py  TwoWay._row_blocks  Eq -> NotEq: rows[:, None] == *
  analysis/two_way.py  TwoWay._row_blocks  Eq -> NotEq: seeds[:, None] == *
the walks of the baseline are as symmetric as the nodes
  analysis/sequential.py  _Row.stop_at  Sub -> Add: *
where the pooled variance is 0, so is each
  analysis/two_tables.py  compare_matched  1.0 -> 2.0: 1.0
how a mapping is printed
  config/merge.py  normalize  True -> False: True*
seeds may stand in any order
  analysis/comparison.py  _array  sorted -> list: *
where the rows have settled, the rounds do not move again
  analysis/summary.py  median_polish  max -> min: np.abs(of_rounds).max
a matrix has two axes, of which the last is the second
  measuring/attention.py  similarities  drop a minus: -1
of a set no order is read
  config/merge.py  marks  swap the first two: (node.start, node.key)
they have no gradient there, or are cut off from it afterwards
  training/engines/fully_sharded.py  _ZerosForNone.forward  detach: x
  training/gradient.py  backward_to_hidden  detach: hidden[0]
the number that is sent is not read
  training/ranks.py  Ranks.first_rank_first  0.0 -> 1.0: *
of a batch of equal rows the first is read
  measuring/attention.py  _of_layer  1 -> 2: 1 (*
  measuring/attention.py  similarities  1 -> 2: 1
operations are counted, and not their results
  measuring/counts.py  FlopCounter.count  halve the gradient: *
both are filled before they are read
  training/engines/cuda_graph.py  CudaGraph._make_inputs  swap n_tokens and normalizer*
an operation that is not kept is counted anew
  measuring/counts.py  _CountingMode.__torch_dispatch__  Or -> And: x is None or x.is_meta
of batches of one length any may be measured
  measuring/workload.py  _steps  0 -> 1: 0 (3)
it only silences a warning
  measuring/scores.py  score  True -> False: True*
a set of values or of errors has no order
  model/assembly.py  assemble  swap the first two: (model.encoder, *
  model/transformer.py  Transformer.calibrate  swap the first two: (self.enc*
  training/candidates.py  draw_candidates  swap the first two: (PAD, EOS)
  training/step.py  parameter_groups  swap the first two: (model.encoder, model.decoder)
a set of small integers is in order
  model/assembly.py  _stack  sorted -> list: sorted(set(order))
all layers of a stack have one residual scheme
  model/stack.py  Stack.needs_calibration  any -> all: *
it is the same for all members
  model/ensemble.py  _EnsembleState.__init__  0 -> 1: 0
  model/ensemble.py  _EnsembleState.length  0 -> 1: 0
  model/ensemble.py  _EnsembleState.select  0 -> 1: 0
  model/ensemble.py  _MeanOutput.__init__  0 -> 1: 0
  model/ensemble.py  _MeanOutput.rows_at_once  0 -> 1: 0
it decides which of two reasons is reported
  training/engines/factory.py  _parts_of  swap the first two: (model.encoder, model.decoder)
copies on the host have no gradient
  training/engines/self_check.py  *  detach: *
the length is a multiple of both steps there
  training/engines/cuda_graph.py  padded_length  Gt -> GtE: n > 16 * step
no sum of probabilities exceeds 1
  training/candidates.py  draw_candidates  1.0 -> 2.0: 1.0 (2)
it decides which line a warning names
  training/checkpoint.py  restore  2 -> 3: 2
  training/engines/factory.py  make_engine  2 -> 3: 2
both are 0
  training/step.py  count_steps  swap the first two: (n_tokens, *
the process ends with its parent in any case
  training/engines/data_parallel.py  GradWorker.__init__  True -> False: True
Python warns of forks only from 3.12 on
  training/engines/data_parallel.py  GradWorker.__init__  drop the statement: warnings.simplefilter*
rates are set before every update
  training/engines/cuda_graph.py  CudaGraph.__init__  zeros -> ones: torch.zeros
every model has more than one weight
  training/engines/cuda_graph.py  CudaGraph.__init__  0 -> 1: 0 (2)
it decides whether the host waits for the copy
  training/engines/cuda_graph.py  CudaGraph.forward_backward  True -> False: True*
of two types the wider one is taken, in any order
  training/gradient.py  backward_to_hidden  swap hidden.dtype and *
the concatenation of one tensor is that tensor
  training/gradient.py  _gradient  Gt -> GtE: len(gradients) > 1
the ids are only written
  data/encodings.py  CacheWriter.write  False -> True: False*
files are read by their names
  data/encodings.py  CacheWriter.finish  sorted -> list*
what the deque holds is not read
  data/parallel.py  complete  0 -> 1: 0
  data/parallel.py  paired  0 -> 1: 0 (4)
one number more than is read
  data/segmentation.py  _with_shares  1 -> 2: 1
a problem is of the pair
  data/parallel.py  _Problems.filter  swap src and tgt*
whether the host waits
  data/batches.py  Batches.make  True -> False: True
both are empty
  data/corpus.py  Bitext.on_disk  swap the first two*
both sides have as many lines
  data/corpus.py  Bitext.__len__  src -> *
the name of a file in the cache
  data/prepare.py  _name_of  32 -> 33: 32
  data/prepare.py  trained_tokenizers  32 -> 33: 32
no piece is a byte
  data/subwords.py  Unigram.fit  False -> True: False
seconds to wait for a held lock
  data/encodings.py  entry_lock  0 -> 1: 0
the key only has to be the same for all sizes
  data/prepare.py  too_small_vocabulary  0 -> 1: 0*
a key above all others is compared with the largest, and differs
  data/segmentation.py  DropoutSampler._ranks  1 -> 2: 1 (5)
either order tells texts apart
  data/prepare.py  trained_tokenizers  swap the first two: (text*
all ways share the factor
  data/segmentation.py  _with_shares  0.0 -> 1.0: 0.0
no text has the pair of special pieces that has this key
  data/segmentation.py  DropoutSampler._ranks  drop a minus: -2
  data/segmentation.py  DropoutSampler.__init__  drop a minus: -1 (2)
it is the only way
  data/segmentation.py  LatticeSampler._edges  0.0 -> 1.0: 0.0
the order is that of a hash's input
  data/prepare.py  _determinants  swap the first two*
any negative number does
  data/segmentation.py  DropoutSampler.__init__  1 -> 2: 1
  data/segmentation.py  DropoutSampler.sample  1 -> 2: 1
  data/segmentation.py  DropoutSampler.sample  1 -> 2: 1 (2)
  data/unigram.py  _Lattice._steps  1 -> 2: 1*
  data/unigram.py  _Lattice._forward  1 -> 2: 1
  data/unigram.py  _Lattice.__init__  1 -> 2: 1 (4)
no piece is empty
  data/segmentation.py  LatticeSampler._edges  drop the second term: start + 1 (2)
  data/unigram.py  _Lattice.__init__  drop the second term: start + 1
  data/unigram.py  _seeds  drop the second term: start + 1
a second row that does not fit is cut off
  data/batches.py  bounds  1 -> 2: 1 (3)
any longer hash does
  data/synthetic/corpus.py  _Sentences.take  8 -> 9: 8
no text has a special piece, and anything below the rarest one does
  data/subwords.py  Unigram.fit  10.0 -> 11.0: 10.0
every element is set below
  data/unigram.py  _Lattice.__init__  zeros -> ones*
a joint tokenizer counts both sides together
  data/tokenizer.py  Tokenizer.train  swap src and tgt: chain(src, tgt)
either set may be the one of a side
  data/synthetic/corpus.py  _Sentences.take  swap src and tgt: self._fits(src, tgt, kind)
  data/synthetic/corpus.py  _Sentences._fits  swap the first two: (src_words, tgt_words)
a node that no edge touches
  data/unigram.py  _Lattice.__init__  0 -> 1: 0
  data/unigram.py  _Lattice.__init__  1 -> 2: 1 (3)
letters reach every node
  data/unigram.py  _Lattice._forward  drop a minus: -np.inf
both are added
  data/parallel.py  cleaned  swap the first two: (_INVALID*
no way has a piece that is not in use
  data/unigram.py  _log_share  drop a minus: -np.inf
another spelling of the same JSON
  data/encodings.py  CacheWriter.finish  False -> True: False
both sides of a text are as long
  data/batches.py  Encoded.__len__  src -> *
the longer side counts
  data/prepare.py  _short_pairs  swap encoded.src.lengths*
both sides are added
  data/batches.py  padding  swap the first two: (src, tgt)
dropping pieces saves time; those that are not in use have the probability 0
  data/unigram.py  train_unigram  drop the statement: *
every piece begins where a space is marked, or after it
  data/tokenizer.py  _split_at  False -> True: False
two numbers are compared, and either may come first
  gate/check.py  Check.flaws  swap written and follows*
  gate/check.py  Check.moved  swap before and after: is_close*
  gate/check.py  Check.moved  swap the first two: (old, self) (2)
  gate/checks/exact.py  Exact.moved  swap the first two*
a rise of 0 is left out before
  gate/check.py  Check.loosened  Gt -> GtE: rise > 0*
the width of lines alone
  gate/reference.py  as_yaml  88 -> 89: 88
the sign is 1 or -1
  gate/checks/finding.py  FindingCheck._effect  Gt -> GtE*
so few seeds have been found too few before
  gate/checks/finding.py  FindingCheck._not_replicable  Add -> Sub: self.seeds + 1
  gate/checks/finding.py  FindingCheck._not_replicable  drop the second term: self.seeds + 1
the difference is squared
  gate/checks/paired.py  Paired._sample  swap values and repeats*
  gate/checks/paired.py  Paired._sample  swap the first two*
if the two differ, the repeats are refused, whichever of them is named
  gate/checks/paired.py  Paired._other_machine  0 -> 1: 0
the forecast uses the std and the number of seeds alone
  gate/checks/statistical.py  Statistical.sample_so_far  mean -> *
equal tolerances are close
  gate/mean.py  MeanCheck.loosened  Gt -> GtE*
"""
"""Reasons, and below each its mutants: a file under ``ablate/parts`` or else ``ablate``, a function
and a change, two spaces apart. ``*`` at the end of a change is any text.
"""
_PATTERNS = [line.strip().split("  ") for line in EQUIVALENT.splitlines() if line.startswith(" ")]


def is_equivalent(mutant: Mutant) -> bool:
    """Return whether a mutant is in the list."""
    file, function, change = mutant.key
    return any(
        fnmatch(file, files) and fnmatch(function, functions) and _matches(change, pattern)
        for files, functions, pattern in _PATTERNS
    )


def _matches(change: str, pattern: str) -> bool:
    return change.startswith(pattern[:-1]) if pattern.endswith("*") else change == pattern
