"""The autotuner: a study's question and rows, search, measurement, workers, tables of results."""
