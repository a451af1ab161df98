"""A machine with CUDA for tests: PyTorch's rules of streams and captures, kept over CPU tensors.

All tensors are on the CPU and say that they are on the machine's device. What is captured is kept
operation by operation (`tests.tape`) and replayed on the memory that it had. Where PyTorch would
fail, or compute something else without a word, this fails too. The rules, with the functions of
PyTorch that they are from (C++ of August 2026 and, where versions differ, of 2.11):

- pool: a pool lives as long as a graph in it; later captures with its handle fail an assertion.
  c10/cuda/CUDACachingAllocator.cpp: beginAllocateToPool, create_or_incref_pool, releasePool.
- failure: a capture that was invalidated ends with an error, of which neither the allocator nor the
  generator learns. aten/src/ATen/cuda/CUDAGraph.cpp: capture_end. From then on random numbers
  cannot be drawn (2.11, aten/src/ATen/cuda/CUDAGeneratorImpl.cpp: CUDAGeneratorState::increase),
  memory cannot be given back (CUDACachingAllocator.cpp: release_cached_blocks,
  synchronize_and_free_events), and the pool cannot be captured to (beginAllocateToPool).
- not permitted in a capture: to wait for the device, to copy numbers to the host, to make a shape
  depend on them, to seed. CUDAGeneratorImpl.cpp: set_current_seed; CUDA's cudaStreamBeginCapture.
- inference mode: the first capture makes the generator's seed on the device. If that is a tensor of
  inference mode, nothing outside that mode can fill it (2.11, CUDAGeneratorImpl.cpp:
  register_graph, capture_prologue, replay_prologue).
- destruction: a graph must not be destroyed during the capture of another (2.11, CUDAGraph.cpp:
  reset; later versions relax the mode of the capture there).
- workspaces: the end of a graph frees the memory that matrix products on its capture stream use,
  be it that of other graphs too (2.12 and 2.13, CUDAGraph.cpp: reset,
  clearCublasWorkspacesForStream; pytorch/pytorch issue 193402).
- streams: each device has its own, a pool of 32 that are dealt out in turn
  (c10/cuda/CUDAStream.cpp: get_idx, kStreamsPerPool). What one stream writes, another may use
  after it has waited for it.
- device: what names none means the current one (torch/cuda/random.py:105, torch/cuda/streams.py:43,
  torch/cuda/__init__.py:785, StreamContext, whose stream brings its device along).
- optimizers: torch/optim/optimizer.py:448, _accelerator_graph_capture_health_check.
- addresses: a graph reads and writes the memory of its capture, whatever lies there by then.
- memory: what a pool has reserved stays reserved while nothing in it is allocated.

Lines of Python files are those of PyTorch 2.13.
"""

from tests.fake_cuda.machine import GRAPH_MIB, MIB, STREAMS, CudaMachine

__all__ = ["GRAPH_MIB", "MIB", "STREAMS", "CudaMachine"]
