"""The study's instruments: the ladder of design steps, models of protocols, verification, counters, the guard."""
