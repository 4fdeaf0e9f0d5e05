"""Reports: what became of a model, as records, text and a page."""
