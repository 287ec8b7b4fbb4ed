"""OpenRLHF can be imported without CUDA once the CPU runtime is installed."""

from meds_openrlhf.training.openrlhf import cpu

if not cpu.has_cuda():
    cpu.install()
