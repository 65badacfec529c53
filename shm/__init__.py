"""Shared memory: the pool, its slot files, the slot table, and the locks that tell who is alive."""

from .layout import (
    BODY_OFFSET,
    HEADER_BYTES,
    HEADER_FIELDS,
    LAYOUT_VERSION,
    Envelope,
    Field,
    SlotHeader,
    envelope_offset,
    file_bytes_for,
    format_header,
    read_envelope,
    read_header,
    write_envelope,
    write_field,
)
from .locations import default_endpoint, default_pool, make_private_folder, runtime_folder
from .locks import FileLock, LockNote, is_held, read_note, this_peer, wait_until_free
from .memory import free_bytes, mount_point, reserve_pages, shm_full, touch_pages
from .pool import HOLDERS_NAME, LOCK_NAME, Pool, PoolHeader, holder_path, read_pool_header, remove_orphan
from .slot_file import SlotFile, SlotView, slot_path
from .slot_table import IllegalTransitionError, Slot, SlotTable
from .states import SLOT_TRANSITIONS, SlotEvent, SlotState

__all__ = [
    "BODY_OFFSET",
    "HEADER_BYTES",
    "HEADER_FIELDS",
    "HOLDERS_NAME",
    "LAYOUT_VERSION",
    "LOCK_NAME",
    "SLOT_TRANSITIONS",
    "Envelope",
    "Field",
    "FileLock",
    "IllegalTransitionError",
    "LockNote",
    "Pool",
    "PoolHeader",
    "Slot",
    "SlotEvent",
    "SlotFile",
    "SlotHeader",
    "SlotState",
    "SlotTable",
    "SlotView",
    "default_endpoint",
    "default_pool",
    "envelope_offset",
    "file_bytes_for",
    "format_header",
    "free_bytes",
    "holder_path",
    "is_held",
    "make_private_folder",
    "mount_point",
    "read_envelope",
    "read_header",
    "read_note",
    "read_pool_header",
    "remove_orphan",
    "reserve_pages",
    "runtime_folder",
    "shm_full",
    "slot_path",
    "this_peer",
    "touch_pages",
    "wait_until_free",
    "write_envelope",
    "write_field",
]
