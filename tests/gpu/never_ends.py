"""A module whose process has to be ended."""

import time

if __name__ == "__main__":
    time.sleep(10_000)
