"""The rooms at the top of the checkout install as one package `taskmap`; everything else is in pyproject.toml."""

from setuptools import find_packages, setup

ROOMS = {
    "taskmap": "taskmap",
    "taskmap.ir": "ir",
    "taskmap.graph": "graph",
    "taskmap.schedules": "schedules",
    "taskmap.backend": "backend",
}

setup(
    packages=[*ROOMS, *(f"{room}.{inner}" for room, folder in ROOMS.items() for inner in find_packages(folder))],
    package_dir=ROOMS,
)
