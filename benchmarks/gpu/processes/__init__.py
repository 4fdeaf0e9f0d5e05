"""The processes of `make gpu`: begun, forked, watched and ended."""
