"""A measuring process that builds nothing and takes no time: its samples are invented."""

import json
import sys
import time

job = json.loads(sys.stdin.readline())


def say(event: str, **content: object) -> None:
    print(json.dumps({"event": event, **content}), flush=True)


for config in job["configs"]:
    say("built", config=config, key="0" * 64, symbol="none")
for _ in range(job["samples"]):
    for number, config in enumerate(job["configs"]):
        say("start", config=config)
        say("sample", config=config, seconds=1e-3 * (2 + number % 5) + time.time() % 1e-4)
say("end")
