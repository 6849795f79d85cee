"""Numbered notebooks, one question each, and their helpers."""
