"""JAX: a small net by gradient descent, until $OUTPUT/stop is there: step, loss (all bits), when."""

import os
import time
from pathlib import Path

import jax
import jax.numpy as jnp

OUTPUT = Path(os.environ["OUTPUT"])


def loss(weights, features, target):
    hidden = jnp.tanh(features @ weights["in"])
    return jnp.mean((hidden @ weights["out"] - target) ** 2)


@jax.jit
def step(weights, key):
    features = jax.random.normal(key, (64, 8))
    value, gradient = jax.value_and_grad(loss)(weights, features, jnp.sin(features[:, :1]))
    return value, jax.tree.map(lambda old, slope: old - 0.05 * slope, weights, gradient)


key = jax.random.key(7)
weights = {"in": jax.random.normal(key, (8, 32)) / 3, "out": jnp.zeros((32, 1))}
number = 0
while not (OUTPUT / "stop").exists():
    key, drawn = jax.random.split(key)
    value, weights = step(weights, drawn)
    with (OUTPUT / "lines").open("a") as lines:
        lines.write(f"{number} {float(value).hex()} {time.time()}\n")
    number += 1
    time.sleep(0.1)
