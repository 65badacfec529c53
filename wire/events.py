"""What happens in a process of Forebay, in the words that its log uses."""

from __future__ import annotations

import enum


class Event(enum.StrEnum):
    """What a log record is about: its first word, and `event` where it is written as JSON."""

    # The daemon's life.
    SERVING = "serving"
    HTTP = "http"
    INSECURE = "insecure"
    DRAIN = "drain"
    STOPPED = "stopped"
    PAUSE = "pause"
    RESUME = "resume"
    FORGET = "forget"
    RESET = "reset"
    SETTING_CHANGED = "setting_changed"
    RESTART_NEEDED = "restart_needed"
    RELOAD_REFUSED = "reload_refused"
    NOTIFY_FAILED = "notify_failed"

    # Micro-batches and trainers, as the daemon sees them; the states are those of a micro-batch.
    OFFERED = "offered"
    FILLING = "filling"
    READY = "ready"
    ON_DEVICE = "on_device"
    CONSUMED = "consumed"
    DROPPED = "dropped"
    LOST = "lost"
    LENT = "lent"
    RELEASED = "released"
    QUARANTINED = "quarantined"
    RETURNED = "returned"
    REFUSE = "refuse"
    STALE = "stale"
    ALREADY_ON_DEVICE = "already_on_device"
    ATTACH = "attach"
    DETACH = "detach"

    # The pool.
    ADOPT = "adopt"
    DISCARD = "discard"
    SLOT_UNREADABLE = "slot_unreadable"
    RESERVE_FAILED = "reserve_failed"
    LOCK_UNWATCHED = "lock_unwatched"
    HOLDER_STAYS = "holder_stays"

    # Connections and who may enter, of daemon and worker.
    CONNECTIONS_LOWERED = "connections_lowered"
    CONNECTIONS_FULL = "connections_full"
    CONNECTIONS_TAKEN_AGAIN = "connections_taken_again"
    HANDSHAKE_FAILED = "handshake_failed"
    STRANGER_TURNED_AWAY = "stranger_turned_away"
    GATE_FAILED = "gate_failed"
    AUTHORISED_FILE_CHANGED = "authorised_file_changed"
    AUTHORISED_FILE_WRONG = "authorised_file_wrong"
    ANSWERS_WITHHELD = "answers_withheld"
    ANSWERS_UNDELIVERABLE = "answers_undeliverable"
    PAGE_FAILED = "page_failed"
    LEFT_OUT = "left_out"

    # The trainer's staging queue.
    STAGE_PROMOTE = "STAGE_PROMOTE"
    STAGE_DEMOTE = "STAGE_DEMOTE"
    STAGE_FAIL = "STAGE_FAIL"
    STAGE_STALE = "STAGE_STALE"
    STAGE_WAIT = "STAGE_WAIT"
    STAGE_OFF = "STAGE_OFF"
    STAGE_MISMATCH = "STAGE_MISMATCH"
    STAGE_UNWATCHED = "STAGE_UNWATCHED"
    STAGE_REFUSED = "STAGE_REFUSED"
    REPLICATED = "replicated"
    TRANSFER_FAILED = "transfer_failed"
    WORK_UNSEEN = "work_unseen"
    WORK_FAILED = "work_failed"
    OUTPUTS_UNSEEN = "outputs_unseen"

    # The trainer's link to the daemon.
    LINK_FAILED = "link_failed"
    REPORT_UNDELIVERED = "report_undelivered"
    REPORT_UNCONFIRMED = "report_unconfirmed"

    # The trainer's worker.
    WORKER_READY = "worker_ready"
    WORKER_HANGS = "WORKER_HANGS"
    STEP_DONE = "STEP_DONE"
    CALL_RAISED = "call_raised"
    UNREADABLE_CALL = "unreadable_call"

    # Who asks a daemon or a worker.
    UNREADABLE_ANSWER = "unreadable_answer"
    LOOK_FAILED = "look_failed"
    DATA_ENDPOINT = "data_endpoint"
    ANSWER_OMITTED = "answer_omitted"
    AHEAD_FALLBACK = "stage_fallback"
    AHEAD_STALE = "stage_stale"
    AHEAD_CLOSE = "stage_ahead_close"


