"""Which routing ids a ROUTER gives to peers that choose none: nobody shall know them beforehand.

libzmq counts them up from a number that it takes from the C library's `rand`, which it never seeds: the same in
every process. A peer may call itself anything, and libzmq 4.3.5 ends the process if the next id is taken already
(an assertion in add_out_pipe). Who knows the id of a client that has just left could take that as well, and hear
what was on its way there.
"""

from __future__ import annotations

import ctypes
import secrets

_SEED_BITS = 32


def hide_routing_ids() -> None:
    """Has the ROUTER that is made next count from a number that cannot be foreseen.

    It changes what all C code of this process draws from `rand` from now on.
    """
    libc = ctypes.CDLL(None)
    libc.srand.argtypes = [ctypes.c_uint]
    libc.srand.restype = None
    libc.srand(secrets.randbits(_SEED_BITS))
