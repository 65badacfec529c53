"""Shared memory: the pool, its slot files, the slot table, and the locks that tell who is alive."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.lazy_names import lazy_names

if TYPE_CHECKING:
    from .deployment import SHARE_SHM, SHARE_USER, private_words
    from .holders import HOLDERS_NAME, holder_fault, holder_path, holder_peer, lock_holder
    from .layout import (
        BODY_OFFSET,
        HEADER_BYTES,
        HEADER_FIELDS,
        LAYOUT_VERSION,
        MAX_COUNT,
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
    from .locations import default_endpoint, default_pool, group_id, make_private_folder, runtime_folder, share
    from .locks import FileLock, LockNote, is_held, read_note, this_peer, wait_until_free
    from .memory import (
        free_bytes,
        grow_mapped,
        keep_freed_memory,
        mount_point,
        reserve_pages,
        shm_full,
        touch_pages,
    )
    from .outcomes import JOURNAL_NAME, Outcome, OutcomeJournal, read_outcomes
    from .pool import LOCK_NAME, Pool, PoolHeader, read_pool_header, remove_orphan
    from .slot_file import SlotFile, SlotView, slot_path
    from .slot_table import IllegalTransitionError, Slot, SlotTable
    from .states import SLOT_TRANSITIONS, SlotEvent, SlotState
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "BODY_OFFSET",
    "HEADER_BYTES",
    "HEADER_FIELDS",
    "HOLDERS_NAME",
    "JOURNAL_NAME",
    "LAYOUT_VERSION",
    "LOCK_NAME",
    "MAX_COUNT",
    "SHARE_SHM",
    "SHARE_USER",
    "SLOT_TRANSITIONS",
    "Envelope",
    "Field",
    "FileLock",
    "IllegalTransitionError",
    "LockNote",
    "Outcome",
    "OutcomeJournal",
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
    "group_id",
    "grow_mapped",
    "holder_fault",
    "holder_path",
    "holder_peer",
    "is_held",
    "keep_freed_memory",
    "lock_holder",
    "make_private_folder",
    "mount_point",
    "private_words",
    "read_envelope",
    "read_header",
    "read_note",
    "read_outcomes",
    "read_pool_header",
    "remove_orphan",
    "reserve_pages",
    "runtime_folder",
    "share",
    "shm_full",
    "slot_path",
    "this_peer",
    "touch_pages",
    "wait_until_free",
    "write_envelope",
    "write_field",
]
