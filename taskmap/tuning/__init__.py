"""Tuning: which configuration of an operator is fastest here, and the database that remembers it."""
