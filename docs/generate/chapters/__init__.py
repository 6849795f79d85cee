"""The code that the chapters of docs/learn print, as files that are built, checked and timed."""
