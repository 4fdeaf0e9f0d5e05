#!/usr/bin/env bash
# mypy --strict over the package, the tests, the benchmarks and the examples.
# mypy does not know that ir/, graph/, schedules/ and backend/ are rooms of taskmap, so it is shown a folder of links
# in which they stand inside the package.
set -euo pipefail
cd "$(dirname "$0")/.."

stage=.mypy_src
rm -rf "$stage"
mkdir -p "$stage/taskmap"
for file in taskmap/*; do
    ln -s "../../$file" "$stage/taskmap/"
done
for room in ir graph schedules backend; do
    ln -s "../../$room" "$stage/taskmap/$room"
done

packages=(-p taskmap)
for folder in tests benchmarks examples; do
    [ -d "$folder" ] || continue
    ln -s "../$folder" "$stage/$folder"
    packages+=(-p "$folder")
done

cd "$stage"
mypy --strict --config-file ../pyproject.toml --cache-dir ../.mypy_cache "${packages[@]}"
