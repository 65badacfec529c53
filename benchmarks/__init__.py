"""Benchmarks: what they claim are ratios and counts within one run."""
