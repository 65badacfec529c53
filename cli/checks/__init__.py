"""What `forebay doctor` looks at: findings are taken from the host, and judged apart from that."""

from .line import Line, Verdict, is_bad
from .plan import CHECKS, Check, examine

__all__ = ["CHECKS", "Check", "Line", "Verdict", "examine", "is_bad"]
