"""Schedules for NVIDIA GPUs: rules for what every model has, templates for what takes the time."""
