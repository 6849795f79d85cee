"""Operands and output moved by threads instead of the copy engine: cp.async loads, stores from registers."""
