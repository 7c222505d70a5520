"""A program for JAX: batches of ten lengths in random order through a small network, some of them kept. Prints how much the device holds at most
beside its context, and how much JAX says it has asked for. docs/preload.md has the figures; JAX 0.10.2 (jax, jaxlib, jax-cuda13-plugin and
jax-cuda13-pjrt).

    export XLA_FLAGS=--xla_gpu_autotune_level=0 XLA_PYTHON_CLIENT_PREALLOCATE=false XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async
    cenote run --sim 40GiB bench/reach/jax_lengths.py               the driver's pool; without the last variable JAX's own
    cenote run --sim 40GiB --preload bench/reach/jax_lengths.py     cenote: its line at the end has the figures
"""
import ctypes
import random

import jax
import jax.numpy as jnp
import numpy
from jax._src import hardware_utils

WIDTH, LAYERS, STEPS = 1024, 4, 200
hardware_utils.has_visible_nvidia_gpu = lambda: True  # JAX looks for files in /dev
driver = ctypes.CDLL("libcuda.so.1")
random.seed(1)


def in_use():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    return total.value - free.value


def loss(weights, x):
    for weight in weights:
        x = jnp.tanh(x @ weight)
    return jnp.mean(x**2)


step = jax.jit(lambda weights, x: jax.tree.map(lambda a, g: a - 1e-3 * g, weights, jax.grad(loss)(weights, x)))
device = jax.devices()[0]
context = in_use()
weights = [jnp.zeros((WIDTH, WIDTH)) for _ in range(LAYERS)]
lengths = [random.randrange(2048, 24576) for _ in range(10)]
kept, most = [], 0
for _ in range(STEPS):
    x = jax.device_put(numpy.zeros((random.choice(lengths), WIDTH), "f"))
    weights = jax.block_until_ready(step(weights, x))
    kept.append(x)
    del x
    while len(kept) > random.randrange(8, 16):
        kept.pop(random.randrange(len(kept)))
    most = max(most, in_use() - context)
figures = device.memory_stats()
print(f"held {most:,} bytes, JAX's pool {figures.get('peak_pool_bytes') or 0:,}, asked for {figures['peak_bytes_in_use']:,}")
