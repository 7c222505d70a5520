"""JAX: a small network in training, with batches of several lengths."""
import jax
import jax.numpy as jnp
import numpy
from jax._src import hardware_utils

hardware_utils.has_visible_nvidia_gpu = lambda: True  # JAX looks for files in /dev


def loss(weights, x):
    for weight in weights:
        x = jnp.tanh(x @ weight)
    return jnp.mean(x**2)


step = jax.jit(lambda weights, x: jax.tree.map(lambda a, g: a - 1e-3 * g, weights, jax.grad(loss)(weights, x)))
assert jax.devices()[0].platform == "gpu"
weights = [jnp.zeros((1024, 1024)) for _ in range(4)]
for i in range(20):
    weights = jax.block_until_ready(step(weights, jax.device_put(numpy.zeros((256 * (i % 3 + 1), 1024), "f"))))
