"""The parts of `forebay top`."""
