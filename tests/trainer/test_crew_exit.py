"""A process whose worker's thread is inside of JAX when it ends: it waits for that, and keeps its exit code."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys, threading
import jax, jax.numpy as jnp
from forebay.trainer.crew import Crew

began = threading.Event()

def spin():
    began.set()
    jax.block_until_ready(jax.lax.fori_loop(0, 300_000, lambda _, x: jnp.sin(x) + 1, jnp.ones(64)))

crew = Crew("exit", 1)
crew.submit(spin)
began.wait()
crew.close(0)
sys.exit(7)
"""


def test_a_process_that_ends_while_a_method_is_inside_of_jax_keeps_its_exit_code() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (7, "")
