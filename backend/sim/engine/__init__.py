"""C++ of the simulator itself: threads, memory and what is reported about them."""
