"""Which codec a leaf may travel in: found by encoding samples of it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from forebay.wire import BITSHUFFLE_LZ4, RAW, SHUFFLE_LZ4, Array, decode_chunk, encode_chunk

from .settings import AUTO

_MIN_LEAF_BYTES: Final = 256 << 10
"""Smaller leaves share chunks with others, which travel raw, or are not worth a look."""
_SAMPLES: Final = 4
_SAMPLE_BYTES: Final = 32 << 10
_FAST_BYTES_PER_S: Final = 6e9
"""A link on which no codec pays, however many threads encode: samples are not even looked at."""
_MAX_RATIO: Final = 0.95
"""What saves less costs more to decode than it is worth."""
_GAIN: Final = 1.1
"""What encoding has to win: the samples and the link's rate are not that exact."""
_CLEARLY_SMALLER: Final = 0.97
"""The bit-shuffle costs more to decode, so it has to save more."""


@dataclasses.dataclass(frozen=True, slots=True)
class CodecChoice:
    """How a leaf may travel.

    Attributes:
        codec: Name from `CODECS`.
        ratio: Encoded over decoded bytes, in the samples.
        encode_bytes_per_s: Decoded bytes that one thread encodes a second, in the samples.
        decode_bytes_per_s: The same for decoding.
        is_forced: Whether it was asked for, however fast the link is.
    """

    codec: str
    ratio: float = 1.0
    encode_bytes_per_s: float = float("inf")
    decode_bytes_per_s: float = float("inf")
    is_forced: bool = False

    def pays(self, link_bytes_per_s: float | None, encoders: int) -> bool:
        """Tells whether encoded bytes arrive sooner than raw ones.

        Args:
            link_bytes_per_s: What the link was seen to carry; None if that is not known yet.
            encoders: Threads that encode.
        """
        if self.codec == RAW:
            return False
        if self.is_forced or link_bytes_per_s is None:
            return self.is_forced
        # The receiver has one thread that decodes, if not more. Were that not counted, a link on which it is the
        # limit would seem slow, and encoding on it all the better.
        encoded = min(link_bytes_per_s / self.ratio, self.encode_bytes_per_s * encoders, self.decode_bytes_per_s)
        return encoded > _GAIN * link_bytes_per_s


AS_IT_IS: Final = CodecChoice(RAW)


def needs_samples(arrays: Sequence[Array], codec: str, link_bytes_per_s: float | None) -> bool:
    """Tells whether `choose_codecs` will encode samples, which takes a while."""
    return _may_pay(codec, link_bytes_per_s) and any(array.nbytes >= _MIN_LEAF_BYTES for array in arrays)


def choose_codecs(
    arrays: Sequence[Array],
    codec: str,
    link_bytes_per_s: float | None,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[CodecChoice, ...]:
    """Chooses how each leaf may travel.

    Args:
        arrays: The leaves, contiguous.
        codec: From `CODEC_SETTINGS`.
        link_bytes_per_s: What the link was seen to carry; None if that is not known yet.
        clock: Seconds, to see how fast samples are encoded.

    Returns:
        One choice for each leaf.
    """
    if _may_pay(codec, link_bytes_per_s):
        return tuple(_choose(array, clock) for array in arrays)
    if codec in (AUTO, RAW):
        return (AS_IT_IS,) * len(arrays)
    forced = CodecChoice(codec, is_forced=True)
    return tuple(forced if array.nbytes else AS_IT_IS for array in arrays)


def _may_pay(codec: str, link_bytes_per_s: float | None) -> bool:
    return codec == AUTO and (link_bytes_per_s is None or link_bytes_per_s < _FAST_BYTES_PER_S)


def _choose(array: Array, clock: Callable[[], float]) -> CodecChoice:
    if array.nbytes < _MIN_LEAF_BYTES:
        return AS_IT_IS
    samples = _samples(array)
    plain = _try_out(SHUFFLE_LZ4, samples, array.itemsize, clock)
    bitwise = _try_out(BITSHUFFLE_LZ4, samples, array.itemsize, clock)
    best = bitwise if bitwise.ratio < _CLEARLY_SMALLER * plain.ratio else plain
    return best if best.ratio <= _MAX_RATIO else AS_IT_IS


def _samples(array: Array) -> list[memoryview]:
    octets = array.reshape(-1).view(np.uint8)
    step = (array.nbytes - _SAMPLE_BYTES) // (_SAMPLES - 1)
    starts = (index * step // array.itemsize * array.itemsize for index in range(_SAMPLES))
    return [octets[start : start + _SAMPLE_BYTES].data for start in starts]


def _try_out(codec: str, samples: Sequence[memoryview], itemsize: int, clock: Callable[[], float]) -> CodecChoice:
    encoded_bytes = decoded_bytes = 0
    encode_s = decode_s = float("inf")
    place = memoryview(bytearray(_SAMPLE_BYTES))
    for sample in samples:
        began_at = clock()
        frame = encode_chunk(codec, sample, itemsize)
        # The fastest of them: another process that takes the processor for a moment says nothing about the codec.
        encode_s = min(encode_s, clock() - began_at)
        decoded_bytes += len(sample)
        encoded_bytes += len(sample if frame is None else frame)
        if frame is not None:
            began_at = clock()
            decode_chunk(codec, frame, place)
            decode_s = min(decode_s, clock() - began_at)
    return CodecChoice(
        codec,
        encoded_bytes / decoded_bytes,
        encode_bytes_per_s=_SAMPLE_BYTES / max(encode_s, 1e-9),
        decode_bytes_per_s=_SAMPLE_BYTES / max(decode_s, 1e-9),
    )
