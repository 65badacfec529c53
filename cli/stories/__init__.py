"""Why micro-batches wait: judgements about one of them, and about the whole daemon. No I/O."""

from .diagnosis import Fault, Finding, diagnose
from .judgement import judge
from .seen import Case, Judgement, Seen

__all__ = ["Case", "Fault", "Finding", "Judgement", "Seen", "diagnose", "judge"]
