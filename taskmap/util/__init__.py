"""Helpers of the whole package: progress, dumps, atomic writes."""
