"""Checks and measurements on a machine with a GPU: `make gpu`."""
