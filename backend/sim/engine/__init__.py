"""The simulator's C++: threads, memory and reports. Holds no Python."""
