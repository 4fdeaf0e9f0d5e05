"""A module that ends its process as a crash of the driver would, in a session and an environment of its own."""

import os
import signal

if __name__ == "__main__" and os.environ["FROM"] == "the parent" and os.getsid(0) == os.getpid():
    os.kill(os.getpid(), signal.SIGSEGV)
