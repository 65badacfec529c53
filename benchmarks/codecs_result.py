"""What the benchmark of the codecs is given, and what it comes to."""

from __future__ import annotations

import msgspec

from forebay.orchestrator_client.settings import CODEC_SETTINGS
from forebay.wire import SettingError


class CodecsBenchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is run.

    Attributes:
        payload_mib: MiB of a micro-batch; 98 % of them are expert ids below 512, in int16.
        rounds: Of each kind of micro-batch, in turn, after one that does not count.
        wire_gb_s: GB a second that the sender keeps to.
        codec: How arrays travel.
    """

    payload_mib: float = 256.0
    rounds: int = 7
    wire_gb_s: float = 0.5
    codec: str = "auto"

    def __post_init__(self) -> None:
        for name, low, high in (("payload_mib", 1, 7168), ("rounds", 1, 1000), ("wire_gb_s", 0.01, 100)):
            value = getattr(self, name)
            if not low <= value <= high:
                raise SettingError(f"setting {name}", got=value, limit=f"{low} to {high}")
        if self.codec not in CODEC_SETTINGS:
            raise SettingError("setting codec", got=self.codec, limit=", ".join(CODEC_SETTINGS))


class KindResult(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of micro-batch; medians over the rounds. A GB is 10^9 bytes.

    Attributes:
        codec: In which its expert ids could travel.
        ratio: Bytes of the expert ids on the wire over those of the array.
        gbps: GB of arrays a second, from the offer until all was published.
        gbps_spread: Least and greatest.
        sender_cpu_s_per_gb: Seconds of CPU of the sender's process for a GB of arrays.
        daemon_cpu_s_per_gb: The same of the daemon's.
    """

    codec: str
    ratio: float
    gbps: float
    gbps_spread: tuple[float, float]
    sender_cpu_s_per_gb: float
    daemon_cpu_s_per_gb: float


class ThreadResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one thread does with a chunk of expert ids.

    Attributes:
        encode_gbps: GB of arrays that it encodes a second.
        decode_gbps: GB of arrays that it decodes a second.
    """

    encode_gbps: float
    decode_gbps: float


class CodecsBenchResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came out.

    Attributes:
        full: Wire bytes over array bytes, where all rows are filled.
        fill60: The same, where rows are filled to 60 % and padded with -1.
        full_gbps: GB of arrays a second over the throttled wire.
        fill60_gbps: The same of the padded rows.
        raw_gbps: The same of full rows with the codec `raw`: what the wire itself carries.
        unthrottled: Wire bytes over array bytes with the same codec setting and no throttle.
        kinds: Each kind: `full`, `fill60`, `raw`.
        thread: By codec.
        daemon_private_mib: Most private memory of the daemon that was seen.
        settings: As they were set.
        wire: What stood for the wire.
    """

    full: float
    fill60: float
    full_gbps: float
    fill60_gbps: float
    raw_gbps: float
    unthrottled: float
    kinds: dict[str, KindResult]
    thread: dict[str, ThreadResult]
    daemon_private_mib: float
    settings: CodecsBenchSettings
    wire: str
