"""The kernel one idea at a time: parameters and parts of the design study that never win, still run and measured."""
