"""One self-contained HTML page for a study: records for its charts and its table, and the document."""
