"""The autotuner: a study's question and rows, what to try next, measuring, who measures, tables of what was found."""
