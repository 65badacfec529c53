"""Forebay stages micro-batches in host shared memory, right before the accelerator."""
