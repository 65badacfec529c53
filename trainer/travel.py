"""What a method returned, waited for on the device and made ready to travel."""

from __future__ import annotations

import logging
from typing import Any

import jax
import msgspec
import numpy as np

from forebay.sockets import tell
from forebay.wire import Event, Limits, PackedTree, TreeError, TreeRegistry, pack, words_of

from .device_work import is_deleted, is_work

log = logging.getLogger("forebay.trainer")


def wait_for(outputs: Any) -> None:
    """Waits until the device has made all of it; what was donated to later work is passed over.

    What JAX cannot take apart is not waited for: the work was done, and must not be taken for work that failed.

    Raises:
        Exception: Whatever the device's work failed with.
    """
    try:
        leaves = jax.tree.leaves(outputs)
    except Exception as error:  # noqa: BLE001 - an engine's outputs may be anything
        tell(log, logging.DEBUG, Event.OUTPUTS_UNSEEN, reason=words_of(error))
        return
    for leaf in leaves:
        if not is_work(leaf) or is_deleted(leaf):
            continue
        try:
            leaf.block_until_ready()
        except Exception:
            if not is_deleted(leaf):
                raise


def packed(outputs: Any, registry: TreeRegistry, max_bytes: int) -> tuple[PackedTree | None, str]:
    """Packs what a method returned, or says why it does not travel.

    Args:
        outputs: A pytree; device arrays in it are fetched.
        registry: Classes that may occur in it.
        max_bytes: More stays here: an engine may return all of its gradients.

    Returns:
        The packed tree, or None and the reason.
    """
    limits = msgspec.structs.replace(
        Limits(), max_micro_batch_bytes=max_bytes, max_manifest_bytes=max_bytes, size_setting="max_answer_bytes"
    )
    try:
        leaves = jax.tree.leaves(outputs)
        nbytes = sum(leaf.nbytes for leaf in leaves if isinstance(leaf, jax.Array | np.ndarray))
        if nbytes > max_bytes:
            return None, f"{nbytes} bytes in {len(leaves)} leaves are over {max_bytes} (max_answer_bytes)"
        return pack(jax.tree.map(_fetched, outputs), registry=registry, limits=limits), ""
    except TreeError as error:
        return None, str(error)
    except Exception as error:  # noqa: BLE001 - no pytree, spread over several processes, or donated just now
        return None, words_of(error)


def _fetched(leaf: Any) -> Any:
    if isinstance(leaf, jax.Array):
        return np.asarray(leaf)
    # What only behaves like a device array has nothing that could travel.
    return None if is_work(leaf) else leaf
