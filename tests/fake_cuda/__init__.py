"""A machine with CUDA for tests: PyTorch's rules of streams and captures, kept over CPU tensors.

All tensors are on the CPU and say that they are on the machine's device. What is captured is kept
operation by operation (`tests.tape`) and replayed on the memory that it had. Where PyTorch would
fail, or compute something else without a word, this fails too. The rules, with the functions of
PyTorch that they are from (C++ of August 2026 and, where versions differ, of 2.11):

- pool: a pool lives as long as a graph in it. c10/cuda/CUDACachingAllocator.cpp: releasePool.
- failure: of a capture that was invalidated neither the allocator nor the generator learns.
  aten/src/ATen/cuda/CUDAGraph.cpp: capture_end; CUDAGeneratorState::increase.
- not permitted in a capture: to wait for the device, to copy numbers to the host, to make a shape
  depend on them, to seed; to destroy another graph (2.11, CUDAGraph.cpp: reset).
- inference mode: a seed that is a tensor of inference mode cannot be filled outside of it.
- workspaces: the end of a graph frees the memory that matrix products on its stream use, also
  that of other graphs (2.12 and 2.13, CUDAGraph.cpp: reset; pytorch/pytorch issue 193402).
- streams: each device has a pool of 32 (c10/cuda/CUDAStream.cpp: kStreamsPerPool). What one
  writes, another may use after it has waited for it. What names no device means the current one.
- optimizers: torch/optim/optimizer.py, _accelerator_graph_capture_health_check.
- memory: a graph uses the memory of its capture; what a pool has reserved stays reserved.
"""

from tests.fake_cuda.machine import GRAPH_MIB, MIB, STREAMS, CudaMachine

__all__ = ["GRAPH_MIB", "MIB", "STREAMS", "CudaMachine"]
