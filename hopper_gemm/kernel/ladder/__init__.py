"""Steps of the design study that never win: still run, still measured, out of the way of the main kernel."""
