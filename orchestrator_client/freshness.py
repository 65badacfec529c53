"""How long a micro-batch may be trained, as a caller says it."""

from __future__ import annotations

from typing import TypeGuard

from forebay.wire import MAX_EXPIRES_S, MAX_POLICY_VERSION, UsageError


def check_freshness(policy_version: object, expires_s: object = None) -> None:
    """Raises UsageError if a policy version or an expiry is none."""
    if policy_version is not None and not (_is_int(policy_version) and 0 <= policy_version <= MAX_POLICY_VERSION):
        raise UsageError("a policy version", got=policy_version, limit=f"None or 0 to {MAX_POLICY_VERSION}")
    if expires_s is not None and not (_is_number(expires_s) and abs(expires_s) <= MAX_EXPIRES_S):
        raise UsageError("an expiry", got=expires_s, limit=f"None or up to {MAX_EXPIRES_S:g} s")


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> TypeGuard[float]:
    return _is_int(value) or isinstance(value, float)
