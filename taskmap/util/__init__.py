"""Helpers of the whole package: progress, dumps."""
