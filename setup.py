"""The rooms at the top of the checkout install as one package; everything else is in pyproject.toml."""

from setuptools import find_packages, setup

ROOMS = {"taskmap": "taskmap", "taskmap.ir": "ir", "taskmap.graph": "graph", "taskmap.schedules": "schedules", "taskmap.backend": "backend"}

packages = [
    package
    for name, folder in ROOMS.items()
    for package in (name, *(f"{name}.{inner}" for inner in find_packages(folder)))
]
setup(packages=packages, package_dir=ROOMS)
