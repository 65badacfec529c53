"""Coverage-guided fuzzing of one decoder, where atheris is installed: `python -m pip install atheris`, then

    python tests/fuzz/guided.py TARGET [any of libFuzzer's options, as -max_total_time=120]

It ends with the input that found something, or with nothing.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from pathlib import Path

_HERE = Path(__file__).parent


def main() -> None:
    """Fuzzes the target that the first argument names."""
    name = sys.argv[1]
    atheris = importlib.import_module("atheris")
    # As a package of its own: the folder above need not be one.
    sys.path.insert(0, str(_HERE.parent))
    with atheris.instrument_imports(include=["forebay"]):
        targets = importlib.import_module("fuzz.targets")
        seeds = importlib.import_module("fuzz.seeds")
    with tempfile.TemporaryDirectory(prefix="forebay-corpus-") as corpus:
        for number, seed in enumerate(seeds.SEEDS[name]):
            Path(corpus, f"seed-{number}").write_bytes(seed)
        atheris.Setup([sys.argv[0], *sys.argv[2:], corpus], lambda data: targets.run(name, data))
        atheris.Fuzz()


if __name__ == "__main__":
    main()