EVENT_MEANINGS: dict[Event, str] = {
    Event.SERVING: "the daemon has its sockets and its pool, and takes offers",
    Event.HTTP: "the daemon answers over HTTP",
    Event.INSECURE: "an endpoint lets everybody in who reaches it",
    Event.DRAIN: "the daemon takes in nothing more, by a signal to stop or by an operator's order",
    Event.STOPPED: "the daemon has closed its sockets and its pool",
    Event.PAUSE: "by an operator's order nothing more is lent of a queue, or of any where none is named",
    Event.RESUME: "by an operator's order what was drained or paused goes on",
    Event.FORGET: "by an operator's order a key may be used as if it were new",
    Event.RESET: "a queue was reset: what its trainer does not hold is dropped",
    Event.SETTING_CHANGED: "after SIGHUP: a setting has a new value",
    Event.RESTART_NEEDED: "after SIGHUP: these settings have changed as well, and need a restart",
    Event.RELOAD_REFUSED: "after SIGHUP: the settings cannot be read; nothing has changed",
    Event.NOTIFY_FAILED: "the service manager that NOTIFY_SOCKET names cannot be told; said once",
    Event.OFFERED: "a micro-batch was offered and waits for a slot",
    Event.FILLING: "a micro-batch got a slot, and its bytes arrive",
    Event.READY: "a micro-batch is complete and checked, and waits in its queue",
    Event.ON_DEVICE: "a micro-batch is on the trainer's device",
    Event.CONSUMED: "a micro-batch was trained",
    Event.DROPPED: "a micro-batch is over before it was trained; the reason says why",
    Event.LOST: "a micro-batch was on the device of a trainer that went before it was finished",
    Event.LENT: "a trainer may read a micro-batch's slot",
    Event.RELEASED: "a trainer needs a micro-batch's slot no longer",
    Event.QUARANTINED: "a slot's trainer is gone or seems so, and may still read it",
    Event.RETURNED: "a quarantined slot is ready again, in its old place",
    Event.REFUSE: "a request was refused; the code is one of the refusal codes",
    Event.STALE: "a micro-batch was refused or dropped since it, or its policy, is too old",
    Event.ALREADY_ON_DEVICE: "what was staged or offered of a key ended, since the trainer has it by another way",
    Event.ATTACH: "a trainer came to its queue",
    Event.DETACH: "a trainer is gone, by what the kernel says of its lock",
    Event.ADOPT: "a daemon took over a micro-batch that it found in the pool, or that a trainer had on its device",
    Event.DISCARD: "a micro-batch waits in its queue at a stop that keeps no pool, and ends with it",
    Event.SLOT_UNREADABLE: "a slot that was found in the pool holds nothing that can be read",
    Event.RESERVE_FAILED: "a slot could not grow",
    Event.LOCK_UNWATCHED: "the lock of a holder cannot be waited for now; it is tried again",
    Event.HOLDER_STAYS: "the lock file of a holder that is gone cannot be removed",
    Event.CONNECTIONS_LOWERED: "fewer connections are taken than the setting asks for: descriptors would run out",
    Event.CONNECTIONS_FULL: "an endpoint has as many connections as it may, and takes no more",
    Event.CONNECTIONS_TAKEN_AGAIN: "an endpoint takes connections again",
    Event.HANDSHAKE_FAILED: "somebody connected and did not get through the handshake",
    Event.STRANGER_TURNED_AWAY: "somebody came with a key that is not authorised",
    Event.GATE_FAILED: "a key could not be looked up; its client was not let in",
    Event.AUTHORISED_FILE_CHANGED: "the file of authorised clients was read anew",
    Event.AUTHORISED_FILE_WRONG: "the file of authorised clients cannot be used any more; those known so far stay",
    Event.ANSWERS_WITHHELD: "answers were thrown away, since their peer reads none",
    Event.ANSWERS_UNDELIVERABLE: "answers were thrown away, since their peer is gone",
    Event.PAGE_FAILED: "a page could not be shown over HTTP, for a reason in the daemon itself",
    Event.LEFT_OUT: "events of one kind were not logged, since there were too many; they are counted here",
    Event.STAGE_PROMOTE: "a micro-batch's transfer to the device is complete",
    Event.STAGE_DEMOTE: "a micro-batch was brought back to the host, to make room for one out of order",
    Event.STAGE_FAIL: "a transfer failed",
    Event.STAGE_STALE: "a micro-batch was dropped before its transfer, since it was stale",
    Event.STAGE_WAIT: "somebody has waited long for the staging queue, and waits on",
    Event.STAGE_OFF: "a daemon feeds a queue whose engine stages nothing",
    Event.STAGE_MISMATCH: "a step's payload is not what was staged under its key; said once a process",
    Event.STAGE_UNWATCHED: "the device's work on an engine's outputs cannot be waited for; said once a process",
    Event.STAGE_REFUSED: "a payload could not be staged in process",
    Event.REPLICATED: "a leaf cannot be divided as its sharding says, and is replicated; said once a leaf",
    Event.TRANSFER_FAILED: "where in the code a transfer failed",
    Event.WORK_UNSEEN: "whether the device is done with dispatched work could not be looked at",
    Event.WORK_FAILED: "the device's work failed; whoever uses its results is told",
    Event.OUTPUTS_UNSEEN: "what an engine returned could not be taken apart, and is not waited for",
    Event.LINK_FAILED: "the trainer's link to the daemon ended by an error",
    Event.REPORT_UNDELIVERED: "a report to the daemon came after the link's end",
    Event.REPORT_UNCONFIRMED: "the link ended before the daemon confirmed a report",
    Event.WORKER_READY: "the worker takes calls",
    Event.WORKER_HANGS: "a method of the worker still runs after its end; the process is ended",
    Event.STEP_DONE: "the device is done with a step that the worker was called for",
    Event.CALL_RAISED: "a method that the worker was called for raised; its caller is told",
    Event.UNREADABLE_CALL: "a message to the worker cannot be read",
    Event.UNREADABLE_ANSWER: "an answer of a daemon or of a worker cannot be read",
    Event.LOOK_FAILED: "why a server does not answer could not be found out",
    Event.DATA_ENDPOINT: "where bulk data goes, and what guards it there",
    Event.ANSWER_OMITTED: "what a method of the worker returned was left out of its answer",
    Event.AHEAD_FALLBACK: "a micro-batch was not staged, and goes inline",
    Event.AHEAD_STALE: "a micro-batch was left out of its step, since it was stale",
    Event.AHEAD_CLOSE: "something went wrong while the stage-ahead loop was ended",
}
"""What each event means; the page of events in the docs is made from it."""
