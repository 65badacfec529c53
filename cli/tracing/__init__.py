"""The parts of `forebay trace`."""
